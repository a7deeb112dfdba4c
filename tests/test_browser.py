"""The page in docs/web: what a browser translates and draws is what Python does."""

import contextlib
import http.server
import io
import json
import shutil
import threading
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export.inspect import with_metadata
from keras_attention.export.parity import load_tflite
from keras_attention.export.run_template import Text, Translator
from keras_attention.recipes import translation_export, translation_training, translator
from keras_attention.recipes.phrasebook import generate
from keras_attention.recipes.tokenizers import Tokenizer
from keras_attention.recipes.translation_options import Config

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

WEB = Path(__file__).parents[1] / "docs" / "web"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = [
    pytest.mark.xdist_group("browser"),  # One worker trains the model, not each.
    pytest.mark.skipif(not BROWSER, reason="no Chromium is installed"),
    pytest.mark.skipif(
        not (WEB / "node_modules").is_dir(), reason="npm ci was not run in docs/web"
    ),
]

LENGTHS = (8, 16)
# A sentence of 9 words and the end needs the second file.
SHORT, LONG = "她的 朋友 昨天 很 累", "今晚 这些 歌手 不会 在 家 修 一辆 自行车"
PIXEL = 1e-4  # The page writes weights with six digits; sums differ by float32 between runtimes.


@pytest.fixture(scope="module")
def run(phrases_file, tmp_path_factory):
    config = Config(
        pairs=[str(phrases_file(4000, seed=1))],
        # Small enough that some words are of several pieces.
        target_vocabulary_size=220,
        normalize="nfkc_lower",
        max_length=24,
        embedding=48,
        encoder_units=32,
        units=64,
        source_in_memory=True,
        input_feeding=False,
        dropout=0.0,
        epochs=4,
        batch_size=32,
        warmup_steps=20,
        learning_rate=8e-3,
        beam_width=3,
    )
    folder = tmp_path_factory.mktemp("runs") / "phrasebook"
    translation_training.train(config, folder, report=lambda line: None)
    return translator.load_run(folder)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """A folder of files with fixed sizes, as `export --to tflite --shapes 8,16` writes it."""
    folder = tmp_path_factory.mktemp("export") / "translation"
    return translation_export.export(run, "tflite", folder, shapes=LENGTHS)


class Site:
    """docs/web on a loopback address, with folders of models that a test chooses.

    Attributes:
        address: of the page.
        folders: `{name: folder}`, served below `models/`.
        held: while it is set, the second half of a `.tflite` is not sent.
        broken_off: whether a `.tflite` ends in its middle, as when a connection is lost.
    """

    def __init__(self):
        self.folders = {}
        self.held = threading.Event()
        self.released = threading.Event()
        self.broken_off = False
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def translate_path(self, path):
                parts = urlsplit(path).path.split("/")
                if parts[1] == "models" and parts[2] in site.folders:
                    return str(Path(site.folders[parts[2]], *parts[3:]))
                return super().translate_path(path)

            def copyfile(self, source, outputfile):
                content = source.read()
                half = len(content) // 2
                if not source.name.endswith(".tflite"):
                    half = len(content)
                with contextlib.suppress(ConnectionError):  # A page that has gone.
                    outputfile.write(content[:half])
                    outputfile.flush()
                    if site.held.is_set():
                        site.released.wait(60)
                    if not site.broken_off:
                        outputfile.write(content[half:])

            def end_headers(self):
                self.send_header("Cache-Control", "no-store")  # Files change from test to test.
                super().end_headers()

            def log_message(self, *arguments):
                pass

        def handler(*arguments):
            return Handler(*arguments, directory=str(WEB))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def site(exported):
    site = Site()
    site.folders["good"] = exported
    threading.Thread(target=site.server.serve_forever, daemon=True).start()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """An open page, as a person uses it."""

    def __init__(self, chromium, site, model, shapes=LENGTHS):
        self.tab = chromium.new_page()
        self.tab.set_default_timeout(60_000)
        self.errors, self.requested = [], []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("request", lambda request: self.requested.append(request.url))
        listed = ",".join(map(str, shapes))
        self.tab.goto(f"{site.address}/index.html?model={model}&shapes={listed}")
        self.box = self.tab.get_by_label("Text to translate")
        self.button = self.tab.get_by_role("button", name="Translate")
        self.problem = self.tab.get_by_role("alert")

    def ready(self):
        self.tab.get_by_text("Ready for texts").wait_for()
        return self

    def trouble(self):
        """What the page says is wrong, once it does."""
        self.problem.wait_for()
        return self.problem.inner_text()

    def translate(self, text):
        """What the page shows of a text when all of it has come."""
        self.box.fill(text)
        self.button.click()
        self.tab.wait_for_selector("#result[aria-busy=false]")
        return self.shown()

    def shown(self):
        return self.tab.evaluate(
            """() => {
                const words = (cells) => [...cells].map((cell) => cell.textContent);
                const rows = [...document.querySelectorAll("#map tbody tr")];
                return {
                    translation: document.getElementById("translation").textContent,
                    columns: words(document.querySelectorAll("#map thead th")),
                    rows: rows.map((row) => row.querySelector("th").textContent),
                    weights: rows.map((row) => [...row.querySelectorAll("td")].map(
                        (cell) => Number(cell.style.getPropertyValue("--weight")))),
                    hidden: document.getElementById("alignment").hidden,
                };
            }"""
        )

    def module(self, code, *arguments):
        """Runs a function of the page's own modules."""
        return self.tab.evaluate(f"async (given) => {{ {code} }}", list(arguments))


