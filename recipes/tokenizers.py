"""One reversible tokenizer, in the graph and without it.

Text is normalised, cut at spaces (or into characters), and each word is cut greedily into the
longest pieces of a vocabulary. A piece that continues a word is written with `##` before it, so
pieces join into exactly the words they came from: nothing guesses where punctuation belongs.

The same ids come from any WordPiece implementation that is given `wordpiece_entries(vocabulary)`,
`MARKER` as its prefix of continuing pieces, `[UNK]` and `LONGEST_WORD`, after
`normalized(text, normalize)` and `words(text, split)`: so a program without TensorFlow can read
the text of an exported model.
"""

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .data import DataError, StrPath

if TYPE_CHECKING:
    import tensorflow as tf

PADDING, START, END, UNKNOWN = SPECIAL = ("[PAD]", "[START]", "[END]", "[UNK]")
PADDING_ID, START_ID, END_ID, UNKNOWN_ID = range(4)
CONTINUATION = "##"
MARKER = " "
LONGEST_WORD = 100

Split = Literal["spaces", "characters"]
Normalize = Literal["none", "nfkc", "nfkc_lower"]

_SPLITS = ("spaces", "characters")
_NORMALIZES = ("none", "nfkc", "nfkc_lower")
_FORMAT = "keras_attention tokenizer 1"
_OTHER_SPACES = "\x00\t\n\v\f\r"


class Tokenizer:
    """Text to ids and back, usable inside a `tf.function` and a SavedModel.

    Args:
        vocabulary: the pieces, `SPECIAL` first; a piece's place is its id.
        split: `"spaces"` or `"characters"` (spaces are then dropped).
        normalize: `"none"`, `"nfkc"` or `"nfkc_lower"`.

    Attributes:
        digest: of vocabulary and settings; equal digests give equal ids.
    """

    def __init__(self, vocabulary: Sequence[str], split: Split, normalize: Normalize) -> None:
        _check_settings(split, normalize)
        self.vocabulary = tuple(vocabulary)
        _check_vocabulary(self.vocabulary)
        self.split = split
        self.normalize = normalize
        self.digest = _digest(self.vocabulary, split, normalize)
        self._wordpiece = None

    @property
    def size(self) -> int:
        """The number of pieces."""
        return len(self.vocabulary)

    def tokenize(self, texts: "tf.Tensor") -> "tf.RaggedTensor":
        """Cuts texts (B,) into int32 ids (B, None), without start and end."""
        import tensorflow as tf

        found = self._words(self._normalized(tf.convert_to_tensor(texts, tf.string)))
        # No vocabulary holds NUL, so a word that is too long becomes one unknown piece.
        too_long = tf.strings.length(found.flat_values, unit="UTF8_CHAR") > LONGEST_WORD
        found = found.with_flat_values(tf.where(too_long, "\x00", found.flat_values))
        return self._pieces_of_words(found)

    def detokenize(self, ids: "tf.Tensor") -> "tf.Tensor":
        """Joins ids (B, T) into texts (B,); each stops before its first end."""
        import tensorflow as tf

        ids = _dense(ids)
        ended = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) > 0
        keep = ~ended & (ids != PADDING_ID) & (ids != START_ID)
        surface = tf.gather(tf.constant(self._surface()), ids)
        joined = tf.strings.reduce_join(tf.where(keep, surface, ""), axis=1)
        return tf.strings.regex_replace(joined, "^ ", "")

    def pieces(self, ids: "tf.Tensor") -> "tf.Tensor":
        """The pieces as strings, in the shape of `ids`."""
        import tensorflow as tf

        return tf.gather(tf.constant(self.vocabulary), ids)

    def save(self, folder: StrPath, name: str) -> None:
        """Writes `name.vocabulary.txt`, a piece a line, and `name.tokenizer.json` into `folder`."""
        vocabulary, settings = _paths(folder, name)
        facts = {
            "format": _FORMAT,
            "split": self.split,
            "normalize": self.normalize,
            "size": self.size,
            "digest": self.digest,
        }
        _write(vocabulary, "".join(f"{piece}\n" for piece in self.vocabulary))
        _write(settings, json.dumps(facts, indent=2) + "\n")

    @classmethod
    def load(cls, folder: StrPath, name: str) -> "Tokenizer":
        """Reads what `save` wrote; a `DataError` names the file that is missing or foreign."""
        vocabulary, settings = _paths(folder, name)
        try:
            facts = json.loads(_read(settings))
            if facts["format"] != _FORMAT:
                raise ValueError(f"format {facts['format']!r}")
            split, normalize, digest = facts["split"], facts["normalize"], facts["digest"]
            _check_settings(split, normalize)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{settings}: not the settings of a tokenizer ({error}).") from None
        pieces = _read(vocabulary).removesuffix("\n").split("\n")
        try:
            tokenizer = cls(pieces, split, normalize)
        except ValueError as error:
            raise DataError(f"{vocabulary}: not a vocabulary: {error}") from None
        if tokenizer.digest != digest:
            raise DataError(
                f"{vocabulary}: was changed or belongs to another run; {settings} describes "
                "a different vocabulary."
            )
        return tokenizer

    def _normalized(self, texts: "tf.Tensor") -> "tf.Tensor":
        """`normalized`, in the graph."""
        import tensorflow as tf

        texts = tf.strings.regex_replace(texts, r"[\x00\t\n\v\f\r]", " ")
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        if self.normalize != "none":
            import tensorflow_text

            texts = tensorflow_text.normalize_utf8(texts, "NFKC")
        if self.normalize == "nfkc_lower":
            texts = tf.strings.lower(texts, encoding="utf-8")
        return texts

    def _words(self, texts: "tf.Tensor") -> "tf.RaggedTensor":
        """`words`, in the graph."""
        import tensorflow as tf

        if self.split == "characters":
            found = tf.strings.unicode_split(texts, "UTF-8")
            return tf.ragged.boolean_mask(found, found != " ")
        found = tf.strings.split(texts, sep=" ")
        return tf.ragged.boolean_mask(found, found != "")

    def wordpiece(self):
        """The `FastWordpieceTokenizer` of single words, made when it is first asked for."""
        if self._wordpiece is None:
            import tensorflow as tf
            import tensorflow_text

            # Built outside of any graph that is being traced, so that every later one can use it.
            with tf.init_scope():
                self._wordpiece = tensorflow_text.FastWordpieceTokenizer(
                    wordpiece_entries(self.vocabulary),
                    suffix_indicator=MARKER,
                    max_bytes_per_word=4 * LONGEST_WORD,
                    token_out_type=tf.int32,
                    unknown_token=UNKNOWN,
                    no_pretokenization=True,
                )
        return self._wordpiece

    def _pieces_of_words(self, found: "tf.RaggedTensor") -> "tf.RaggedTensor":
        return self.wordpiece().tokenize(found).merge_dims(1, 2)

    def _surface(self) -> list[str]:
        """What each piece adds to a text."""
        if self.split == "characters":
            return [_continued(piece) or piece for piece in self.vocabulary]
        return [_continued(piece) or " " + piece for piece in self.vocabulary]


