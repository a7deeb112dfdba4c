// One exported .tflite of the translation recipe, run by LiteRT.js.

import { decoded, readArchive } from "./archive.js";
import { download } from "./download.js";

const WASM_FOLDER = new URL("./node_modules/@litertjs/core/wasm/", import.meta.url).href;

let loaded; // LiteRT.js refuses to be loaded twice.

/** Loads LiteRT.js and its WebAssembly. */
export async function loadRuntime(onProgress) {
  if (loaded) return loaded;
  let runtime;
  try {
    runtime = await import("@litertjs/core");
  } catch {
    throw new Error("LiteRT.js is not in this folder: run npm ci in it and load the page again");
  }
  const fast = await runtime.supportsFeature("relaxedSimd");
  const name = fast ? "litert_wasm_internal" : "litert_wasm_compat_internal";
  // The largest of all files. Fetched here, its progress can be shown; Emscripten takes it from
  // this global of its own.
  globalThis.Module = { wasmBinary: await download(`${WASM_FOLDER}${name}.wasm`, onProgress) };
  await runtime.loadLiteRt(`${WASM_FOLDER}${name}.js`);
  loaded = runtime;
  return runtime;
}

/** A loaded file: `sourceLength` ids go in, whatever the text fills of them. */
export class Model {
  static async load(runtime, url, onProgress) {
    const bytes = await download(url, onProgress);
    const name = new URL(url, document.baseURI).pathname.split("/").at(-1);
    try {
      const { network, files } = await opened(bytes);
      const source = JSON.parse(files.get("keras_attention.json")).signatures.encode.inputs.source;
      if (source.shape.includes(null)) {
        throw new Error("its sizes are free: export it with --shapes, for a browser wants fixed ones");
      }
      const compiled = await runtime.loadAndCompile(network, { accelerator: "wasm" });
      return new Model(runtime, compiled, files, source.shape);
    } catch (error) {
      throw new Error(`${name} cannot be used: ${error?.message ?? error}`);
    }
  }

  constructor(runtime, compiled, files, sourceShape) {
    this.runtime = runtime;
    this.compiled = compiled;
    this.files = files;
    /** What `translation.json` says. */
    this.config = JSON.parse(files.get("translation.json"));
    this.sourceShape = sourceShape;
    this.sourceLength = sourceShape[1];
  }

  /** A file in 8 bit integers has no search with beams. */
  get hasBeams() {
    return "beam" in this.compiled.signatures;
  }

  /** The lines of the source's or the target's vocabulary, as one text. */
  vocabulary(side) {
    return this.files.get(`${side}_vocabulary.txt`);
  }

  /**
   * Greedy translation, one piece at a time.
   *
   * @param {number[]} ids of the source, with its end
   * @yields {{token: number, weights: Float32Array}} a piece, and where in the source it looked
   */
  async *stream(ids) {
    const { start_id, end_id, max_target_length } = this.config;
    const memory = await this.#runOnSource("encode", ids);
    try {
      let token = start_id;
      for (let i = 0; i < max_target_length; i++) {
        const given = new this.runtime.Tensor(new Int32Array([token]), [1]);
        const found = await this.compiled.run("decode_step", { ...memory, token: given });
        given.delete();
        const [logits, weights] = await Promise.all([found.logits.data(), found.weights.data()]);
        token = indexOfLargest(logits);
        moveOn(memory, found);
        if (token === end_id) return;
        yield { token, weights };
      }
    } finally {
      free(memory);
    }
  }

  /** The best translation that the search with beams finds: [{token, weights}]. */
  async beam(ids) {
    const found = await this.#runOnSource("beam", ids);
    const [tokens, weights] = await Promise.all([found.tokens.data(), found.alignment.data()]);
    const [longest, width] = found.alignment.type.layout.dimensions.slice(2);
    free(found);
    const best = [...tokens.subarray(0, longest)]; // The first beam is the best.
    const end = best.indexOf(this.config.end_id);
    return best
      .slice(0, end < 0 ? longest : end)
      .map((token, i) => ({ token, weights: weights.subarray(i * width, (i + 1) * width) }));
  }

  async #runOnSource(signature, ids) {
    const filled = new Int32Array(this.sourceLength).fill(this.config.pad_id);
    filled.set(ids);
    const source = new this.runtime.Tensor(filled, this.sourceShape);
    try {
      return await this.compiled.run(signature, { source });
    } finally {
      source.delete();
    }
  }
}

/** The network of a .tflite and the files in it, after what can be checked was. */
async function opened(bytes) {
  if (decodedOr(bytes.subarray(4, 8), "") !== "TFL3") throw new Error("it is no .tflite file");
  const { start, files } = readArchive(bytes);
  const texts = new Map([...files].map(([name, content]) => [name, decoded(content)]));
  for (const name of ["keras_attention.json", "translation.json"]) {
    if (!texts.has(name)) throw new Error("it is no translation model of keras_attention");
  }
  const network = bytes.subarray(0, start);
  await check(network, JSON.parse(texts.get("keras_attention.json")).sha256);
  return { network, files: texts };
}

/** Browsers compute checksums only on pages from https or this computer. */
async function check(network, expected) {
  if (!globalThis.crypto?.subtle) return;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", network));
  const found = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== expected) throw new Error("it is damaged (its checksum is another)");
}

function decodedOr(bytes, other) {
  try {
    return decoded(bytes);
  } catch {
    return other;
  }
}

function indexOfLargest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** Puts the states that a step gave into the memory; all else it gave is freed. */
function moveOn(memory, found) {
  for (const [name, tensor] of Object.entries(found)) {
    const state = name.startsWith("next_") && name.slice("next_".length);
    if (state) memory[state].delete();
    if (state) memory[state] = tensor;
    else tensor.delete();
  }
}

function free(tensors) {
  for (const tensor of Object.values(tensors)) tensor.delete();
}
