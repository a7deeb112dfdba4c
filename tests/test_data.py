"""Reading pairs from files that people have, splitting without leaks, and named data sets."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention.recipes import data
from keras_attention.recipes.data import DataError, Pairs, TextSide

REAL = os.environ.get(data.DATA_FOLDER_VARIABLE)
needs_real_data = pytest.mark.skipif(
    not REAL, reason=f"{data.DATA_FOLDER_VARIABLE} does not name a folder with the data sets"
)


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read_with_warnings(read, *paths):
    warnings = []
    return read(*paths, warnings.append), warnings


# Reading.


def test_pairs_are_the_first_two_columns(write):
    path = write("pairs.txt", "﻿Hi.\t嗨。\tCC-BY\nRun!\t跑！\n\n")
    pairs, warnings = read_with_warnings(data.read_pairs, path)
    assert pairs == (["Hi.", "Run!"], ["嗨。", "跑！"], None)
    assert warnings == []


def test_gzip_and_windows_line_ends_are_read(write):
    path = write("pairs.tsv.gz", gzip.compress(b"a\tb\r\nc\td\r\n", mtime=0))
    assert data.read_pairs(path)[:2] == (["a", "c"], ["b", "d"])
    source, target = write("x.de.gz", gzip.compress(b"a\nc\n", mtime=0)), write("x.en", "b\nd")
    assert data.read_parallel(source, target)[:2] == (["a", "c"], ["b", "d"])


def test_bad_lines_are_named_by_number_and_reason(write):
    path = write("pairs.tsv", b"a\tb\nlonely\n\tno source\ngr\xfc\xdfe\tx\nnu\x00l\tx\n\nc\td\n")
    pairs, warnings = read_with_warnings(data.read_pairs, path)
    assert pairs[:2] == (["a", "c"], ["b", "d"])
    for warning, (number, reason) in zip(
        warnings,
        [(2, "one column"), (3, "empty side"), (4, "not UTF-8"), (5, "NUL"), (6, "empty line")],
        strict=False,
    ):
        assert warning.startswith(f"{path}:{number}: {reason}")
    assert warnings[5:] == [f"{path}: skipped 5 bad of 7 lines"]


def test_only_the_first_bad_lines_are_shown_but_all_are_counted(write):
    path = write("pairs.tsv", "a\tb\n" + "bad\n" * 100)
    _, warnings = read_with_warnings(data.read_pairs, path)
    assert len(warnings) == 6
    assert warnings[-1].endswith("skipped 100 bad of 101 lines")


def test_a_line_that_is_bad_on_one_side_is_left_out_on_both(write):
    source, target = write("a", b"one\n\nthr\xe9e\nfour\n"), write("b", "eins\nzwei\ndrei\nvier\n")
    pairs, warnings = read_with_warnings(data.read_parallel, source, target)
    assert pairs[:2] == (["one", "four"], ["eins", "vier"])
    assert warnings[0].startswith(f"{source}:2: empty line")
    assert warnings[1].startswith(f"{source}:3: not UTF-8")
    assert warnings[2] == f"{source}: skipped 2 bad of 4 lines"


@pytest.mark.parametrize("sign", ["\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_line_feeds_end_a_line(write, sign):
    source, target = write("a", f"one{sign}two\nthree\n"), write("b", "eins\ndrei\n")
    assert data.read_parallel(source, target).target == ["eins", "drei"]


def test_different_numbers_of_lines_are_refused_with_both(write):
    with pytest.raises(DataError, match=r"a has 3 lines but .*b has 2"):
        data.read_parallel(write("a", "1\n2\n3\n"), write("b", "1\n2\n"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"one column\nonly\n", "no line"),
        ("a\tb\n".encode("utf-16"), "no line"),
        (gzip.compress(b"a\tb\n" * 1000, mtime=0)[:-20], "cannot be read"),
    ],
)
def test_a_file_without_a_good_line_is_refused(write, content, reason):
    path = write("pairs.tsv", content)
    with pytest.raises(DataError, match=reason) as error:
        data.read_pairs(path, lambda line: None)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path, write):
    with pytest.raises(DataError, match="no such file"):
        data.read_pairs(tmp_path / "absent.tsv")
    with pytest.raises(DataError, match="is a folder"):
        data.read_pairs(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        data.read_parallel(write("a", "x\n"), tmp_path / "absent")


# Splitting.


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60),
    st.integers(0, 10),
    st.floats(0, 0.5),
    st.integers(0, 3),
)
def test_no_sentence_of_either_side_is_in_two_parts(rows, validation, test, seed):
    pairs = Pairs([f"s{i}" for i, _ in rows], [f"t{j}" for _, j in rows])
    parts = data.split_by_group(pairs, validation, test, seed)
    assert parts == data.split_by_group(pairs, validation, test, seed)
    together = [row for part in parts for row in zip(part.source, part.target, strict=True)]
    assert sorted(together) == sorted(zip(pairs.source, pairs.target, strict=True))
    for side in ("source", "target"):
        sentences = [set(getattr(part, side)) for part in parts]
        assert sum(map(len, sentences)) == len(set.union(*sentences))
    assert len(parts[1].source) <= validation
    assert len(parts[2].source) <= round(test * len(rows))


def test_distinct_pairs_are_split_to_the_sizes_asked_for_and_keep_their_alignments():
    numbers = range(200)
    links = [frozenset({(i, 0)}) for i in numbers]
    pairs = Pairs([f"s{i}" for i in numbers], [f"t{i}" for i in numbers], links)
    parts = data.split_by_group(pairs, 30, 0.1, seed=1)
    assert [len(part.source) for part in parts] == [150, 30, 20]
    for part in parts:
        assert part.alignments == [frozenset({(int(s[1:]), 0)}) for s in part.source]
    assert parts != data.split_by_group(pairs, 30, 0.1, seed=2)


@pytest.mark.parametrize("size", [-1, -0.1, 1.0, 2.5])
def test_a_part_must_be_a_fraction_or_a_whole_number(size):
    with pytest.raises(DataError, match=f"size={size}"):
        data.split_by_group(Pairs(["a"], ["b"]), size, 0)


# A person's own files.


def test_own_pairs_are_held_out_in_part(write):
    rows = "".join(f"s{i}\tt{i}\n" for i in range(100))
    path = write("mine.tsv.gz", gzip.compress(rows.encode(), mtime=0))
    corpus = data.from_files(path, limit=60)
    assert [len(part.source) for part in corpus[:3]] == [60, 5, 5]
    assert corpus.name == "mine"
    assert corpus.source == corpus.target == TextSide("spaces", "nfkc")


def test_own_parallel_files_are_read_with_the_sides_given(write):
    source, target = write("a.zh", "一\n二\n三\n"), write("a.en", "one\ntwo\nthree\n")
    side = TextSide("characters", "nfkc")
    corpus = data.from_files(source=source, target=target, source_side=side)
    assert [len(part.source) for part in corpus[:3]] == [1, 1, 1]
    assert corpus.source == side


def test_too_little_of_ones_own_is_refused(write):
    with pytest.raises(DataError, match="too few"):
        data.from_files(write("two.tsv", "a\tb\nc\td\n"))
    with pytest.raises(DataError, match="too few, or repeat each other"):
        data.from_files(write("same.tsv", "".join(f"a\tb{i}\n" for i in range(50))))


def test_own_files_are_pairs_or_source_and_target(write):
    path = write("x.tsv", "a\tb\n")
    for wrong in ({}, {"pairs": path, "source": path, "target": path}, {"source": path}):
        with pytest.raises(DataError, match="either one file of pairs"):
            data.from_files(**wrong)
    with pytest.raises(DataError, match="either one file of pairs"):
        data.from_files(pairs=path, target=path)


# Named data sets.


@pytest.fixture
def no_data_folder(monkeypatch):
    monkeypatch.delenv(data.DATA_FOLDER_VARIABLE, raising=False)


def test_the_phrasebook_needs_no_file(no_data_folder):
    corpus = data.load("phrasebook", limit=100)
    assert len(corpus.train.source) == 100
    assert corpus.test.alignments is not None


def test_an_unknown_name_and_a_limit_of_nothing_are_refused():
    with pytest.raises(DataError, match="phrasebook, multi30k, tatoeba-cmn"):
        data.load("multi31k")
    with pytest.raises(DataError, match="limit=0"):
        data.load("phrasebook", limit=0)


@pytest.mark.parametrize("name", ["multi30k", "tatoeba-cmn"])
def test_a_data_folder_without_the_files_is_told_which_and_from_where(tmp_path, name):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError) as error:
            data.load(name, data_dir=folder)
        message = str(error.value)
        assert str(folder) in message
        assert "multi30k/dataset" in message or "manythings.org/anki" in message
        assert "\n" not in message


def test_without_network_one_line_says_which_files_to_put_where(no_data_folder, monkeypatch):
    import keras

    def offline(*args, **kwargs):
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr(keras.utils, "get_file", offline)
    said = []
    with pytest.raises(DataError) as error:
        data.load("multi30k", report=said.append)
    assert "train.lc.norm.tok.de" in str(error.value)
    assert "multi30k/tok" in str(error.value)
    assert "\n" not in str(error.value)
    assert "non-commercial research" in said[0]


def test_multi30k_is_fetched_with_checksums_after_its_terms(no_data_folder, monkeypatch, tmp_path):
    import keras

    events = []

    def get_file(fname, origin, file_hash, **kwargs):
        assert origin.endswith(f"a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/{fname}")
        assert len(file_hash) == 64
        events.append(fname)
        path = tmp_path / fname
        path.write_text("ein satz\n")
        return str(path)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    corpus = data.load("multi30k", report=events.append)
    assert "Multi30k" in events[0]
    assert len(events) == 7
    assert corpus.test.source == ["ein satz"]


def test_a_small_multi30k_in_a_data_folder_is_read_from_german_to_english(tmp_path):
    folder = tmp_path / "multi30k" / "tok"
    folder.mkdir(parents=True)
    for part in ("train", "val", "test_2016_flickr"):
        (folder / f"{part}.lc.norm.tok.de").write_text(f"ein {part}\nzwei\n")
        (folder / f"{part}.lc.norm.tok.en").write_text(f"one {part}\ntwo\n")
    corpus = data.load("multi30k", data_dir=tmp_path, limit=1)
    assert corpus.train[:2] == (["ein train"], ["one train"])
    assert corpus.validation.source == ["ein val", "zwei"]
    assert corpus.test.target == ["one test_2016_flickr", "two"]
    assert corpus.source == corpus.target == TextSide("spaces", "none")


@needs_real_data
def test_the_real_sets_have_their_published_sizes():
    corpus = data.load("multi30k")
    assert [len(part.source) for part in corpus[:3]] == [29000, 1014, 1000]
    corpus = data.load("tatoeba-cmn", report=pytest.fail)
    assert [len(part.source) for part in corpus[:3]] == [27155, 1000, 1000]
    for side in ("source", "target"):
        parts = [set(getattr(part, side)) for part in corpus[:3]]
        assert not parts[0] & parts[2]
        assert not parts[0] & parts[1]
