"""Local attention: a query reads a window of the keys."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import as_sequence, pair_spec, read
from .kernels import Kernels
from .positions import within
from .regularizers import penalty
from .scores import is_width, pair_score
from .shapes import checked_masks, widths_of


@keras.saving.register_keras_serializable("keras_attention")
class LocalAttention(Kernels, keras.layers.Layer):
    """Reads values within a window around one position for each query, `[p_t - D, p_t + D]`.

    The weights are those of attention over the readable keys of the window alone. Where it stands
    is either known, also where T and S differ, or predicted:

        monotonic (local-m)      p_t = t
                                 a_ts = normalizer(score(q_t, k_s)),  |s - p_t| <= D
        predictive (local-p)     p_t = S sigmoid(v^T tanh(W q_t))
                                 a_ts = normalizer(score(q_t, k_s)) exp(-(s - p_t)^2 / (2 sigma^2))

    with `sigma = D / 2`. The Gaussian is what moves the predicted position in training; the
    weights are not normalised again after it. Positions count from 0 at the first key. `S` is the
    number of keys up to the last readable one, so that more padding behind it changes nothing.

    Projected keys and values of each window are gathered, so that memory is O(T D) in place of
    O(T S). Only the weights that leave, or that a regularizer takes, are (B, T, S).

    Masks are boolean, True = may be read. A masked key has a weight of exactly 0; a query with
    nothing to read in its window, or one that is masked itself, reads a context of zeros.

    Args:
        window: `D`, the keys to either side of the position, so `2 D + 1` in all. With 0 a query
            of local-m reads the key at its own position alone; local-p needs 1 or more.
        score: a name or a `Score` of one score for each pair; see `Attention`. One to which the
            positions of keys matter is refused.
        normalizer: a name or a callable; see `Attention`.
        predictive: whether the position is predicted (local-p) or the query's own (local-m).
        units: width of the predictor's hidden layer; None is the query's width.
        dropout: fraction of the weights dropped in training, after they are returned.
        kernel_initializer: of `W` and `v`.
        kernel_regularizer: of `W` and `v`.
        kernel_constraint: of `W` and `v`.
        weights_regularizer: a penalty on the weights, `(weights, mask) -> scalar`, which is
            added to the losses. It takes the weights (B, T, S).
        seed: of the dropout.

    Call arguments:
        query: (B, T, Dq), or one query a row (B, Dq).
        value: (B, S, Dv).
        key: (B, S, Dk); the value when None.
        query_mask: boolean (B, T), or (B,) of a query of rank 2.
        value_mask: boolean (B, S).
        key_mask: boolean (B, S).
        start_index: position of the first query, an int or an integer scalar tensor: in
            step-by-step decoding the number of the step. Local-p has no use for it.
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        The context (B, T, Dv), or (B, Dv) of a query of rank 2; with `return_attention_scores`
        the pair of it and the weights, (B, T, S) or (B, S), from before dropout. Those of local-p
        sum to less than 1.

    Raises:
        ValueError: in `__init__`, for a window or units that are none, or for a score of many
            dimensions or of positions; in `build`, for a wrong rank or for widths that the score
            cannot compare; in the call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import LocalAttention
    >>> query, value = np.zeros((1, 3, 4), "float32"), np.ones((1, 5, 4), "float32")
    >>> layer = LocalAttention(window=1)
    >>> context, weights = layer(query, value, return_attention_scores=True)
    >>> weights[0, 0].numpy().tolist()
    [0.5, 0.5, 0.0, 0.0, 0.0]
    >>> bool(np.all(layer(query[:, 2], value, start_index=2) == context[:, 2]))
    True

    Reference:
        Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine
        Translation", EMNLP 2015, section 3.2, equations 9 and 10.
    """

    def __init__(
        self,
        window,
        score="dot",
        normalizer="softmax",
        predictive=False,
        units=None,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        weights_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            **kwargs,
        )
        least = 1 if predictive else 0  # the Gaussian of local-p has the deviation window / 2
        if not isinstance(window, int) or isinstance(window, bool) or window < least:
            raise ValueError(
                f"window must be an int of {least} or more. "
                f"Received: window={window!r}, predictive={predictive!r}"
            )
        if not (units is None or is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        self.window = window
        # The keys of a window lose the places that a `LocationScore` goes by.
        self.score = pair_score(score, self.dtype_policy, refused=scores.LocationScore)
        self.normalizer = normalizers.get(normalizer)
        self.predictive = predictive
        self.units = units
        self.dropout = dropout
        self.weights_regularizer = penalty(weights_regularizer)
        self.seed = seed
        self._widths = None  # of the inputs; known when built
        self._predictor = []  # the two layers of local-p
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._widths = widths_of(query_shape, value_shape, key_shape, ranks=(2, 3))
        width = query_shape[-1]
        self.score.build((None, None, width), key_shape)
        normalizers.build(self.normalizer, (None, None, 1, 2 * self.window + 1))
        if self.predictive:
            units = width if self.units is None else self.units
            self._predictor = [
                self.add_dense("predictor", width, units, activation="tanh"),
                self.add_dense("position", units, 1),
            ]
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        start_index=0,
        return_attention_scores=False,
        training=None,
    ):
        key = value if key is None else key
        one_query = len(query.shape) == 2
        if one_query:
            query, query_mask = as_sequence(query, query_mask)
        query_mask, readable = checked_masks(
            self._widths, query, value, key, query_mask, value_mask, key_mask
        )
        if readable is not None:
            key, value = masking.select(key, readable), masking.select(value, readable)
        if query_mask is not None:
            query = masking.select(query, query_mask)

        keys = ops.shape(value)[1]
        center = self._center(query, readable, keys, start_index)  # (B, T)
        first = ops.cast(ops.ceil(center - self.window), "int32")  # (B, T)
        # One more than there is room for, where the center lies between two keys.
        slots = ops.arange(2 * self.window + 1, dtype="int32")  # (W,)
        positions = ops.expand_dims(first, -1) + slots  # (B, T, W)
        distance = ops.cast(positions, center.dtype) - ops.expand_dims(center, -1)
        rows = within(positions, keys)
        mask = masking.combine_masks(
            ops.equal(rows, positions),  # within the memory
            ops.abs(distance) <= self.window,
            None if readable is None else _take_rows(readable, rows),
            masking.over_queries(query_mask),
        )  # (B, T, W)

        weights = self.normalizer(
            self.score.compare(
                ops.expand_dims(query, 2),  # (B, T, 1, Dq)
                _take_rows(self.score.project_key(key), rows),  # (B, T, W, ...)
            ),
            mask=ops.expand_dims(mask, 2),
            training=training,
        )  # (B, T, 1, W)
        if self.predictive:
            gaussian = ops.exp(-2.0 * ops.square(distance / self.window))  # sigma = window / 2
            weights = weights * ops.expand_dims(gaussian, 2)
        context = read(self._dropout(weights, training=training), _take_rows(value, rows))
        context, weights = ops.squeeze(context, 2), ops.squeeze(weights, 2)  # (B, T, Dv), (B, T, W)

        if return_attention_scores or self.weights_regularizer is not None:
            weights = _spread(weights, first, keys)  # (B, T, S)
        if self.weights_regularizer is not None:
            self.add_loss(self.weights_regularizer(weights, _spread(mask, first, keys)))
        if one_query:
            weights, context = ops.squeeze(weights, 1), ops.squeeze(context, 1)
        if return_attention_scores:
            return context, ops.cast(weights, self.compute_dtype)
        return context

    def _center(self, query, readable, keys, start_index):
        """The position that each query looks at, (B, T), in float32 or wider."""
        # Half precision does not hold the positions of long sequences.
        dtype = normalizers.wide_dtype(self.compute_dtype)
        batch, queries = ops.shape(query)[:2]
        if not self.predictive:
            own = ops.arange(queries, dtype="int32") + ops.cast(start_index, "int32")
            return ops.broadcast_to(ops.cast(own, dtype), (batch, queries))
        count = ops.cast(keys, dtype)
        if readable is not None:
            ends = ops.cast(readable, "int32") * (ops.arange(keys, dtype="int32") + 1)
            count = ops.cast(ops.max(ends, axis=-1, keepdims=True), dtype)  # (B, 1)
        for dense in self._predictor:
            query = dense(query)
        return count * ops.sigmoid(ops.cast(ops.squeeze(query, -1), dtype))

    def compute_output_spec(self, query, value, key=None, return_attention_scores=False, **kwargs):
        return pair_spec(query, value, return_attention_scores, self.compute_dtype)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "window": self.window,
            "score": keras.saving.serialize_keras_object(self.score),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "predictive": self.predictive,
            "units": self.units,
            "dropout": self.dropout,
            "weights_regularizer": keras.regularizers.serialize(self.weights_regularizer),
            "seed": self.seed,
        }


def _take_rows(tensor, positions):
    """Of each batch row of a tensor (B, S, ...) what stands at its positions (B, ...)."""
    batch, length, *rest = ops.shape(tensor)
    starts = ops.reshape(
        ops.arange(batch, dtype="int32") * length, (batch, *[1] * (len(positions.shape) - 1))
    )
    return ops.take(ops.reshape(tensor, (batch * length, *rest)), starts + positions, axis=0)


def _spread(windows, first, keys):
    """Windows (B, T, W), whose slots begin at `first` (B, T), over all keys: (B, T, S)."""
    batch, queries, width = ops.shape(windows)
    slots = ops.arange(keys, dtype="int32") - ops.expand_dims(first, -1)  # (B, T, S)
    inside = ops.logical_and(slots >= 0, slots < width)
    slots = ops.reshape(within(slots, width), (batch * queries, keys))
    spread = _take_rows(ops.reshape(windows, (batch * queries, width)), slots)
    spread = ops.reshape(spread, (batch, queries, keys))
    return ops.where(inside, spread, ops.zeros((), dtype=windows.dtype))
