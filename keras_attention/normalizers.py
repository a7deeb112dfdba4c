"""From scores to attention weights.

A normalizer is a function `(scores, mask=None, training=None)` over the last axis. It computes in
float32 or wider, gives masked keys a weight of exactly 0, and gives a row without any readable
key nothing but zeros. One that draws or holds weights is a layer with that call; see `hard.py`.
"""

import inspect
from collections.abc import Callable

import keras
from keras import ops

from .given import revived, takes
from .targets import is_calibrated

# Stands in for the score of a masked key: finite in float32, so that a row of nothing else has
# finite weights and gradients, and below any score that a model computes.
MASKED_SCORE = -1e38


def wide_dtype(dtype) -> str:
    """float32, or the type itself where that is wider."""
    # `keras.backend.result_type` gives float64 on no input on JAX, even with its x64 mode on.
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def widen(x):
    """`x` in float32, or in its own type where that is wider."""
    return ops.cast(x, wide_dtype(x.dtype))


def where_readable(mask, x, otherwise):
    """`x` where the mask allows reading, else `otherwise`; a mask of None allows everything."""
    if mask is None:
        return x
    # Converted first: JAX's `where` takes no list.
    return ops.where(ops.convert_to_tensor(mask, dtype="bool"), x, otherwise)


def masked_scores(scores, mask):
    """Scores in float32 or wider, with those of masked keys below all others."""
    scores = widen(ops.convert_to_tensor(scores))
    return where_readable(mask, scores, below(scores))


def below(scores):
    """A score under those of a row (..., S): by far, or in a calibrated artifact by 16.

    The few numbers that 8 bits hold are spread from the least to the largest value seen, so one
    that is far away would leave none for the scores. exp(-16) is below their resolution as well.
    """
    return ops.min(scores, axis=-1, keepdims=True) - 16.0 if is_calibrated() else MASKED_SCORE


@keras.saving.register_keras_serializable("keras_attention")
def softmax(scores, mask=None, training=None):
    """Soft attention: `a_s = exp(e_s) / sum_r exp(e_r)`.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, each row summing to 1, or all 0 where it has no
        readable key.

    Example:

    >>> from keras_attention import softmax
    >>> softmax([[0.0, 0.0, 9.0]], mask=[[True, True, False]]).numpy().tolist()
    [[0.5, 0.5, 0.0]]

    Reference:
        Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and
        Translate", ICLR 2015, equation 6.
    """
    scores = masked_scores(scores, mask)
    return where_readable(mask, _softmax(scores), 0.0)


def _softmax(scores):
    # Over a single key a softmax is meant, but Keras warns of it.
    return 1.0 + 0.0 * scores if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


@keras.saving.register_keras_serializable("keras_attention")
def sparsemax(scores, mask=None, training=None):
    """Sparse attention: the projection of the scores on the simplex, `a_s = max(e_s - tau, 0)`.

    `tau` is the one number for which the row sums to 1. Keys far below the best get a weight of
    exactly 0.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, each row summing to 1, or all 0 where it has no
        readable key.

    Example:

    >>> from keras_attention import sparsemax
    >>> sparsemax([[0.5, 0.0, -2.0]]).numpy().tolist()
    [[0.75, 0.25, 0.0]]

    Reference:
        Martins, Astudillo, "From Softmax to Sparsemax", ICML 2016, algorithm 1.
    """
    scores = masked_scores(scores, mask)
    # Shifting a row does not change its projection, and a score 1 below the best already has
    # weight 0: after the shift nothing under -1 matters, so nothing large is ever summed up.
    scores = ops.maximum(scores - ops.max(scores, axis=-1, keepdims=True), -1.0)
    descending = ops.flip(ops.sort(scores, axis=-1), axis=-1)
    rank = ops.cumsum(ops.ones_like(descending), axis=-1)
    support = 1.0 + rank * descending > ops.cumsum(descending, axis=-1)
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    total = ops.sum(ops.where(support, descending, 0.0), axis=-1, keepdims=True)
    weights = ops.maximum(scores - (total - 1.0) / size, 0.0)
    return where_readable(mask, weights, 0.0)


@keras.saving.register_keras_serializable("keras_attention")
def entmax15(scores, mask=None, training=None):
    """Between soft and sparse attention, 1.5-entmax: `a_s = max(e_s / 2 - tau, 0)^2`.

    `tau` is the one number for which the row sums to 1. Like `sparsemax` it gives keys far below
    the best a weight of exactly 0, but its weights are smooth in the scores, and a key must be
    further below: by 2 at most.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, each row summing to 1, or all 0 where it has no
        readable key.

    Example:

    >>> from keras_attention import entmax15
    >>> entmax15([[3.0, 3.0, 3.0, 3.0, 1.0]]).numpy().tolist()
    [[0.25, 0.25, 0.25, 0.25, 0.0]]

    Reference:
        Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019, algorithm 2.
    """
    scores = masked_scores(scores, mask)
    # As in `sparsemax`: nothing that lies 1 below the best counts, so it may as well be 0.
    halves = scores / 2.0
    halves = ops.maximum(halves - ops.max(halves, axis=-1, keepdims=True) + 1.0, 0.0)
    descending = ops.flip(ops.sort(halves, axis=-1), axis=-1)
    rank = ops.cumsum(ops.ones_like(descending), axis=-1)
    mean = ops.cumsum(descending, axis=-1) / rank
    spread = ops.cumsum(ops.square(descending), axis=-1) - rank * ops.square(mean)
    # Where the best `rank` keys have too wide a spread, no tau lets them sum to 1.
    support = descending > mean - ops.sqrt(ops.maximum(1.0 - spread, 0.0) / rank)
    # Once more over the support alone. Its spread is at most 1 - 1 / size: the root has a slope.
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    mean = ops.sum(ops.where(support, descending, 0.0), axis=-1, keepdims=True) / size
    spread = ops.where(support, ops.square(descending - mean), 0.0)
    spread = ops.sum(spread, axis=-1, keepdims=True)
    tau = mean - ops.sqrt((1.0 - spread) / size)
    return where_readable(mask, ops.square(ops.maximum(halves - tau, 0.0)), 0.0)


