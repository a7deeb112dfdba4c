"""A translation run as a `.tflite` that reads text, for runtimes that link TensorFlow Text.

The tokenizer's own graph uses regular expressions and Unicode tables, which have no kernel in
TFLite. Cutting at spaces or into characters needs only the bytes, so that is done here; a run
whose text is normalised is refused.
"""

from pathlib import Path

import tensorflow as tf

from keras_attention.export.portable import portable
from keras_attention.export.text_tflite import QUANTIZATIONS, export_text_tflite

from .errors import RunError
from .runs import Run
from .searches import searches, signatures
from .tokenizers import (
    CONTINUATION,
    END_ID,
    LONGEST_WORD,
    PADDING_ID,
    UNKNOWN_ID,
    Tokenizer,
)
from .translation_export import artifact_metadata, in_float32
from .translator import decoding_of

SPACES = tuple(map(ord, " \x00\t\n\v\f\r"))


def export(
    run: Run,
    path: Path | None = None,
    *,
    quantize: str | None = None,
    shapes="dynamic",
    verify: bool = True,
) -> Path:
    """Write `translation_text.tflite`.

    | signature | takes | gives |
    |---|---|---|
    | tokenize | text, strings (B,) | source, ids with their end (B, S) |
    | translate | text | tokens, scores, lengths, alignment as `greedy`, and pieces (B, L) |
    | encode, decode_step | as in the file of ids | |

    `pieces` are what each token adds to the translation, so that joined they are all of it, after
    a space where words are split at spaces.

    Args:
        run: a loaded run.
        path: the file; by default inside the run's `export` folder.
        quantize: None, `"float16"` or `"dynamic"`.
        shapes: `"dynamic"`: a text of a given length has no fixed number of pieces.
        verify: whether to run the file on texts and compare before it gets its name.

    Returns:
        The path written.

    Raises:
        RunError: for a run whose text is normalised, and the kinds that have no file of this form.
        ExportError: when the file is not equal to the model, or does not convert.
    """
    _require_readable(run, quantize, shapes)
    run = in_float32(run)
    if path is None:
        folder = "-".join(filter(None, ("tflite-text", quantize)))
        path = run.folder / "export" / folder / "translation_text.tflite"
    decoding = decoding_of(run, portable)
    search = searches(decoding, run.config)["greedy"]
    to_ids = reader(run.source)
    added = tf.constant(_added(run.target))

    def tokenize(text):
        return {"source": to_ids(text)}

    def translate(text):
        tokens, scores, lengths, alignment = search(to_ids(text))
        results = {"tokens": tokens, "scores": scores, "lengths": lengths}
        return {**results, "alignment": alignment, "pieces": tf.gather(added, tokens)}

    text = {"text": tf.TensorSpec((None,), tf.string)}
    of_ids = signatures(decoding, run.config)
    functions = {
        "tokenize": (tokenize, text),
        "translate": (translate, text),
        **{name: of_ids[name] for name in ("encode", "decode_step")},
    }
    words = run.source.vocabulary[UNKNOWN_ID + 1 :][:4]
    texts = [["", " ".join(words), "\t#  [END]"], [LONGEST_WORD * "ab"]]
    calls = [{"text": rows} for rows in texts]
    compared = {"tokenize": calls, "encode": [{"source": [[UNKNOWN_ID, END_ID]]}]}
    if quantize is None:  # else tokens may differ where two are about equally probable
        compared["translate"] = calls
    return export_text_tflite(
        functions,
        path,
        quantization=quantize,
        metadata=artifact_metadata(run),
        verify=compared if verify else None,
    )


def _require_readable(run, quantize, shapes):
    """Refuse what cannot be exported with text, in one line that says why."""
    if run.source.normalize != "none":
        raise RunError(
            f"{run.folder} normalises its text ({run.source.normalize}), for which TFLite has no "
            "kernel: export it without --text, or train with --normalize none"
        )
    if shapes != "dynamic":
        raise RunError("a text has no fixed number of pieces: --text goes with dynamic shapes")
    if quantize not in QUANTIZATIONS:
        raise RunError(f"--text goes with --quantize none, float16 or dynamic, not {quantize}")


