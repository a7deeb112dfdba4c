"""Sentence pairs: reading them, splitting them without leaks, finding the named data sets.

A recipe receives a `Corpus` whatever the data came from. Bad lines are named and skipped, so one
broken line does not cost a whole file; what cannot be used at all is refused by a `DataError`
whose message is one line and says what to do.
"""

import gzip
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

Report = Callable[[str], None]
StrPath = str | os.PathLike[str]

DATA_FOLDER_VARIABLE = "KERAS_ATTENTION_DATA"
NAMES = ("phrasebook", "multi30k", "tatoeba-cmn")

_SHOWN_BAD_LINES = 5
_HELD_OUT_ROWS = 1000


class DataError(ValueError):
    """Data that cannot be used; the message is one line for the person who gave it."""


class TextSide(NamedTuple):
    """How the text of one side is handled.

    Attributes:
        split: `"spaces"`, or `"characters"` for text written without spaces.
        normalize: `"none"` for text that is tokenised already, `"nfkc"`, or `"nfkc_lower"`.
    """

    split: Literal["spaces", "characters"] = "spaces"
    normalize: Literal["none", "nfkc", "nfkc_lower"] = "nfkc"


_RAW = TextSide()


class Pairs(NamedTuple):
    """Sentences that translate each other, row by row.

    Attributes:
        source: the sentences to translate.
        target: their translations.
        alignments: where gold alignments exist, a set of (source word, target word) a row, 0-based.
    """

    source: list[str]
    target: list[str]
    alignments: list[frozenset[tuple[int, int]]] | None = None

    def rows(self, indices: Iterable[int]) -> "Pairs":
        """The rows at `indices`, in that order."""
        indices = list(indices)
        return Pairs(
            [self.source[i] for i in indices],
            [self.target[i] for i in indices],
            None if self.alignments is None else [self.alignments[i] for i in indices],
        )


