"""The translation recipe: its model, its searches, its runs and its artifacts."""

import dataclasses
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export.errors import ExportError
from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.parity import load_tflite, run_artifact
from keras_attention.export.run_template import Translator
from keras_attention.recipes import (
    export_report,
    searches,
    translation,
    translation_export,
    translation_training,
    translator,
)
from keras_attention.recipes.batches import batches, fed, to_ids
from keras_attention.recipes.data import DataError
from keras_attention.recipes.errors import RunError
from keras_attention.recipes.phrasebook import generate
from keras_attention.recipes.runs import load_config
from keras_attention.recipes.tokenizers import END_ID, PADDING_ID, START_ID, Tokenizer
from keras_attention.recipes.translation_options import Config
from keras_attention.targets import export_target

# One worker of a parallel run trains the tiny run, not each.
pytestmark = pytest.mark.xdist_group("translation")

TINY = {
    "embedding": 12,
    "encoder_units": 8,
    "units": 16,
    "epochs": 2,
    "batch_size": 32,
    "max_length": 20,
    "beam_width": 3,
    "warmup_steps": 5,
    "learning_rate": 1e-2,
    "normalize": "none",
}


@pytest.fixture(scope="module")
def pairs_file(phrases_file):
    return phrases_file(300, seed=1)


@pytest.fixture(scope="module")
def run(pairs_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    translation_training.train(
        Config(pairs=[str(pairs_file)], **TINY), folder, report=lambda line: None
    )
    return translator.load_run(folder)


@pytest.fixture(scope="module")
def tflite(run):
    return translation_export.export(run, "tflite")


@pytest.fixture
def copy(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    return folder


def sentences(count, seed=5):
    return generate(count, seed).source


def small_model(**options):
    sizes = {"embedding": 6, "encoder_units": 5, "units": 7, "dropout": 0.0}
    return translation.build_model(13, 11, **{**sizes, **options})


# The model.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query": "current", "attention": "bilinear", "cell": "lstm", "layers": 2},
        {"attention": "mlp", "input_feeding": False, "source_in_memory": True},
        {"attention": "none"},
        {"attention": "none", "query": "current", "cell": "lstm"},
    ],
)
def test_what_search_steps_through_is_what_was_trained(options):
    model = small_model(**options)
    config = Config(max_length=6)
    source = np.array([[3, 4, 5, 6, END_ID], [7, 8, END_ID, 0, 0]], "int32")
    target = np.array([[START_ID, 4, 5, 6], [START_ID, 9, 3, 10]], "int32")
    whole = np.asarray(model([source, target]))
    encode, step = translation.decoding(model, config)
    states, memory = encode(source)
    for t in range(target.shape[1]):
        logits, states, _ = step(tf.constant(target[:, t]), states, memory)
        # The same sums in another order.
        np.testing.assert_allclose(np.asarray(logits), whole[:, t], rtol=1e-4, atol=1e-5)


def test_without_attention_the_source_reaches_the_decoder_through_one_vector():
    model = small_model(attention="none")
    assert translation.encoder_of(model).output[0].shape[1] == 1


def test_padding_of_the_source_changes_nothing():
    model = small_model()
    target = np.array([[START_ID, 4, 5]], "int32")
    short = np.array([[3, 4, END_ID]], "int32")
    long = np.pad(short, [(0, 0), (0, 4)])
    np.testing.assert_allclose(
        np.asarray(model([short, target])), np.asarray(model([long, target])), rtol=1e-5, atol=1e-6
    )


def test_an_unknown_attention_is_named():
    with pytest.raises(
        ValueError, match=r"score must be one of .*additive.* Received: score='sum'"
    ):
        small_model(attention="sum")


# Batches.


def test_batches_hold_every_row_once_with_the_target_moved_by_one():
    source = tf.ragged.constant([[5, 2], [6, 7, 8, 2], [9, 2]], dtype="int32")
    target = tf.ragged.constant([[4, 2], [5, 6, 2], [7, 8, 9, 2]], dtype="int32")
    seen = []
    for inputs, labels in batches(source, target, 2, shuffle_seed=1):
        for s, f, label in zip(inputs["source"], inputs["target"], labels, strict=True):
            real = label.numpy()[label.numpy() != PADDING_ID].tolist()
            assert real[-1] == END_ID
            assert f.numpy()[: len(real)].tolist() == [START_ID, *real[:-1]]
            assert not f.numpy()[len(real) :].any()
            seen.append((s.numpy()[s.numpy() != 0].tolist(), real))
    wanted = list(zip(source.to_list(), target.to_list(), strict=True))
    assert sorted(seen) == sorted(wanted)