def reader(tokenizer: Tokenizer):
    """A function of texts (B,) to the ids (B, S) that the tokenizer gives, ended and padded."""
    import tensorflow_text

    splitter = tensorflow_text.ByteSplitter()
    wordpiece = tokenizer.wordpiece()

    def read(text):
        found = splitter.split(text)
        rows = tf.cast(found.row_splits, tf.int32)  # (B+1,)
        begins, ends, words, too_long = _words(
            tf.cast(found.values, tf.int32), rows, tokenizer.split == "characters"
        )
        found = splitter.split_by_offsets(text, _ragged(begins, words), _ragged(ends, words))
        pieces = wordpiece.tokenize(found.flat_values)
        splits = tf.cast(pieces.row_splits, tf.int32)  # (words+1,)
        unknown = tf.repeat(too_long, splits[1:] - splits[:-1])
        ids = tf.where(unknown, UNKNOWN_ID, pieces.flat_values)
        return _dense(ids, tf.gather(splits, words))

    return read


def _words(code, rows, characters):
    """Where words are in the bytes of all texts, one behind the other.

    Returns:
        Begin and end of each word in its own text, the places of texts among the words (B+1,),
        and which words are too long; of these only the first character is left.
    """
    # A space behind all of it, so that no text at all is no special case.
    code = tf.concat([code, [SPACES[0]]], 0)  # (N,)
    row = tf.repeat(tf.range(tf.size(rows)), tf.concat([rows[1:] - rows[:-1], [1]], 0))  # (N,)
    space = tf.reduce_any(tf.equal(tf.expand_dims(code, 1), SPACES), 1)
    first_byte = (code < 0x80) | (code >= 0xC0)  # of a character
    edge = space | tf.not_equal(row, tf.concat([[-1], row[:-1]], 0))
    edge = edge | first_byte if characters else edge
    begins = ~space & (edge | tf.concat([[True], space[:-1]], 0))
    ends = ~space & tf.concat([edge[1:], [True]], 0)

    before = tf.concat([[0], tf.cumsum(tf.cast(begins, tf.int32))], 0)  # (N+1,) words before a byte
    begin, end = _places(begins), _places(ends) + 1  # (words,)
    count = tf.cumsum(tf.cast(first_byte, tf.int32))  # of characters up to a byte
    upto = tf.gather(count, begin)
    too_long = tf.gather(count, end - 1) - upto + 1 > LONGEST_WORD
    end = tf.where(too_long, tf.gather(_places(first_byte), upto), end)
    offset = tf.gather(rows, tf.gather(row, begin))
    return begin - offset, end - offset, tf.gather(before, rows), too_long


def _places(chosen):
    return tf.cast(tf.reshape(tf.where(chosen), [-1]), tf.int32)


def _ragged(values, splits):
    return tf.RaggedTensor.from_row_splits(values, tf.cast(splits, tf.int64), validate=False)


def _dense(ids, splits):
    """Ids of all texts to a row for each: `RaggedTensor.to_tensor` of built-in operators."""
    lengths = tf.expand_dims(splits[1:] - splits[:-1], 1)  # (B, 1)
    place = tf.expand_dims(tf.range(tf.reduce_max(lengths) + 1), 0)  # (1, S)
    ids = tf.concat([ids, [PADDING_ID]], 0)
    at = tf.minimum(tf.expand_dims(splits[:-1], 1) + place, tf.size(ids) - 1)
    behind = tf.where(tf.equal(place, lengths), END_ID, PADDING_ID)
    return tf.where(place < lengths, tf.gather(ids, at), behind)  # (B, S)


def _added(tokenizer):
    """What each token of a translation adds to its text."""
    space = "" if tokenizer.split == "characters" else " "

    def added(number, piece):
        if number < UNKNOWN_ID:
            return ""
        continues = piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        return piece.removeprefix(CONTINUATION) if continues else space + piece

    return [added(*entry) for entry in enumerate(tokenizer.vocabulary)]
