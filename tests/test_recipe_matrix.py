"""Recipes, trained on their embedded data, in every quantisation, of free and of fixed sizes.

All of it runs with `--matrix`; the tests of each recipe export a sample.
"""

import itertools

import pytest

pytestmark = pytest.mark.tensorflow("recipes are exported on TensorFlow")
pytest.importorskip("tensorflow_text")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.recipes import (  # noqa: E402
    classification_export,
    classification_training,
    classifier,
    translation_export,
    translation_training,
    translator,
)
from keras_attention.recipes.options import CONFIGS  # noqa: E402

QUANTIZATIONS = (None, "float16", "dynamic", "int8")
SHAPES = ("dynamic", "static")
RECIPES = {
    "bahdanau": ("translation", {}),
    "luong": ("translation", {"attention": "bilinear", "query": "current"}),
    "plain": ("translation", {"attention": "none"}),
    "transformer": ("transformer", {}),
    "self-attentive": ("sentences", {"model": "self-attentive"}),
    "ngrams": ("sentences", {"encoder": "ngrams"}),
    "disan": ("sentences", {"model": "disan"}),
    "documents": ("documents", {}),
    "memn2n": ("stories", {}),
    "key-value": ("stories", {"model": "key-value"}),
}
WITHOUT_LOOPS = ("ngrams", "disan", "memn2n", "key-value")
MOST = 0.5  # points of the task that a file may lose, but for integers in fitted ranges


def pytest_generate_tests(metafunc):
    if "recipe" not in metafunc.fixturenames:
        return
    whole = metafunc.config.getoption("--matrix")
    rows = itertools.product(RECIPES, QUANTIZATIONS, SHAPES) if whole else ()
    metafunc.parametrize(
        ("recipe", "quantization", "shapes"),
        [
            pytest.param(
                *row,
                id="-".join((row[0], row[1] or "float32", row[2])),
                marks=pytest.mark.xdist_group(f"recipe {row[0]}"),  # one worker trains it
            )
            for row in rows
        ],
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """A function: the trained run of a recipe, its test part, and `task`, a file's figures."""
    runs = {}

    def find(name):
        if name not in runs:
            recipe, given = RECIPES[name]
            config = CONFIGS[recipe](**{**CONFIGS[recipe].small, **given})
            translates = config.commands == "translation_commands"
            training = translation_training if translates else classification_training
            folder = tmp_path_factory.mktemp("runs") / name
            training.train(config, folder, report=lambda line: None)
            runs[name] = (_translator if translates else _classifier)(folder)
        return runs[name]

    return find


def _translator(folder):
    run = translator.load_run(folder)
    corpus = translator.load_corpus(run.config)
    test = corpus.test.rows(range(100))

    def task(path):
        found = translation_export.measured(run, path, test, corpus.target, seconds=0.1)["task"]
        return found, found["bleu_model"] - found["bleu_file"]

    return translation_export.export, run, corpus.sample(50).source, task


def _classifier(folder):
    run = classifier.load_run(folder)
    corpus = classifier.load_corpus(run.config)

    def task(path):
        found = classification_export.compared(run, path, corpus.test)
        return found, found["accuracy_model"] - found["accuracy_file"]

    return classification_export.export, run, corpus.train.texts[:50], task


# Of integers in fitted ranges, whose worth is that of the task.
@pytest.mark.filterwarnings("ignore:(?s).*away from the model's")
def test_a_recipe_leaves_as_its_model(recipe, quantization, shapes, run_of, tmp_path):
    if (quantization, shapes) == ("int8", "static") and recipe not in WITHOUT_LOOPS:
        pytest.skip("TensorFlow's calibration crashes on loops of fixed sizes (tensorflow#62281)")
    export, run, texts, task = run_of(recipe)
    path = export(
        run,
        "tflite",
        tmp_path / "model.tflite",
        quantize=quantization,
        shapes=shapes,
        texts=texts if quantization == "int8" else (),
    )  # which compares: a file that is not equal is not there
    report = inspect_tflite(path)
    assert report.flex == report.custom == []
    [sizes, _] = next(iter(next(iter(report.signatures.values()))["inputs"].values()))
    assert (None in sizes) == (shapes == "dynamic")
    found, lost = task(path)
    print(recipe, quantization or "float32", shapes, found)
    if quantization != "int8":  # whose drop is told
        assert lost <= MOST, found