def test_batches_of_one_seed_come_in_one_order():
    ids = tf.RaggedTensor.from_row_lengths(tf.range(3, 203), [2] * 100)

    def order(seed):
        return [labels.numpy().tolist() for _, labels in batches(ids, ids, 8, seed)]

    assert order(4) == order(4)
    assert order(4) != order(5)


def test_nothing_is_fed_after_the_end_of_a_row():
    assert fed(tf.constant([[7, END_ID, 0, 0]])).numpy().tolist() == [[START_ID, 7, 0, 0]]


# Runs.


def test_a_run_holds_what_it_needs(run):
    names = {p.name for p in run.folder.iterdir()}
    assert {"config.json", "model.keras", "metrics.json", "checkpoints"} <= names
    figures = json.loads((run.folder / "metrics.json").read_text("utf-8"))
    assert figures["parameters"] == run.model.count_params()
    assert len(figures["history"]) == TINY["epochs"]


def test_a_folder_with_a_run_is_not_trained_over(run, pairs_file):
    before = (run.folder / "model.keras").read_bytes()
    with pytest.raises(RunError, match="holds a run already: go on with --resume"):
        translation_training.train(Config(pairs=[str(pairs_file)], **TINY), run.folder)
    assert (run.folder / "model.keras").read_bytes() == before


def test_a_finished_run_goes_on_for_more_epochs(copy):
    config = dataclasses.replace(load_config(copy, [Config]), epochs=3)
    figures = translation_training.train(config, copy, resume=True, report=lambda line: None)
    assert [f["epoch"] for f in figures["history"]] == [1, 2, 3]


def test_the_search_gives_one_sentence_the_same_alone_and_in_a_batch(run):
    texts = sentences(7)
    for name in ("greedy", "beam"):
        search = translator.search_function(run, name)
        together = translator.translate(run, texts, search)
        for text, row in zip(texts, together, strict=True):
            [alone] = translator.translate(run, [text], search)
            assert alone["translation"] == row["translation"]
            assert alone["score"] == pytest.approx(row["score"], abs=1e-4)


def test_translations_keep_the_order_of_the_texts(run):
    texts = sentences(9)
    search = translator.search_function(run, "greedy")
    rows = translator.translate(run, texts, search, batch_size=2)
    for text, row in zip(texts, rows, strict=True):
        assert "".join(row["source"]).removesuffix("[END]").replace("##", "") == text.replace(
            " ", ""
        )


def test_an_alignment_has_a_row_a_piece_and_sums_to_one(run):
    [row] = translator.translate(run, sentences(1), translator.search_function(run, "beam"))
    weights = np.array(row["alignment"])
    assert weights.shape == (len(row["target"]), len(row["source"]))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("text", ["", "   ", "qwxyz ☃", "我 " * 3])
def test_odd_texts_get_an_answer(run, text):
    [row] = translator.translate(run, [text], translator.search_function(run, "beam"))
    assert isinstance(row["translation"], str)
    assert np.isfinite(row["score"])


def test_a_text_over_the_limit_is_refused_by_its_number(run):
    search = translator.search_function(run, "greedy")
    with pytest.raises(DataError, match=r"text 2 has 41 pieces, the model takes 20 at most"):
        translator.translate(run, ["我", "我 " * 40], search)


def test_evaluation_gives_every_figure(run):
    figures = translator.evaluate(run, limit=10)
    assert figures["sentences"] == 10
    assert 0 <= figures["exact_match"] <= 1 <= figures["perplexity"]
    assert "tok:none" in figures["bleu_signature"]


def test_gold_alignments_give_an_alignment_error_rate(run):
    generated = dataclasses.replace(run.config, pairs=None, normalize=None)  # they come with it
    figures = translator.evaluate(dataclasses.replace(run, config=generated), limit=20)
    assert 0 < figures["aer"] < 1


