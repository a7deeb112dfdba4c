"""The documents recipe: its model and ablations, its text, its run, and what it leaves as."""

import json

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow("recipes are exported on TensorFlow"),
    pytest.mark.xdist_group("documents"),  # one worker trains the model, not each
]
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.recipes import (  # noqa: E402
    classification_export,
    classification_training,
    classifier,
    documents,
    reviews,
)
from keras_attention.recipes.data import DataError  # noqa: E402
from keras_attention.recipes.documents_options import LEVELS, Config  # noqa: E402
from keras_attention.recipes.predict_file import predict_by_file  # noqa: E402
from keras_attention.recipes.tokenizers import END_ID, SPECIAL, Tokenizer  # noqa: E402
from keras_attention.recipes.vectors import begin_with, read_vectors, word2vec  # noqa: E402

TEXTS = [
    "the plot was good . all in all it was boring .",
    "",
    "unheard",
    "all in all it was great ! " * 30,
    "one?!  two (three.) four\u2003five . \n six",
]
IDS = np.array([[[4, 5, 2], [6, 2, 0]], [[7, 2, 0], [0, 0, 0]]], "int32")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "reviews"
    rows = reviews.generate(500, seed=4)
    lines = [json.dumps({"label": y, "text": x}) for x, y in zip(*rows, strict=True)]
    path = folder.parent / "own.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    small = {
        **Config.small,
        "epochs": 7,
        "batch_size": 16,
        "normalize": "none",
        "sentences": 6,
        "words": 8,
    }
    config = Config(**{**small, "texts": str(path)})
    classification_training.train(config, folder, report=lambda line: None)
    return classifier.load_run(folder)


@pytest.fixture(scope="module")
def tflite(run):
    return classification_export.export(run, "tflite")


def tokenizer_of(*words):
    return Tokenizer((*SPECIAL, *words), "spaces", "none")


# The model.


@pytest.mark.parametrize("attention", LEVELS)
def test_padding_changes_nothing_and_ablations_take_the_mean(attention):
    sizes = {"embedding": 6, "units": 5, "dropout": 0.0, "attention": attention}
    reading = documents.reading(documents.build_model(20, 3, **sizes))
    logits, of_sentences, of_words = map(np.asarray, reading(IDS))
    wider = np.pad(IDS, [(0, 0), (0, 2), (0, 1)])
    more, sentences, words = map(np.asarray, reading(wider))
    np.testing.assert_allclose(more, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sentences[:, :2], of_sentences, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(words[:, :2, :3], of_words, rtol=1e-4, atol=1e-5)
    assert not sentences[:, 2:].any() and not words[:, 2:].any() and not of_sentences[1, 1]
    mean = np.allclose(of_sentences[0], 0.5), np.allclose(of_words[0, 0], 1 / 3)
    assert mean == (attention in ("words", "none"), attention in ("sentences", "none"))


def test_what_takes_the_mean_is_not_trained():
    counted = [
        len(documents.build_model(20, 3, embedding=6, units=5, attention=level).trainable_weights)
        for level in ("both", "words", "none")
    ]
    assert counted[0] > counted[1] > counted[2]


# Text.


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("a b . c", ["a b .", "c"]),
        ("a! b?", ["a!", "b?"]),
        ('a."  b', ['a."', "b"]),
        ("a.b c", ["a.b c"]),
        (" a ", ["a"]),
        ("", [""]),
        ("a . \x01 b", ["a .", "b"]),
    ],
)
def test_text_is_cut_into_sentences(text, sentences):
    words = sorted({word for sentence in sentences for word in sentence.split()})
    tokenizer = tokenizer_of(*words)
    ids = documents.ids_of([text], tokenizer, Config(sentences=9, words=9))
    wanted = [[*(words.index(w) + 4 for w in s.split()), END_ID] for s in sentences]
    assert ids.to_list() == [wanted]


def test_long_documents_and_sentences_are_cut():
    ids = documents.ids_of(
        ["a a a a . a . a ."], tokenizer_of("a", "."), Config(sentences=2, words=3)
    )
    assert ids.to_list() == [[[4, 4, 4], [4, 5, END_ID]]]
    assert documents.padded(ids, Config(words=5)).shape == (1, 2, 5)