@keras.saving.register_keras_serializable("keras_attention")
def hardmax(scores, mask=None, training=None):
    """The best key and no other: `a_s = 1` where `s = argmax_r e_r`, the first of equals.

    No gradient reaches the scores. To train them see `GumbelSoftmax` and `SampledAttention`.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, one of each row 1, or none where it has no readable
        key.

    Example:

    >>> from keras_attention import hardmax
    >>> hardmax([[1.0, 2.0, 9.0]], mask=[[True, True, False]]).numpy().tolist()
    [[0.0, 1.0, 0.0]]

    Reference:
        Xu et al., "Show, Attend and Tell", ICML 2015, section 4.1, with the most probable
        location in place of a sampled one.
    """
    scores = masked_scores(scores, mask)
    # Not argmax: that of Keras on TensorFlow needs an operator that is not built into TFLite.
    _, best = ops.top_k(scores, 1)  # (..., 1)
    keys = ops.arange(ops.shape(scores)[-1], dtype=best.dtype)  # (S,)
    return where_readable(mask, ops.cast(ops.equal(keys, best), scores.dtype), 0.0)


@keras.saving.register_keras_serializable("keras_attention")
def sigmoid(scores, mask=None, training=None):
    """Independent gates: `a_s = 1 / (1 + exp(-e_s))`, each key weighed by itself.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, each in (0, 1), 0 where masked. Rows do not sum
        to 1.

    Example:

    >>> from keras_attention import sigmoid
    >>> sigmoid([[0.0, 9.0]], mask=[[True, False]]).numpy().tolist()
    [[0.5, 0.0]]

    Reference:
        Kim, Denton, Hoang, Rush, "Structured Attention Networks", ICLR 2017, section 3.1
        (the gates without structure).
    """
    # Selected before, too: a score of NaN or infinity would still leak into the gradient.
    scores = where_readable(mask, widen(ops.convert_to_tensor(scores)), 0.0)
    return where_readable(mask, ops.sigmoid(scores), 0.0)


@keras.saving.register_keras_serializable("keras_attention")
def proportional(scores, mask=None, training=None):
    """Each score's part of their sum: `a_s = max(e_s, 0) / sum_r max(e_r, 0)`.

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, each row summing to 1, or all 0 where it has no
        readable key of a score above 0.

    Example:

    >>> from keras_attention import proportional
    >>> proportional([[3.0, 1.0, -2.0]]).numpy().tolist()
    [[0.75, 0.25, 0.0]]

    Reference:
        Tan, Wan, Xiao, ACL 2017, section 3.3: the edges of a graph by their part of all that
        leave a vertex.
    """
    scores = where_readable(mask, widen(ops.convert_to_tensor(scores)), 0.0)
    scores = ops.maximum(scores, 0.0)
    total = ops.sum(scores, axis=-1, keepdims=True)
    return scores / ops.where(total > 0, total, 1.0)


@keras.saving.register_keras_serializable("keras_attention")
def linear(scores, mask=None, training=None):
    """No normalising: the scores themselves are the weights.

    It is the normalizer of a linear start: a memory network is trained with it until the loss no
    longer falls, and then goes on with softmax. What was trained stays; only the function that is
    compiled is another:

        memory = KeyValueMemory(hops=3, normalizer=linear)
        ...
        memory.normalizer = softmax
        model.compile(...)

    Args:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: unused; part of every normalizer's signature.

    Returns:
        Weights (..., S) in float32 or wider, 0 where masked. Rows do not sum to 1.

    Example:

    >>> from keras_attention import linear
    >>> linear([[0.5, -2.0, 9.0]], mask=[[True, True, False]]).numpy().tolist()
    [[0.5, -2.0, 0.0]]

    Reference:
        Sukhbaatar, Szlam, Weston, Fergus, NeurIPS 2015, section 4.2 (linear start).
    """
    return where_readable(mask, widen(ops.convert_to_tensor(scores)), 0.0)


_NAMED = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "sigmoid": sigmoid,
    "hardmax": hardmax,
}


def get(normalizer: str | dict | Callable) -> Callable:
    """The normalizer of that name or config, or the callable itself.

    Raises:
        ValueError: for an unknown name, naming those there are.
    """
    if isinstance(normalizer, dict):
        normalizer = revived(normalizer)
    if callable(normalizer) and not isinstance(normalizer, type) and _knows_masks(normalizer):
        return normalizer
    if isinstance(normalizer, str) and normalizer in _NAMED:
        return _NAMED[normalizer]
    raise ValueError(
        f"normalizer must be one of {', '.join(_NAMED)}, or a callable "
        f"(scores, mask, training) -> weights. Received: normalizer={normalizer!r}"
    )


def _knows_masks(normalizer):
    if isinstance(normalizer, keras.layers.Layer):
        return takes(normalizer, "mask")
    parameters = inspect.signature(normalizer).parameters.values()
    return any(p.name == "mask" or p.kind is p.VAR_KEYWORD for p in parameters)


def build(normalizer: Callable, scores_shape: tuple):
    """Build a normalizer that is a layer, at its place below the layer that holds it."""
    if isinstance(normalizer, keras.layers.Layer):
        normalizer.build(scores_shape)
