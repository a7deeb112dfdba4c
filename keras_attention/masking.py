"""Masks: boolean tensors in which True means "may be read"."""

from keras import ops


def padding_mask(tokens, pad_id: int = 0):
    """Which tokens are real: `tokens != pad_id`.

    Args:
        tokens: integer ids, (B, S).
        pad_id: the id that fills up short rows.

    Returns:
        Boolean (B, S), True = may be read.

    Example:

    >>> from keras_attention import padding_mask
    >>> padding_mask([[7, 5, 0]])[0, 2].numpy().item()
    False
    """
    return ops.not_equal(tokens, pad_id)


def causal_mask(queries, keys=None, offset=0):
    """Which keys a query may read when it must not see the future: `s <= t + offset`.

    Args:
        queries: number of queries T, an int or an integer scalar tensor.
        keys: number of keys S; T when None.
        offset: position of the first query among the keys. In step-by-step decoding over a
            cache of S keys the one query stands at `offset = S - 1`; with the default 0 it would
            read the first key only.

    Returns:
        Boolean (T, S), True = may be read.

    Example:

    >>> from keras_attention import causal_mask
    >>> causal_mask(2, 3, offset=1).numpy().tolist()
    [[True, True, False], [True, True, True]]
    """
    return distances(queries, keys, offset) <= 0


def distances(queries, keys, offset):
    """How far each key stands behind each query, `s - t - offset`: (T, S)."""
    keys = queries if keys is None else keys
    query_positions = ops.expand_dims(ops.arange(queries, dtype="int32"), 1) + offset  # (T, 1)
    key_positions = ops.expand_dims(ops.arange(keys, dtype="int32"), 0)  # (1, S)
    return key_positions - query_positions


def window_mask(queries, keys=None, window=1, offset=0):
    """Which keys lie within a window around each query: `|s - t - offset| <= window`.

    Args:
        queries: number of queries T, an int or an integer scalar tensor.
        keys: number of keys S; T when None.
        window: keys to either side of the query's own position, so 2 window + 1 in all.
        offset: position of the first query among the keys.

    Returns:
        Boolean (T, S), True = may be read.

    Example:

    >>> from keras_attention import window_mask
    >>> window_mask(3, window=1).numpy().astype(int).tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    return ops.abs(distances(queries, keys, offset)) <= window


def directional_mask(queries, keys=None, direction="forward", offset=0):
    """Which keys a query may read when it must not read itself.

    Args:
        queries: number of queries T, an int or an integer scalar tensor.
        keys: number of keys S; T when None.
        direction: `"forward"`, the keys before the query (`s < t + offset`); `"backward"`, those
            behind it; `"no_diagonal"`, both.
        offset: position of the first query among the keys.

    Returns:
        Boolean (T, S), True = may be read.

    Raises:
        ValueError: for another direction.

    Example:

    >>> from keras_attention import directional_mask
    >>> directional_mask(3, direction="backward").numpy().astype(int).tolist()
    [[0, 1, 1], [0, 0, 1], [0, 0, 0]]

    Reference:
        Shen et al., "DiSAN: Directional Self-Attention Network for RNN/CNN-Free Language
        Understanding", AAAI 2018, equation 14 and section 3.2. There a token that gives
        attention is named first, here the query.
    """
    if direction not in _DIRECTIONS:
        raise ValueError(
            f"direction must be one of {', '.join(_DIRECTIONS)}. Received: direction={direction!r}"
        )
    return _DIRECTIONS[direction](distances(queries, keys, offset), 0)


_DIRECTIONS = {"forward": ops.less, "backward": ops.greater, "no_diagonal": ops.not_equal}


def combine_masks(*masks):
    """What all masks allow, by broadcasting; None stands for "everything may be read".

    Args:
        *masks: boolean or integer tensors of shapes that broadcast, or None.

    Returns:
        A boolean tensor, or None when every mask is None.

    Example:

    >>> from keras_attention import causal_mask, combine_masks
    >>> combine_masks(None, [[True, False]], causal_mask(2)).numpy().tolist()
    [[True, False], [True, False]]
    >>> combine_masks(None, None) is None
    True
    """
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def over_keys(mask):
    """A mask of keys (B, S), or None, as it applies to each query: (B, 1, S)."""
    return None if mask is None else ops.expand_dims(mask, -2)


def over_queries(mask):
    """A mask of queries (B, T), or None, as it applies to each key: (B, T, 1)."""
    return None if mask is None else ops.expand_dims(mask, -1)


def select(tensor, mask):
    """`tensor` (B, S, D) where `mask` (B, S) is True, else 0.

    A selection, not a product: NaN and infinity in padding times 0 would still be NaN.
    """
    return ops.where(over_queries(mask), tensor, ops.zeros((), dtype=tensor.dtype))
