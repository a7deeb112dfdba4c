"""Texts with a label each: reading them, and finding the named data sets."""

import itertools
import json
import lzma
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .data import (
    DATA_FOLDER_VARIABLE,
    BadLine,
    BadLines,
    DataError,
    Report,
    StrPath,
    TextSide,
    data_folders,
    find_together,
    held_out,
    read_lines,
    text_of,
)

NAMES = ("questions", "reviews", "trec", "imdb")
STORIES = ("errands", "babi", "babi-10k")
# In the order of their numbers in the files.
_TREC = ("description", "entity", "abbreviation", "human", "location", "number")


class Labelled(NamedTuple):
    """Texts and what each is, row by row."""

    texts: list[str]
    labels: list[str]

    def rows(self, indices: Iterable[int]) -> "Labelled":
        """The rows at `indices`, in that order."""
        indices = list(indices)
        return Labelled([self.texts[i] for i in indices], [self.labels[i] for i in indices])


class LabelledCorpus(NamedTuple):
    """Three parts of one data set, and how its text is handled."""

    train: Labelled
    validation: Labelled
    test: Labelled
    name: str
    side: TextSide

    @property
    def labels(self) -> list[str]:
        """Those that are trained for, sorted: a class is a place in this list."""
        return sorted({*self.train.labels, *self.validation.labels})


def read_labelled(path: StrPath, report: Report = print) -> Labelled:
    """Reads a UTF-8 file of a text a line: label TAB text, or, in a `.jsonl`, an object of both.

    Args:
        path: the file, plain or compressed (`.gz`, `.xz`).
        report: receives a line for each of the first bad lines, then their number.

    Raises:
        DataError: if there is no such file, or no good line in it.
    """
    parse = _of_json if ".jsonl" in Path(path).suffixes else _of_columns
    bad, found = BadLines(report), Labelled([], [])
    lines = _lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            label, text = parse(line)
        except BadLine as reason:
            bad.add(path, number, reason)
            continue
        found.labels.append(label)
        found.texts.append(text)
    bad.close(path, len(lines))
    if not found.texts:
        raise DataError(f"{path}: no line reads as label TAB text in UTF-8.")
    return found


def load(
    name: str, data_dir: StrPath | None = None, report: Report = print, seed: int = 0
) -> LabelledCorpus:
    """Loads a named data set; `questions` and `reviews` are generated, others lie in a folder.

    Args:
        name: one of `NAMES`, or of `STORIES`.
        data_dir: a folder that holds the data sets' folders.
        report: receives warnings, a line a call.
        seed: of the generator, and of what is held out for validation.
    """
    # Generators are imported here: they are written in terms of this module's classes.
    if name == "questions":
        from . import questions

        return questions.corpus(seed=seed)
    if name == "reviews":
        from . import reviews

        return reviews.corpus(seed=seed)
    if name == "errands":
        from . import errands

        return errands.corpus(seed=seed)
    if name in STORIES:
        from . import babi

        return babi.load(name, data_dir, report, seed)
    if name == "trec":
        return _load_trec(data_dir, seed)
    if name == "imdb":
        return _load_imdb(data_dir, report)
    raise DataError(f"No data set is called {name!r}; there are: {', '.join(NAMES + STORIES)}.")


def generated(rows: Labelled, sizes: tuple[int, int, int], name: str) -> LabelledCorpus:
    """Three parts of these sizes, one behind the other, of texts whose words are spaced."""
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = (rows.rows(range(*ends)) for ends in itertools.pairwise(ends))
    return LabelledCorpus(*parts, name, TextSide("spaces", "none"))


def from_files(
    texts: StrPath, test: StrPath | None, side: TextSide, seed: int = 0, report: Report = print
) -> LabelledCorpus:
    """Reads a person's own data; without a file to test on, a part is held out for that, too.

    No text occurs in two parts. A label of the test file that training has not seen is refused.
    """
    everything = _distinct(read_labelled(texts, report))
    count = held_out(0.1, len(everything.texts))
    if test is None:
        train, tested = _split(everything, count, seed)
    else:
        train, tested = everything, read_labelled(test, report)
    train, validation = _split(train, count, seed + 1)
    known = sorted(set(train.labels))
    unknown = sorted({*tested.labels, *validation.labels} - set(known))
    if unknown:
        raise DataError(
            f"{test or texts}: the label {unknown[0]!r} has no text to train on; there are: "
            f"{', '.join(known)}."
        )
    if len(known) < 2:
        raise DataError(f"{texts}: all texts have one label, {known[0]!r}.")
    name = Path(texts).name.partition(".")[0] or Path(texts).name
    return LabelledCorpus(train, validation, tested, name, side)


