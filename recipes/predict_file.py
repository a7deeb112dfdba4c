"""Answers by an exported `.tflite` alone, without TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.run_template import Translator

from .classifier_file import ClassifierFile
from .data import DataError
from .sentence_cut import say_what_is_left_out
from .terminal import news
from .tflite_places import length_files


def predict_by_file(path: Path, texts: Sequence[str], greedy: bool = False) -> list[dict]:
    """What a file, or a folder of length buckets, answers to texts, in the form of its recipe.

    Raises:
        DataError: for a file that is no export of a recipe, or text that it does not take.
    """
    if path.suffix == ".onnx":
        raise DataError(f"{path}: predict reads .tflite files; load_onnx of export.parity runs it")
    report = inspect_tflite(length_files(path)[0])
    if report.custom:
        raise DataError(f"{path} needs {', '.join(report.custom)}: it runs by load_text_tflite")
    if "translation.json" in report.metadata:
        return _translations(path, texts, greedy)
    if "classification.json" in report.metadata:
        return _classes(path, texts)
    raise DataError(f"{path} holds no vocabulary: it is not an export of a recipe")


def _translations(path, texts, greedy):
    """By the program that is written beside such a file."""
    program = Translator(path)
    rows = []
    for text in texts:
        ids = program.source.encode(text)
        limit = program.config["max_source_length"]
        if len(ids) + 1 > limit:
            raise DataError(
                f"the text has {len(ids) + 1} pieces, the model takes {limit} at most: "
                f"{text[:40]!r}..."
            )
        tokens, alignment = program.translate([*ids, program.end], beam=not greedy)
        rows.append(
            {
                "translation": program.target.decode(tokens),
                "source": [*(program.source.pieces[i] for i in ids), "[END]"],
                "target": [program.target.pieces[i] for i in tokens],
                "alignment": alignment.tolist(),
            }
        )
    return rows


def _classes(path, texts):
    file = ClassifierFile(path)
    if file.recipe == "stories":
        say_what_is_left_out(texts, file.limit - 1, news)
    rows = []
    for text in texts:
        ids, pieces = file.read(text)
        found = file(np.array([ids], "int32"))
        [probabilities] = found["probabilities"]
        best = int(probabilities.argmax())
        rows.append(
            {
                "label": file.labels[best],
                "probability": float(probabilities[best]),
                "probabilities": dict(zip(file.labels, map(float, probabilities), strict=True)),
                **file.told(pieces, found),
            }
        )
    return rows
