// Text to ids and back, as in export/run_template.py: the vocabulary is all that is needed.

const LONGEST_WORD = 100; // A word of more characters is unknown.
const UNKNOWN = 3;
const OTHER_SPACES = /[\0\t\n\v\f\r]/g;

/** One language: its pieces, and text to ids and back. A piece's place is its id. */
export class Text {
  /**
   * @param {string} vocabulary a piece a line
   * @param {{split: string, normalize: string}} settings
   */
  constructor(vocabulary, { split, normalize }) {
    this.pieces = vocabulary.replace(/\n$/, "").split("\n");
    this.split = split;
    this.normalize = normalize;
    // Apart, so that "##ing" in a text is only text; no text spells padding, start or end.
    this.first = new Map();
    this.following = new Map();
    this.pieces.forEach((piece, id) => {
      if (id < UNKNOWN) return;
      if (continues(piece)) this.following.set(piece.slice(2), id);
      else this.first.set(piece, id);
    });
  }

  /** The words of a text with the ids of their pieces: [{word, ids}]. */
  encode(text) {
    text = text.replace(OTHER_SPACES, " ");
    if (this.normalize !== "none") text = text.normalize("NFKC");
    if (this.normalize === "nfkc_lower") text = text.toLowerCase();
    const words = this.split === "characters" ? [...text.replaceAll(" ", "")] : text.split(" ");
    return words.filter(Boolean).map((word) => ({ word, ids: this.#idsOf(word) }));
  }

  /** WordPiece: again and again the longest piece that fits, or the whole word is unknown. */
  #idsOf(word) {
    const characters = [...word];
    const ids = [];
    let start = 0;
    while (start < characters.length && characters.length <= LONGEST_WORD) {
      const known = start ? this.following : this.first;
      let end = characters.length;
      while (end > start && !known.has(characters.slice(start, end).join(""))) end--;
      if (end === start) return [UNKNOWN];
      ids.push(known.get(characters.slice(start, end).join("")));
      start = end;
    }
    return ids.length ? ids : [UNKNOWN];
  }

  /** Whether an id is the unknown piece. */
  isUnknown(id) {
    return id === UNKNOWN;
  }

  /** The words that ids spell, with the positions of their pieces: [{word, positions}]. */
  words(ids) {
    const words = [];
    ids.forEach((id, position) => {
      const piece = this.pieces[id];
      const last = words.at(-1);
      if (last && continues(piece)) {
        last.word += piece.slice(2);
        last.positions.push(position);
      } else {
        words.push({ word: piece, positions: [position] });
      }
    });
    return words;
  }

  /** The text that words make. */
  join(words) {
    return words.map(({ word }) => word).join(this.split === "characters" ? "" : " ");
  }
}

function continues(piece) {
  return piece.startsWith("##") && piece.length > 2;
}
