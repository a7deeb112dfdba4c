// The files that travel inside a .tflite: a ZIP archive behind the model, stored uncompressed.

const END_OF_ARCHIVE = 0x06054b50;
const ENTRY = 0x02014b50;
const END_SIZE = 22;
const ENTRY_SIZE = 46;
const HEADER_SIZE = 30;
const LONGEST_COMMENT = 0xffff;
const STORED = 0;

/**
 * Reads the archive behind a model.
 *
 * @param {Uint8Array} bytes the whole .tflite
 * @returns {{start: number, files: Map<string, Uint8Array>}} where the archive begins, and what
 *     is in it
 */
export function readArchive(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = endOfArchive(view);
  const count = view.getUint16(end + 10, true);
  const size = view.getUint32(end + 12, true);
  // Offsets count from the begin of the archive or of the whole file, as the writer liked.
  const moved = end - size - view.getUint32(end + 16, true);

  const files = new Map();
  let start = end - size;
  let entry = end - size;
  for (let i = 0; i < count; i++) {
    if (view.getUint32(entry, true) !== ENTRY) throw new Error("the files inside it are damaged");
    const method = view.getUint16(entry + 10, true);
    const length = view.getUint32(entry + 20, true);
    const nameLength = view.getUint16(entry + 28, true);
    const others = view.getUint16(entry + 30, true) + view.getUint16(entry + 32, true);
    const header = view.getUint32(entry + 42, true) + moved;
    const name = decoded(bytes.subarray(entry + ENTRY_SIZE, entry + ENTRY_SIZE + nameLength));
    if (method !== STORED) throw new Error(`${name} inside it is compressed`);
    const content =
      header + HEADER_SIZE + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
    files.set(name, bytes.subarray(content, content + length));
    start = Math.min(start, header);
    entry += ENTRY_SIZE + nameLength + others;
  }
  return { start, files };
}

function endOfArchive(view) {
  const first = Math.max(0, view.byteLength - END_SIZE - LONGEST_COMMENT);
  for (let at = view.byteLength - END_SIZE; at >= first; at--) {
    if (view.getUint32(at, true) === END_OF_ARCHIVE) return at;
  }
  throw new Error("it is truncated, or holds no vocabularies");
}

/** UTF-8 as text; bytes that are none are an error. */
export function decoded(bytes) {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}