@pytest.fixture
def opened(chromium, site):
    """A function: `opened(model)` is a new page; none of them may have thrown anything."""
    pages = []

    def opened(model="models/good/", **options):
        pages.append(Page(chromium, site, model, **options))
        return pages[-1]

    yield opened
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.tab.close()
    assert not errors


@pytest.fixture(scope="module")
def shared(chromium, site):
    """One page for the tests that leave it as it was."""
    page = Page(chromium, site, "models/good/").ready()
    yield page
    errors = page.errors
    page.tab.close()
    assert not errors


def python_says(run, texts, search="greedy"):
    """Translations and alignments between words, by the model itself."""
    target = Text(
        (run.folder / "target.vocabulary.txt").read_bytes(), run.target.split, run.target.normalize
    )
    found = translator.translate(run, texts, translator.search_function(run, search))
    for row in found:
        pieces = [piece for piece in row["target"] if piece != "[END]"]
        words = target.words([run.target.vocabulary.index(piece) for piece in pieces])
        weights = np.array(row["alignment"]).reshape(-1, len(row["source"]))
        row["words"] = [word for word, _ in words]
        row["weights"] = np.array([weights[positions].mean(axis=0) for _, positions in words])
    return found


# Against Python.


def test_fifty_sentences_are_translated_as_by_the_model(shared, run):
    texts = generate(50, seed=5).source
    expected = python_says(run, texts)
    assert len({row["translation"] for row in expected}) > 40, "a model that says one thing"
    assert any("##" in "".join(row["target"]) for row in expected), "no word of several pieces"
    for text, row in zip(texts, expected, strict=True):
        shown = shared.translate(text)
        weights = np.array(shown["weights"])
        assert shown["translation"] == row["translation"]
        assert shown["columns"] == row["source"]
        assert shown["rows"] == row["words"]
        np.testing.assert_allclose(weights, row["weights"], atol=PIXEL)
        clear = np.sort(row["weights"])[:, -1] - np.sort(row["weights"])[:, -2] > 2 * PIXEL
        assert (weights.argmax(1) == row["weights"].argmax(1))[clear].all()
        assert clear.mean() > 0.5


def test_tokens_are_those_of_the_same_file_in_python(shared, exported):
    template = Translator(exported / "16.tflite")
    texts = generate(20, seed=6).source
    greedy = load_tflite(exported / "16.tflite", "greedy")
    found = shared.module(
        """
        const { Translator } = await import("./translator.js");
        const url = new URL("models/good/16.tflite", document.baseURI);
        const { Model } = await import("./model.js");
        const runtime = await import("@litertjs/core");
        const file = await Model.load(runtime, url, () => {});
        const translator = new Translator(runtime, [url], [16], file);
        const all = [];
        for (const text of given[0]) {
          const { ids } = translator.read(text);
          const one = { ids, tokens: [] };
          for await (const { tokens } of translator.translate(ids, false)) one.tokens = [...tokens];
          all.push(one);
        }
        return all;
        """,
        texts,
    )
    for text, row in zip(texts, found, strict=True):
        ids = template.ids(text)
        padded = np.array([ids + [0] * (16 - len(ids))], "int32")
        tokens = greedy({"source": padded})["tokens"][0].tolist()
        assert row["ids"] == ids
        assert row["tokens"] == tokens[: tokens.index(template.end)]


