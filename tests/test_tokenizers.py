"""The tokenizer: reversible, the same with and without TensorFlow, safe against odd text."""

import functools
import json
import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_attention.recipes import data, phrasebook
from keras_attention.recipes import tokenizers as tk
from keras_attention.recipes.data import DataError

pytest.importorskip("tensorflow_text")
tf = pytest.importorskip("tensorflow")

REAL = os.environ.get(data.DATA_FOLDER_VARIABLE)
needs_real_data = pytest.mark.skipif(
    not REAL, reason=f"{data.DATA_FOLDER_VARIABLE} does not name a folder with the data sets"
)

TEXTS = [
    'I am an actor, and she said "good morning".',
    "Straße, Äpfel & well-known T-shirts aren't here: 3.5 %",
    "good good good morning morning actors acting",
    "naïve ﬁne Ⅷ №5 ½ ça É ΣΑΣ",
    "## #hash x##y [PAD] [START] [END] [UNK]",
    "我 是 一名 演员 。 你好 吗 ？ ｆｕｌｌ　ｗｉｄｔｈ",
]


def built(split="spaces", normalize="nfkc", texts=TEXTS, size=400) -> tk.Tokenizer:
    return tk.Tokenizer(tk.learn_vocabulary(texts, size, split, normalize), split, normalize)


TOKENIZERS = {
    (split, normalize): built(split, normalize)
    for split in ("spaces", "characters")
    for normalize in ("none", "nfkc", "nfkc_lower")
}


def ids_of(tokenizer: tk.Tokenizer, text: str) -> list[int]:
    return tokenizer.tokenize([text]).to_list()[0]


def pieces_of(tokenizer: tk.Tokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary[number] for number in ids_of(tokenizer, text)]


def round_trip(tokenizer: tk.Tokenizer, texts: list[str]) -> list[str]:
    restored = tokenizer.detokenize(tokenizer.tokenize(texts))
    return [text.decode() for text in restored.numpy()]


@functools.cache
def wordpiece_of(tokenizer: tk.Tokenizer):
    models = pytest.importorskip("tokenizers").models
    entries = tk.wordpiece_entries(tokenizer.vocabulary)
    return models.WordPiece(
        {entry: number for number, entry in enumerate(entries)},
        unk_token=tk.UNKNOWN,
        continuing_subword_prefix=tk.MARKER,
        max_input_chars_per_word=tk.LONGEST_WORD,
    )


def without_tensorflow(tokenizer: tk.Tokenizer, text: str) -> list[int]:
    """What a stand-alone program does, with the library `tokenizers`."""
    model = wordpiece_of(tokenizer)
    found = tk.words(tk.normalized(text, tokenizer.normalize), tokenizer.split)
    return [piece.id for word in found for piece in model.tokenize(word)]


# To ids and back.


def test_special_pieces_come_first():
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.vocabulary[:4] == ("[PAD]", "[START]", "[END]", "[UNK]")
    assert (tk.PADDING_ID, tk.START_ID, tk.END_ID, tk.UNKNOWN_ID) == (0, 1, 2, 3)


@pytest.mark.parametrize("normalize", ["none", "nfkc", "nfkc_lower"])
def test_seen_text_comes_back_exactly_as_it_was_normalised(normalize):
    tokenizer = TOKENIZERS["spaces", normalize]
    seen = [text.replace("[UNK]", "") for text in TEXTS]
    expected = [" ".join(tk.normalized(text, normalize).split(" ")).strip() for text in seen]
    assert round_trip(tokenizer, seen) == expected


def test_characters_come_back_without_spaces():
    tokenizer = TOKENIZERS["characters", "nfkc"]
    assert round_trip(tokenizer, ["我 是 演员 。", "你好吗？"]) == ["我是演员。", "你好吗?"]


ALPHABET = "ab#.,é我 "


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(ALPHABET, max_size=30), min_size=1, max_size=4))
@example(["##a a##b ## ### a ##", "#"])
def test_any_text_of_known_characters_comes_back(texts):
    # Few enough pieces that words are cut, and every character of the alphabet is known.
    tokenizer = SMALL
    assert round_trip(tokenizer, texts) == [" ".join(tk.words(text, "spaces")) for text in texts]


EACH = [piece for sign in ALPHABET.strip() for piece in (sign, "##" + sign)]
SMALL = tk.Tokenizer([*tk.SPECIAL, *EACH, "ab", "##ba", "##我我", "a."], "spaces", "none")


