"""Answers by an exported `.tflite` alone, without TensorFlow."""

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.parity import load_tflite
from keras_attention.export.run_template import Text, Translator

from .data import DataError
from .documents_options import SENTENCE_END


def predict_by_file(path: Path, texts: Sequence[str], greedy: bool = False) -> list[dict]:
    """What the file answers to texts, in the form of its recipe.

    Raises:
        DataError: for a file that is no export of a recipe, or text that it does not take.
    """
    report = inspect_tflite(path)
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
    with zipfile.ZipFile(path) as files:
        facts = json.loads(files.read("classification.json"))
        side = Text(files.read("text_vocabulary.txt"), **facts["text"])
        labels = files.read("labels.txt").decode().splitlines()
    run, rows = load_tflite(path, "classify"), []
    read = _read_document if facts["recipe"] == "documents" else _read_sentence
    for text in texts:
        ids, told = read(text, side, facts)
        found = run({"ids": np.array([ids], "int32")})
        [probabilities] = found["probabilities"]
        best = int(probabilities.argmax())
        rows.append(
            {
                "label": labels[best],
                "probability": float(probabilities[best]),
                "probabilities": dict(zip(labels, map(float, probabilities), strict=True)),
                **told(found),
            }
        )
    return rows


def _stripped(text):
    """As `tf.strings.strip`, which knows no other spaces."""
    return text.strip(" \t\n\v\f\r")


def _read_sentence(text, side, facts):
    """The ids of a text, and what is said of it by what was found."""
    ids = [*side.encode(text), facts["end_id"]][: facts["max_length"]]
    pieces = [side.pieces[i] for i in ids]
    return ids, lambda found: {"pieces": pieces, "weights": found["weights"][0].tolist()}


def _read_document(text, side, facts):
    """As `_read_sentence`, of a text of sentences."""
    words, padding = facts["words"], facts["pad_id"]
    marked = re.sub(SENTENCE_END, "\\1\x01", _stripped(text.replace("\x01", " ")))
    cut = marked.split("\x01")
    ids = [[*side.encode(part), facts["end_id"]][:words] for part in cut[: facts["sentences"]]]
    pieces = [[side.pieces[i] for i in part] for part in ids]

    def told(found):
        weights = zip(pieces, found["of_sentences"][0], found["of_words"][0], strict=True)
        return {
            "sentences": [
                {"pieces": part, "weight": float(weight), "weights": of[: len(part)].tolist()}
                for part, weight, of in weights
            ]
        }

    return [[*part, *[padding] * (words - len(part))] for part in ids], told