def test_beams_find_what_pythons_beams_find(opened, run):
    page = opened().ready()
    page.tab.get_by_label("Search with beams").check()
    texts = generate(10, seed=7).source
    for text, row in zip(texts, python_says(run, texts, "beam"), strict=True):
        shown = page.translate(text)
        assert shown["translation"] == row["translation"]
        np.testing.assert_allclose(shown["weights"], row["weights"], atol=PIXEL)


@pytest.mark.parametrize("split", ["spaces", "characters"])
@pytest.mark.parametrize("normalize", ["none", "nfkc", "nfkc_lower"])
def test_text_has_the_ids_that_python_gives_it(shared, split, normalize):
    pieces = (
        "guten mor ##gen ##g un ##d ##s a b ß i ##\u0307 # ## #### 早 上 ##上 😀 ##😀 σ ##ς ##σ"
    )
    vocabulary = ["[PAD]", "[START]", "[END]", "[UNK]", *pieces.split(" ")]
    tokenizer = Tokenizer(vocabulary, split, normalize)
    alphabet = [
        *"guten morgen GUTEN",
        "早上",
        "ｇｕ",
        "\t",
        "\0",
        "\u3000",
        "ß",
        "İ",
        "😀",
        "##",
        "ΣΣ ",
    ]
    alphabet += ["[UNK]", "[END]", "##gen", " [PAD] ", "x", "é", "e\u0301", "ﬁ", "\n", "\u2028"]
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(alphabet, rng.integers(0, 12))) for _ in range(300)]
    texts += ["a" * 100, "a" * 101, "😀" * 100, "😀" * 101, ""]
    found = shared.module(
        """
        const { Text } = await import("./text.js");
        const text = new Text(given[0], { split: given[1], normalize: given[2] });
        return given[3].map((one) => text.encode(one).flatMap(({ ids }) => ids));
        """,
        "".join(f"{piece}\n" for piece in vocabulary),
        split,
        normalize,
        texts,
    )
    expected = tokenizer.tokenize(tf.constant(texts)).to_list()
    assert [row for row in zip(texts, found, strict=True)] == list(
        zip(texts, expected, strict=True)
    )


# While it decodes.


def test_words_and_rows_come_one_by_one(shared, run):
    [row] = python_says(run, [LONG])
    shared.translate("")
    shared.tab.evaluate(
        """() => {
            window.seen = [];
            window.between = [];
            const map = document.querySelector("#map tbody");
            const translation = document.getElementById("translation");
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => window.between.push(map.rows.length);
            new MutationObserver(() => {
                window.seen.push([map.rows.length, translation.textContent]);
                port2.postMessage("");  // Is heard when the browser may also draw.
            }).observe(document.getElementById("result").parentNode,
                { childList: true, subtree: true, characterData: true });
        }"""
    )
    shared.translate(LONG)
    seen = shared.tab.evaluate("() => window.seen.filter(([rows, text]) => text)")
    counts = [count for count, _ in seen]
    assert sorted(set(counts)) == list(range(1, len(row["words"]) + 1))
    assert counts == sorted(counts)
    assert all(row["translation"].startswith(text) for _, text in seen)
    between = shared.tab.evaluate("() => window.between")
    assert any(0 < count < len(row["words"]) for count in between), "the page was never drawn"