def test_detokenizing_stops_at_the_end_and_drops_start_and_padding():
    a, b = (SMALL.vocabulary.index(piece) for piece in ("a", "##b"))
    ids = tf.constant([[1, a, b, 2, a, a], [0, a, a, 0, 0, 0], [2, a, a, a, a, a]])
    assert SMALL.detokenize(ids).numpy().tolist() == [b"ab", b"a a", b""]


def test_a_continuing_piece_without_a_beginning_is_a_word():
    b = SMALL.vocabulary.index("##b")
    assert SMALL.detokenize(tf.constant([[1, b, b, 2]])).numpy().tolist() == [b"bb"]


def test_pieces_are_the_strings_of_ids():
    ids = SMALL.tokenize(["ab a.b"])
    assert SMALL.pieces(ids.to_tensor()).numpy().tolist() == [[b"ab", b"a.", b"##b"]]


def test_an_empty_batch_and_empty_texts_are_fine():
    for tokenizer in (SMALL, TOKENIZERS["characters", "nfkc"]):
        assert tokenizer.tokenize(tf.constant([], tf.string)).to_list() == []
        assert tokenizer.tokenize(["", "   ", "a"]).row_lengths().numpy().tolist()[:2] == [0, 0]
        assert round_trip(tokenizer, ["", "  "]) == ["", ""]


# Text that pretends to be something else.


@pytest.mark.parametrize("literal", ["[PAD]", "[START]", "[END]"])
@pytest.mark.parametrize("split", ["spaces", "characters"])
def test_a_special_piece_written_in_a_text_is_only_text(literal, split):
    for tokenizer in (TOKENIZERS[split, "nfkc"], tk.Tokenizer(tk.SPECIAL, split, "none")):
        ids = ids_of(tokenizer, f"{literal} x{literal} {literal}")
        assert ids
        assert min(ids) >= tk.UNKNOWN_ID


def test_a_word_of_number_signs_is_no_continuation():
    assert pieces_of(SMALL, "a ##b") == ["a", "#", "###", "##b"]
    assert round_trip(SMALL, ["a ##b", "ab"]) == ["a ##b", "ab"]


def test_unknown_characters_make_their_word_unknown_and_no_other():
    assert ids_of(SMALL, "ab azb ab") == [ids_of(SMALL, "ab")[0], 3, ids_of(SMALL, "ab")[0]]


def test_bytes_that_are_no_utf8_and_other_spaces_do_no_harm():
    assert ids_of(SMALL, b"a \xff\xfe b") == [*ids_of(SMALL, "a"), 3, *ids_of(SMALL, "b")]
    assert ids_of(SMALL, "a\tb\r\na\x00b") == ids_of(SMALL, "a b a b")


def test_a_word_is_known_up_to_the_longest_and_then_unknown():
    for sign in "a我":
        assert len(ids_of(SMALL, sign * tk.LONGEST_WORD)) > 1
        assert ids_of(SMALL, sign * (tk.LONGEST_WORD + 1)) == [3]


# With and without TensorFlow.


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(sorted(TOKENIZERS)), st.lists(st.text(max_size=40), min_size=1, max_size=9))
@example(("spaces", "nfkc"), ["a" * 100 + " " + "a" * 101])
@example(("spaces", "none"), ["##a [PAD] [UNK] x[UNK] \x00 \x85 \u2028 \u00a0"])
@example(("characters", "nfkc_lower"), ["a\x00b\tc \u3000"])
@example(("spaces", "nfkc_lower"), ["ΑΣ ΣΑΣ İ ẞ ǅ ﬁ ½ Å e\u0301"])
def test_any_text_has_the_same_ids_without_tensorflow(which, texts):
    tokenizer = TOKENIZERS[which]
    expected = [without_tensorflow(tokenizer, text) for text in texts]
    assert tokenizer.tokenize(texts).to_list() == expected


KNOWN = st.text("".join(TEXTS) + "#[]\t ", max_size=60)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(sorted(TOKENIZERS)), st.lists(KNOWN, min_size=1, max_size=9))
def test_text_of_known_characters_has_the_same_ids_without_tensorflow(which, texts):
    tokenizer = TOKENIZERS[which]
    expected = [without_tensorflow(tokenizer, text) for text in texts]
    assert tokenizer.tokenize(texts).to_list() == expected


