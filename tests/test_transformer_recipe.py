"""The transformer recipe: its model, its steps, its run, and what it leaves as."""

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow("recipes are exported on TensorFlow"),
    pytest.mark.xdist_group("transformer_recipe"),
]
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.export.parity import load_tflite  # noqa: E402
from keras_attention.export.run_template import Translator  # noqa: E402
from keras_attention.recipes import (  # noqa: E402
    transformer,
    translation_export,
    translation_training,
    translator,
)
from keras_attention.recipes.runs import load_config  # noqa: E402
from keras_attention.recipes.tokenizers import END_ID, PADDING_ID, START_ID  # noqa: E402
from keras_attention.recipes.transformer_options import Config  # noqa: E402

TINY = {
    "layers": 2,
    "heads": 2,
    "width": 12,
    "hidden": 20,
    "epochs": 6,
    "average": 2,
    "batch_size": 32,
    "max_length": 20,
    "beam_width": 3,
    "warmup_steps": 5,
    "learning_rate": 2e-2,
    "normalize": "none",
}
SOURCE = np.array([[3, 4, 5, 6, END_ID], [7, 8, END_ID, 0, 0]], "int32")
TARGET = np.array([[START_ID, 4, 5, 6], [START_ID, 9, PADDING_ID, PADDING_ID]], "int32")


@pytest.fixture(scope="module")
def model():
    return transformer.build_model(13, 11, layers=3, heads=2, width=8, hidden=10, dropout=0.0)


@pytest.fixture(scope="module")
def run(phrases_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = Config(pairs=[str(phrases_file(300, seed=1))], **TINY)
    translation_training.train(config, folder, report=lambda line: None)
    return translator.load_run(folder)


@pytest.fixture(scope="module")
def tflite(run):
    return translation_export.export(run, "tflite")


def test_what_search_steps_through_is_what_was_trained(model):
    whole = np.asarray(model([SOURCE, TARGET]))
    forced = transformer.forced_weights(model, transformer.encoder_of(model), SOURCE, TARGET)
    encode, step = transformer.decoding(model, Config(max_length=6))
    states, memory = encode(SOURCE)
    for t in range(TARGET.shape[1]):
        logits, states, weights = step(tf.constant(TARGET[:, t]), states, memory)
        rows = TARGET[:, t] != PADDING_ID
        np.testing.assert_allclose(np.asarray(logits)[rows], whole[rows, t], rtol=0, atol=1e-4)
        np.testing.assert_allclose(weights[rows], np.asarray(forced)[rows, t], rtol=0, atol=1e-5)
        assert not np.asarray(weights)[1, 3:].any()  # padding of the source


def test_no_word_sees_what_comes_after(model):
    changed = TARGET.copy()
    changed[0, 2:] = [9, 3]
    one, other = (np.asarray(model([SOURCE, target])) for target in (TARGET, changed))
    np.testing.assert_array_equal(one[0, :2], other[0, :2])
    assert np.abs(one[0, 2:] - other[0, 2:]).max() > 1e-3


def test_padding_of_the_source_changes_nothing(model):
    long = np.pad(SOURCE, [(0, 0), (0, 3)])
    one, other = (np.asarray(model([source, TARGET])) for source in (SOURCE, long))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_logits_are_made_with_the_embeddings(model):
    [table] = model.get_layer("target_embedding").weights
    assert table.shape == (11, 8)
    assert sum(tuple(w.shape) in ((11, 8), (8, 11)) for w in model.weights) == 1


def test_a_run_knows_its_recipe(run):
    config = load_config(run.folder, [Config])
    assert config == run.config and config.recipe == "transformer"
    assert sorted(path.name for path in (run.folder / "checkpoints").glob("epoch-*")) == [
        "epoch-00004.npz",
        "epoch-00005.npz",
    ]


def test_translations_and_alignments(run):
    texts = ["早上 好", "我 看见 猫", ""]
    for name in ("greedy", "beam"):
        search = translator.search_function(run, name)
        rows = translator.translate(run, texts, search)
        for text, row in zip(texts, rows, strict=True):
            assert np.shape(row["alignment"]) == (len(row["target"]), len(row["source"]))
            np.testing.assert_allclose(np.sum(row["alignment"], -1), 1, rtol=1e-5)
            [alone] = translator.translate(run, [text], search)
            assert alone["translation"] == row["translation"]


def test_evaluation_gives_every_figure(run):
    figures = translator.evaluate(run, limit=10, report=lambda line: None)
    assert figures["sentences"] == 10
    assert {"bleu_greedy", "bleu_beam", "perplexity", "token_accuracy"} <= set(figures)


def test_the_tflite_file_is_the_model(run, tflite):
    report = inspect_tflite(tflite)
    assert report.flex == report.custom == []
    assert set(report.signatures) == {"encode", "decode_step", "greedy", "beam"}
    texts = ["早上 好", "我 看见 猫"]
    mine = translator.translate(run, texts, translator.search_function(run, "greedy"))
    program = Translator(tflite)
    for text, row in zip(texts, mine, strict=True):
        tokens, alignment = program.translate(program.ids(text))
        assert program.target.decode(tokens) == row["translation"]
        assert len(tokens) > 1
        # The program leaves out the end token, and what it looked at.
        wanted = np.array(row["alignment"])[: len(tokens)]
        np.testing.assert_allclose(alignment, wanted, rtol=0, atol=1e-4)


def test_words_come_one_by_one(run, tflite):
    """As an app shows them: a state in, a state out."""
    source = np.array([[5, 6, 7, END_ID]], "int32")
    wanted = load_tflite(tflite, "greedy")({"source": source})
    encode, step = (load_tflite(tflite, name) for name in ("encode", "decode_step"))
    given = encode({"source": source})
    token, found = np.array([START_ID], "int32"), []
    for _ in range(int(wanted["lengths"][0])):
        answer = step({"token": token, **given})
        token = answer["logits"].argmax(-1).astype("int32")
        found.append(int(token[0]))
        moved = {k.removeprefix("next_"): x for k, x in answer.items() if k.startswith("next_")}
        given = {**given, **moved}
    assert found == wanted["tokens"][0, : len(found)].tolist()


@pytest.mark.slow
def test_dynamic_range_is_smaller_and_near(run, tflite):
    small = translation_export.export(run, "tflite", quantize="dynamic")
    assert small.stat().st_size < tflite.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("to", ["saved_model", "onnx"])
def test_other_artifacts_are_equal(run, to):
    if to == "onnx":
        pytest.importorskip("tf2onnx")
    path = translation_export.export(run, to)  # compares before the artifact gets its name
    assert path.exists()
    if to == "saved_model":
        loaded = tf.saved_model.load(str(path))
        found = loaded.signatures["serving_default"](text=tf.constant(["早上 好"]))
        [row] = translator.translate(run, ["早上 好"], translator.search_function(run, "beam"))
        assert found["translation"].numpy()[0].decode() == row["translation"]
