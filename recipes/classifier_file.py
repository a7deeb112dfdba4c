"""A classifier that left as `.tflite`: text to ids, and ids to answers, without TensorFlow."""

import json
from pathlib import Path

import numpy as np

from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.parity import load_tflite
from keras_attention.export.run_template import Text

from .sentence_cut import cut
from .tflite_places import length_files
from .told import TOLD

SIGNATURE = "classify"


class ClassifierFile:
    """An exported classifier: a `.tflite`, or a folder with one for each of several lengths.

    Args:
        path: the file or folder.

    Attributes:
        labels: the classes.
        recipe: what it was trained by.
        limit: pieces of a text, or sentences of a document, of which the first count; of a story,
            with its question, the last.
    """

    def __init__(self, path: Path) -> None:
        files = length_files(path)
        inside = inspect_tflite(files[0]).metadata
        facts = json.loads(inside["classification.json"])
        self._side = Text(inside["text_vocabulary.txt"], **facts["text"])
        self.labels = inside["labels.txt"].decode().splitlines()
        self._facts = facts
        self._runners = [load_tflite(file, SIGNATURE) for file in files]
        self._sizes = [runner.inputs["ids"][0] for runner in self._runners]
        self.recipe = facts["recipe"]
        self._read, limit = _READ[self.recipe], facts[_LIMIT[self.recipe]]
        longest = limit + (self.recipe == "stories")  # of a story with its question
        self.limit = min(longest, self._sizes[-1][1] or longest)

    def read(self, text: str) -> tuple[list, list]:
        """The ids of a text, and their pieces."""
        return self._read(text, self._side, {**self._facts, "limit": self.limit})

    def told(self, pieces: list, found: dict[str, np.ndarray]) -> dict:
        """What was read of one text, as `TOLD` says it."""
        names = ("of_sentences", "of_words") if "of_words" in found else ("weights",)
        return TOLD[self.recipe](pieces, *(found[name][0] for name in names))

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """What the file answers to ids (B, T) or (B, S, W).

        A file of fixed sizes takes a text at a time, filled up with padding or cut to its length:
        what was read is then of that length.
        """
        length = ids.shape[1]
        fits = [i for i, size in enumerate(self._sizes) if size[1] is None or size[1] >= length]
        chosen = fits[0] if fits else -1
        runner, size = self._runners[chosen], self._sizes[chosen]
        if size[1] is None:
            return runner({"ids": ids})
        rows = filled(ids, size[1], self._facts["pad_id"])
        found = [runner({"ids": row[None]}) for row in rows]
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def filled(ids: np.ndarray, length: int, padding: int) -> np.ndarray:
    """Ids (B, T) or (B, S, W) with a second axis of `length`: cut, or filled up."""
    ids = ids[:, :length]
    more = [(0, length - ids.shape[1] if axis == 1 else 0) for axis in range(ids.ndim)]
    return np.pad(ids, more, constant_values=padding)


def _read_sentence(text, side, facts):
    ids = [*side.encode(text), facts["end_id"]][: facts["limit"]]
    return ids, [side.pieces[i] for i in ids]


def _read_document(text, side, facts):
    return _of_sentences(cut(text)[: facts["limit"]], side, facts)


def _read_story(text, side, facts):
    *story, question = cut(text)
    kept = story[max(0, len(story) - facts["limit"] + 1) :]
    ids, pieces = _of_sentences([question, *kept], side, facts)
    if not kept:  # an empty sentence, for there is nothing of no length
        ids.append([facts["pad_id"]] * facts["words"])
    return ids, pieces


def _of_sentences(sentences, side, facts):
    words, padding = facts["words"], facts["pad_id"]
    ids = [[*side.encode(part), facts["end_id"]][:words] for part in sentences]
    pieces = [[side.pieces[i] for i in part] for part in ids]
    return [[*part, *[padding] * (words - len(part))] for part in ids], pieces


_READ = {"sentences": _read_sentence, "documents": _read_document, "stories": _read_story}
_LIMIT = {"sentences": "max_length", "documents": "sentences", "stories": "lines"}
