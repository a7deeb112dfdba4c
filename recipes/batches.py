"""From sentence pairs to padded batches of ids."""

from collections.abc import Sequence

import tensorflow as tf

from .tokenizers import END_ID, PADDING_ID, START_ID, Tokenizer


def to_ids(texts: Sequence[str], tokenizer: Tokenizer) -> tf.RaggedTensor:
    """Ids of each text with the end token behind them."""
    ids = tokenizer.tokenize(tf.convert_to_tensor(texts, tf.string))
    end = tf.fill([ids.nrows(), 1], END_ID)
    return tf.concat([ids, end], axis=1)


def batches(
    source: tf.RaggedTensor, target: tf.RaggedTensor, batch_size: int, shuffle_seed=None
) -> tf.data.Dataset:
    """Padded batches of rows of about one length: `({"source", "target"}, labels)`."""
    # A row of a ragged tensor is a plain tensor, but its spec says so only after a map.
    dataset = tf.data.Dataset.from_tensor_slices((source, target)).map(
        lambda source, target: (tf.identity(source), tf.identity(target))
    )
    if shuffle_seed is not None:
        dataset = dataset.shuffle(source.nrows(), seed=shuffle_seed, reshuffle_each_iteration=False)
    boundaries = [8, 10, 12, 14, 16, 18, 20, 23, 27, 32, 40, 50, 64, 96, 128]
    dataset = dataset.bucket_by_sequence_length(
        lambda source, target: tf.maximum(tf.size(source), tf.size(target)),
        boundaries,
        [batch_size] * (len(boundaries) + 1),
    )

    return dataset.map(
        lambda source, target: ({"source": source, "target": fed(target)}, target)
    ).prefetch(4)


def fed(target):
    """What the decoder is fed to emit `target` (B, T): the same, moved by one."""
    moved = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=START_ID)
    # An end token inside a batch is the end of a shorter row: nothing follows it.
    return tf.where(moved == END_ID, PADDING_ID, moved)
