// Fetching a file whose progress can be shown.

/**
 * @param {URL | string} url
 * @param {(file: {name: string, received: number, total?: number, done?: boolean}) => void}
 *     onProgress called for each part that comes, and when no more comes
 * @returns {Promise<Uint8Array>}
 */
export async function download(url, onProgress) {
  const name = new URL(url, document.baseURI).pathname.split("/").at(-1);
  let response;
  try {
    response = await fetch(url);
  } catch {
    throw new Error(`${name}: the server does not answer`);
  }
  if (response.status === 404) throw new Error(`${name}: the server has no such file (${url})`);
  if (!response.ok) throw new Error(`${name}: the server answers with error ${response.status}`);

  const total = sizeOf(response);
  const chunks = [];
  let received = 0;
  onProgress({ name, received, total });
  try {
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      chunks.push(value);
      received += value.length;
      onProgress({ name, received, total });
    }
  } catch {
    throw new Error(`${name}: the download broke off after ${received.toLocaleString()} bytes`);
  } finally {
    onProgress({ name, received, total, done: true });
  }
  return joined(chunks, received);
}

/** Undefined where the server does not say it, or says that of the compressed bytes. */
function sizeOf(response) {
  if (response.headers.get("Content-Encoding")) return undefined;
  return Number(response.headers.get("Content-Length")) || undefined;
}

function joined(chunks, length) {
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