def normalized(text: str, normalize: Normalize) -> str:
    """The text as the tokenizer reads it, by Python's own Unicode tables."""
    text = text.translate(dict.fromkeys(map(ord, _OTHER_SPACES), " "))
    if normalize != "none":
        text = unicodedata.normalize("NFKC", text)
    if normalize == "nfkc_lower":
        text = text.lower()
    return text


def words(text: str, split: Split) -> list[str]:
    """Cuts normalised text at spaces, or into its characters without the spaces."""
    if split == "characters":
        return [character for character in text if character != " "]
    return [word for word in text.split(" ") if word]


def wordpiece_entries(vocabulary: Sequence[str]) -> list[str]:
    """The vocabulary as a WordPiece algorithm must be given it, ids unchanged.

    A continuing piece is marked by a space instead of `##`, and start, end and padding are written
    with spaces. No word holds a space, so a person's `##ing` or `[START]` can never be taken for
    a continuing or special piece. `[UNK]` stays: written in a text, it is unknown.
    """
    entries = []
    for number, piece in enumerate(vocabulary):
        continued = _continued(piece)
        if number < UNKNOWN_ID:
            entries.append(f"{MARKER}{MARKER}{piece}")
        elif continued is not None:
            entries.append(MARKER + continued)
        else:
            entries.append(piece)
    return entries


