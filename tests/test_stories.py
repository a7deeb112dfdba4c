"""The stories recipe: its data, its model, its run, and what it leaves as."""

import json
import os

import numpy as np
import pytest

from keras_attention import linear, softmax

pytestmark = [
    pytest.mark.tensorflow("recipes are exported on TensorFlow"),
    pytest.mark.xdist_group("stories"),  # one worker trains the model, not each
]
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.recipes import (  # noqa: E402
    babi,
    classification_export,
    classification_training,
    classifier,
    errands,
    labelled,
    stories,
)
from keras_attention.recipes.data import DataError  # noqa: E402
from keras_attention.recipes.highlight import Shaded, as_text  # noqa: E402
from keras_attention.recipes.predict_file import predict_by_file  # noqa: E402
from keras_attention.recipes.stories_options import MODELS, Config  # noqa: E402
from keras_attention.recipes.tokenizers import END_ID, SPECIAL, Tokenizer  # noqa: E402

REAL = os.environ.get("KERAS_ATTENTION_DATA")
TEXTS = [
    "anna went to the park . ben took the key . anna went to the bank . where is anna ?",
    "where is anna ?",
    "",
    "anna is now at the zoo . where is zora ?",
    "anna went to the park . " * 20 + "ben walked to the bank . where is ben ?",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stories"
    config = Config(**{**Config.small, "epochs": 24, "linear_start": 9})
    classification_training.train(config, folder, report=lambda line: None)
    return classifier.load_run(folder)


@pytest.fixture(scope="module")
def tflite(run):
    return classification_export.export(run, "tflite")


# The generated stories.


def test_answers_follow_from_the_annotated_sentences_alone():
    """Told nothing else, in the same order, one comes to the same answer."""
    found = errands.generate(300, seed=4)
    for text, answer, task, supports in zip(
        found.texts, found.labels, found.tasks, found.supports, strict=True
    ):
        *told, question = [part.split() for part in text.replace("?", "?.").split(" .")]
        kept = [told[i] for i in supports]
        asked = question[2]
        if task == "thing":
            [taken] = [s for s in kept if s[-1] == question[3]]
            assert taken[1] in ("took", "picked")
            asked = taken[0]
        visits = [s for s in kept if s[0] == asked and s[1] not in ("took", "picked")]
        if task == "before":
            assert visits[1][-1] == question[-2]
        assert visits[0][-1] == answer
        # The last place of that person, or the one before it, in all that was told.
        everywhere = [s[-1] for s in told if s[0] == asked and s[1] not in ("took", "picked")]
        assert everywhere[-2 if task == "before" else -1] == answer


def test_no_story_is_in_two_parts_and_seeds_decide():
    corpus = errands.corpus(60, 10, 20, seed=1)
    parts = (corpus.train, corpus.validation, corpus.test)
    assert [len(part.texts) for part in parts] == [60, 10, 20]
    assert len({text for part in parts for text in part.texts}) == 90
    assert corpus == errands.corpus(60, 10, 20, seed=1) != errands.corpus(60, 10, 20, seed=2)
    assert set(corpus.train.tasks) == set(errands.TASKS)


# Files of bAbI.

FILE = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary?\tbathroom\t1
4 Mary took the ball.
5 Where is the ball?\tbathroom\t4 1
1 Daniel left.
2 Is Daniel gone?\tyes\t1
"""


def read(content, report=print):
    return babi.read_stories("qa.txt", content.encode().split(b"\n")[:-1], "2", report)


def test_stories_are_read():
    found = read(FILE)
    assert found.texts[1] == (
        "Mary moved to the bathroom. John went to the hallway. Mary took the ball. "
        "Where is the ball?"
    )
    assert found.labels == ["bathroom", "bathroom", "yes"]
    assert found.supports == [(0,), (2, 0), (0,)]  # questions are no sentences of the story
    assert found.stories == [0, 0, 1] and set(found.tasks) == {"2"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("3 Where is Mary?", "a question without TAB and answer"),
        ("3 Where is Mary?\t\t1", "no answer"),
        ("3 Where is Mary?\tbathroom\t7", "the supporting id '7' is no sentence"),
        ("3 Where is Mary?\tbathroom\tx", "the supporting id 'x' is no sentence"),
        ("2 Where is Mary?\tbathroom\t1", "the id 2 follows 2: ids increase by 1"),
        ("Where is Mary?\tbathroom\t1", "expected an id and a sentence"),
        ("3", "expected an id and a sentence"),
    ],
)
def test_bad_lines_are_named_and_end_their_story(line, says):
    said = []
    found = read(FILE.replace("3 Where is Mary?\tbathroom\t1", line), said.append)
    assert found.labels == ["yes"] and found.stories == [1]
    assert said[0].startswith("qa.txt:3: ") and says in said[0]
    assert said[1] == "qa.txt: skipped 1 bad of 7 lines"


def test_a_file_without_questions_is_refused():
    with pytest.raises(DataError, match=r"qa\.txt: no line reads as"):
        read("1 Mary left.\n")


def test_questions_of_one_story_stay_together():
    rows = babi.nothing()
    for story in range(50):
        for question in range(4):
            row = (f"{story} {question}", "a", "1", (), story)
            for column, value in zip(rows, row, strict=True):
                column.append(value)
    train, held = babi.split(rows, seed=3)
    assert len(held.texts) == 20 and len(train.texts) == 180
    assert not set(train.stories) & set(held.stories)
    assert held != babi.split(rows, seed=4)[1]


def test_a_task_that_is_not_there_is_named():
    corpus = errands.corpus(40, 10, 10)
    found = stories.of_tasks(corpus, "thing,person")
    assert set(found.train.tasks) == set(found.test.tasks) == {"thing", "person"}
    with pytest.raises(DataError, match=r"errands has no task 'who'; there are: .*person"):
        stories.of_tasks(corpus, "person,who")


@pytest.mark.data
@pytest.mark.skipif(not REAL, reason="KERAS_ATTENTION_DATA names no folder of data sets")
@pytest.mark.parametrize(("name", "questions", "tasks"), [("babi", 20_000, 20)])
def test_babi_is_as_it_is_counted(name, questions, tasks):
    corpus = labelled.load(name)
    train = len(corpus.train.texts) + len(corpus.validation.texts)
    assert train == questions and len(corpus.test.texts) == 20_000
    assert len(set(corpus.train.tasks)) == tasks


# The model and what it is given.


IDS = np.array([[[4, 5, 0], [6, 7, 8], [9, 2, 0]], [[5, 4, 0], [7, 2, 0], [0, 0, 0]]], "int32")


@pytest.mark.parametrize("model", MODELS)
def test_padding_changes_nothing(model):
    one, other = (
        stories.build_model(20, 4, model=model, units=5, lines=6, words=words) for words in (3, 4)
    )
    other.set_weights(one.get_weights())
    logits, weights = map(np.asarray, stories.reading(one)(IDS))
    padded = np.pad(IDS, [(0, 0), (0, 2), (0, 1)])
    more, wider = map(np.asarray, stories.reading(other)(padded))
    np.testing.assert_allclose(more, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wider[..., :2], weights, rtol=1e-4, atol=1e-5)
    assert weights.shape == (2, 3, 2) and not wider[..., 2:].any() and not weights[1, :, 1].any()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_key_value_slots_are_words_with_their_sentence_as_the_key():
    model = stories.build_model(20, 4, model="key-value", hops=2, units=5, lines=6, words=3)
    draw = np.random.default_rng(0)
    model.set_weights([draw.normal(size=w.shape) for w in model.get_weights()])
    at = {w.path.split("/")[0]: w.numpy().astype(float) for w in model.weights[:4]}
    maps = [w.numpy().astype(float) for w in model.get_layer("memory").weights]
    logits, weights = map(np.asarray, stories.reading(model)(IDS))

    def encoded(line):
        words = [word for word in line if word]
        count, k = len(words), np.arange(1, 6) / 5
        parts = [
            ((1 - j / count) - k * (1 - 2 * j / count)) * at["embedding"][word]
            for j, word in enumerate(words, start=1)
        ]
        return sum(parts, np.zeros(5))

    for row, (question, *story) in enumerate(IDS):
        told = [line for line in story if line.any()]
        slots = [
            (place, encoded(line) + at["age"][len(told) - 1 - place] + at["center"][word], word)
            for place, line in enumerate(told)
            for word in line
            if word not in (0, END_ID)
        ]
        query = encoded(question)
        for hop, r in enumerate(maps):
            scores = np.exp([query @ key for _, key, _ in slots])
            found = scores / scores.sum()
            read = sum(a * at["value"][word] for a, (_, _, word) in zip(found, slots, strict=True))
            query = r.T @ (query + read)
            of_lines = [
                sum(a for a, (at_line, _, _) in zip(found, slots, strict=True) if at_line == place)
                for place in range(len(told))
            ]
            np.testing.assert_allclose(weights[row, hop, : len(told)], of_lines, rtol=1e-4)
        answers = model.get_layer("logits").kernel.numpy().astype(float)
        np.testing.assert_allclose(logits[row], query @ answers, rtol=1e-4)


def tokenizer_of(*words):
    return Tokenizer((*SPECIAL, *words), "spaces", "none")


def test_the_question_is_first_and_the_latest_sentences_are_kept():
    tokenizer = tokenizer_of("a", "b", "c", "?", ".")
    texts = ["a . b . c . b ?", "b ?", "a .  . b ?"]
    found = stories.ids_of(texts, tokenizer, Config(lines=2, words=3)).to_list()
    question, b, c = [5, 7, END_ID], [5, 8, END_ID], [6, 8, END_ID]
    assert found == [[question, b, c], [question], [question, [4, 8, END_ID], [8, END_ID]]]
    parts = stories.ids_of_parts(["a . b . c", ""], ["b ?", "b ?"], tokenizer, Config(words=3))
    assert parts.to_list() == [[question, [4, 8, END_ID], b, [6, END_ID]], [question]]
    padded = stories.padded(parts[1:], Config(words=3)).numpy()
    assert padded.tolist() == [[question, [0, 0, 0]]]


def test_empty_sentences_are_put_between_those_of_a_story():
    ids = tf.ragged.constant([[[5, 2], [6, 2], [7, 2]], [[8, 2], [9, 9, 2]]], dtype="int32")
    assert stories.augmented(ids, Config(noise=0.0), 1).to_list() == ids.to_list()
    assert stories.augmented(ids, Config(noise=1.0), 1).to_list() == [
        [[5, 2], [2], [6, 2], [2], [7, 2], [2]],
        [[8, 2], [2], [9, 9, 2], [2]],
    ]
    some = stories.augmented(ids, Config(noise=0.5), 3).to_list()
    assert [[line for line in row if line != [2]] for row in some] == ids.to_list()
    assert some == stories.augmented(ids, Config(noise=0.5), 3).to_list()


def test_a_start_without_softmax_ends():
    model = stories.build_model(20, 4, units=5, lines=6)
    memory, config = model.get_layer("memory"), Config(linear_start=2)
    changed, normalizers = [], []
    for epoch in (1, 2, 3, 4):
        changed.append(stories.begin_epoch(model, epoch, config))
        normalizers.append(memory.normalizer)
        assert stories.is_settled(model) == (epoch > 2)
    assert changed == [True, False, True, False]
    assert normalizers == [linear, linear, softmax, softmax]
    # One that goes on behind the start has softmax at once.
    other = stories.build_model(20, 4, units=5, lines=6)
    assert not stories.begin_epoch(other, 3, config)
    assert not stories.begin_epoch(other, 1, Config(linear_start=2, epochs=1))
    assert not stories.begin_epoch(other, 1, Config(linear_start=0))


def test_an_epoch_of_the_start_is_never_kept(tmp_path):
    config = Config(**{**Config.small, "epochs": 4, "linear_start": 2, "learning_rate": 1e-5})
    figures = classification_training.train(config, tmp_path / "run", report=lambda line: None)
    assert figures["best_epoch"] > 2
    run = classifier.load_run(tmp_path / "run")
    assert run.model.get_layer("memory").normalizer is softmax


def test_weights_that_are_no_shares_are_shown():
    row = Shaded("hop 1", ["a", "b", "c"], [-2.0, 0.5, 1.0])
    assert as_text(row) == "a  b▒ c█"


def test_supports_that_some_hop_read_most():
    row = {"pieces": ["x"] * 3, "weights": [[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]}
    assert stories.supports_read(row, 3, (0, 2)) and stories.supports_read(row, 3, (2,))
    assert not stories.supports_read(row, 3, (1, 2))
    assert stories.supports_read(row, 5, (2, 4))  # of five sentences the last three were kept
    assert not stories.supports_read(row, 5, (0,))


# The run.


def test_it_learns(run):
    figures = classifier.evaluate(run, report=lambda line: None)
    assert figures["accuracy"] > 80, figures
    assert figures["supports_read"]["person"] > 0.9
    assert figures["mean_error"] == pytest.approx(np.mean([*figures["errors"].values()]))
    assert figures["failed_tasks"] == sum(error > 5 for error in figures["errors"].values())


def test_odd_stories_get_an_answer(run):
    rows = classifier.classify(run, TEXTS)
    for row in rows:
        assert row["label"] in run.labels and 0 < row["probability"] <= 1
        assert np.all(np.isfinite(row["weights"]))
    assert rows[0]["question"] == "where is anna ?"
    assert rows[0]["pieces"][1] == "ben took the key ."
    assert rows[1]["pieces"] == [] and rows[2]["question"] == ""
    assert len(rows[4]["pieces"]) == 12 and rows[4]["pieces"][-1] == "ben walked to the bank ."


# What it leaves as.


def test_the_tflite_file_answers_alone(run, tflite):
    report = inspect_tflite(tflite)
    assert report.flex == report.custom == []
    mine, found = classifier.classify(run, TEXTS), predict_by_file(tflite, TEXTS)
    for row, other in zip(mine, found, strict=True):
        for name in ("label", "question", "pieces"):
            assert other[name] == row[name]
        np.testing.assert_allclose(other["weights"], row["weights"], rtol=0, atol=1e-5)
        assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)


def test_a_file_of_fixed_sizes_answers_alike(run, tmp_path):
    path = tmp_path / "fixed.tflite"
    classification_export.export(run, "tflite", path, shapes="static", quantize="dynamic")
    assert inspect_tflite(path).signatures["classify"]["inputs"]["ids"][0] == (1, 13, 8)
    task = classification_export.compared(run, path, errands.generate(60, seed=9))
    assert task["same_label"] >= 59 and abs(task["accuracy_model"] - task["accuracy_file"]) < 2


def test_the_saved_model_takes_a_story_and_a_question(run):
    path = classification_export.export(run, "saved_model")
    answer = tf.saved_model.load(str(path)).signatures["serving_default"]
    told, asked = TEXTS[0].rpartition(" . ")[::2]
    found = answer(story=tf.constant([told + " .", ""]), question=tf.constant([asked, asked]))
    for i, row in enumerate(classifier.classify(run, [TEXTS[0], asked])):
        assert found["label"].numpy()[i].decode() == row["label"]
        assert found["probability"].numpy()[i] == pytest.approx(row["probability"], abs=1e-5)


@pytest.mark.slow
def test_onnx_is_equal(run):
    pytest.importorskip("tf2onnx")
    test = errands.generate(50, seed=9)
    found = classification_export.compared(run, classification_export.export(run, "onnx"), test)
    assert found["same_label"] == found["texts"] == 50 and found["difference"] < 1e-5


def test_the_commands(tmp_path, command_line, capsys):
    said, folder = command_line(capsys), tmp_path / "run"
    train = ["train", "stories", "--out", folder, "--epochs", "1", "--tasks", "person,thing"]
    code, _, err = said(*train, "--units", "6")
    assert code == 0 and "validation accuracy" in "\n".join(err)
    code, out, _ = said("evaluate", folder, "--json")
    assert code == 0 and set(json.loads(out[-1])["errors"]) == {"person", "thing"}
    code, out, err = said("predict", folder, TEXTS[4], "--alignment")
    assert code == 0 and "hop 3" in out[-1] and "of 21 sentences the last 12 are read" in err[-1]
    for name in ("read.html", "read.png"):
        pytest.importorskip("matplotlib")
        code, _, err = said("plot", folder, TEXTS[0], "--out", tmp_path / name)
        assert code == 0, err
    page = (tmp_path / "read.html").read_text("utf-8")
    assert page.count("<tr>") == 3 and "ben took the key" in page and "where is anna" in page
    code, _, err = said("plot", folder, "where is anna ?", "--out", tmp_path / "no.png")
    assert code == 2 and "a question without a story" in err[-1]
    code, _, err = said("train", "stories", "--out", tmp_path / "x", "--tasks", "who")
    assert code == 1 and "has no task 'who'" in err[-1] and not (tmp_path / "x").exists()