def test_vectors_of_two_widths_are_named(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\na 1 2 3\nb 4 5 6\n")
    assert {w: v.tolist() for w, v in read_vectors(path).items()} == {
        "a": [1, 2, 3],
        "b": [4, 5, 6],
    }
    for line, says in (
        ("c 1 2", "2 numbers, and the lines before have 3"),
        ("c x 1 2", "expected"),
    ):
        path.write_text(f"a 1 2 3\nb 4 5 6\n{line}\n")
        with pytest.raises(DataError, match=f"vectors.txt:3: {says}"):
            read_vectors(path)


def test_pieces_begin_with_their_vectors():
    vectors = {"b": np.array([1, 2, 3], "float32"), "else": np.array([4, 5, 6], "float32")}
    embedding = documents.build_model(6, 2, embedding=3, units=2).get_layer("embedding")
    before = embedding.get_weights()[0].copy()
    assert begin_with(embedding, tokenizer_of("a", "b"), vectors) == 1
    [table] = embedding.get_weights()
    np.testing.assert_array_equal(table[5], [1, 2, 3])
    np.testing.assert_array_equal(table[:5], before[:5])
    assert begin_with(embedding, tokenizer_of("x", "y"), vectors) == 0
    np.testing.assert_array_equal(embedding.get_weights()[0], table)


@pytest.mark.parametrize(
    ("line", "more", "says"),
    [
        ("good 1 2 3", ["--embedding", "4"], "train with --embedding 3"),
        ("unheard 1 2 3", ["--embedding", "3"], "a vector for none of the"),
        ("good 1 2 3", ["--word2vec", "2"], "either --vectors or --word2vec"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(tmp_path, command_line, capsys, line, more, says):
    said, path = command_line(capsys), tmp_path / "vectors.txt"
    path.write_text(f"{line}\n")
    train = ["train", "documents", "--out", tmp_path / "run", "--vectors", path]
    code, _, err = said(*train, *more)
    assert code != 0 and says in err[-1]


def test_word2vec_finds_what_stands_alike():
    pytest.importorskip("gensim")
    rng = np.random.default_rng(0)
    kinds = {"animal": ["cat", "dog", "cow"], "colour": ["red", "blue", "grey"]}
    around = {"animal": ["the", "sleeps"], "colour": ["paint", "it"]}
    texts = [
        [around[kind][0], str(rng.choice(kinds[kind])), around[kind][1]]
        for kind in rng.choice([*kinds], 30_000)
    ]

    def alike(one, other):
        one, other = vectors[one], vectors[other]
        return one @ other / np.sqrt((one @ one) * (other @ other))

    vectors = word2vec(texts, 8, 20, seed=1)
    assert set(vectors) == {word for text in texts for word in text}
    assert min(alike("cat", "dog"), alike("red", "blue")) > alike("cat", "red") + 0.2
    again, other = (word2vec(texts[:50], 8, 1, seed)["cat"] for seed in (1, 2))
    np.testing.assert_array_equal(again, word2vec(texts[:50], 8, 1, 1)["cat"])
    assert np.any(again != other)


def test_a_run_begins_with_word2vec(tmp_path):
    pytest.importorskip("gensim")
    said = []
    config = Config(**{**Config.small, "epochs": 1, "word2vec": 2})
    classification_training.train(config, tmp_path / "run", report=said.append)
    run = classifier.load_run(tmp_path / "run")
    assert run.config.word2vec == 2
    # All but padding, start and unknown: no generated word is that.
    wanted = f"{run.tokenizer.size - 3} of {run.tokenizer.size} pieces begin with a vector"
    assert wanted in said


# The run.


def test_it_learns_which_sentence_decides(run):
    figures = classifier.evaluate(run, report=lambda line: None)
    assert figures["accuracy"] > 85, figures


def test_odd_documents_get_an_answer(run):
    rows = classifier.classify(run, TEXTS)
    for row in rows:
        assert row["label"] in run.labels and 0 < row["probability"] <= 1
        weights = [sentence["weight"] for sentence in row["sentences"]]
        assert len(weights) <= 6
        np.testing.assert_allclose(sum(weights), 1, rtol=1e-4)
        for sentence in row["sentences"]:
            assert len(sentence["weights"]) == len(sentence["pieces"]) <= 8
            np.testing.assert_allclose(sum(sentence["weights"]), 1, rtol=1e-4)
    assert rows[1]["sentences"][0]["pieces"] == ["[END]"]


# What it leaves as.


def test_the_tflite_file_answers_alone(run, tflite):
    report = inspect_tflite(tflite)
    assert report.flex == report.custom == []
    mine, found = classifier.classify(run, TEXTS), predict_by_file(tflite, TEXTS)
    for row, other in zip(mine, found, strict=True):
        assert other["label"] == row["label"]
        assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
        for sentence, wanted in zip(other["sentences"], row["sentences"], strict=True):
            assert sentence["pieces"] == wanted["pieces"]
            assert sentence["weight"] == pytest.approx(wanted["weight"], abs=1e-4)
            np.testing.assert_allclose(sentence["weights"], wanted["weights"], rtol=0, atol=1e-4)


def test_a_file_of_fixed_sizes_answers_alike(run, tmp_path):
    path = tmp_path / "fixed.tflite"
    classification_export.export(run, "tflite", path, shapes="static")
    assert inspect_tflite(path).signatures["classify"]["inputs"]["ids"][0] == (1, 6, 8)
    mine, found = classifier.classify(run, TEXTS), predict_by_file(path, TEXTS)
    for row, other in zip(mine, found, strict=True):
        assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
        assert [s["pieces"] for s in other["sentences"]] == [s["pieces"] for s in row["sentences"]]
        weights = [[s["weight"] for s in of["sentences"]] for of in (other, row)]
        np.testing.assert_allclose(*weights, rtol=0, atol=1e-4)
    task = classification_export.compared(run, path, reviews.generate(30, seed=9))
    assert task["same_label"] == 30 and task["difference"] < 1e-5


def test_a_file_is_measured_beside_its_model(run, command_line, capsys, tmp_path):
    said, path, page = command_line(capsys), tmp_path / "small.tflite", tmp_path / "r.json"
    command = ["export", run.folder, "--to", "tflite", "--quantize", "dynamic", "--out", path]
    code, _, err = said(*command, "--report", page)
    assert code == 0, err
    found = json.loads(page.read_text("utf-8"))
    test = classifier.load_corpus(run.config, report=lambda line: None).test
    figures = classifier.evaluate(run, report=lambda line: None)
    assert found["quantization"] == "dynamic" and found["bytes"] == path.stat().st_size
    task = found["task"]
    assert task["texts"] == len(test.texts)
    assert task["accuracy_model"] == pytest.approx(figures["accuracy"])
    assert abs(task["accuracy_file"] - task["accuracy_model"]) < 5
    assert 0 < task["difference"] < 0.1
    assert task["same_label"] >= 0.95 * task["texts"]
    assert {row["signature"] for row in found["time"]} == {"classify"}
    answers = [row["label"] for row in predict_by_file(path, test.texts)]
    right = [x == y for x, y in zip(answers, test.labels, strict=True)]
    assert task["accuracy_file"] == pytest.approx(100 * np.mean(right))


@pytest.mark.slow
def test_dynamic_range_is_smaller_and_near(run, tflite):
    small = classification_export.export(run, "tflite", quantize="dynamic")
    assert small.stat().st_size < tflite.stat().st_size
    texts = reviews.generate(60, seed=9).texts
    mine, found = classifier.classify(run, texts), predict_by_file(small, texts)
    assert np.mean([x["label"] == y["label"] for x, y in zip(mine, found, strict=True)]) > 0.95


@pytest.mark.slow
def test_onnx_is_equal(run):
    pytest.importorskip("tf2onnx")
    test = reviews.generate(50, seed=9)
    found = classification_export.compared(run, classification_export.export(run, "onnx"), test)
    assert found["same_label"] == found["texts"] == 50 and found["difference"] < 1e-5


def test_the_saved_model_takes_strings(run):
    path = classification_export.export(run, "saved_model")
    loaded = tf.saved_model.load(str(path))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    for i, row in enumerate(classifier.classify(run, TEXTS)):
        assert found["label"].numpy()[i].decode() == row["label"]
        assert found["probability"].numpy()[i] == pytest.approx(row["probability"], abs=1e-5)


def test_a_picture_is_of_shaded_sentences(run, tmp_path, command_line, capsys):
    said, page = command_line(capsys), tmp_path / "read.html"
    code, _, err = said("plot", run.folder, TEXTS[0], "--out", page)
    assert code == 0, err
    text = page.read_text("utf-8")
    assert text.count("<tr>") == 2 and "boring" in text
    pytest.importorskip("matplotlib")
    code, _, err = said("plot", run.folder, TEXTS[0], "--out", tmp_path / "read.svg")
    assert code == 0, err
    assert "boring" in (tmp_path / "read.svg").read_text("utf-8")
    code, out, _ = said("predict", run.folder, TEXTS[0], "--alignment")
    assert code == 0 and out[0].startswith("bad") and len(out) == 3
