"""The artifacts of a run that classifies, and what they are compared with."""

import dataclasses
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from keras import ops

from keras_attention.export.conversion import CALIBRATED
from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.onnx import export_onnx
from keras_attention.export.parity import load
from keras_attention.export.portable import portable
from keras_attention.export.saved_model import export_saved_model
from keras_attention.export.tflite import export_tflite

from . import classifier, export_report, stories
from .classifier import LABELS, RECIPES, Run
from .classifier_file import SIGNATURE, ClassifierFile, filled
from .errors import RunError
from .labelled import Labelled
from .tflite_places import Shapes, default_place, length_files, lengths_of
from .tokenizers import END_ID, PADDING_ID, UNKNOWN_ID

_LIMITS = {
    "sentences": ("max_length",),
    "documents": ("sentences", "words"),
    "stories": ("lines", "words"),
}


def export(
    run: Run,
    to: str,
    path: Path | None = None,
    *,
    quantize: str | None = None,
    shapes: Shapes = "dynamic",
    texts=(),
    verify: bool = True,
) -> Path:
    """Export a run.

    | signature | takes | gives |
    |---|---|---|
    | classify | ids (B, T), of documents (B, S, W) | probabilities (B, C), and what was read |
    | serving_default, of a SavedModel | text, strings (B,) | label, probability, and these |

    What was read is `weights` (B, r, T); of documents `of_sentences` (B, S) and `of_words`
    (B, S, W). Stories have ids (B, 1 + S, W), of a question and of sentences, and `weights`
    (B, K, S); their serving_default takes `story` and `question`.

    Args:
        run: a loaded run.
        to: `"saved_model"` (strings in and ids in), `"tflite"` or `"onnx"` (ids in).
        path: the folder or file to write; by default inside the run's `export` folder.
        quantize: of a `.tflite`, as `export_tflite` takes it.
        shapes: of a `.tflite`: `"dynamic"`; `"static"` for one text of the run's `max_length`
            pieces, or `sentences` of `words`; or a list of such lengths, which makes a folder with
            a file for each. A longer text is cut.
        texts: what ranges of integers are fitted to, a hundred or so.
        verify: whether to run the artifact and compare before it gets its name.

    Returns:
        The path written.

    Raises:
        ExportError: when the artifact is not equal to the model, or does not convert.
        RunError: for an unknown kind, or a length that is more than the run's.
    """
    run = in_float32(run)
    folder = run.folder / "export"
    if to == "tflite":
        lengths = lengths_of(run.folder, shapes, run.config.longest)
        fitted = quantize in CALIBRATED
        return export_tflite(
            {SIGNATURE: classifying(run, lengths)},
            path or default_place(run.folder, run.config.recipe, quantize, shapes),
            quantization=quantize,
            shapes=shapes,
            representative_data={SIGNATURE: calls_of(run, texts, lengths)} if fitted else None,
            metadata=_metadata(run),
            verify={SIGNATURE: _compared_calls(run, lengths)} if verify else None,
        )
    functions = {SIGNATURE: classifying(run)}
    calls = {SIGNATURE: _compared_calls(run)} if verify else None
    if to == "onnx":
        path = path or folder / "onnx"
        return export_onnx(functions, path, metadata=_metadata(run), verify=calls)
    if to != "saved_model":
        raise RunError(f"to must be saved_model or tflite or onnx. Received: {to!r}")
    served = importlib.util.find_spec("tensorflow_serving") is not None
    return export_saved_model(
        {"serving_default": _of_text(run), **functions},
        path or folder / "saved_model",
        assets={name: run.folder / name for name in ("text.vocabulary.txt", LABELS)},
        warmup={SIGNATURE: _compared_calls(run)} if served else None,
        verify=calls,
    )


def in_float32(run: Run) -> Run:
    """The run itself, or one that computes in the precision that its weights are kept in."""
    if run.config.precision == "float32":
        return run
    config = dataclasses.replace(run.config, precision="float32")
    model = RECIPES[config.recipe].model_of(config, run.tokenizer.size, len(run.labels))
    model.set_weights(run.model.get_weights())
    return dataclasses.replace(run, config=config, model=model)


def classifying(run: Run, lengths: Sequence[int | None] = (None,)):
    """The function of an artifact, and what it takes, in files for these lengths of a text."""
    model = RECIPES[run.config.recipe].reading(portable(run.model))
    names = ("weights",) if len(model.outputs) == 2 else ("of_sentences", "of_words")

    def classify(ids):
        logits, *read = model(ids)
        return {"probabilities": ops.softmax(logits), **dict(zip(names, read, strict=True))}

    shape = list(model.inputs[0].shape)
    if lengths[0] is not None:
        shape[2:] = [run.config.words for _ in shape[2:]]
    if len(lengths) == 1 and lengths[0] is not None:
        shape[:2] = 1, *lengths
    return classify, {"ids": tf.TensorSpec(shape, tf.int32)}


