// A text, the model of the right size for it, and a translation that comes piece by piece.

import { Model, loadRuntime } from "./model.js";
import { Text } from "./text.js";

/** A text that the model cannot take; the message says why. */
export class TextError extends Error {}

export class Translator {
  /**
   * @param {URL} place of a .tflite, or of a folder that ends in "/"
   * @param {number[]} lengths of a folder's files, `8.tflite` and so on
   * @param onProgress as of `download`
   */
  static async open(place, lengths, onProgress) {
    const isFile = !place.pathname.endsWith("/");
    const sorted = [...lengths].sort((a, b) => a - b);
    const urls = isFile ? [place] : sorted.map((length) => new URL(`${length}.tflite`, place));
    const runtime = await loadRuntime(onProgress);
    const smallest = await Model.load(runtime, urls[0], onProgress);
    return new Translator(runtime, urls, isFile ? [smallest.sourceLength] : sorted, smallest);
  }

  constructor(runtime, urls, lengths, smallest) {
    this.runtime = runtime;
    this.urls = urls;
    this.lengths = lengths;
    this.models = [smallest];
    const config = smallest.config;
    this.end = config.end_id;
    this.hasBeams = smallest.hasBeams;
    this.source = new Text(smallest.vocabulary("source"), config.source);
    this.target = new Text(smallest.vocabulary("target"), config.target);
    /** Pieces that a text may have, without its end. */
    this.limit = Math.min(config.max_source_length, lengths.at(-1)) - 1;
  }

  /**
   * Reads a text.
   *
   * @returns {{ids: number[], words: {word: string, positions: number[]}[], unknown: string[]}}
   *     the ids with their end; the words, and the end as the last of them; those that the
   *     vocabulary lacks
   */
  read(text) {
    const found = this.source.encode(text);
    const ids = [];
    const words = found.map((entry) => {
      const positions = entry.ids.map((id) => ids.push(id) - 1);
      return { word: entry.word, positions };
    });
    if (ids.length > this.limit) {
      throw new TextError(
        `The text is too long: it has ${ids.length} pieces, and the model reads ${this.limit}.`,
      );
    }
    words.push({ word: this.source.pieces[this.end], positions: [ids.push(this.end) - 1] });
    const unknown = found.filter(({ ids }) => ids.some((id) => this.source.isUnknown(id)));
    return { ids, words, unknown: unknown.map(({ word }) => word) };
  }

  /**
   * Translates ids of `read`.
   *
   * @param {boolean} withBeams whether to search with beams: all pieces then come at once
   * @yields {{tokens: number[], rows: Float32Array[]}} all pieces so far, and where each looked
   */
  async *translate(ids, withBeams, onProgress) {
    const model = await this.#modelFor(ids.length, onProgress);
    const tokens = [];
    const rows = [];
    const add = ({ token, weights }) => {
      tokens.push(token);
      // A model without attention has one vector to look at, and so no alignment.
      if (weights.length === model.sourceLength) rows.push(weights);
    };
    if (withBeams) {
      (await model.beam(ids)).forEach(add);
      yield { tokens, rows };
      return;
    }
    for await (const piece of model.stream(ids)) {
      add(piece);
      yield { tokens, rows };
    }
  }

  /** The smallest model that holds so many ids; loaded when it is needed first. */
  async #modelFor(count, onProgress) {
    const i = this.lengths.findIndex((length) => length >= count);
    this.models[i] ??= Model.load(this.runtime, this.urls[i], onProgress);
    try {
      return await this.models[i];
    } catch (error) {
      delete this.models[i]; // The next text tries again.
      throw error;
    }
  }
}