class Corpus(NamedTuple):
    """Three parts of one data set, and how the text of each side is handled."""

    train: Pairs
    validation: Pairs
    test: Pairs
    name: str
    source: TextSide
    target: TextSide

    def sample(self, rows: int) -> Pairs:
        """Training pairs from all over the set, `rows` at most."""
        found = len(self.train.source)
        return self.train.rows(range(0, found, max(found // rows, 1))[:rows])


def read_pairs(path: StrPath, report: Report = print) -> Pairs:
    """Reads a tab-separated UTF-8 file: source, target, and columns that are ignored.

    Args:
        path: the file, plain or gzip; a byte order mark is allowed.
        report: receives a line for each of the first bad lines, then their number.

    Raises:
        DataError: if there is no such file, or no good line in it.
    """
    lines = read_lines(path)
    while not lines[-1]:
        lines.pop()
    bad = BadLines(report)
    pairs = Pairs([], [])
    for number, line in enumerate(lines, start=1):
        try:
            source, target = pair_of(line)
        except BadLine as reason:
            bad.add(path, number, reason)
            continue
        pairs.source.append(source)
        pairs.target.append(target)
    bad.close(path, len(lines))
    if not pairs.source:
        raise DataError(f"{path}: no line reads as source TAB target in UTF-8.")
    return pairs


def read_texts(path: StrPath) -> list[str]:
    """Reads a UTF-8 file of one text a line; empty lines are left out.

    Raises:
        DataError: for a file or a line that cannot be read.
    """
    texts = []
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                texts.append(text_of(line))
            except BadLine as reason:
                raise DataError(f"{path}:{number}: {reason}") from None
    return texts


def read_parallel(source_path: StrPath, target_path: StrPath, report: Report = print) -> Pairs:
    """Reads two line-aligned UTF-8 files; line n of one translates line n of the other.

    Args:
        source_path: the sentences to translate, plain or gzip.
        target_path: their translations, plain or gzip.
        report: receives a line for each of the first bad lines, then their number.

    Raises:
        DataError: if a file is missing or empty, if the numbers of lines differ (then nothing says
            which line translates which), or if no line is good on both sides.
    """
    sides = [read_lines(path) for path in (source_path, target_path)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source_path} has {len(sides[0])} lines but {target_path} has {len(sides[1])}; "
            "line-aligned files need the same number."
        )
    bad = BadLines(report)
    pairs = Pairs([], [])
    for number, lines in enumerate(zip(*sides, strict=True), start=1):
        sentences = []
        for path, line in zip((source_path, target_path), lines, strict=True):
            try:
                sentences.append(_not_empty(text_of(line)))
            except BadLine as reason:
                bad.add(path, number, reason)
                break
        if len(sentences) == 2:
            pairs.source.append(sentences[0])
            pairs.target.append(sentences[1])
    bad.close(source_path, len(sides[0]))
    if not pairs.source:
        raise DataError(f"{source_path}, {target_path}: no line is good on both sides.")
    return pairs


def split_by_group(
    pairs: Pairs, validation: float | int, test: float | int, seed: int = 0
) -> tuple[Pairs, Pairs, Pairs]:
    """Splits pairs so that no sentence of either side occurs in two parts.

    Pairs that share a source or a target, directly or through others, form a group; whole groups
    are dealt out in random order, and one that no longer fits into a held-out part goes to the
    training part. The training part stays in that random order, so its first rows are a sample.

    Args:
        pairs: what to split.
        validation: size of the validation part: a number of rows, or a fraction if below 1.
        test: size of the test part, likewise. A part may come out smaller, never larger.
        seed: of the random order.

    Returns:
        The training, validation and test pairs.
    """
    rows = len(pairs.source)
    sizes = [_part_size(size, rows) for size in (test, validation)]
    groups = _groups(pairs)
    random.Random(seed).shuffle(groups)
    parts: list[list[int]] = [[], []]
    train: list[int] = []
    for group in groups:
        for part, size in zip(parts, sizes, strict=True):
            if len(part) + len(group) <= size:
                part.extend(group)
                break
        else:
            train.extend(group)
    return pairs.rows(train), pairs.rows(parts[1]), pairs.rows(parts[0])


def load(
    name: str,
    data_dir: StrPath | None = None,
    limit: int | None = None,
    report: Report = print,
    seed: int = 0,
) -> Corpus:
    """Loads a named data set.

    `phrasebook` is generated. The others are looked for under `data_dir`, else under the folder
    that the environment variable KERAS_ATTENTION_DATA names; `multi30k` is otherwise fetched from
    its official home, after its terms are reported.

    Args:
        name: one of `NAMES`.
        data_dir: a folder that holds the data sets' folders.
        limit: the number of training rows to keep.
        report: receives terms and warnings, a line a call.
        seed: of the generator and of splits; the standard splits of `multi30k` ignore it.
    """
    if limit is not None and limit < 1:
        raise DataError(f"The limit of training rows must be at least 1. Received: limit={limit}")
    match name:
        case "phrasebook":
            # Imported here: the phrasebook is written in terms of this module's Pairs and Corpus.
            from . import phrasebook

            corpus = phrasebook.corpus(seed=seed)
        case "multi30k":
            corpus = _load_multi30k(data_dir, report)
        case "tatoeba-cmn":
            corpus = _load_tatoeba(data_dir, report, seed)
        case _:
            raise DataError(f"No data set is called {name!r}; there are: {', '.join(NAMES)}.")
    return _limited(corpus, limit)


def from_files(
    pairs: StrPath | None = None,
    source: StrPath | None = None,
    target: StrPath | None = None,
    *,
    source_side: TextSide = _RAW,
    target_side: TextSide = _RAW,
    validation: float | int = 0.05,
    test: float | int = 0.05,
    limit: int | None = None,
    seed: int = 0,
    report: Report = print,
) -> Corpus:
    """Reads a person's own data and holds out a validation and a test part, split by group.

    Args:
        pairs: a tab-separated file (see `read_pairs`); or else
        source: a file of sentences, and
        target: the line-aligned file of their translations (see `read_parallel`).
        source_side: how the source text is handled.
        target_side: how the target text is handled.
        validation: rows to hold out: a number, or a fraction (then at least 1, at most 1,000).
        test: likewise.
        limit: the number of training rows to keep.
        seed: of the split.
        report: receives warnings, a line a call.
    """
    if (pairs is None) == (source is None) or (source is None) != (target is None):
        raise DataError("Give either one file of pairs, or a source and a target file.")
    if limit is not None and limit < 1:
        raise DataError(f"The limit of training rows must be at least 1. Received: limit={limit}")
    if pairs is not None:
        everything, first = read_pairs(pairs, report), pairs
    else:
        everything, first = read_parallel(source, target, report), source
    rows = len(everything.source)
    sizes = [held_out(size, rows) for size in (validation, test)]
    train, validation_part, test_part = split_by_group(everything, *sizes, seed)
    if not (train.source and validation_part.source and test_part.source):
        raise DataError(
            f"{first}: {rows} good pairs are too few, or repeat each other too much, to hold out "
            f"{sizes[0]} for validation and {sizes[1]} for test and have any left to train on."
        )
    name = Path(first).name.removesuffix(".gz").partition(".")[0] or Path(first).name
    corpus = Corpus(train, validation_part, test_part, name, source_side, target_side)
    return _limited(corpus, limit)


def pair_of(line: bytes) -> tuple[str, str]:
    """The sentences of a line of a tab-separated file, or a `BadLine`."""
    columns = text_of(line).split("\t")
    if len(columns) < 2:
        raise BadLine("one column; expected source TAB target")
    return _not_empty(columns[0]), _not_empty(columns[1])


class BadLine(Exception):
    """Why a line cannot be used."""


class BadLines:
    """Names the first bad lines and counts all of them."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._count = 0

    def add(self, path: StrPath, number: int, reason: Exception) -> None:
        self._count += 1
        if self._count <= _SHOWN_BAD_LINES:
            self._report(f"{path}:{number}: {reason}; line skipped")

    def close(self, path: StrPath, lines: int) -> None:
        if self._count:
            self._report(f"{path}: skipped {self._count} bad of {lines} lines")


def read_lines(path: StrPath) -> list[bytes]:
    """The lines of a file as bytes, without line ends.

    Cut at "\\n" only: str.splitlines also cuts at U+2028 and its like, which would shift the line
    numbers and tear line-aligned files apart.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; expected a file.") from None
    except (OSError, EOFError, ValueError, gzip.zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None
    content = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    if not content.strip():
        raise DataError(f"{path}: is empty.")
    return [line.removesuffix(b"\r") for line in content.split(b"\n")]


def text_of(line: bytes) -> str:
    if b"\x00" in line:
        raise BadLine("NUL byte")
    if not line.strip():
        raise BadLine("empty line")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 (byte {error.start + 1})") from None


def _not_empty(sentence: str) -> str:
    sentence = sentence.strip()
    if not sentence:
        raise BadLine("empty side")
    return sentence


def _part_size(size: float | int, rows: int) -> int:
    if size < 0 or (isinstance(size, float) and size >= 1):
        raise DataError(
            "The size of a part must be a fraction below 1 or a whole number of rows. "
            f"Received: size={size}"
        )
    return round(size * rows) if isinstance(size, float) else size


def held_out(size: float | int, rows: int) -> int:
    if isinstance(size, float):
        return min(max(_part_size(size, rows), 1), _HELD_OUT_ROWS)
    return _part_size(size, rows)


def _groups(pairs: Pairs) -> list[list[int]]:
    """Rows that are connected by an equal source or an equal target (union-find)."""
    parent = list(range(len(pairs.source)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for sentences in (pairs.source, pairs.target):
        first: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            one, other = root(first.setdefault(sentence, row)), root(row)
            parent[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for row in range(len(parent)):
        groups.setdefault(root(row), []).append(row)
    return list(groups.values())


def _limited(corpus: Corpus, limit: int | None) -> Corpus:
    if limit is None or limit >= len(corpus.train.source):
        return corpus
    return corpus._replace(train=corpus.train.rows(range(limit)))


def data_folders(data_dir: StrPath | None) -> list[Path]:
    """The one folder that counts: the argument, else the environment's, else none."""
    folder = data_dir or os.environ.get(DATA_FOLDER_VARIABLE)
    return [Path(folder)] if folder else []


def find_together(files: Iterable[str], folders: Iterable[Path]) -> list[Path] | None:
    """The files, all from the first folder that holds them all."""
    for folder in folders:
        paths = [folder / file for file in files]
        if all(path.is_file() for path in paths):
            return paths
    return None


# From multi30k/dataset: fixed by its commit, so that figures can be compared.
_MULTI30K_HOME = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/"
)
_MULTI30K_TERMS = (
    "Multi30k (Elliott et al. 2016): its home, github.com/multi30k/dataset, states no licence; "
    "use it for non-commercial research only."
)
_MULTI30K_FILES = {
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "test_2016_flickr.lc.norm.tok.de": (
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"
    ),
    "test_2016_flickr.lc.norm.tok.en": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"
    ),
}


def _load_multi30k(data_dir: StrPath | None, report: Report) -> Corpus:
    folders = data_folders(data_dir)
    inside = [folder / "multi30k" / "tok" for folder in folders]
    paths = find_together(_MULTI30K_FILES, inside)
    if paths is None and data_dir is not None:
        raise DataError(
            f"{inside[0]}: does not hold all of {', '.join(_MULTI30K_FILES)}; "
            f"they come from {_MULTI30K_HOME}"
        )
    if paths is None:
        report(_MULTI30K_TERMS)
        paths = [_fetch_multi30k(*file) for file in _MULTI30K_FILES.items()]
    train, validation, test = (
        read_parallel(paths[i], paths[i + 1], report) for i in range(0, len(paths), 2)
    )
    side = TextSide("spaces", "none")
    return Corpus(train, validation, test, "multi30k", side, side)


def _fetch_multi30k(file: str, checksum: str) -> Path:
    """The file in Keras's cache, where it is downloaded once and checked."""
    import keras

    try:
        return Path(
            keras.utils.get_file(
                file,
                _MULTI30K_HOME + file,
                file_hash=checksum,
                cache_subdir="datasets/keras_attention/multi30k",
            )
        )
    except Exception as error:  # urllib, sockets and Keras each raise their own
        raise DataError(
            f"multi30k could not be fetched ({_one_line(error)}). Put {', '.join(_MULTI30K_FILES)} "
            f"from {_MULTI30K_HOME} into the folder multi30k/tok of a folder that you name "
            f"by --data-dir or {DATA_FOLDER_VARIABLE}."
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


_TATOEBA_FILE = "cmn-2022.txt"


def _load_tatoeba(data_dir: StrPath | None, report: Report, seed: int) -> Corpus:
    folders = data_folders(data_dir)
    paths = find_together([_TATOEBA_FILE], [folder / "tatoeba" for folder in folders])
    if paths is None:
        where = f"{folders[0]} does not hold tatoeba/{_TATOEBA_FILE}" if folders else "no folder"
        raise DataError(
            f"tatoeba-cmn: {where}. Put the English-Chinese file (cmn.txt) of "
            f"manythings.org/anki as tatoeba/{_TATOEBA_FILE} into a folder that you name "
            f"by --data-dir or {DATA_FOLDER_VARIABLE}."
        )
    english, chinese, _ = read_pairs(paths[0], report)
    parts = split_by_group(Pairs(chinese, english), _HELD_OUT_ROWS, _HELD_OUT_ROWS, seed)
    # The English is raw: lower case halves its vocabulary, and the set is small.
    sides = TextSide("characters", "nfkc"), TextSide("spaces", "nfkc_lower")
    return Corpus(*parts, "tatoeba-cmn", *sides)