def measured(run: Run, path: Path, test: Labelled, *, seconds: float = 2.0) -> dict:
    """What a `.tflite` is worth: see `export_report.measured`, and `compared` for its `task`."""
    run, [*_, biggest] = in_float32(run), length_files(path)
    length = inspect_tflite(biggest).signatures[SIGNATURE]["inputs"]["ids"][0][1]
    calls = {SIGNATURE: calls_of(run, test.texts[:20], [length])}
    functions, task = {SIGNATURE: classifying(run)}, compared(run, path, test)
    return export_report.measured(path, functions, calls, task, seconds=seconds)


def compared(run: Run, path: Path, test: Labelled) -> dict:
    """What an artifact of any kind answers to the texts of a test part, beside the model.

    Returns:
        `texts`; `accuracy_model` and `accuracy_file`, in percent; `same_label`, of how many texts;
        `difference`, the largest of a probability.
    """
    run, artifact = in_float32(run), _answering(path)
    rows = classifier.classify(run, test.texts)
    of_model = np.array([[row["probabilities"][y] for y in run.labels] for row in rows])
    ids = RECIPES[run.config.recipe].ids_of(test.texts, run.tokenizer, run.config)
    of_file = np.empty_like(of_model)
    for places, given in classifier.in_batches(run, ids):
        of_file[places] = artifact(given)["probabilities"]
    wanted = np.array([run.labels.index(y) if y in run.labels else -1 for y in test.labels])
    return {
        "texts": len(wanted),
        "accuracy_model": 100 * float(np.mean(of_model.argmax(-1) == wanted)),
        "accuracy_file": 100 * float(np.mean(of_file.argmax(-1) == wanted)),
        "same_label": int(np.sum(of_model.argmax(-1) == of_file.argmax(-1))),
        "difference": float(np.abs(of_model - of_file).max()),
    }


def _answering(path):
    """An artifact of any kind, as a function of padded ids."""
    if path.suffix == ".tflite" or any(path.glob("*.tflite")):
        return ClassifierFile(path)
    loaded = load(path, SIGNATURE)
    return lambda ids: loaded({"ids": ids})


def _ids(run, texts):
    recipe = RECIPES[run.config.recipe]
    return recipe.padded(recipe.ids_of(texts, run.tokenizer, run.config), run.config)


def calls_of(run: Run, texts, lengths: Sequence[int | None] = (None,)) -> list[dict]:
    """What files for these lengths are called with for these texts, one at a time."""
    if not len(texts):
        raise RunError("ranges of integers are fitted to texts, and there are none")
    ids = [_ids(run, [text]).numpy() for text in texts]
    return [{"ids": row} for length in lengths for row in _of_length(ids, length)]


def _compared_calls(run, lengths=(None,)):
    """What an artifact is compared on."""
    batches = _examples(run)
    rows = [ids[i : i + 1] for ids in batches for i in range(len(ids))]
    return [
        {"ids": ids}
        for length in lengths
        for ids in (batches if length is None else _of_length(rows, length))
    ]


def _of_length(rows, length):
    return [ids if length is None else filled(ids, length, PADDING_ID) for ids in rows]


def _of_text(run):
    """The function of text, and what it takes: of stories, the question apart."""
    classify, _ = classifying(run)
    string = tf.TensorSpec((None,), tf.string)

    def answer(ids):
        ids = RECIPES[run.config.recipe].padded(ids, run.config)
        found = classify(ids)
        best = tf.argmax(found["probabilities"], axis=-1)
        return {
            "label": tf.gather(tf.constant(run.labels), best),
            "probability": tf.reduce_max(found["probabilities"], axis=-1),
            **found,
            "pieces": run.tokenizer.pieces(ids),
        }

    def of_text(text):
        return answer(RECIPES[run.config.recipe].ids_of(text, run.tokenizer, run.config))

    def of_story(story, question):
        return answer(stories.ids_of_parts(story, question, run.tokenizer, run.config))

    if run.config.recipe == "stories":
        return of_story, {"story": string, "question": string}
    return of_text, {"text": string}


def _examples(run):
    """Ids to compare an artifact on: of several sizes, of an empty text, of a long one."""
    words = [p for p in run.tokenizer.vocabulary[UNKNOWN_ID + 1 :] if not p.startswith("##")]
    rng = np.random.default_rng(0)

    def text(*lengths):
        return " . ".join(" ".join(rng.choice(words, length)) for length in lengths)

    batches = [[text(3, 5), text(4), text(1, 1, 2)], [""], [text(*[9] * 40)]]
    return [_ids(run, texts).numpy() for texts in batches]


def _metadata(run) -> dict[str, str]:
    """The texts that travel inside an artifact."""
    facts = {
        "recipe": run.config.recipe,
        "end_id": END_ID,
        "pad_id": PADDING_ID,
        **{k: getattr(run.config, k) for k in _LIMITS[run.config.recipe]},
        "text": {"split": run.tokenizer.split, "normalize": run.tokenizer.normalize},
    }
    return {
        "classification.json": json.dumps(facts, indent=1),
        "text_vocabulary.txt": "".join(f"{piece}\n" for piece in run.tokenizer.vocabulary),
        LABELS: "".join(f"{label}\n" for label in run.labels),
    }
