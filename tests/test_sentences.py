"""The sentences recipe: its models, its data, its run, and what it leaves as."""

import dataclasses
import json

import keras
import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow("recipes are exported on TensorFlow"),
    pytest.mark.xdist_group("sentences"),  # one worker trains the models, not each
]
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.recipes import (  # noqa: E402
    classification_export,
    classification_training,
    classifier,
    labelled,
    questions,
    sentences,
)
from keras_attention.recipes.data import DataError, TextSide  # noqa: E402
from keras_attention.recipes.errors import RunError  # noqa: E402
from keras_attention.recipes.predict_file import predict_by_file  # noqa: E402
from keras_attention.recipes.sentences_options import ENCODERS, MODELS, Config  # noqa: E402

TEXTS = [
    "in which city did anna say ben built the old house ?",
    "did carla say that otto lost the big blue map when ?",
    "",
    "zebra",
    "how many times " * 40,
]
SIZES = {"embedding": 6, "units": 5, "hidden": 7, "hops": 3, "dropout": 0.0}


def as_lines(rows):
    return "".join(f"{y}\t{x}\n" for x, y in zip(rows.texts, rows.labels, strict=True))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "own.tsv"
    path.write_text(as_lines(questions.generate(800, seed=3)), "utf-8")
    return path


