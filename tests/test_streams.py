"""Pairs in many files: read alike, held out without leaks, each row once an epoch, few shapes."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from keras_attention.recipes import data, streams
from keras_attention.recipes.batches import BOUNDARIES, batches, few_boundaries, to_ids
from keras_attention.recipes.data import DataError
from keras_attention.recipes.streams import PairStream, find_files, write_tfrecords
from keras_attention.recipes.tokenizers import (
    END_ID,
    PADDING_ID,
    SPECIAL,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
)

pytest.importorskip("tensorflow_text")

ROWS = 700
PAIRS = [(f"s{i}" + " x" * (i % 7), f"t{i}" + " y" * (i % 11)) for i in range(ROWS)]
SOURCE = Tokenizer([*SPECIAL, "x", *(f"s{i}" for i in range(ROWS))], "spaces", "none")
TARGET = Tokenizer([*SPECIAL, "y", *(f"t{i}" for i in range(ROWS))], "spaces", "none")
SIZES = {"batch_size": 16, "max_length": 12}


def as_lines(pairs) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def write_shards(folder: Path, pairs, shards: int, suffix: str = ".tsv") -> Path:
    folder.mkdir(parents=True)
    for i in range(shards):
        content = as_lines(pairs[i::shards])
        packed = gzip.compress(content, mtime=0) if suffix.endswith(".gz") else content
        (folder / f"part-{i:03d}{suffix}").write_bytes(packed)
    return folder


def refused(*args, **kwargs) -> str:
    """The message of the error that reading raises, which is one line."""
    with pytest.raises(DataError) as error:
        PairStream(*args, report=lambda line: None, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def held_out(stream) -> list[tuple[str, str]]:
    parts = (stream.validation, stream.test)
    return [pair for part in parts for pair in zip(*part[:2], strict=True)]


def rows_of(found) -> list[tuple[str, str]]:
    """The pairs of batches, in their order; checks what the decoder is fed."""
    pairs = []
    for inputs, labels in found:
        assert inputs["source"].shape[0] == inputs["target"].shape[0] == labels.shape[0]
        for source, target, label in zip(
            *(x.numpy() for x in (inputs["source"], inputs["target"], labels)), strict=True
        ):
            source, label = source[source != PADDING_ID], label[label != PADDING_ID]
            assert source[-1] == END_ID
            if not len(label):  # fills a batch
                assert len(source) == 1
                assert target.tolist() == [START_ID] + [PADDING_ID] * (len(target) - 1)
                continue
            assert label[-1] == END_ID
            assert target[: len(label)].tolist() == [START_ID, *label[:-1]]
            assert not target[len(label) :].any()
            pairs.append(
                tuple(
                    " ".join(tokenizer.vocabulary[i] for i in ids[:-1])
                    for tokenizer, ids in ((SOURCE, source), (TARGET, label))
                )
            )
    return pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("pairs") / "shards", PAIRS, 6)


@pytest.fixture(scope="module")
def stream(folder):
    return PairStream(folder, held_out=20, report=pytest.fail)


# What is read.


@pytest.mark.parametrize(
    "suffix", [pytest.param(".tsv.gz", marks=pytest.mark.slow), ".tfrecord.gz"]
)
def test_every_format_gives_the_same_parts(tmp_path, stream, suffix):
    if suffix == ".tsv.gz":
        folder = write_shards(tmp_path / "shards", PAIRS, 3, suffix)
    else:
        folder = tmp_path / "records"
        paths = write_tfrecords(iter(PAIRS), folder, 3)
        assert sorted(folder.iterdir()) == sorted(paths)
        for path in paths:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    other = PairStream(folder, held_out=20, report=pytest.fail)
    assert other.rows == stream.rows
    assert (other.validation, other.test) == (stream.validation, stream.test)
    assert other.sample(50) == stream.sample(50)
    assert Counter(rows_of(other.batches(SOURCE, TARGET, 0, **SIZES))) == Counter(
        rows_of(stream.batches(SOURCE, TARGET, 0, **SIZES))
    )


def test_files_come_from_a_list_a_pattern_or_a_folder_and_each_once(tmp_path, monkeypatch):
    folder = write_shards(tmp_path / "shards", PAIRS[:6], 3)
    (folder / ".hidden.tsv").write_text("half a file")
    (folder / "notes.md").write_text("no pairs")
    (folder / "deeper.tsv").mkdir()
    paths = [folder / f"part-{i:03d}.tsv" for i in range(3)]
    (folder / "link.tsv").symlink_to(paths[2])
    assert find_files(folder / "*.tsv") == [folder / "link.tsv", *paths[:2]]
    (folder / "link.tsv").unlink()
    assert find_files(folder) == paths
    assert find_files([*reversed(paths), f"{folder}/part-*", folder]) == paths
    assert find_files(f"{tmp_path}/**/part-00[12].tsv") == paths[1:]
    monkeypatch.chdir(tmp_path)
    assert find_files(["shards/*.tsv"]) == [path.relative_to(tmp_path) for path in paths]
    assert len(find_files(["shards/*.tsv", folder])) == 3
    (folder / "part-[0].tsv").write_text("a name like a pattern")
    assert find_files(folder / "part-[0].tsv") == [folder / "part-[0].tsv"]


def test_nothing_found_is_refused_with_what_was_named(tmp_path):
    assert f"{tmp_path / 'no*.tsv'}: no such file, and no file matches" in refused(
        tmp_path / "no*.tsv"
    )
    assert "holds no .tsv, .txt or .tfrecord" in refused(tmp_path)
    assert refused([]) == "No file of pairs is named."
    write_tfrecords(PAIRS[:2], tmp_path, 1)
    (tmp_path / "same.tsv").write_bytes(as_lines(PAIRS[:2]))
    assert "name files of one kind" in refused(tmp_path)


TEXT_SIGNS = [
    "a",
    "é",
    "　",
    "\t",
    "\t",
    " ",
    "\x00",
    "\x0b",
    "\x1c",
    "\ufeff",
    "\u2028",
    "\x85",
    "𝄞",
]
NO_TEXT = [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
SIGNS = st.sampled_from([*(sign.encode() for sign in TEXT_SIGNS), *NO_TEXT])


@settings(deadline=None, max_examples=5)
@given(st.lists(st.lists(SIGNS | st.binary(max_size=3), max_size=6).map(b"".join), max_size=400))
@example([b"\xef\xbb\xbfmarked\tfirst", b"\xef\xbb\xbfmarked\tlater", b"three\tcolumns\there"])
def test_lines_are_good_when_those_of_a_single_file_are(tmp_path_factory, lines):
    # TensorFlow drops carriage returns, so here there are none.
    content = b"\n".join(lines).replace(b"\r", b"") + b"\n" + as_lines(PAIRS[:60])
    assume(content[:2] != b"\x1f\x8b")
    path = tmp_path_factory.mktemp("pairs") / "any.tsv"
    path.write_bytes(content)
    said, warnings = [], []
    single = data.read_pairs(path, said.append)
    stream = PairStream(path, held_out=2, report=warnings.append)
    said = [line.replace(f"{path}: skipped", "any.tsv: skipped") for line in said]
    assert [line for line in warnings if "held-out" not in line] == said
    sentences = [set(side) for side in zip(*held_out(stream), strict=True)]
    training = [
        pair
        for pair in zip(*single[:2], strict=True)
        if pair[0] not in sentences[0] and pair[1] not in sentences[1]
    ]
    sample = stream.sample(10_000)
    assert set(zip(*sample[:2], strict=True)) == set(training)
    assert stream.rows == len(training)


def test_bad_lines_are_named_with_their_file_and_then_counted(tmp_path):
    good = as_lines(PAIRS[:300])
    (tmp_path / "a.tsv").write_bytes(good + b"lonely\n\tno source\ngr\xfc\xdfe\tx\n")
    (tmp_path / "b.tsv").write_bytes(b"nu\x00l\tx\n" + good + b"\n" + b"bad\n" * 100)
    said = []
    stream = PairStream(tmp_path, held_out=5, report=said.append)
    assert [line.removeprefix(f"{tmp_path}/") for line in said[:6]] == [
        "a.tsv:301: one column; expected source TAB target; line skipped",
        "a.tsv:302: empty side; line skipped",
        "a.tsv:303: not UTF-8 (byte 3); line skipped",
        "b.tsv:1: NUL byte; line skipped",
        "b.tsv:302: empty line; line skipped",
        "a.tsv and 1 more: skipped 105 bad of 705 lines",
    ]
    # Each row is there twice; of the ten held out, the other copy is left out.
    assert stream.rows == 580
    assert said[6:] == ["10 pairs hold a sentence of a held-out pair: left out"]


BROKEN = {
    "empty": (b"", "is empty"),
    "no tab": (b"one column\n" * 9, "nothing reads as source TAB target"),
    "utf-16": (as_lines(PAIRS[:9]).decode().encode("utf-16"), "nothing reads as source TAB"),
    "cut off": (gzip.compress(as_lines(PAIRS), mtime=0)[:-900], "cannot be read: Compressed file"),
    "damaged": (
        (lambda packed: packed[:900] + bytes(60) + packed[960:])(gzip.compress(as_lines(PAIRS))),
        "cannot be read: Error -3",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_among_good_ones_is_named(tmp_path, kind):
    content, reason = BROKEN[kind]
    folder = write_shards(tmp_path / "shards", PAIRS[:60], 2)
    path = folder / "part-000b.tsv"
    path.write_bytes(content)
    assert refused(folder).startswith(f"{path}: {reason}")


def example_of(**features) -> bytes:
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value, list)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for name, value in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([example_of(text=[b"a"])] * 9, "nothing reads as bytes features `source` and `target`"),
        ([example_of(source=[b"a"], target=7)], "holds a record that is no tf.train.Example with"),
        ([example_of(source=[b"a", b"b"], target=[b"c"])], "holds a record that is no"),
        ([b"no example"], "holds a record that is no"),
    ],
)
def test_records_without_the_features_are_refused_with_the_file(tmp_path, records, reason):
    write_tfrecords(PAIRS[:60], tmp_path, 2)
    path = tmp_path / "pairs-00000-other.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    assert refused(tmp_path).startswith(f"{path}: {reason}")


@pytest.mark.parametrize("at", [0, 9_000])
def test_a_damaged_tfrecord_is_named(tmp_path, at):
    _, second = write_tfrecords(PAIRS, tmp_path, 2)
    content = second.read_bytes()
    assert len(content) > at + 40
    second.write_bytes(content[:at] + bytes(40) + content[at + 40 :])
    assert refused(tmp_path).startswith(f"{second}: cannot be read: corrupted record at")
    second.write_bytes(content[:-5])
    assert refused(tmp_path).startswith(f"{second}: cannot be read: truncated record at")
    second.write_bytes(as_lines(PAIRS))
    assert refused(tmp_path).startswith(f"{second}: cannot be read: ")


def test_a_file_that_changed_after_it_was_counted_is_refused(tmp_path):
    folder = write_shards(tmp_path / "shards", PAIRS[:60], 2)
    stream = PairStream(folder, held_out=2)
    path = folder / "part-001.tsv"
    with path.open("ab") as file:
        file.write(b"one\tmore\n")
    for use in (lambda: stream.batches(SOURCE, TARGET, 0, **SIZES), lambda: stream.sample(3)):
        with pytest.raises(DataError, match=r"part-001.tsv: has changed"):
            use()
    path.unlink()
    with pytest.raises(DataError, match=r"part-001.tsv: has changed"):
        stream.sample(3)


def test_records_are_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(DataError, match="2 pairs are too few for 3 files"):
        write_tfrecords(PAIRS[:2], tmp_path, 3)
    with pytest.raises(DataError, match="shards=0"):
        write_tfrecords(PAIRS[:2], tmp_path, 0)

    def interrupted():
        yield from PAIRS[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tfrecords(interrupted(), tmp_path, 2)
    assert not list(tmp_path.iterdir())
    write_tfrecords(PAIRS[:5], tmp_path, 2)
    with pytest.raises(DataError, match="already"):
        write_tfrecords(PAIRS[:5], tmp_path, 3)


# What is held out.


def test_held_out_pairs_depend_neither_on_files_nor_on_order(tmp_path, stream):
    shuffled = random.Random(5).sample(PAIRS, ROWS)
    other = PairStream(write_shards(tmp_path / "one", shuffled, 1), held_out=20)
    assert (other.validation, other.test) == (stream.validation, stream.test)
    assert other.sample(100) == stream.sample(100)
    assert len(stream.validation.source) == len(stream.test.source) == 20
    assert stream.rows == ROWS - 40
    again = PairStream(stream.files, held_out=20, seed=1)
    assert again.validation != stream.validation


def test_more_rows_leave_most_of_the_held_out_ones(tmp_path, stream):
    """A hash, not a place, decides: a row leaves only for one of a lower rank."""
    fewer = PairStream(write_shards(tmp_path / "some", PAIRS[: ROWS - 50], 2), held_out=20)
    assert len(set(held_out(fewer)) & set(held_out(stream))) >= 30


def test_no_sentence_of_a_held_out_pair_is_trained_on(tmp_path):
    draw = random.Random(1)
    # Few sentences, of which pairs share many, and whole pairs that repeat.
    pairs = [(f"s{draw.randrange(300)}", f"t{draw.randrange(300)}") for _ in range(ROWS)]
    said = []
    stream = PairStream(write_shards(tmp_path / "shards", pairs, 3), report=said.append)
    again = PairStream(write_shards(tmp_path / "one", pairs[::-1], 1), report=lambda line: None)
    assert (again.validation, again.test) == (stream.validation, stream.test)
    trained = rows_of(stream.batches(SOURCE, TARGET, 0, **SIZES))
    assert len(trained) == stream.rows
    parts = [trained, *(list(zip(*p[:2], strict=True)) for p in (stream.validation, stream.test))]
    for side in range(2):
        sentences = [{pair[side] for pair in part} for part in parts]
        assert all(sentences)
        assert sum(map(len, sentences)) == len(set.union(*sentences))
    held = set(held_out(stream))
    sources, targets = ({pair[side] for pair in held} for side in range(2))
    left_out = sum(
        (source in sources or target in targets) and (source, target) not in held
        for source, target in pairs
    ) + sum(count - 1 for pair, count in Counter(pairs).items() if pair in held)
    assert said == [f"{left_out} pairs hold a sentence of a held-out pair: left out"]


def test_a_sentence_of_very_many_pairs_stays_in_training(tmp_path):
    """Held out, it would take all of its pairs out of training."""
    often = [("s0", f"t{i}") for i in range(300)]
    kept = 0
    for seed in range(4):
        folder = write_shards(tmp_path / f"shards{seed}", often + PAIRS[300:], 2)
        stream = PairStream(folder, held_out=5, seed=seed, report=lambda line: None)
        kept += stream.rows > ROWS - 50
    assert kept >= 2


def test_a_sample_holds_distinct_training_pairs_from_everywhere(stream):
    sample = stream.sample(200)
    found = set(zip(*sample[:2], strict=True))
    assert len(found) == 200
    assert not found & set(held_out(stream))
    files = Counter(int(source.split()[0][1:]) % 6 for source, _ in found)
    halves = Counter(int(source.split()[0][1:]) < ROWS // 2 for source, _ in found)
    assert min(files.values()) > 15
    assert min(halves.values()) > 70
    assert stream.sample(10).source == sample.source[:10]
    assert len(stream.sample(10 * ROWS).source) == stream.rows


def test_too_few_rows_are_refused(tmp_path):
    assert "too few, or repeat each other" in refused(
        write_shards(tmp_path / "two", [("a", "b"), ("c", "d")], 1)
    )
    same = [("a", f"b{i}") for i in range(50)]
    assert "too few, or repeat each other" in refused(write_shards(tmp_path / "same", same, 1))
    assert "held_out=0" in refused(tmp_path / "same", held_out=0)


# Batches.


@settings(deadline=None, max_examples=1)
@given(
    shards=st.integers(1, 3),
    workers=st.integers(1, 3),
    epoch=st.integers(0, 10**6),
    shuffle_rows=st.sampled_from([1, 7, 50, 10_000]),
    rows=st.integers(60, 300),
)
@example(shards=2, workers=3, epoch=1, shuffle_rows=1, rows=257)
def test_every_row_comes_once_an_epoch(
    tmp_path_factory, shards, workers, epoch, shuffle_rows, rows
):
    folder = write_shards(tmp_path_factory.mktemp("pairs") / "f", PAIRS[:rows], shards * workers)
    stream = PairStream(folder, held_out=2)
    wanted = Counter(PAIRS[:rows]) - Counter(held_out(stream))
    options = {"batch_size": 6 * workers, "max_length": 12, "shuffle_rows": shuffle_rows}
    found = Counter()
    for worker in range(workers):
        share = {"policy": "file", "workers": workers, "worker": worker}
        mine = list(stream.batches(SOURCE, TARGET, epoch, **options, **share))
        assert max(labels.shape[0] for _, labels in mine) <= 6
        found.update(rows_of(mine))
    assert found == wanted
    share = {"policy": "data", "workers": workers, "worker": workers - 1}
    together = rows_of(stream.batches(SOURCE, TARGET, epoch, **options, **share))
    assert Counter(together) == wanted


IN_ANOTHER_PROCESS = """
import json, sys
import tensorflow as tf
tf.random.set_seed(77)
from keras_attention.recipes.streams import PairStream
from keras_attention.recipes.tokenizers import Tokenizer
stream = PairStream(sys.argv[1], held_out=20)
sides = [Tokenizer.load(sys.argv[2], side) for side in ("source", "target")]
found = stream.batches(*sides, 3, batch_size=16, max_length=12, shuffle_rows=100)
print(json.dumps([labels.numpy().tolist() for _, labels in found]))
"""


def test_the_batches_of_an_epoch_are_the_same_in_any_process(tmp_path, folder, stream):
    SOURCE.save(tmp_path, "source")
    TARGET.save(tmp_path, "target")
    other = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(folder), str(tmp_path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "9"},
        check=True,
        capture_output=True,
        text=True,
    )

    def labels_of(epoch):
        found = stream.batches(SOURCE, TARGET, epoch, **SIZES, shuffle_rows=100)
        return [labels.numpy().tolist() for _, labels in found]

    third, fourth = labels_of(3), labels_of(4)
    assert third == json.loads(other.stdout.splitlines()[-1]) == labels_of(3)
    assert third != fourth
    assert len(third) == len(fourth)


def test_files_are_read_in_turns_and_in_another_order_each_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_CHUNK", 16)  # lines of a turn
    folder = tmp_path / "shards"
    folder.mkdir()
    for i in range(4):  # of one length, so that one bucket shows the order of rows
        rows = [(f"s{j}", f"t{j}") for j in range(150 * i, 150 * (i + 1))]
        (folder / f"part-{i}.tsv").write_bytes(as_lines(rows))
    stream = PairStream(folder, held_out=5)

    def order(epoch, shuffle_rows):
        found = stream.batches(SOURCE, TARGET, epoch, **SIZES, shuffle_rows=shuffle_rows)
        return [int(source[1:]) for source, _ in rows_of(found)]

    # Not shuffled: only files and their turns make the order.
    orders = [order(epoch, 1) for epoch in range(2)]
    plain = [[i // 150 for i in rows] for rows in orders]
    assert len({tuple(dict.fromkeys(files)) for files in plain}) > 1
    assert all(len(set(files[:64])) == 4 for files in plain)
    shuffled = order(0, 10_000)
    assert len({i // 150 for i in shuffled[:32]}) == 4
    assert np.mean(np.abs(np.diff(shuffled))) > 100
    # A block is shuffled anew: rows do not keep their places in it.
    assert np.mean(np.array(shuffled) == np.array(order(1, 10_000))) < 0.1
    # Blocks keep their rows, and each has an order of its own.
    places = np.array([orders[0].index(i) for i in order(0, 50)][:150]).reshape(3, 50)
    assert (places // 50 == [[0], [1], [2]]).all()
    assert len({tuple(block % 50) for block in places}) == 3


def test_rows_longer_than_the_limit_are_left_out(stream):
    found = rows_of(stream.batches(SOURCE, TARGET, 0, batch_size=16, max_length=6))
    held = Counter(held_out(stream))
    short = [pair for pair in PAIRS if max(len(side.split()) for side in pair) <= 5]
    assert Counter(found) == Counter(short) - held
    assert len(found) < stream.rows


def test_rows_of_a_batch_have_about_one_length(stream):
    for inputs, labels in stream.batches(SOURCE, TARGET, 0, **SIZES):
        lengths = np.maximum(
            *(np.sum(x.numpy() != PADDING_ID, axis=1) for x in (inputs["source"], labels))
        )
        assert len(set(np.searchsorted(BOUNDARIES, lengths, side="right"))) == 1
        assert UNKNOWN_ID not in labels.numpy()


def test_few_boundaries_bound_every_row():
    for longest in range(1, 200):
        boundaries = few_boundaries(longest)
        assert len(boundaries) <= 5
        assert list(boundaries) == sorted(set(boundaries))
        assert boundaries[-1] == longest + 1


def test_compiled_steps_see_no_more_shapes_than_buckets(stream):
    boundaries = few_boundaries(12)
    sides = [[pair[i] for pair in PAIRS] for i in range(2)]
    ids = to_ids(sides[0], SOURCE), to_ids(sides[1], TARGET)
    fixed = {"boundaries": boundaries, "fixed_shapes": True}
    kinds = {
        "in memory": lambda **options: batches(*ids, 16, 1, **options),
        "a stream": lambda **options: stream.batches(SOURCE, TARGET, 1, **SIZES, **options),
    }
    for name, make in kinds.items():
        compiled = []

        @tf.function(jit_compile=True, autograph=False)
        def step(inputs, labels):
            compiled.append(labels.shape)  # noqa: B023
            return tf.reduce_sum(inputs["source"]) + tf.reduce_sum(inputs["target"] * labels)

        found = list(make(**fixed))
        for batch in found:
            step(*batch)
        assert len(set(compiled)) == len(compiled) <= len(boundaries), name
        assert {labels.shape[1] + 1 for _, labels in found} <= set(boundaries), name
        assert all(inputs["source"].shape == labels.shape for inputs, labels in found), name
        assert {labels.shape[0] for _, labels in found} == {16}, name
        # The same rows as in batches of any shape, in the same order within a bucket.
        assert rows_of(found) == rows_of(make(boundaries=boundaries)), name
        free = {labels.shape for _, labels in make()}
        assert len(free) > len(boundaries), name


def test_boundaries_that_do_not_bound_the_rows_are_refused(stream):
    ids = tf.ragged.constant([[5, 6, 2], [5, 2]], dtype="int32")
    with pytest.raises(ValueError, match=r"longest row, 3; few_boundaries\(3\)"):
        batches(ids, ids, 2, boundaries=[2, 3], fixed_shapes=True)
    assert len(list(batches(ids, ids, 2, boundaries=[2, 4], fixed_shapes=True))) == 1
    with pytest.raises(ValueError, match="longest row, 12"):
        stream.batches(SOURCE, TARGET, 0, **SIZES, boundaries=[8, 12], fixed_shapes=True)


# Workers.


def test_files_that_cannot_be_shared_out_are_refused(stream):
    def ask(**options):
        return stream.batches(SOURCE, TARGET, 0, **{**SIZES, "policy": "file", **options})

    with pytest.raises(DataError, match=r"6 files cannot be shared by 4 .*shard policy data"):
        ask(workers=4, worker=0)
    with pytest.raises(DataError, match="6 files cannot be shared by 12 workers"):
        ask(workers=12, worker=0, batch_size=24)
    with pytest.raises(DataError, match="batch of 16 rows cannot be shared by 3 workers"):
        ask(workers=3, worker=0)
    with pytest.raises(ValueError, match="worker=2"):
        ask(workers=2, worker=2)
    with pytest.raises(ValueError, match="policy='auto'"):
        ask(policy="auto")


def test_sharding_is_never_left_to_tensorflow(stream):
    Policy = tf.data.experimental.AutoShardPolicy
    for policy, expected in (("data", Policy.DATA), ("file", Policy.OFF)):
        found = stream.batches(
            SOURCE, TARGET, 0, **SIZES, policy=policy, workers=2, worker=1
        ).options()
        assert found.experimental_distribute.auto_shard_policy == expected


# Memory.

PEAKS = """
import resource, sys
import tensorflow as tf
from keras_attention.recipes.streams import PairStream
from keras_attention.recipes.tokenizers import SPECIAL, Tokenizer
words = Tokenizer([*SPECIAL, "word"], "spaces", "none")
sizes = dict(batch_size=64, max_length=64, shuffle_rows=1000)
for folder in sys.argv[1:]:
    stream = PairStream(folder, held_out=50)
    stream.sample(500)
    rows = sum(labels.shape[0] for _, labels in stream.batches(words, words, 0, **sizes))
    print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path):
    for count in (2_000, 20_000):
        # Long rows of few pieces: to hold them takes memory, to cut them little time.
        pairs = ((f"{i} {'w' * 2000}", f"{i} {'w' * 2000}") for i in range(count))
        write_tfrecords(pairs, tmp_path / str(count), 4)
    small, large = (str(tmp_path / name) for name in ("2000", "20000"))
    found = subprocess.run(
        # Twice the small one: the second graph of a process takes some memory too.
        [sys.executable, "-c", PEAKS, small, small, large],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    _, (few, low), (many, high) = (map(int, line.split()) for line in found.splitlines())
    assert (few, many) == (1_900, 19_900)
    assert high <= 1.05 * low