def learn_vocabulary(
    texts: Iterable[str], size: int, split: Split, normalize: Normalize
) -> list[str]:
    """Learns the pieces of a vocabulary from training texts.

    For characters: the most frequent ones. For spaces: words are first cut where letters meet
    punctuation, so that no piece holds both (English `'s` and its like apart). If all of these
    parts fit, each is one whole piece; else pieces are learned by tensorflow-text's WordPiece
    learner. Every character is a piece, both at the start of a word and inside one, so no text of
    seen characters is unknown; a huge alphabet is cut to the more frequent characters that half of
    the vocabulary can hold.

    Args:
        texts: sentences of the training side.
        size: the largest number of pieces, special ones included.
        split: `"spaces"` or `"characters"`.
        normalize: `"none"`, `"nfkc"` or `"nfkc_lower"`.
    """
    _check_settings(split, normalize)
    _check_size(size)
    parts, alphabet = _counted(texts, split, normalize)
    if split == "characters":
        return _first(SPECIAL, _by_count(parts), size=size)
    characters = _by_count(alphabet)
    if len(SPECIAL) + len(parts) <= size:
        return _first(SPECIAL, _by_count(parts), _both_positions(characters), size=size)
    characters = characters[: max(1, (size - len(SPECIAL)) // 4)]
    return _first(
        SPECIAL, _both_positions(characters), _learned(parts, characters, size), size=size
    )


def learn_words(texts: Iterable[str], size: int, split: Split, normalize: Normalize) -> list[str]:
    """Learns a vocabulary of whole words, for models that read and do not write.

    The most frequent ones, of those that occur at least twice. All others are one piece, `[UNK]`,
    which is learned from the words that occur once: cut into pieces that are hardly seen
    otherwise, such a word would say less. Words are cut as in `learn_vocabulary`.

    Args:
        texts: what is trained on.
        size: the largest number of pieces, special ones included.
        split: `"spaces"` or `"characters"`.
        normalize: `"none"`, `"nfkc"` or `"nfkc_lower"`.
    """
    _check_settings(split, normalize)
    _check_size(size)
    parts, _ = _counted(texts, split, normalize)
    twice = [part for part in _by_count(parts) if parts[part] > 1]
    return _first(SPECIAL, twice or _by_count(parts), size=size)


def _counted(texts, split, normalize) -> tuple[Counter[str], Counter[str]]:
    """How often each part of a word occurs, and each character."""
    counts = Counter(word for text in texts for word in words(normalized(text, normalize), split))
    if split == "characters":
        return counts, counts
    parts: Counter[str] = Counter()
    alphabet: Counter[str] = Counter()
    for word, count in counts.items():
        for position, part in enumerate(_PART.findall(word)):
            parts[CONTINUATION + part if position else part] += count
        for character in word:
            alphabet[character] += count
    return parts, alphabet


def _check_size(size: int) -> None:
    if size <= len(SPECIAL):
        raise ValueError(f"A vocabulary needs more than 4 pieces. Received: size={size}")


# Letters, marks and digits of a word together; each other sign alone, but for the ends of English
# contractions (`'s`, `'re`) and for signs that tokenised files write as names (`&quot;`).
_PART = re.compile(r"(?:'|&apos;)[^\W\d_]{1,2}(?![^\W_])|&\w+;|(?:[^\W_]|[\u0300-\u036f])+|[\W_]")


def _learned(parts: Counter[str], characters: list[str], size: int) -> list[str]:
    """Pieces, the ones to keep first; there may be more of them than `size`."""
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    ranked = _by_count(parts)
    cutoff = parts[ranked[min(size, len(ranked)) - 1]]
    # The learner looks at whole words only; a frequent part behind punctuation is kept as it is.
    behind = [part for part in ranked if _continued(part) and parts[part] > cutoff]
    behind = behind[: size // 4]
    starts = {part: n for part, n in parts.items() if not _continued(part)}
    room = size - len(behind)
    # The count that `size` whole words have bounds the count that pieces need from below; the
    # search above it is cut short, for each step of it reads all words.
    learned = learner.learn(
        starts,
        room,
        list(SPECIAL),
        lower_thresh=max(cutoff, 2),
        upper_thresh=20 * cutoff + 20,
        max_unique_chars=len(characters),
    )
    # The learner stops at a count; what room is left goes to the next frequent parts.
    return learned[:room] + behind + ranked


def _both_positions(characters: Iterable[str]) -> list[str]:
    return [piece for one in characters for piece in (one, CONTINUATION + one)]


def _by_count(counts: Counter[str]) -> list[str]:
    """Frequent ones first; equal ones in the order of their characters, so that runs agree."""
    return sorted(counts, key=lambda entry: (-counts[entry], entry))


def _first(*lists: Iterable[str], size: int) -> list[str]:
    """The first `size` distinct entries."""
    return list(dict.fromkeys(entry for entries in lists for entry in entries))[:size]


def _continued(piece: str) -> str | None:
    """What a continuing piece adds to its word; None for a piece that begins one."""
    if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION):
        return piece[len(CONTINUATION) :]
    return None


def _dense(ids: "tf.Tensor | tf.RaggedTensor") -> "tf.Tensor":
    import tensorflow as tf

    if isinstance(ids, tf.RaggedTensor):
        return ids.to_tensor(PADDING_ID)
    return tf.convert_to_tensor(ids)


def _check_settings(split: str, normalize: str) -> None:
    if split not in _SPLITS:
        raise ValueError(f"`split` must be one of {_SPLITS}. Received: split={split!r}")
    if normalize not in _NORMALIZES:
        raise ValueError(
            f"`normalize` must be one of {_NORMALIZES}. Received: normalize={normalize!r}"
        )


def _check_vocabulary(vocabulary: tuple[str, ...]) -> None:
    if vocabulary[: len(SPECIAL)] != SPECIAL:
        raise ValueError(f"it must begin with {', '.join(SPECIAL)}.")
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("a piece occurs twice.")
    for piece in vocabulary:
        if not piece or any(character in piece for character in " " + _OTHER_SPACES):
            raise ValueError(f"the piece {piece!r} is empty or holds a space.")


def _digest(vocabulary: tuple[str, ...], split: str, normalize: str) -> str:
    content = "\n".join([_FORMAT, split, normalize, *vocabulary])
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def _paths(folder: StrPath, name: str) -> tuple[Path, Path]:
    return Path(folder) / f"{name}.vocabulary.txt", Path(folder) / f"{name}.tokenizer.json"


def _read(path: Path) -> str:
    """The text of a file; line ends stay as they are, for a piece may be U+2028 or its like."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file in UTF-8.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def _write(path: Path, content: str) -> None:
    """Written beside and renamed, so that a killed run leaves no half file."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_bytes(content.encode("utf-8"))
    beside.replace(path)