@pytest.fixture(scope="module", params=MODELS)
def run(request, file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / request.param
    small = {**Config.small, "epochs": 8, "max_length": 20, "normalize": "none"}
    config = Config(**{**small, "texts": str(file), "model": request.param})
    classification_training.train(config, folder, report=lambda line: None)
    return classifier.load_run(folder)


@pytest.fixture(scope="module")
def tflite(run):
    return classification_export.export(run, "tflite")


# The model.


@pytest.mark.parametrize(
    "kind", [*({"encoder": encoder} for encoder in ENCODERS), {"model": "disan"}], ids=str
)
def test_padding_changes_nothing(kind):
    reading = sentences.reading(sentences.build_model(20, 4, **kind, **SIZES))
    short = np.array([[4, 5, 6], [7, 2, 0]], "int32")
    logits, weights = map(np.asarray, reading(short))
    more, wider = map(np.asarray, reading(np.pad(short, [(0, 0), (0, 4)])))
    np.testing.assert_allclose(more, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wider[..., :3], weights, rtol=1e-4, atol=1e-5)
    assert not wider[..., 3:].any() and not weights[1, :, 2:].any()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert weights.shape == (2, 1 if "model" in kind else 3, 3)


def test_pairs_and_triples_are_read_and_the_strongest_put_beside():
    """What Lin et al. read and what Kim takes, by NumPy: hops over [word; pair; triple]."""
    model = sentences.build_model(20, 4, encoder="ngrams", **SIZES)
    draw = np.random.default_rng(0)
    model.set_weights([draw.normal(size=w.shape) for w in model.get_weights()])
    ids = np.array([[4, 5, 6, 7, 8]], "int32")
    at = {w.path: w.numpy().astype(float) for w in model.weights}
    words = at["embedding/embeddings"][ids[0]]
    zeros = np.zeros((1, words.shape[1]))

    def convolved(name, before, behind):
        kernel, bias = at[f"{name}/kernel"], at[f"{name}/bias"]
        line = np.concatenate([zeros] * before + [words] + [zeros] * behind)
        spans = [line[i : i + len(kernel)] for i in range(len(words))]
        return np.maximum([np.einsum("kd,kdu->u", span, kernel) + bias for span in spans], 0.0)

    states = [words, convolved("pairs", 0, 1), convolved("triples", 1, 1)]
    states = np.concatenate(states, axis=-1)
    hidden = np.tanh(states @ at["attention/hidden/kernel"])
    scores = np.exp(at["attention/query"] @ hidden.T)  # (r, T)
    found = scores / scores.sum(-1, keepdims=True)
    read = np.concatenate([(found @ states).ravel(), np.maximum(states, 0).max(0)])
    logits, weights = map(np.asarray, sentences.reading(model)(ids))
    np.testing.assert_allclose(weights[0], found, rtol=1e-4)
    np.testing.assert_allclose(
        logits[0], read @ at["logits/kernel"] + at["logits/bias"], rtol=1e-4, atol=1e-4
    )


def test_words_before_and_behind_are_read_apart():
    """DiSAN: what comes behind a word is read, and in another way than what comes before."""
    model = sentences.build_model(20, 4, model="disan", **SIZES)
    words = keras.Model(
        model.input, [model.get_layer(f"{name}_words").output for name in ("forward", "backward")]
    )
    one, other = np.array([[4, 5, 6, 7]]), np.array([[4, 5, 9, 7]])
    (before, behind), (before_2, behind_2) = (map(np.asarray, words(x)) for x in (one, other))
    np.testing.assert_array_equal(before[:, :2], before_2[:, :2])
    np.testing.assert_array_equal(behind[:, 3], behind_2[:, 3])
    assert np.abs(before[:, 3] - before_2[:, 3]).max() > 1e-4
    assert np.abs(behind[:, 0] - behind_2[:, 0]).max() > 1e-4


def test_a_penalty_is_part_of_the_loss():
    with_one, without = (
        sentences.build_model(20, 4, penalty=penalty, **SIZES) for penalty in (1.0, 0.0)
    )
    ids = np.array([[4, 5, 6]], "int32")
    with_one(ids)
    without(ids)
    assert len(with_one.losses) == 1 and not without.losses
    _, weights = sentences.reading(with_one)(ids)
    wanted = sentences.redundancy(np.asarray(weights)[0]) ** 2
    np.testing.assert_allclose(with_one.losses[0], wanted, rtol=1e-4)


# Data.


def test_generated_questions_are_of_all_kinds_and_never_twice():
    corpus = questions.corpus(100, 20, 30, seed=1)
    parts = (corpus.train, corpus.validation, corpus.test)
    assert [len(part.texts) for part in parts] == [100, 20, 30]
    texts = [text for part in parts for text in part.texts]
    assert len(set(texts)) == len(texts)
    assert corpus.labels == sorted(questions.KINDS)
    assert corpus == questions.corpus(100, 20, 30, seed=1) != questions.corpus(100, 20, 30, seed=2)


def test_bad_lines_are_named_and_skipped(tmp_path):
    path, said = tmp_path / "bad.tsv", []
    path.write_bytes(b"a\tone\nno tab\n\ttwo\nb\tthr\xe9e\nb\tfour\n")
    found = labelled.read_labelled(path, said.append)
    assert found == (["one", "four"], ["a", "b"])
    assert [line.partition(": ")[0] for line in said[:3]] == [f"{path}:{i}" for i in (2, 3, 4)]
    assert "expected label TAB text" in said[0] and "empty label" in said[1]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_objects_of_json(tmp_path, suffix):
    import gzip
    import lzma

    bad = ["{broken", '{"text": "two"}', '{"label": 0, "text": 3}', '{"label": null, "text": "x"}']
    rows = ['{"label": 1, "text": "one"}', *bad, r'{"label": "a", "text": "\ud800"}']
    content = "\n".join([*rows, '{"label": 0, "text": "six"}'])
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(suffix[6:], bytes)
    path, said = tmp_path / f"rows{suffix}", []
    path.write_bytes(pack(content.encode()))
    assert labelled.read_labelled(path, said.append) == (["one", "six"], ["1", "0"])
    reasons = ["not JSON", "expected", "the text is", "the label is", "half of a character"]
    for number, (line, reason) in enumerate(zip(said[:5], reasons, strict=True), start=2):
        assert line.startswith(f"{path}:{number}: {reason}")


def test_the_last_text_of_a_label_is_trained_on(tmp_path):
    path = tmp_path / "rare.tsv"
    path.write_text("".join(f"a\t{i}\nb\t{i}{i}\n" for i in range(1, 12)) + "rare\tone\n")
    for seed in range(9):
        corpus = labelled.from_files(path, None, TextSide(), seed, report=lambda line: None)
        assert corpus.train.labels.count("rare") == 1


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        ("a\tone\na\ttwo\na\tthree\n", None, "all texts have one label, 'a'"),
        ("a\tone\n", None, "1 different texts of 1 labels are too few"),
        ("a\t1\nb\t2\na\t3\nb\t4\na\t5\nb\t6\n", "c\tnine\n", "the label 'c' has no text to train"),
        ("one\ntwo\n", None, "no line reads as label TAB text"),
    ],
)
def test_data_that_cannot_be_used_is_refused(tmp_path, train, test, says):
    paths = [tmp_path / "train.tsv", tmp_path / "test.tsv"]
    for path, content in zip(paths, (train, test), strict=True):
        if content:
            path.write_text(content)
    test = paths[1] if test else None
    with pytest.raises(DataError, match=says) as caught:
        labelled.from_files(paths[0], test, TextSide(), report=lambda line: None)
    assert "\n" not in str(caught.value)


