"""Penalties on attention weights, for the argument `weights_regularizer` of a layer.

Each is a sum over one matrix of weights (T, S) as its paper writes it, and the mean of that over
the batch (and over the K heads or dimensions, where there are some). The mean makes it the same
loss at any batch size, and on any number of replicas of equal batches, over which Keras takes the
mean of what layers add.
"""

import inspect

import keras
from keras import ops

from .masking import combine_masks
from .normalizers import widen

register = keras.saving.register_keras_serializable("keras_attention")


def penalty(weights_regularizer):
    """The penalty of that config, or the callable itself; None stays None.

    Raises:
        ValueError: for one that does not take `(weights, mask)`, as those of kernels do not.
    """
    found = keras.regularizers.get(weights_regularizer)
    if found is not None:
        try:
            inspect.signature(found).bind("weights", "mask")
        except TypeError:
            raise ValueError(
                "weights_regularizer must be a callable (weights, mask) -> scalar, like "
                f"EntropyPenalty(). Received: weights_regularizer={weights_regularizer!r}"
            ) from None
    return found


class _Penalty(keras.regularizers.Regularizer):
    """Base of the penalties: `weight * mean_b f(A_b)`, in float32 or wider."""

    def __init__(self, weight: float = 1.0):
        self.weight = weight

    def __call__(self, weights, mask=None):
        """The penalty, a scalar.

        Args:
            weights: (B, T, S) or (B, K, T, S).
            mask: boolean, what may be read: (B, T, S), the axes of the batch and the queries
                may be 1.
        """
        weights = widen(ops.convert_to_tensor(weights))
        if len(weights.shape) not in (3, 4):
            raise ValueError(
                "weights must have shape (batch, queries, keys) or (batch, heads, queries, keys). "
                f"Received: weights.shape={tuple(weights.shape)}"
            )
        mask = ops.ones_like(weights, dtype="bool") if mask is None else combine_masks(mask)
        if len(mask.shape) < len(weights.shape):
            mask = ops.expand_dims(mask, 1)  # the same for each of the K
        penalties = self._penalize(ops.where(mask, weights, 0.0), mask)  # (B,) or (B, K)
        # A replica's share of the last batch may be empty: it costs 0, where a mean would be NaN.
        count = ops.cast(ops.maximum(ops.size(penalties), 1), penalties.dtype)
        return self.weight * ops.sum(penalties) / count

    def _penalize(self, weights, mask):
        """What each matrix of weights (..., T, S) costs: (...)."""
        raise NotImplementedError(f"{type(self).__name__} must implement _penalize")

    def get_config(self):
        return {"weight": self.weight}


@register
class DiversityPenalty(_Penalty):
    """Wants different rows to read different keys: `|A A^T - I|_F^2`.

    The rows are the hops of `AttentionPooling(hops=...)`, or the queries of any attention. It is
    0 where each row reads one key that no other row reads. A row with nothing to read costs
    nothing.

    Args:
        weight: of the penalty in the loss.

    Call arguments:
        weights: (B, T, S) or (B, K, T, S).
        mask: boolean (B, T, S), True = may be read; the axes B and T may be 1.

    Returns:
        A scalar, the mean over the batch.

    Raises:
        ValueError: for weights of another rank.

    Example:

    >>> from keras_attention import DiversityPenalty
    >>> float(DiversityPenalty(0.5)([[[1.0, 0.0], [1.0, 0.0]]]))
    1.0

    Reference:
        Lin et al., "A Structured Self-attentive Sentence Embedding", ICLR 2017, equation 8.
    """

    def _penalize(self, weights, mask):
        overlap = ops.matmul(weights, ops.swapaxes(weights, -1, -2))  # (..., T, T)
        reads = ops.cast(ops.any(mask, axis=-1, keepdims=True), weights.dtype)  # (..., T, 1)
        wanted = reads * ops.eye(ops.shape(weights)[-2], dtype=weights.dtype)
        return ops.sum(ops.square(overlap - wanted), axis=(-2, -1))


@register
class DoublyStochasticPenalty(_Penalty):
    """Wants every key to be read once in all: `sum_s (1 - sum_t a_ts)^2`.

    Keys that no query may read cost nothing.

    Args:
        weight: of the penalty in the loss.

    Call arguments:
        weights: (B, T, S) or (B, K, T, S).
        mask: boolean (B, T, S), True = may be read; the axes B and T may be 1.

    Returns:
        A scalar, the mean over the batch.

    Raises:
        ValueError: for weights of another rank.

    Example:

    >>> from keras_attention import DoublyStochasticPenalty
    >>> float(DoublyStochasticPenalty()([[[1.0, 0.0], [1.0, 0.0]]]))
    2.0

    Reference:
        Xu et al., "Show, Attend and Tell", ICML 2015, equation 14.
    """

    def _penalize(self, weights, mask):
        missing = 1.0 - ops.sum(weights, axis=-2)  # (..., S)
        return ops.sum(ops.square(ops.where(ops.any(mask, axis=-2), missing, 0.0)), axis=-1)


@register
class CoveragePenalty(_Penalty):
    """Wants a query not to read again what earlier ones read: `sum_t sum_s min(a_ts, c_ts)`.

    `c_t = sum_{r<t} a_r` is the coverage: how much was read of each key before.

    Args:
        weight: of the penalty in the loss. See et al. divide the sum over the steps by their
            number, as they do the log likelihood (their equation 7).

    Call arguments:
        weights: (B, T, S) or (B, K, T, S).
        mask: boolean (B, T, S), True = may be read; the axes B and T may be 1.

    Returns:
        A scalar, the mean over the batch.

    Raises:
        ValueError: for weights of another rank.

    Example:

    >>> from keras_attention import CoveragePenalty
    >>> float(CoveragePenalty()([[[0.75, 0.25], [0.5, 0.5]]]))
    0.75

    Reference:
        See, Liu, Manning, "Get To The Point: Summarization with Pointer-Generator Networks",
        ACL 2017, equations 10 and 12.
    """

    def _penalize(self, weights, mask):
        coverage = ops.cumsum(weights, axis=-2) - weights  # (..., T, S), of the steps before
        return ops.sum(ops.minimum(weights, coverage), axis=(-2, -1))


@register
class EntropyPenalty(_Penalty):
    """The entropy of the rows: `-sum_t sum_s a_ts log a_ts`.

    A positive weight favours sharp rows that read few keys, a negative one rows that spread over
    many.

    Args:
        weight: of the penalty in the loss.

    Call arguments:
        weights: (B, T, S) or (B, K, T, S).
        mask: boolean (B, T, S), True = may be read; the axes B and T may be 1.

    Returns:
        A scalar, the mean over the batch. A weight of 0 costs nothing and has gradient 0.

    Raises:
        ValueError: for weights of another rank.

    Example:

    >>> from keras_attention import EntropyPenalty
    >>> round(float(EntropyPenalty()([[[0.5, 0.5], [1.0, 0.0]]])), 4)
    0.6931

    Reference:
        Shannon, "A Mathematical Theory of Communication", 1948, section 6.
    """

    def _penalize(self, weights, mask):
        # The selection keeps the logarithm, and its gradient, finite at a weight of 0.
        logarithms = ops.log(ops.where(weights > 0, weights, 1.0))
        return -ops.sum(weights * logarithms, axis=(-2, -1))