@needs_real_data
def test_multi30k_has_the_same_ids_without_tensorflow_and_comes_back():
    lines = data.load("multi30k").validation.source[:500]
    tokenizer = built(texts=lines, size=1000, normalize="none")
    ids = tokenizer.tokenize(lines).to_list()
    assert ids == [without_tensorflow(tokenizer, line) for line in lines]
    assert round_trip(tokenizer, lines) == [" ".join(tk.words(line, "spaces")) for line in lines]
    assert all(tk.UNKNOWN_ID not in row for row in ids)


# Learning.


def test_words_that_fit_are_whole_pieces():
    corpus = phrasebook.corpus(2000, 10, 10)
    for side in (corpus.train.source, corpus.train.target):
        started = time.monotonic()
        tokenizer = built(normalize="none", texts=side, size=1000)
        assert time.monotonic() - started < 1
        words = {word for text in side for word in text.split()}
        assert {len(ids) for ids in tokenizer.tokenize(sorted(words)).to_list()} == {1}


def test_no_piece_holds_letters_and_punctuation():
    tokenizer = built(texts=["good. good. (good) 'good' well-known x_y &quot;"] * 9, size=200)
    mixed = [
        piece
        for piece in tokenizer.vocabulary[4:]
        if any(map(str.isalpha, piece)) and not piece.removeprefix("##").isalpha()
    ]
    assert mixed == ["&quot;"]
    assert pieces_of(tokenizer, "good.") == ["good", "##."]
    assert pieces_of(tokenizer, "(good)") == ["(", "##good", "##)"]


def test_the_ends_of_contractions_are_pieces():
    tokenizer = built(texts=["Tom's Tom 's don't they're 'good'"], size=200)
    assert pieces_of(tokenizer, "Tom's 's") == ["Tom", "##'s", "'s"]
    assert pieces_of(tokenizer, "don't they're") == ["don", "##'t", "they", "##'re"]
    assert pieces_of(tokenizer, "'good'") == ["'", "##good", "##'"]


MANY_WORDS = [f"{a}{b}{c}ing {a}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def test_more_words_than_pieces_are_cut_and_none_is_unknown():
    vocabulary = tk.learn_vocabulary(MANY_WORDS, 80, "spaces", "none")
    assert len(vocabulary) == len(set(vocabulary)) == 80
    for character in set("".join(MANY_WORDS)) - {" "}:
        assert {character, "##" + character} <= set(vocabulary)
    tokenizer = tk.Tokenizer(vocabulary, "spaces", "none")
    ids = tokenizer.tokenize(MANY_WORDS).flat_values.numpy()
    assert tk.UNKNOWN_ID not in ids
    assert len(ids) < sum(len(text.replace(" ", "")) for text in MANY_WORDS) * 0.8
    assert round_trip(tokenizer, MANY_WORDS) == MANY_WORDS


def test_learning_is_repeatable():
    one = tk.learn_vocabulary(MANY_WORDS, 80, "spaces", "none")
    assert one == tk.learn_vocabulary(reversed(MANY_WORDS), 80, "spaces", "none")


def test_a_huge_alphabet_leaves_room_for_words():
    texts = ["".join(map(chr, range(0x4E00, 0x4E00 + 500))), *["often often seldom"] * 5]
    texts += [f"w{chr(97 + i)}{chr(97 + j)}" for i in range(26) for j in range(26)]
    vocabulary = tk.learn_vocabulary(texts, 300, "spaces", "none")
    assert len(vocabulary) <= 300
    assert "often" in vocabulary
    assert sum("\u4e00" <= piece[-1] for piece in vocabulary) <= 150


def test_characters_are_kept_by_frequency():
    vocabulary = tk.learn_vocabulary(["我 我 我", "你你", "他"], 6, "characters", "none")
    assert vocabulary[4:] == ["我", "你"]


@pytest.mark.parametrize("texts", [[], ["", " "]])
@pytest.mark.parametrize("split", ["spaces", "characters"])
def test_no_text_gives_the_special_pieces_alone(texts, split):
    assert tk.learn_vocabulary(texts, 100, split, "nfkc") == list(tk.SPECIAL)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(max_size=20), max_size=20), st.integers(5, 60))
def test_any_text_gives_a_usable_vocabulary(texts, size):
    vocabulary = tk.learn_vocabulary(texts, size, "spaces", "nfkc")
    assert len(vocabulary) <= size
    tk.Tokenizer(vocabulary, "spaces", "nfkc")


# In a graph, and on disk.