def test_no_text_is_in_two_parts(tmp_path):
    path = tmp_path / "twice.tsv"
    path.write_text(3 * as_lines(questions.generate(60, seed=2)))
    corpus = labelled.from_files(path, None, TextSide(), report=lambda line: None)
    parts = [set(part.texts) for part in (corpus.train, corpus.validation, corpus.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60


def test_a_set_that_is_not_here_says_where_to_put_it(tmp_path):
    with pytest.raises(DataError, match=r"trec: .*TREC.train.all.*--data-dir"):
        labelled.load("trec", tmp_path)


@pytest.mark.data
def test_trec_is_as_it_is_counted():
    import os

    if not os.environ.get("KERAS_ATTENTION_DATA"):
        pytest.skip("KERAS_ATTENTION_DATA names no folder of data sets")
    corpus = labelled.load("trec")
    assert len(corpus.train.texts) + len(corpus.validation.texts) == 5452
    assert len(corpus.test.texts) == 500 and len(corpus.labels) == 6
    counts = {label: corpus.test.labels.count(label) for label in corpus.labels}
    assert counts == {
        "abbreviation": 9,
        "description": 138,
        "entity": 94,
        "human": 65,
        "location": 81,
        "number": 113,
    }


# The run.


def test_it_learns(run):
    figures = classifier.evaluate(run, report=lambda line: None)
    assert figures["accuracy"] > 60 and figures["macro_f1"] > 50
    assert figures["texts"] == 80


def test_odd_texts_get_an_answer(run):
    rows = classifier.classify(run, TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        assert row["label"] in run.labels and 0 < row["probability"] <= 1
        np.testing.assert_allclose(sum(row["probabilities"].values()), 1, rtol=1e-5)
        assert np.shape(row["weights"])[1] == len(row["pieces"]) <= 20
        np.testing.assert_allclose(np.sum(row["weights"], -1), 1, rtol=1e-4)
        [alone] = classifier.classify(run, [text])
        assert alone["label"] == row["label"]
    assert rows[2]["pieces"] == ["[END]"] and rows[3]["pieces"] == ["[UNK]", "[END]"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("labels.txt", "a\nb\n", "are of another run"),
        ("labels.txt", None, "labels.txt is missing or broken"),
        ("model.keras", "", "model.keras is not a readable model"),
        ("model.keras", None, "its training never finished an epoch"),
    ],
)
def test_a_broken_run_is_named_in_one_line(run, tmp_path, name, content, says):
    import shutil

    folder = shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(RunError, match=says) as caught:
        classifier.load_run(folder)
    assert "\n" not in str(caught.value)


def test_f1_and_redundancy_by_hand():
    found, wanted = ["a", "a", "b", "c"], ["a", "b", "b", "b"]
    # a: 2 * 1 / (2 + 1), b: 2 * 1 / (1 + 3), c: 0 / (1 + 0)
    assert classifier.macro_f1(found, wanted) == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    assert sentences.redundancy([[1, 0, 0], [0, 0, 1]]) == 0
    assert sentences.redundancy([[1, 0], [1, 0]]) == pytest.approx(2**0.5)


# What it leaves as.


def test_the_tflite_file_answers_alone(run, tflite):
    report = inspect_tflite(tflite)
    assert report.flex == report.custom == []
    mine, found = classifier.classify(run, TEXTS), predict_by_file(tflite, TEXTS)
    for row, other in zip(mine, found, strict=True):
        assert (other["label"], other["pieces"]) == (row["label"], row["pieces"])
        np.testing.assert_allclose(other["weights"], row["weights"], rtol=0, atol=1e-5)
        assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)


def test_dynamic_range_is_smaller_and_near(run, tflite):
    small = classification_export.export(run, "tflite", quantize="dynamic")
    assert small.stat().st_size < tflite.stat().st_size
    texts = questions.generate(60, seed=9).texts
    mine, found = classifier.classify(run, texts), predict_by_file(small, texts)
    assert np.mean([x["label"] == y["label"] for x, y in zip(mine, found, strict=True)]) > 0.95


def test_files_of_fixed_lengths_answer_alike(run, tmp_path):
    """A text is filled up to the shortest length that fits, or cut to the longest."""
    folder = classification_export.export(run, "tflite", tmp_path / "lengths", shapes=[12, 5])
    assert sorted(file.name for file in folder.iterdir()) == ["12.tflite", "5.tflite"]
    mine, found = classifier.classify(run, TEXTS), predict_by_file(folder, TEXTS)
    for row, other in zip(mine, found, strict=True):
        assert other["pieces"] == row["pieces"][:12]
        assert np.shape(other["weights"])[1] == len(other["pieces"])
        if len(row["pieces"]) <= 12:
            assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
            np.testing.assert_allclose(other["weights"], row["weights"], rtol=0, atol=1e-5)
    [long] = classifier.classify(run, [" ".join(TEXTS[4].split()[:12])])
    short = dataclasses.replace(run, config=dataclasses.replace(run.config, max_length=12))
    [cut] = classifier.classify(short, TEXTS[4:])
    assert found[4]["probabilities"] == pytest.approx(cut["probabilities"], abs=1e-5)
    assert cut["pieces"] == long["pieces"][:12]


def test_a_length_beyond_the_run_is_refused(run, tmp_path):
    with pytest.raises(RunError, match=r"takes texts of 20 pieces at most.*\[8, 21\]"):
        classification_export.export(run, "tflite", tmp_path / "more", shapes=[8, 21])
    with pytest.raises(DataError, match="holds no files of lengths"):
        predict_by_file(tmp_path, TEXTS)


def test_the_saved_model_takes_strings(run):
    path = classification_export.export(run, "saved_model")
    loaded = tf.saved_model.load(str(path))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    for i, row in enumerate(classifier.classify(run, TEXTS)):
        assert found["label"].numpy()[i].decode() == row["label"]
        assert found["probability"].numpy()[i] == pytest.approx(row["probability"], abs=1e-5)


@pytest.mark.slow
def test_onnx_is_equal(run):
    pytest.importorskip("tf2onnx")
    assert classification_export.export(run, "onnx").exists()


def test_the_commands(file, tmp_path, command_line, capsys):
    said = command_line(capsys)
    folder = tmp_path / "run"
    sizes = "--embedding 6 --units 5 --hidden 7 --hops 2 --epochs 1 --normalize none".split()
    train = ["train", "sentences", "--texts", str(file), "--out", str(folder), *sizes]
    code, _, err = said(*train)
    assert code == 0 and "400" not in err[-1] and "validation accuracy" in "\n".join(err)
    code, out, _ = said("evaluate", str(folder), "--json")
    assert code == 0 and {"accuracy", "macro_f1", "redundancy"} <= set(json.loads(out[-1]))
    code, out, _ = said("predict", str(folder), TEXTS[0], "--alignment")
    assert code == 0 and "hop 2" in out[-1]
    for name in ("read.html", "read.png"):
        pytest.importorskip("matplotlib")
        code, _, err = said("plot", str(folder), TEXTS[0], "--out", str(tmp_path / name))
        assert code == 0, err
    page = (tmp_path / "read.html").read_text("utf-8")
    assert page.count("<tr>") == 2 and "city" in page
    lengths = tmp_path / "lengths"
    export = ["export", str(folder), "--to", "tflite", "--out", str(lengths)]
    code, _, err = said(*export, "--shapes", "8,16")
    assert code == 0, err
    code, by_file, _ = said("predict", str(lengths), TEXTS[0], "--alignment")
    assert code == 0 and by_file == out
    code, _, err = said("export", str(folder), "--to", "tflite", "--text")
    assert code == 2 and "recipes that translate" in err[-1]
    resumed = ["--resume", "--epochs", "2", "--out", str(folder)]
    code, _, err = said("train", "transformer", *resumed)
    assert code == 2 and "is a run of the sentences recipe" in err[-1]
    code, _, err = said("train", "sentences", *resumed)
    assert code == 0 and "epoch 2:" in "\n".join(err)
