"""From sentence pairs to padded batches of ids."""

from collections.abc import Sequence

import tensorflow as tf

from .tokenizers import END_ID, PADDING_ID, START_ID, Tokenizer

# Lengths at which a new bucket begins.
BOUNDARIES = (8, 10, 12, 14, 16, 18, 20, 23, 27, 32, 40, 50, 64, 96, 128)


def few_boundaries(max_length: int) -> tuple[int, ...]:
    """Boundaries of at most five buckets, for a step that is compiled anew for each shape.

    The longest rows of the buckets have 1/8, 1/4, 1/2, 3/4 and all of `max_length`.

    Example:

    >>> from keras_attention.recipes.batches import few_boundaries
    >>> few_boundaries(64)
    (9, 17, 33, 49, 65)
    """
    longest = {-(-max_length * eighths // 8) for eighths in (1, 2, 4, 6, 8)}
    return tuple(length + 1 for length in sorted(longest))


def to_ids(texts: Sequence[str] | tf.Tensor, tokenizer: Tokenizer) -> tf.RaggedTensor:
    """Ids of each text with the end token behind them."""
    ids = tokenizer.tokenize(tf.convert_to_tensor(texts, tf.string))
    end = tf.fill([ids.nrows(), 1], END_ID)
    return tf.concat([ids, end], axis=1)


def batches(
    source: tf.RaggedTensor,
    target: tf.RaggedTensor,
    batch_size: int,
    shuffle_seed=None,
    *,
    boundaries: Sequence[int] = BOUNDARIES,
    fixed_shapes: bool = False,
) -> tf.data.Dataset:
    """Padded batches of rows of about one length: `({"source", "target"}, labels)`.

    Args:
        source: ids of the sentences to translate.
        target: ids of their translations.
        batch_size: rows of a batch.
        shuffle_seed: of the order; None leaves the rows as they are.
        boundaries: see `bucketed`.
        fixed_shapes: see `bucketed`.

    Raises:
        ValueError: with `fixed_shapes`, for rows that the last boundary does not bound.
    """
    if fixed_shapes and source.nrows() > 0:
        longest = max(int(tf.reduce_max(side.row_lengths())) for side in (source, target))
        check_boundaries(boundaries, longest)
    rows = tf.data.Dataset.from_tensor_slices((source, target))
    if shuffle_seed is not None:
        rows = rows.shuffle(source.nrows(), seed=shuffle_seed, reshuffle_each_iteration=False)
    return bucketed(rows, batch_size, boundaries, fixed_shapes)


def bucketed(
    rows: tf.data.Dataset,
    batch_size: int,
    boundaries: Sequence[int] = BOUNDARIES,
    fixed_shapes: bool = False,
) -> tf.data.Dataset:
    """Rows `(source, target)` of ids, in batches: `({"source", "target"}, labels)`.

    The order of the rows decides the batches, and their number does not depend on it.

    Args:
        rows: a dataset of pairs of ids, each a vector or a row of a ragged tensor.
        batch_size: rows of a batch; the last of a bucket may hold fewer.
        boundaries: the lengths at which a new bucket begins.
        fixed_shapes: whether all batches of a bucket have one shape, for compiled steps: padded
            to one less than the boundary, and the last one filled with empty sentences whose
            labels are all padding. The boundaries must bound every row.
    """
    # A row of a ragged tensor is a plain tensor, but its spec says so only after a map.
    rows = rows.map(lambda source, target: (tf.identity(source), tf.identity(target)))
    dataset = rows.bucket_by_sequence_length(
        lambda source, target: tf.maximum(tf.size(source), tf.size(target)),
        list(boundaries),
        [batch_size] * (len(boundaries) + 1),
        pad_to_bucket_boundary=fixed_shapes,
    )
    if fixed_shapes:
        dataset = dataset.map(
            lambda source, target: (filled(source, batch_size, END_ID), filled(target, batch_size))
        )
    return dataset.map(
        lambda source, target: ({"source": source, "target": fed(target)}, target)
    ).prefetch(4)


def check_boundaries(boundaries: Sequence[int], longest: int) -> None:
    """Refuses boundaries of fixed shapes that rows of `longest` ids do not fit."""
    if longest >= max(boundaries):
        raise ValueError(
            f"With fixed shapes the last boundary must exceed the longest row, {longest}; "
            f"few_boundaries({longest}) does. Received: boundaries={tuple(boundaries)}"
        )


def filled(ids: tf.Tensor, batch_size: int, first: int = PADDING_ID) -> tf.Tensor:
    """The batch with rows below that hold padding behind their `first` id."""
    missing, inner = batch_size - tf.shape(ids)[0], tf.shape(ids)[1:]
    row = tf.scatter_nd([[0] * (ids.shape.rank - 1)], tf.constant([first], ids.dtype), inner)
    return tf.concat([ids, tf.repeat(row[tf.newaxis], missing, axis=0)], axis=0)


def fed(target):
    """What the decoder is fed to emit `target` (B, T): the same, moved by one."""
    moved = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=START_ID)
    # An end token inside a batch is the end of a shorter row: nothing follows it.
    return tf.where(moved == END_ID, PADDING_ID, moved)