def test_text_handling_lives_in_a_saved_model(tmp_path):
    class Reader(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def there_and_back(self, texts):
            return TOKENIZERS["spaces", "nfkc_lower"].detokenize(
                TOKENIZERS["spaces", "nfkc_lower"].tokenize(texts)
            )

    tf.saved_model.save(Reader(), str(tmp_path / "reader"))
    reader = tf.saved_model.load(str(tmp_path / "reader"))
    restored = reader.there_and_back(["Good  ＭＯＲＮＩＮＧ.", ""])
    assert restored.numpy().tolist() == [b"good morning.", b""]


def test_a_tokenizer_comes_back_from_its_folder(tmp_path):
    for split, normalize in TOKENIZERS:
        tokenizer = TOKENIZERS[split, normalize]
        tokenizer.save(tmp_path, "source")
        loaded = tk.Tokenizer.load(tmp_path, "source")
        assert (loaded.vocabulary, loaded.split, loaded.normalize, loaded.digest) == (
            tokenizer.vocabulary,
            split,
            normalize,
            tokenizer.digest,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "source.tokenizer.json",
        "source.vocabulary.txt",
    ]


def test_the_digest_tells_vocabularies_and_settings_apart():
    digests = {tokenizer.digest for tokenizer in TOKENIZERS.values()}
    assert len(digests | {SMALL.digest}) == len(TOKENIZERS) + 1


def test_a_vocabulary_of_another_run_is_noticed(tmp_path):
    SMALL.save(tmp_path, "source")
    vocabulary = (tmp_path / "source.vocabulary.txt").read_bytes()
    (tmp_path / "source.vocabulary.txt").write_bytes(vocabulary + b"another\n")
    with pytest.raises(DataError, match=r"source\.vocabulary\.txt: was changed or belongs to"):
        tk.Tokenizer.load(tmp_path, "source")


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("source.vocabulary.txt", b"\x89PNG\r\n", "not a text file"),
        ("source.vocabulary.txt", b"the\nof\n", "must begin with"),
        ("source.vocabulary.txt", b"[PAD]\n[START]\n[END]\n[UNK]\na\na\n", "twice"),
        ("source.vocabulary.txt", b"", "must begin with"),
        ("source.vocabulary.txt", None, "cannot be read"),
        ("source.tokenizer.json", b"{", "not the settings"),
        ("source.tokenizer.json", b"[]", "not the settings"),
        ("source.tokenizer.json", json.dumps({"format": "x"}).encode(), "not the settings"),
        ("source.tokenizer.json", None, "cannot be read"),
    ],
)
def test_a_corrupt_missing_or_foreign_file_is_named(tmp_path, file, content, reason):
    SMALL.save(tmp_path, "source")
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=reason) as error:
        tk.Tokenizer.load(tmp_path, "source")
    assert str(error.value).startswith(str(tmp_path / file))
    assert "\n" not in str(error.value)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="split='words'"):
        tk.Tokenizer(tk.SPECIAL, "words", "none")
    with pytest.raises(ValueError, match="normalize='lower'"):
        tk.learn_vocabulary([], 10, "spaces", "lower")
    with pytest.raises(ValueError, match="size=4"):
        tk.learn_vocabulary([], 4, "spaces", "none")
    with pytest.raises(ValueError, match="holds a space"):
        tk.Tokenizer([*tk.SPECIAL, "a b"], "spaces", "none")


# Whole words.


def test_of_whole_words_those_seen_once_are_one_unknown_piece():
    texts = ["who was it ?", "who were they ?", "it was don't", "they're"]
    vocabulary = tk.learn_words(texts, 100, "spaces", "none")
    assert vocabulary[:4] == list(tk.SPECIAL)
    assert set(vocabulary[4:]) == {"who", "was", "it", "?", "they"}
    tokenizer = tk.Tokenizer(vocabulary, "spaces", "none")
    pieces = tokenizer.pieces(tokenizer.tokenize(["who saw that thing ?"])[0]).numpy()
    assert [piece.decode() for piece in pieces] == ["who", "[UNK]", "[UNK]", "[UNK]", "?"]


def test_the_most_frequent_words_stay_and_none_is_needed_twice():
    texts = ["a a a b b b b c c", "d"]
    assert tk.learn_words(texts, 6, "spaces", "none") == [*tk.SPECIAL, "b", "a"]
    assert tk.learn_words(["x y"], 100, "spaces", "none") == [*tk.SPECIAL, "x", "y"]
    assert tk.learn_words(["我我你"], 100, "characters", "none") == [*tk.SPECIAL, "我"]
    with pytest.raises(ValueError, match="Received: size=4"):
        tk.learn_words(texts, 4, "spaces", "none")