@pytest.mark.parametrize("by", ["typing", "the button"])
def test_a_new_text_gives_up_what_is_being_decoded(opened, run, by):
    page = opened().ready()
    long, short = python_says(run, [LONG, SHORT])
    page.tab.evaluate(
        """([first, second, by]) => {
            const box = document.getElementById("source");
            const translation = document.getElementById("translation");
            const form = document.getElementById("form");
            window.seen = [];
            let changed = false;
            new MutationObserver(() => {
                window.seen.push(translation.textContent);
                if (translation.textContent && !changed) {
                    changed = true;
                    box.value = second;
                    if (by === "typing") box.dispatchEvent(new Event("input"));
                    else form.requestSubmit();
                }
            }).observe(translation, { childList: true });
            box.value = first;
            form.requestSubmit();
        }""",
        [LONG, SHORT, by],
    )
    page.tab.get_by_text(short["translation"], exact=True).wait_for()
    page.tab.wait_for_selector("#result[aria-busy=false]")
    seen = page.tab.evaluate("() => window.seen")
    assert long["translation"].startswith(seen[0]) and seen[0]
    assert all(short["translation"].startswith(text) for text in seen[1:])
    assert page.shown()["rows"] == short["words"]


def test_a_new_text_gives_up_one_that_waits_for_its_file(opened, site, run):
    page = opened().ready()
    long, short = python_says(run, [LONG, SHORT])
    site.held.set()
    site.released.clear()
    try:
        page.box.fill(LONG)
        page.button.click()
        page.tab.get_by_label("16.tflite").wait_for()
        assert page.translate(SHORT)["translation"] == short["translation"]
    finally:
        site.held.clear()
        site.released.set()
    page.tab.wait_for_function("() => document.getElementById('loading').hidden")
    assert page.shown()["translation"] == short["translation"]
    assert page.translate(LONG)["translation"] == long["translation"]


def test_a_text_is_translated_when_typing_pauses(opened, run):
    page = opened().ready()
    [row] = python_says(run, [SHORT])
    page.box.press_sequentially(SHORT)
    page.tab.get_by_text(row["translation"], exact=True).wait_for()


def test_what_was_typed_while_the_model_loads_is_translated_then(opened, site, run):
    site.held.set()
    site.released.clear()
    try:
        page = opened()
        page.box.fill(SHORT)
        page.button.click()
    finally:
        site.held.clear()
        site.released.set()
    [row] = python_says(run, [SHORT])
    page.tab.get_by_text(row["translation"], exact=True).wait_for()


# What it says.


def test_progress_counts_the_bytes_of_the_model(opened, site, exported):
    size = (exported / "8.tflite").stat().st_size
    site.held.set()
    site.released.clear()
    try:
        page = opened()
        bar = page.tab.get_by_label("8.tflite")
        bar.wait_for()
        page.tab.wait_for_function("() => document.querySelector('progress').value > 0")
        value, most = bar.evaluate("(bar) => [bar.value, bar.max]")
        assert 0 < value < most == size
    finally:
        site.held.clear()
        site.released.set()
    page.ready()
    assert not bar.is_visible()


def test_a_text_that_is_too_long_is_told_the_limit(shared):
    shared.translate(SHORT)
    shared.box.fill(" ".join(["猫"] * 16))
    shared.button.click()
    assert "16 pieces" in shared.trouble() and "15" in shared.trouble()
    shown = shared.shown()
    assert shown["translation"] == "" and shown["hidden"]
    assert shared.translate(" ".join(["猫"] * 15))["translation"]
    assert not shared.problem.is_visible()


def test_words_that_the_model_does_not_know_are_named(shared):
    shown = shared.translate("我 flurble 猫")
    assert shown["columns"] == ["我", "flurble", "猫", "[END]"]
    assert "flurble" in shared.tab.locator("#news").inner_text()


def test_the_page_works_by_keyboard_and_names_its_parts(opened, run):
    page = opened().ready()
    [row] = python_says(run, [SHORT])
    page.tab.keyboard.insert_text(SHORT)  # The box has the focus from the begin.
    page.tab.keyboard.press("Control+Enter")
    page.tab.get_by_text(row["translation"], exact=True).wait_for()
    page.tab.keyboard.press("Tab")
    assert page.button.evaluate("(button) => button === document.activeElement")
    page.tab.keyboard.press("Tab")
    page.tab.keyboard.press("Space")
    assert page.tab.get_by_label("Search with beams").is_checked()
    assert page.tab.get_by_role("region", name="Translation").get_attribute("aria-live") == "polite"
    page.tab.wait_for_selector("#result[aria-busy=false]")
    rows, columns = (page.tab.get_by_role(f"{side}header").count() for side in ("row", "column"))
    assert (rows, columns) == (len(row["words"]), len(SHORT.split()) + 1)