# Broken runs.


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", None, "is not a run: it holds no config.json"),
        ("config.json", b"{", "config.json is broken"),
        ("config.json", b'{"recipe": "other"}', "no recipe is called 'other'"),
        ("config.json", b'{"recipe": "translation", "wings": 2}', "config.json is broken"),
        ("model.keras", None, "its training never finished an epoch; go on with train --resume"),
        ("model.keras", b"PK nothing", "model.keras is not a readable model"),
        ("source.vocabulary.txt", None, "source.vocabulary.txt"),
        ("source.vocabulary.txt", b"[PAD]\n[START]\n[END]\n[UNK]\nhello\n", "another run"),
        ("target.tokenizer.json", b"[]", "target.tokenizer.json"),
    ],
)
def test_a_broken_run_is_named_in_one_line(copy, file, content, says):
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises((RunError, DataError), match=says) as error:
        translator.load_run(copy)
    assert "\n" not in str(error.value)


def test_vocabularies_of_another_run_are_refused(copy, run):
    other = Tokenizer(run.source.vocabulary[:-3], "spaces", "none")
    other.save(copy, "source")
    with pytest.raises(RunError, match="they are of another run"):
        translator.load_run(copy)


# Artifacts.


def test_the_tflite_file_decodes_to_the_same_tokens(run, tflite):
    match = translation_export.token_match(run, tflite, sentences(40))
    assert match == {"sentences": 40, "equal": 40, "rows": []}


def test_the_tflite_file_is_built_in_and_holds_its_vocabularies(run, tflite):
    report = inspect_tflite(tflite)
    assert not report.flex and not report.custom
    assert set(report.signatures) == {"encode", "decode_step", "greedy", "beam"}
    with zipfile.ZipFile(tflite) as files:
        facts = json.loads(files.read("translation.json"))
        pieces = files.read("target_vocabulary.txt").decode().removesuffix("\n").split("\n")
    assert tuple(pieces) == run.target.vocabulary
    assert facts["max_source_length"] == TINY["max_length"]


def test_steps_of_the_tflite_file_give_what_its_greedy_search_gives(run, tflite):
    source = to_ids(sentences(1), run.source).to_tensor().numpy()
    greedy = run_artifact(tflite, {"source": source}, "greedy")
    memory = run_artifact(tflite, {"source": source}, "encode")
    step = load_tflite(tflite, "decode_step")
    token, tokens = np.array([START_ID], "int32"), []
    for _ in range(TINY["max_length"]):
        found = step({"token": token, **memory})
        memory |= {k.removeprefix("next_"): v for k, v in found.items() if k.startswith("next_")}
        token = found["logits"].argmax(-1).astype("int32")
        tokens.append(int(token[0]))
        if tokens[-1] == END_ID:
            break
    length = int(greedy["lengths"][0])
    assert tokens == greedy["tokens"][0, :length].tolist()


