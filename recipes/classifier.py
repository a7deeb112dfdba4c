"""What is done with a model that classifies texts: its data, its run, answers and figures."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attention.export.places import replacing

from . import documents, labelled, sentences, stories
from .data import Report, TextSide
from .errors import RunError
from .runs import first_line, load_config, load_model
from .texts_options import TextsConfig
from .tokenizers import Tokenizer
from .told import TOLD

# A recipe has `Config`, `model_of`, `reading`, `ids_of`, `padded` and `figures`, and may have
# `augmented`, other ids for each pass, `begin_epoch`, which changes the model in training, and
# `is_settled`, which says whether that has ended.
RECIPES = {module.Config.recipe: module for module in (sentences, documents, stories)}
LABELS = "labels.txt"


@dataclasses.dataclass
class Run:
    """A loaded run."""

    config: TextsConfig
    model: keras.Model
    tokenizer: Tokenizer
    labels: list[str]
    folder: Path


def load_corpus(
    config: TextsConfig, data_dir=None, report: Report = print
) -> labelled.LabelledCorpus:
    """The texts that the config names, and how they are handled."""
    if not config.texts:
        corpus = labelled.load(config.data, data_dir, report, config.seed)
        return stories.of_tasks(corpus, config.tasks) if config.recipe == "stories" else corpus
    default = TextSide()
    side = TextSide(config.split or default.split, config.normalize or default.normalize)
    return labelled.from_files(config.texts, config.test, side, config.seed, report)


def load_run(folder: Path) -> Run:
    """Load a run's folder.

    Raises:
        RunError: naming what is missing or broken.
        DataError: naming a vocabulary that is missing or of another run.
    """
    folder = Path(folder)
    config = load_config(folder, (recipe.Config for recipe in RECIPES.values()))
    tokenizer, labels = Tokenizer.load(folder, "text"), read_labels(folder)
    model = load_model(folder)
    sizes = [model.get_layer("embedding").input_dim, model.output.shape[-1]]
    if sizes != [tokenizer.size, len(labels)]:
        raise RunError(
            f"{folder} has a model of {sizes[0]} pieces and {sizes[1]} classes, the files beside "
            f"it hold {tokenizer.size} and {len(labels)}: they are of another run"
        )
    return Run(config, model, tokenizer, labels, folder)


def read_labels(folder: Path) -> list[str]:
    """The labels of a run, a class a line."""
    path = folder / LABELS
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is missing or broken: {first_line(error)}") from None


def write_labels(folder: Path, labels: Sequence[str]) -> None:
    with replacing(folder / LABELS) as beside:
        beside.write_text("".join(f"{label}\n" for label in labels), "utf-8")


def answers(run: Run, compiled: bool = False) -> Callable:
    """A function of padded ids: probabilities (B, C), and what was read, as arrays.

    Args:
        run: a loaded run.
        compiled: whether to trace it for many calls, on TensorFlow; that takes seconds.
    """
    model = RECIPES[run.config.recipe].reading(run.model)

    def reading(ids):
        return model(ids, training=False)

    if compiled and keras.backend.backend() == "tensorflow":
        ids = tf.TensorSpec(model.inputs[0].shape, "int32")
        reading = tf.function(reading, input_signature=[ids], autograph=False)

    def answer(ids):
        logits, *read = reading(ids)
        found = [ops.softmax(ops.cast(logits, "float32")), *read]
        return [ops.convert_to_numpy(x) for x in found]

    return answer


def classify(run: Run, texts: Sequence[str], batch_size: int = 64) -> list[dict]:
    """Say of texts, in their order, what they are.

    Args:
        run: a loaded run.
        texts: what to classify.
        batch_size: texts at once, of about one length.

    Returns:
        A dict a text: `label`, `probability`, `probabilities` by label, and what `TOLD`
        says was read.
    """
    recipe, answer = RECIPES[run.config.recipe], answers(run, compiled=len(texts) > batch_size)
    ids = recipe.ids_of(texts, run.tokenizer, run.config)
    pieces = ids.with_flat_values(run.tokenizer.pieces(ids.flat_values)).to_list()
    results: list[dict] = [{} for _ in texts]
    for rows, given in in_batches(run, ids, batch_size):
        for row, of_row, *read in zip(rows, *answer(given), strict=True):
            best = int(of_row.argmax())
            results[row] = {
                "label": run.labels[best],
                "probability": float(of_row[best]),
                "probabilities": dict(zip(run.labels, map(float, of_row), strict=True)),
                **TOLD[recipe.Config.recipe](_decoded(pieces[row]), *read),
            }
    return results


def in_batches(
    run: Run, ids: tf.RaggedTensor, batch_size: int = 64
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Texts of about one length together: their places, and their padded ids."""
    order = np.argsort(ids.row_lengths().numpy(), kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        padded = RECIPES[run.config.recipe].padded(tf.gather(ids, rows), run.config)
        yield rows, padded.numpy()


def _decoded(pieces):
    return [_decoded(part) if isinstance(part, list) else part.decode() for part in pieces]


def evaluate(
    run: Run, *, data_dir=None, limit: int | None = None, report: Callable[[str], None] = print
) -> dict:
    """Measure a run on the test part of its data.

    Returns:
        `accuracy` and `macro_f1` in percent, `loss` in nats, `texts`, and the recipe's `figures`.
    """
    test = load_corpus(run.config, data_dir, report).test
    test = test.rows(range(min(limit or len(test.texts), len(test.texts))))
    rows = classify(run, test.texts)
    found = [row["label"] for row in rows]
    of_label = [row["probabilities"].get(y, 0.0) for row, y in zip(rows, test.labels, strict=True)]
    return {
        "texts": len(found),
        "accuracy": 100 * float(np.mean([x == y for x, y in zip(found, test.labels, strict=True)])),
        "macro_f1": macro_f1(found, test.labels),
        "loss": float(np.mean(-np.log(np.maximum(of_label, 1e-12)))),
        **RECIPES[run.config.recipe].figures(rows, test),
    }


def macro_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean over the labels of F1, in percent; of a label never found or wanted, none."""
    scores = []
    for label in sorted(set(wanted) | set(found)):
        hits = sum(x == y == label for x, y in zip(found, wanted, strict=True))
        total = sum(x == label for x in found) + sum(y == label for y in wanted)
        scores.append(2 * hits / total)
    return 100 * float(np.mean(scores))
