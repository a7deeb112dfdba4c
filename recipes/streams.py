"""Sentence pairs out of many files that need not fit in memory.

`PairStream` stands where a `data.Corpus` does, except that its training part is a stream: it has
`rows`, `sample` and `batches` in place of `train`. What it holds in memory does not depend on the
number of rows.

Files are tab-separated text (source TAB target, as `data.read_pairs` reads them, except that a
carriage return anywhere in a line is dropped) or `.tfrecord` files of `tf.train.Example` with the
bytes features `source` and `target`; each plain or gzip. One graph reads them for every purpose,
so what was counted is what is trained on.
"""

import contextlib
import gzip
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_attention.export.places import replacing

from . import data
from .batches import BOUNDARIES, bucketed, check_boundaries, to_ids
from .data import DataError, Pairs, Report, StrPath, TextSide
from .tokenizers import Tokenizer

_TEXT, _RECORDS = (".tsv", ".txt"), ".tfrecord"
_CHUNK = 256  # lines that the graph handles at once
_OPEN_FILES = 16  # read in turns by an epoch
_TOKENIZED = 1024  # rows at once
_HELD_OUT_PART = 20  # at most 1 row in so many, for each of two parts
_CANDIDATES = 8  # for each place in these parts
_BOUND = 2**63 - 1  # of hashes

# As Python sees them: what UTF-8 can hold, without NUL; and what str.strip removes.
_CHARACTERS = r"[\x01-\x{d7ff}\x{e000}-\x{10ffff}]*"
_BLANK = (
    r"[\t-\r\x1c- \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
)


_RAW = TextSide()


