// The page: loads the models, listens to what is typed, and shows what is decoded.

import { HeatMap, betweenWords } from "./alignment.js";
import { TextError, Translator } from "./translator.js";

const PAUSE = 300; // Milliseconds without a key before a text is translated by itself.

const byId = (id) => document.getElementById(id);
const form = byId("form");
const source = byId("source");
const beams = byId("beams");
const result = byId("result");
const translation = byId("translation");
const figure = byId("alignment");
const map = new HeatMap(byId("map"));
const news = byId("news");
const problem = byId("problem");
const again = byId("again");
const loading = byId("loading");

let translator = null;
let decoding = new AbortController();
let pause = 0;

/** Where the models are: `?model=` names a file or a folder, `?shapes=` the folder's lengths. */
function place() {
  const given = new URLSearchParams(location.search);
  const { model, shapes } = document.body.dataset;
  const url = new URL(given.get("model") || model, document.baseURI);
  if (!/\/$|\.tflite$/.test(url.pathname)) url.pathname += "/";
  const lengths = (given.get("shapes") || shapes).split(/[\s,]+/).map(Number);
  if (!lengths.every((length) => Number.isInteger(length) && length > 0)) {
    throw new Error(`shapes must be numbers like 8,16,32, not ${given.get("shapes")}`);
  }
  return { url, lengths };
}

async function load() {
  complain("");
  again.hidden = true;
  news.textContent = "Loading the model.";
  try {
    const { url, lengths } = place();
    translator = await Translator.open(url, lengths, progress);
    beams.disabled = !translator.hasBeams;
    beams.checked &&= translator.hasBeams;
  } catch (error) {
    news.textContent = "";
    complain(`The model did not load. ${reason(error)}.`);
    again.hidden = false;
    return;
  }
  await translate();
}

function progress({ name, received, total, done }) {
  loading.hidden = Boolean(done);
  const bar = loading.querySelector("progress");
  if (total) {
    bar.max = total;
    bar.value = received;
  } else {
    bar.removeAttribute("value");
  }
  const size = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
  loading.querySelector("label").textContent =
    `${name}: ${size(received)}${total ? ` of ${size(total)}` : ""}`;
}

/** Translates what the box holds now; what was being decoded is given up. */
async function translate() {
  clearTimeout(pause);
  decoding.abort();
  decoding = new AbortController();
  if (!translator) return;
  const { signal } = decoding;
  complain("");
  clear();
  let text;
  try {
    text = translator.read(source.value);
  } catch (error) {
    if (!(error instanceof TextError)) throw error;
    complain(error.message);
    return;
  }
  news.textContent = text.unknown.length
    ? `Not in the model's vocabulary: ${[...new Set(text.unknown)].join(", ")}.`
    : `Ready for texts of up to ${translator.limit} pieces.`;
  if (text.words.length === 1) return; // The end alone.

  result.ariaBusy = "true"; // Screen readers then wait for the whole translation.
  try {
    for await (const found of translator.translate(text.ids, beams.checked, progress)) {
      if (signal.aborted) return;
      show(text.words, found);
      await painted();
      if (signal.aborted) return;
    }
  } catch (error) {
    if (!signal.aborted) complain(`The text could not be translated. ${reason(error)}.`);
  } finally {
    if (!signal.aborted) result.ariaBusy = "false";
  }
}

function show(sourceWords, { tokens, rows }) {
  const words = translator.target.words(tokens);
  translation.textContent = translator.target.join(words);
  if (!rows.length) return;
  if (figure.hidden) map.begin(sourceWords);
  figure.hidden = false;
  map.draw(words, betweenWords(rows, sourceWords, words));
}

function clear() {
  result.ariaBusy = "false";
  translation.textContent = "";
  figure.hidden = true;
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

/** WebAssembly throws more than errors. */
function reason(error) {
  return error?.message ?? String(error);
}

/** Lets the browser draw and listen to keys between two pieces. */
function painted() {
  return new Promise((resolve) => setTimeout(resolve));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
source.addEventListener("input", () => {
  decoding.abort();
  clearTimeout(pause);
  pause = setTimeout(translate, PAUSE);
});
source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
beams.addEventListener("change", translate);
again.addEventListener("click", load);
load();