def test_the_beam_of_the_tflite_file_is_that_of_the_model(run, tflite):
    source = to_ids(sentences(4), run.source).to_tensor()
    mine = translator.search_function(run, "beam")(source)
    its = load_tflite(tflite, "beam")({"source": source.numpy()})
    np.testing.assert_array_equal(mine.tokens, its["tokens"])
    np.testing.assert_allclose(mine.scores, its["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_file_in_integers_and_its_report(run, tmp_path):
    """Ranges are fitted to texts of the data; what the file is worth is measured and told."""
    texts = translation_export.calibration_texts(run, report=lambda line: None)
    assert len(texts) == 100
    path = translation_export.export(run, "tflite", tmp_path / "a", quantize="int8", texts=texts)
    assert set(inspect_tflite(path).signatures) == {"encode", "decode_step", "greedy"}
    pairs = generate(12, seed=5)
    side = translator.load_corpus(run.config).target
    report = translation_export.measured(run, path, pairs, side, seconds=0.1)
    assert report["quantization"] == "int8"
    assert report["bytes"] == path.stat().st_size > report["weights_bytes"]
    assert report["task"]["sentences"] == 12
    assert {row["signature"] for row in report["parity"]} == {"encode", "greedy"}
    timed = {(row["signature"], row["threads"]) for row in report["time"]}
    assert timed == {(name, n) for name in ("encode", "greedy") for n in (1, 2)}
    assert all(0 < row["p50_ms"] <= row["p95_ms"] for row in report["time"])
    assert all(row["peak_bytes"] > 0 for row in report["time"])
    export_report.write(report, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == report
    export_report.write({**report, "path": "<run>"}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "&lt;run&gt;" in page and "bleu_file" in page and "FULLY_CONNECTED" in page
    with pytest.raises(RunError, match="there are none"):
        translation_export.export(run, "tflite", tmp_path / "b", quantize="int8")
    with pytest.raises(DataError, match="no such file"):
        translation_export.calibration_texts(run, tmp_path / "missing.txt")


@pytest.mark.slow
def test_files_of_several_lengths_translate_as_one_of_any(run, tflite, tmp_path):
    folder = translation_export.export(run, "tflite", tmp_path / "lengths", shapes=[6, 12])
    several, one = Translator(folder), Translator(tflite)
    assert (several.limit, one.limit) == (12, TINY["max_length"])
    for text in sentences(20):
        ids = one.ids(text)
        if len(ids) > 12:
            continue
        tokens, alignment = several.translate(ids)
        wanted, weights = one.translate(ids)
        assert tokens == wanted
        np.testing.assert_allclose(alignment, weights, rtol=0, atol=1e-5)
        assert list(several.stream(ids)) == tokens
        assert several.translate(ids, beam=True)[0] == one.translate(ids, beam=True)[0]
    with pytest.raises(RunError, match=r"20 pieces at most. Received: shapes=.6, 21."):
        translation_export.export(run, "tflite", tmp_path / "more", shapes=[6, 21])


@pytest.mark.slow
def test_an_artifact_that_is_not_equal_is_not_left_behind(run, tmp_path, monkeypatch):
    honest = searches.signatures

    def crooked(decoding, config):
        functions = honest(decoding, config)
        greedy, specs = functions["greedy"]

        def other(source):
            found = greedy(source)
            return {**found, "tokens": found["tokens"] + (1 if export_target() else 0)}

        return {**functions, "greedy": (other, specs)}

    monkeypatch.setattr(translation_export, "signatures", crooked)
    path = tmp_path / "wrong.tflite"
    with pytest.raises(ExportError):
        translation_export.export(run, "tflite", path)
    assert list(tmp_path.iterdir()) == []


def test_the_saved_model_takes_strings(run, tmp_path):
    path = translation_export.export(run, "saved_model", tmp_path / "served")
    assert path.name == "1"
    assert {p.name for p in (path / "assets").iterdir()} == {
        "source.vocabulary.txt",
        "target.vocabulary.txt",
    }
    texts = sentences(3)
    loaded = tf.saved_model.load(str(path))
    found = loaded.signatures["serving_default"](text=tf.constant(texts))
    mine = translator.translate(run, texts, translator.search_function(run, "beam"))
    assert [t.decode() for t in found["translation"].numpy()] == [r["translation"] for r in mine]
    np.testing.assert_allclose(found["score"].numpy(), [r["score"] for r in mine], rtol=1e-4)
    length, width = np.shape(mine[0]["alignment"])
    np.testing.assert_allclose(
        found["alignment"].numpy()[0, :length, :width], mine[0]["alignment"], atol=1e-5
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="the model takes no more"):
        loaded.signatures["serving_default"](text=tf.constant(["我 " * 40]))


def test_an_unknown_target_is_refused(run):
    with pytest.raises(RunError, match="to must be saved_model or tflite"):
        translation_export.export(run, "paper")


def test_the_stand_alone_program_translates_without_tensorflow(run, tflite, tmp_path):
    texts = sentences(5)
    program = tflite.with_name("run.py")
    watch = (
        "import runpy, sys\n"
        f"sys.argv = ['run.py', *{texts!r}]\n"
        "try:\n"
        f"    runpy.run_path({str(program)!r}, run_name='__main__')\n"
        "finally:\n"
        "    heavy = {'tensorflow', 'keras', 'jax'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, cwd=tmp_path, check=True, text=True
    )
    mine = translator.translate(run, texts, translator.search_function(run, "greedy"))
    assert done.stdout.splitlines() == [row["translation"] for row in mine]


@pytest.mark.slow
def test_the_program_runs_in_a_bare_environment(run, tflite, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=True)
    python = bare / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    constraints = Path(__file__).parents[1] / "constraints.txt"
    packages = ["numpy", "tokenizers", "ai-edge-litert"]
    pip = [python, "-m", "pip", "install", "-q", "-c", constraints, *packages]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"the package index gave no packages: {installed.stderr.strip()[-200:]}")
    texts = sentences(3)
    program = [python, tflite.with_name("run.py"), "--beam", *texts]
    done = subprocess.run(program, capture_output=True, cwd=tmp_path, check=True, text=True)
    mine = translator.translate(run, texts, translator.search_function(run, "beam"))
    assert done.stdout.splitlines() == [row["translation"] for row in mine]
    assert subprocess.run([python, "-c", "import tensorflow"], capture_output=True).returncode