def _lines(path):
    if Path(path).suffix != ".xz":
        return read_lines(path)
    try:
        content = lzma.decompress(Path(path).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None
    return content.removesuffix(b"\n").split(b"\n")


def _of_columns(line: bytes) -> tuple[str, str]:
    label, tab, text = text_of(line).partition("\t")
    if not tab:
        raise BadLine("one column; expected label TAB text")
    if not label.strip():
        raise BadLine("empty label")
    return label.strip(), text.strip()


def _of_json(line: bytes) -> tuple[str, str]:
    try:
        values = json.loads(text_of(line))
    except ValueError as error:
        raise BadLine(f"not JSON ({error})") from None
    if not isinstance(values, dict) or not {"label", "text"} <= set(values):
        raise BadLine('expected {"label": ..., "text": ...}')
    label, text = values["label"], values["text"]
    if not isinstance(text, str):
        raise BadLine("the text is no string")
    if not isinstance(label, str | int) or not str(label).strip():
        raise BadLine("the label is no string and no number")
    try:
        f"{label}{text}".encode()
    except UnicodeEncodeError:
        raise BadLine("half of a character (a lone surrogate)") from None
    return str(label).strip(), text


def _distinct(found: Labelled) -> Labelled:
    first = {text: row for row, text in reversed(list(enumerate(found.texts)))}
    return found.rows(sorted(first.values()))


def _split(found: Labelled, count: int, seed: int) -> tuple[Labelled, Labelled]:
    """What is left, and `count` texts drawn by chance, but never the last one of a label."""
    order = list(range(len(found.texts)))
    random.Random(seed).shuffle(order)
    left, held = Counter(found.labels), []
    for row in order:
        if len(held) < count and left[found.labels[row]] > 1:
            left[found.labels[row]] -= 1
            held.append(row)
    if not held:
        raise DataError(
            f"{len(order)} different texts of {len(left)} labels are too few to hold any out."
        )
    return found.rows(sorted(set(order) - set(held))), found.rows(sorted(held))


def _load_trec(data_dir, seed) -> LabelledCorpus:
    paths = named_files("trec", ("TREC.train.all", "TREC.test.all"), data_dir, "the TREC questions")
    train, test = (_read_trec(path) for path in paths)
    train, validation = _split(train, held_out(0.1, len(train.texts)), seed)
    return LabelledCorpus(train, validation, test, "trec", TextSide("spaces", "nfkc_lower"))


def _load_imdb(data_dir, report) -> LabelledCorpus:
    files = tuple(f"{part}.jsonl.xz" for part in ("train", "val", "test"))
    paths = named_files("imdb", files, data_dir, "the film reviews, as lines of JSON")
    names = {"0": "negative", "1": "positive"}
    parts = []
    for path in paths:
        found = read_labelled(path, report)
        if set(found.labels) - set(names):
            raise DataError(f"{path}: expected the labels 0 and 1.")
        # What is left of the pages they were taken from.
        texts = [text.replace("<br />", " ") for text in found.texts]
        parts.append(Labelled(texts, [names[label] for label in found.labels]))
    return LabelledCorpus(*parts, "imdb", TextSide("spaces", "nfkc_lower"))


def _read_trec(path) -> Labelled:
    """Lines `label question`, in Latin-1."""
    found = Labelled([], [])
    for number, line in enumerate(read_lines(path), start=1):
        label, _, text = line.decode("latin-1").partition(" ")
        if label not in map(str, range(len(_TREC))) or not text.strip():
            raise DataError(
                f"{path}:{number}: expected a label from 0 to {len(_TREC) - 1} and a question."
            )
        found.labels.append(_TREC[int(label)])
        found.texts.append(text.strip())
    return found


def named_files(folder: str, files, data_dir, what: str) -> list[Path]:
    """The files of a named data set, which lie in a folder of its name.

    Raises:
        DataError: when they are not there, with what to put where.
    """
    folders = data_folders(data_dir)
    paths = find_together(files, [place / folder for place in folders])
    if paths is None:
        where = f"{folders[0]} does not hold {folder}/{files[0]}" if folders else "no folder"
        raise DataError(
            f"{folder}: {where}. Put {what}, {' and '.join(files)}, into the folder {folder} of a "
            f"folder that you name by --data-dir or {DATA_FOLDER_VARIABLE}."
        )
    return paths
