"""From scores to attention weights.

A normalizer is a function `(scores, mask=None, training=None)` over the last axis. It computes in
float32 or wider, gives masked keys a weight of exactly 0, and gives a row without any readable
key nothing but zeros.
"""

from collections.abc import Callable

import keras
from keras import ops

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


def _where(mask, x, otherwise):
    """`ops.where` of a mask in any form; JAX's own takes no list."""
    return ops.where(ops.convert_to_tensor(mask, dtype="bool"), x, otherwise)


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
    scores = widen(ops.convert_to_tensor(scores))
    if mask is None:
        return _softmax(scores)
    weights = _softmax(_where(mask, scores, MASKED_SCORE))
    return _where(mask, weights, 0.0)


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
    scores = widen(ops.convert_to_tensor(scores))
    if mask is not None:
        scores = _where(mask, scores, MASKED_SCORE)
    # Shifting a row does not change its projection, and a score 1 below the best already has
    # weight 0: after the shift nothing under -1 matters, so nothing large is ever summed up.
    scores = ops.maximum(scores - ops.max(scores, axis=-1, keepdims=True), -1.0)
    descending = ops.flip(ops.sort(scores, axis=-1), axis=-1)
    rank = ops.cumsum(ops.ones_like(descending), axis=-1)
    support = 1.0 + rank * descending > ops.cumsum(descending, axis=-1)
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    total = ops.sum(ops.where(support, descending, 0.0), axis=-1, keepdims=True)
    weights = ops.maximum(scores - (total - 1.0) / size, 0.0)
    return weights if mask is None else _where(mask, weights, 0.0)


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
    scores = widen(ops.convert_to_tensor(scores))
    if mask is None:
        return ops.sigmoid(scores)
    # Selected before, too: a score of NaN or infinity would still leak into the gradient.
    return _where(mask, ops.sigmoid(_where(mask, scores, 0.0)), 0.0)


_NAMED = {"softmax": softmax, "sparsemax": sparsemax, "sigmoid": sigmoid}


def get(normalizer: str | dict | Callable) -> Callable:
    """The normalizer of that name or config, or the callable itself.

    Raises:
        ValueError: for an unknown name, naming those there are.
    """
    if callable(normalizer):
        return normalizer
    if isinstance(normalizer, dict):
        return keras.saving.deserialize_keras_object(normalizer)
    if isinstance(normalizer, str) and normalizer in _NAMED:
        return _NAMED[normalizer]
    raise ValueError(
        f"normalizer must be one of {', '.join(_NAMED)}, or a callable "
        f"(scores, mask, training) -> weights. Received: normalizer={normalizer!r}"
    )