class PairStream:
    """Sentence pairs in files, most of them never in memory.

    Validation and test parts are chosen by a hash of the sentences, so they do not depend on the
    order of the files and rows or on how rows are spread over files. No sentence of either side
    of a held-out row, as it is written, occurs in training: rows that would repeat one are left
    out, and reported. This takes one pass to choose and one to count.

    Args:
        files: a file, a folder (its `.tsv`, `.txt` and `.tfrecord` files, each perhaps with
            `.gz`), a glob pattern, or several of these. A file that is named twice is read once.
        source: how the source text is handled.
        target: how the target text is handled.
        held_out: rows of the validation and of the test part, but at most 1 row in 20 for each.
        seed: of the choice of held-out rows, and with the epoch of every order.
        report: receives warnings, a line a call.

    Attributes:
        files: paths of the files that are read.
        rows: the number of training rows.
        validation: held-out pairs.
        test: others.
        name, source, target: as those of a `Corpus`.

    Raises:
        DataError: for files that are missing, damaged, without one good row, or of both kinds, and
            when there are too few rows to hold any out.

    Example:

    ```python
    from keras_attention.recipes.phrasebook import generate
    from keras_attention.recipes.streams import PairStream, write_tfrecords
    from keras_attention.recipes.tokenizers import Tokenizer, learn_vocabulary

    pairs = generate(400)
    write_tfrecords(zip(pairs.source, pairs.target), "shards", 4)
    stream = PairStream("shards/*.tfrecord", held_out=10)
    tokenizers = [
        Tokenizer(learn_vocabulary(texts, 300, "spaces", "nfkc"), "spaces", "nfkc")
        for texts in stream.sample(200)[:2]
    ]
    for inputs, labels in stream.batches(*tokenizers, 0, batch_size=16, max_length=32):
        print(inputs["source"].shape, labels.shape)
    ```
    """

    def __init__(
        self,
        files: StrPath | Iterable[StrPath],
        source: TextSide = _RAW,
        target: TextSide = _RAW,
        *,
        held_out: int = 1000,
        seed: int = 0,
        report: Report = print,
    ) -> None:
        if held_out < 1:
            raise DataError(f"Hold out at least 1 row. Received: held_out={held_out}")
        self.files = find_files(files)
        self.source, self.target, self.seed = source, target, seed
        others = len(self.files) - 1
        self.name = self.files[0].name + (f" and {others} more" if others else "")
        self._records = _is_records(self.files[0])
        self._stamps = [_stamp(path) for path in self.files]
        self._compressions = [_compression(path) for path in self.files]

        good, candidates = self._survey(2 * held_out * _CANDIDATES, report)
        size = min(held_out, max(1, good // _HELD_OUT_PART))
        chosen = _unrelated(candidates)[: 2 * size]
        self.validation, self.test = candidates.rows(chosen[::2]), candidates.rows(chosen[1::2])
        self._held_out = [
            np.unique(self._hash(tf.constant([*one, *other], "string"), side))
            for side, (one, other) in enumerate(
                zip(self.validation[:2], self.test[:2], strict=True)
            )
        ]
        self.rows = self._count() if self.validation.source and self.test.source else 0
        if not self.rows:
            raise DataError(
                f"{self.name}: {good} good pairs are too few, or repeat each other too much, to "
                f"hold out {size} for validation and {size} for test and have any left to train on."
            )
        repeats = good - self.rows - len(self.validation.source) - len(self.test.source)
        if repeats:
            report(f"{repeats} pairs hold a sentence of a held-out pair: left out")

    def sample(self, rows: int) -> Pairs:
        """Distinct training pairs drawn at random, the same ones whatever the files' order.

        Args:
            rows: how many; fewer if there are no more.
        """
        self._check_unchanged()

        def ranked(source, target):
            return self._hash(tf.strings.join([source, target], "\t"), 2), source, target

        lowest = _Lowest(rows)
        for chunk in self._training_rows(self.files).map(ranked).as_numpy_iterator():
            lowest.add(*chunk)
        return lowest.pairs()

    def batches(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        epoch: int,
        *,
        batch_size: int,
        max_length: int,
        boundaries: Sequence[int] = BOUNDARIES,
        fixed_shapes: bool = False,
        shuffle_rows: int = 32_768,
        policy: Literal["data", "file"] = "data",
        workers: int = 1,
        worker: int = 0,
    ) -> tf.data.Dataset:
        """The batches of an epoch: `({"source", "target"}, labels)`, as `batches.batches` gives.

        They depend on the stream's seed and the epoch alone, so any process can ask for them
        again, and skip those it had. Every row that fits comes exactly once an epoch over all
        workers; the number of batches is that of every other epoch.

        Args:
            source_tokenizer: of the sentences to translate.
            target_tokenizer: of their translations.
            epoch: orders files and rows.
            batch_size: rows of a global batch.
            max_length: most pieces of a sentence, with its end; longer rows are left out.
            boundaries: see `batches.bucketed`.
            fixed_shapes: see `batches.bucketed`.
            shuffle_rows: rows that are in memory to be shuffled. They come from 16 files in
                turns; of a single sorted file, rows that lie far apart never meet in a batch.
            policy: `"data"`: every worker reads everything and forms the same global batches, of
                which each takes its rows. `"file"`: a worker reads its share of the files and
                forms batches of `batch_size // workers`; workers may then differ in their number
                of batches.
            workers: how many there are.
            worker: which one asks, from 0.

        Raises:
            DataError: when a file has changed since it was counted, or when files or batch size
                cannot be shared out by the policy `"file"`.
        """
        self._check_unchanged()
        if fixed_shapes:
            check_boundaries(boundaries, max_length)
        files, options = self.files, tf.data.Options()
        sharding = options.experimental_distribute
        if policy == "file":
            _check_shares(len(files), batch_size, workers, worker)
            files, batch_size = files[worker::workers], batch_size // workers
            sharding.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        elif policy == "data":
            sharding.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        else:
            raise ValueError(f"`policy` must be 'data' or 'file'. Received: policy={policy!r}")
        draw = random.Random(f"{self.seed} {epoch}")
        key = draw.getrandbits(62)

        def shuffled(block, rows):
            # Without state: `Dataset.shuffle` would also depend on TensorFlow's global seed.
            drawn = tf.random.stateless_uniform(
                tf.shape(rows[0]), [key, block], minval=None, maxval=None, dtype="int64"
            )
            return tuple(tf.gather(side, tf.argsort(drawn)) for side in rows)

        def tokenized(source, target):
            ids = to_ids(source, source_tokenizer), to_ids(target, target_tokenizer)
            lengths = tf.maximum(*(side.row_lengths() for side in ids))
            return tuple(tf.ragged.boolean_mask(side, lengths <= max_length) for side in ids)

        blocks = self._training_rows(draw.sample(files, len(files))).rebatch(shuffle_rows)
        rows = (
            blocks.enumerate()
            .map(shuffled)
            .rebatch(_TOKENIZED)
            .map(tokenized, num_parallel_calls=tf.data.AUTOTUNE)
            .unbatch()
        )
        return bucketed(rows, batch_size, boundaries, fixed_shapes).with_options(options)

    def _survey(self, size: int, report: Report) -> tuple[int, Pairs]:
        """Names bad lines; the number of good ones and the pairs that may be held out."""
        for path, compression in zip(self.files, self._compressions, strict=True):
            if compression:
                _check_gzip(path)

        def surveyed(path, numbers, lines):
            source, target, good = _columns(lines)
            # A sentence of very many rows is then hardly ever chosen, for all of them but one
            # would be lost; by a hash of the row it would be nearly always.
            ranks = tf.maximum(self._hash(source, 0), self._hash(target, 1))
            bad = tf.boolean_mask(numbers, ~good), tf.boolean_mask(lines, ~good)
            rows = tuple(tf.boolean_mask(row, good) for row in (ranks, source, target))
            return path, bad, rows

        bad, lowest = data.BadLines(report), _Lowest(size)
        good_of, lines_of = Counter(), Counter()
        form = "bytes features `source` and `target`" if self._records else "source TAB target"
        try:
            for name, bad_lines, rows in self._chunks(self.files).map(surveyed).as_numpy_iterator():
                path = os.fsdecode(name)
                for number, line in zip(*bad_lines, strict=True):
                    try:
                        data.pair_of(line)
                    except data.BadLine as reason:
                        bad.add(path, number, reason)
                lowest.add(*rows)
                good_of[path] += len(rows[0])
                lines_of[path] += len(rows[0]) + len(bad_lines[0])
        except tf.errors.InvalidArgumentError:
            raise DataError(
                f"{path}: holds a record that is no tf.train.Example with {form}."
            ) from None
        except tf.errors.OpError as error:
            raise DataError(f"{path}: cannot be read: {_reason(error)}.") from None
        bad.close(self.name, lines_of.total())
        for path in map(str, self.files):
            if not lines_of[path]:
                raise DataError(f"{path}: is empty.")
            if not good_of[path]:
                raise DataError(f"{path}: nothing reads as {form} in UTF-8.")
        return good_of.total(), lowest.pairs()

    def _count(self) -> int:
        sizes = self._training_rows(self.files).map(lambda source, target: tf.size(source, "int64"))
        return int(sizes.reduce(np.int64(0), lambda total, size: total + size))

    def _training_rows(self, files: Sequence[Path]) -> tf.data.Dataset:
        """Chunks of `(source, target)`, without bad lines and all that is held out."""

        def kept(path, numbers, lines):
            source, target, keep = _columns(lines)
            for side, texts in enumerate((source, target)):
                keep &= ~_among(self._hash(texts, side), self._held_out[side])
            return tf.boolean_mask(source, keep), tf.boolean_mask(target, keep)

        return self._chunks(files, _OPEN_FILES).map(kept, num_parallel_calls=tf.data.AUTOTUNE)

    def _chunks(self, files: Sequence[Path], in_turns: int = 1) -> tf.data.Dataset:
        """`(path, numbers, lines)` of some lines, out of so many files in turns."""
        compression_of = dict(zip(self.files, self._compressions, strict=True))

        def of_file(path, compression):
            # Without lines: says which file is being read should the first read fail.
            begin = tf.data.Dataset.from_tensors(
                (path, tf.zeros([0], "int64"), tf.zeros([0], "string"))
            )
            if self._records:
                chunks = tf.data.TFRecordDataset(path, compression).batch(_CHUNK).map(_as_lines)
            else:
                chunks = tf.data.TextLineDataset(path, compression).batch(_CHUNK)

            def numbered(chunk, lines):
                numbers = chunk * _CHUNK + tf.range(1, tf.size(lines, "int64") + 1)
                # The byte order mark of a file is no part of its first line.
                unmarked = tf.strings.regex_replace(lines, "^\ufeff", "")
                return path, numbers, tf.where(numbers == 1, unmarked, lines)

            return begin.concatenate(chunks.enumerate().map(numbered))

        paths = [os.fsencode(path) for path in files]
        compressions = [compression_of[path] for path in files]
        return tf.data.Dataset.from_tensor_slices((paths, compressions)).interleave(
            of_file, cycle_length=in_turns
        )

    def _hash(self, texts, purpose: int) -> tf.Tensor:
        return tf.strings.to_hash_bucket_strong(texts, _BOUND, [self.seed, purpose])

    def _check_unchanged(self) -> None:
        for path, stamp in zip(self.files, self._stamps, strict=True):
            if _stamp(path) != stamp:
                raise DataError(f"{path}: has changed since its rows were counted: start again.")


class _Lowest:
    """Of any number of rows the distinct ones with the lowest ranks, in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: set[tuple[int, bytes, bytes]] = set()
        self._limit = _BOUND

    def add(self, ranks: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> None:
        low = np.flatnonzero(ranks <= self._limit)
        rows = (ranks[low].tolist(), sources[low], targets[low])
        self._rows.update(zip(*rows, strict=True))
        if len(self._rows) > 2 * self._size:
            self._rows = set(self._first())
            self._limit = max(self._rows)[0]

    def pairs(self) -> Pairs:
        first = self._first()
        return Pairs([row[1].decode() for row in first], [row[2].decode() for row in first])

    def _first(self) -> list[tuple[int, bytes, bytes]]:
        return sorted(self._rows)[: self._size]


def _unrelated(pairs: Pairs) -> list[int]:
    """The rows that share no sentence with one of these before them."""
    sources, targets, chosen = set(), set(), []
    for row, (source, target) in enumerate(zip(*pairs[:2], strict=True)):
        if source not in sources and target not in targets:
            chosen.append(row)
            sources.add(source)
            targets.add(target)
    return chosen


def find_files(given: StrPath | Iterable[StrPath]) -> list[Path]:
    """The files that paths, folders and glob patterns name, sorted, each once.

    Raises:
        DataError: when one of them names nothing, or when text and `.tfrecord` files are mixed.
    """
    found: dict[Path, Path] = {}
    for one in [given] if isinstance(given, str | os.PathLike) else given:
        path = Path(one)
        if path.is_dir():
            files = [file for file in path.iterdir() if _is_data(file)]
            if not files:
                raise DataError(f"{one}: the folder holds no .tsv, .txt or .tfrecord file.")
        else:
            files = [path] if path.exists() else _matches(path)
            if not files:
                raise DataError(f"{one}: no such file, and no file matches it as a pattern.")
        for file in files:
            found.setdefault(file.resolve(), file)
    files = sorted(found.values())
    if not files:
        raise DataError("No file of pairs is named.")
    kinds = {_is_records(file): file for file in files}
    if len(kinds) > 1:
        raise DataError(
            f"{kinds[False]} is text and {kinds[True]} a .tfrecord file: name files of one kind, "
            "for they may hold the same rows."
        )
    return files


def must_be_streamed(given: Sequence[StrPath]) -> bool:
    """Whether paths are more than one text file that could be read into memory."""
    return len(given) > 1 or not Path(given[0]).is_file() or _is_records(Path(given[0]))


def write_tfrecords(pairs: Iterable[tuple[str, str]], folder: StrPath, shards: int) -> list[Path]:
    """Writes pairs in turns into `.tfrecord` files that `PairStream` reads.

    Args:
        pairs: of source and target, any number; they are not held in memory.
        folder: where the files are written; one that holds `.tfrecord` files is refused.
        shards: the number of files. A multiple of the number of workers can be shared by them.

    Returns:
        The paths of the files.

    Raises:
        DataError: for a folder in use, or fewer pairs than files.

    Example:

    ```python
    from keras_attention.recipes.streams import write_tfrecords

    write_tfrecords([("guten tag", "good day"), ("danke", "thanks")], "shards", 2)
    ```
    """
    folder = Path(folder)
    if shards < 1:
        raise DataError(f"Write at least 1 file. Received: shards={shards}")
    if any(folder.glob(f"*{_RECORDS}*")):
        raise DataError(f"{folder}: holds .tfrecord files already: choose another folder.")
    paths = [folder / f"pairs-{i:05d}-of-{shards:05d}{_RECORDS}" for i in range(shards)]
    rows = 0
    with contextlib.ExitStack() as stack:
        writers = []
        for path in paths:
            beside = stack.enter_context(replacing(path))
            writers.append(stack.enter_context(tf.io.TFRecordWriter(str(beside))))
        for rows, sides in enumerate(pairs, start=1):
            writers[rows % shards].write(_record(*sides))
        if rows < shards:
            raise DataError(f"{rows} pairs are too few for {shards} files.")
    return paths


def _record(source: str, target: str) -> bytes:
    def feature(text):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode("utf-8")]))

    features = {"source": feature(source), "target": feature(target)}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _as_lines(records):
    """Serialized examples as lines of a tab-separated file."""
    text = tf.io.FixedLenFeature([], "string", default_value="")
    sides = tf.io.parse_example(records, {"source": text, "target": text})
    columns = [tf.strings.regex_replace(sides[side], "\t", " ") for side in ("source", "target")]
    return tf.strings.join(columns, "\t")


def _columns(lines):
    """Source and target of lines, and which lines are good: `data.pair_of` in the graph."""
    columns = tf.strings.split(lines, "\t", maxsplit=2)[:, :2].to_tensor(shape=[None, 2])
    sides = tf.strings.regex_replace(columns, f"^{_BLANK}|{_BLANK}$", "")
    good = tf.strings.regex_full_match(lines, _CHARACTERS) & tf.reduce_all(sides != "", axis=1)
    return sides[:, 0], sides[:, 1], good


def _among(values, known):
    """Which of the values are among `known`, which is sorted and not empty."""
    places = tf.minimum(tf.searchsorted(known, values), len(known) - 1)
    return tf.gather(known, places) == values


def _check_shares(files: int, batch_size: int, workers: int, worker: int) -> None:
    if not 0 <= worker < workers:
        raise ValueError(f"`worker` must be below `workers`={workers}. Received: worker={worker}")
    if files % workers:
        raise DataError(
            f"{files} files cannot be shared by {workers} workers: make their number a multiple "
            f"of {workers}, or choose the shard policy data."
        )
    if batch_size % workers:
        raise DataError(
            f"A batch of {batch_size} rows cannot be shared by {workers} workers: choose a "
            f"multiple of {workers}."
        )


def _matches(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)
    files = root.glob(str(pattern.relative_to(root)))
    return [file for file in files if file.is_file() and file.name[0] != "."]


def _is_records(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(_RECORDS)


def _is_data(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return path.is_file() and name[0] != "." and name.endswith((*_TEXT, _RECORDS))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _compression(path: Path) -> str:
    """By the first bytes, not by the name."""
    try:
        with path.open("rb") as file:
            return "GZIP" if file.read(3) == b"\x1f\x8b\x08" else ""
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None


def _check_gzip(path: Path) -> None:
    """Refuses a damaged file: TensorFlow takes one that was cut off for a shorter one."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None


def _reason(error: tf.errors.OpError) -> str:
    """What TensorFlow says, without where in its graph it happened."""
    return error.message.rpartition("}} ")[2].partition(" [[")[0].partition(" [Op:")[0].strip()