def test_nothing_comes_from_elsewhere(opened, site):
    page = opened().ready()
    page.translate(SHORT)
    assert page.requested
    assert all(url.startswith((site.address, "data:", "blob:")) for url in page.requested)


def test_a_larger_file_is_fetched_only_for_a_text_that_needs_it(opened):
    page = opened().ready()
    page.translate(SHORT)
    assert not [url for url in page.requested if url.endswith("16.tflite")]
    page.translate(LONG)
    page.translate(LONG + " 吗")
    assert len([url for url in page.requested if url.endswith("16.tflite")]) == 1


def test_one_file_is_enough(opened, run):
    page = opened("models/good/16.tflite").ready()
    [row] = python_says(run, [LONG])
    assert page.translate(LONG)["translation"] == row["translation"]


# Files that are not what they should be.


def truncated(content):
    return content[: len(content) // 2]


def damaged(content):
    """With other weights: the file is read without complaint by what looks at its form alone."""
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(255 - byte for byte in content[middle : middle + 64])
        + (content[middle + 64 :])
    )


def of_other_recipe(content):
    with zipfile.ZipFile(io.BytesIO(content)) as files:
        start = min(entry.header_offset for entry in files.infolist())
        kept = {"keras_attention.json": files.read("keras_attention.json")}
    return with_metadata(content[:start], kept)


def of_free_sizes(content):
    with zipfile.ZipFile(io.BytesIO(content)) as files:
        start = min(entry.header_offset for entry in files.infolist())
        kept = {name: files.read(name) for name in files.namelist()}
    about = json.loads(kept["keras_attention.json"])
    about["signatures"]["encode"]["inputs"]["source"]["shape"] = [None, None]
    return with_metadata(
        content[:start], {**kept, "keras_attention.json": json.dumps(about).encode()}
    )


@pytest.mark.parametrize(
    "broken, said",
    [
        (truncated, "truncated"),
        (damaged, "damaged"),
        (of_other_recipe, "no translation model"),
        (of_free_sizes, "--shapes"),
        (lambda content: b"<html>no model</html>", "no .tflite"),
        (lambda content: b"", "no .tflite"),
        (None, "no such file"),
    ],
    ids=["truncated", "damaged", "other recipe", "free sizes", "a page", "empty", "missing"],
)
def test_a_bad_file_is_named_and_can_be_mended(opened, site, exported, run, tmp_path, broken, said):
    content = (exported / "8.tflite").read_bytes()
    if broken is not None:
        (tmp_path / "8.tflite").write_bytes(broken(content))
    site.folders["bad"] = tmp_path
    page = opened("models/bad/", shapes=[8])
    assert "8.tflite" in page.trouble() and said in page.trouble()
    (tmp_path / "8.tflite").write_bytes(content)
    page.tab.get_by_role("button", name="Try again").click()
    page.ready()
    assert not page.problem.is_visible()
    [row] = python_says(run, [SHORT])
    assert page.translate(SHORT)["translation"] == row["translation"]


def test_a_larger_file_that_is_missing_leaves_short_texts(opened, site, exported, tmp_path):
    shutil.copy(exported / "8.tflite", tmp_path)
    site.folders["half"] = tmp_path
    page = opened("models/half/").ready()
    page.box.fill(LONG)
    page.button.click()
    assert "16.tflite" in page.trouble()
    assert page.translate(SHORT)["translation"]
    assert not page.problem.is_visible()
    shutil.copy(exported / "16.tflite", tmp_path)
    assert page.translate(LONG)["translation"]


def test_a_lost_connection_is_said(opened, site):
    site.broken_off = True
    try:
        page = opened()
        assert "broke off" in page.trouble()
    finally:
        site.broken_off = False
    page.tab.get_by_role("button", name="Try again").click()
    page.ready()


def test_shapes_that_are_no_numbers_are_said(opened):
    assert "8,16,32" in opened(shapes=["eight"]).trouble()
