"""Pooling: one vector, or a few, of a whole sequence, read by attention without a query."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import attend, read
from .kernels import KernelLayer
from .regularizers import penalty
from .scores import is_width
from .shapes import check_mask, check_shapes

register = keras.saving.register_keras_serializable("keras_attention")


class _Pooling(KernelLayer):
    """A hidden layer `u_s = f(W h_s + b)`, by which a subclass weighs what it reads."""

    def __init__(
        self,
        units=None,
        activation="tanh",
        use_bias=True,
        normalizer="softmax",
        dropout=0.0,
        weights_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        if not (units is None or is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        self.units = units
        self.activation = keras.activations.get(activation)
        self.normalizer = normalizers.get(normalizer)
        self.dropout = dropout
        self.weights_regularizer = penalty(weights_regularizer)
        self.seed = seed
        self._widths = None  # of the inputs; known when built
        self._hidden = None
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape):
        check_shapes({"inputs": (inputs_shape, (3,))})
        width = inputs_shape[-1]
        self._widths = {"inputs": width}
        self._hidden = self.add_dense("hidden", width, width if self.units is None else self.units)
        self._build_weighing(inputs_shape, self._hidden.units)
        self.built = True

    def _build_weighing(self, inputs_shape, units):
        """Build what `_weigh` needs over a hidden layer of that width."""
        raise NotImplementedError(f"{type(self).__name__} must implement _build_weighing")

    def _weigh(self, hidden, mask, training):
        """Weights (B, ..., S), in float32 or wider, of hidden (B, S, U)."""
        raise NotImplementedError(f"{type(self).__name__} must implement _weigh")

    def _read(self, weights, inputs):
        """What these weights read of the inputs (B, S, D)."""
        raise NotImplementedError(f"{type(self).__name__} must implement _read")

    def call(self, inputs, mask=None, return_attention_scores=False, training=None):
        check_shapes({"inputs": (inputs.shape, (3,))}, widths=self._widths)
        check_mask("mask", mask, inputs.shape[:2])
        if mask is not None:
            mask = ops.cast(mask, "bool")
            # Selected away, so that NaN in padding reaches neither the result nor a gradient.
            inputs = masking.select(inputs, mask)
            mask = masking.over_keys(mask)  # (B, 1, S)
        hidden = self.activation(self._hidden(inputs))  # (B, S, U)
        weights = self._weigh(hidden, mask, training)
        if self.weights_regularizer is not None:
            self.add_loss(self.weights_regularizer(weights, mask))
        pooled = self._shaped(self._read(self._dropout(weights, training=training), inputs))
        if return_attention_scores:
            return pooled, ops.cast(self._shaped(weights), self.compute_dtype)
        return pooled

    def _shaped(self, x):
        """A context or weights as they leave."""
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return None  # the axis on which it lay is gone

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "dropout": self.dropout,
            "weights_regularizer": keras.regularizers.serialize(self.weights_regularizer),
            "seed": self.seed,
        }


@register
class AttentionPooling(_Pooling):
    """Pools a sequence by how well each of its steps answers a learned query.

        u_s = f(W h_s + b)      a = normalizer(score(q, u), mask)      c = sum_s a_s h_s

    With `hops=r` there are r queries, each of which reads for itself; with
    `weights_regularizer=DiversityPenalty(...)` that is the structured self-attentive embedding.

    Masks are boolean, True = may be read. A masked step has a weight of exactly 0; a row with
    nothing to read gives zeros.

    Args:
        units: width U of the hidden layer and the queries; None is the width of the inputs.
        hops: number of queries; None is one, without an axis for it in what is returned.
        activation: `f`.
        score: a name or a `Score`, which compares the queries with the hidden layer; see
            `Attention`.
        use_bias: whether the hidden layer adds `b`.
        normalizer: a name or a callable; see `Attention`.
        dropout: fraction of the weights dropped in training, after they are returned.
        weights_regularizer: a penalty on the weights, which is added to the losses; it gets them
            with an axis of hops, (B, 1, S) without `hops`.
        kernel_initializer: of `W` and the queries.
        kernel_regularizer: of `W` and the queries.
        kernel_constraint: of `W` and the queries.
        seed: of the dropout.

    Call arguments:
        inputs: (B, S, D).
        mask: boolean (B, S).
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        (B, D), or (B, r, D) with `hops`; with `return_attention_scores` the pair of it and the
        weights, (B, S) or (B, r, S), from before dropout. A multi-dimensional score of K
        dimensions reads K contexts: (B, K, D) with weights (B, K, S), or (B, K, r, D) with
        weights (B, K, r, S).

    Raises:
        ValueError: in `__init__`, for a number of units or hops that is none; in `build`, for a
            wrong rank or an unknown width; in the call, for a mask of the wrong rank or length.

    Example:

    >>> import keras
    >>> from keras_attention import AttentionPooling
    >>> classifier = keras.Sequential(
    ...     [
    ...         keras.Input((None,), dtype="int32"),
    ...         keras.layers.Embedding(100, 16, mask_zero=True),
    ...         keras.layers.GRU(8, return_sequences=True),
    ...         AttentionPooling(),
    ...         keras.layers.Dense(2),
    ...     ]
    ... )
    >>> classifier.output_shape
    (None, 2)

    Reference:
        Yang et al., "Hierarchical Attention Networks for Document Classification", NAACL 2016,
        equations 5 to 7. Lin et al., "A Structured Self-attentive Sentence Embedding", ICLR 2017,
        equations 5 to 7, for `hops`; they have no bias.
    """

    def __init__(self, units=None, hops=None, activation="tanh", score="dot", **kwargs):
        super().__init__(units, activation, **kwargs)
        if not (hops is None or is_width(hops)):
            raise ValueError(f"hops must be a positive int or None. Received: hops={hops!r}")
        self.hops = hops
        self.score = scores.placeless(score, self.dtype_policy)
        self.query = None

    def _build_weighing(self, inputs_shape, units):
        self.query = self.add_kernel("query", (self.hops or 1, units))
        queries, keys = (inputs_shape[0], *self.query.shape), (*inputs_shape[:-1], units)
        self.score.build(queries, keys)
        normalizers.build(self.normalizer, self.score.compute_output_shape(queries, keys))

    def _weigh(self, hidden, mask, training):
        query = ops.expand_dims(self.query, 0)  # (1, r, U)
        key = self.score.project_key(hidden)
        return attend(self.score, self.normalizer, query, key, mask, training)  # (B, r, S)

    def _read(self, weights, inputs):
        return read(weights, inputs)  # (B, r, D)

    def _shaped(self, x):
        return ops.squeeze(x, -2) if self.hops is None else x

    def compute_output_spec(self, inputs, mask=None, return_attention_scores=False, training=None):
        queries, keys = (inputs.shape[0], *self.query.shape), inputs.shape
        shape = self.score.compute_output_shape(queries, (*keys[:-1], queries[-1]))  # (B, r, S)
        outer = shape[:-2] if self.hops is None else shape[:-1]
        pooled = keras.KerasTensor((*outer, keys[-1]), self.compute_dtype)
        weights = keras.KerasTensor((*outer, shape[-1]), self.compute_dtype)
        return (pooled, weights) if return_attention_scores else pooled

    def get_config(self):
        return {
            **super().get_config(),
            "hops": self.hops,
            "score": keras.saving.serialize_keras_object(self.score),
        }


@register
class MultiDimensionalPooling(_Pooling):
    """Pools each feature of a sequence with weights of its own ("source2token").

        e_s = W2 f(W1 x_s + b1) + b2
        a_d = normalizer((e_1d, ..., e_Sd), mask)       c_d = sum_s a_ds x_sd

    Masks are boolean, True = may be read. A masked step has a weight of exactly 0; a row with
    nothing to read gives zeros.

    Args:
        units: width U of the hidden layer; None is the width of the inputs.
        activation: `f`.
        use_bias: whether the layers add `b1` and `b2`.
        normalizer: a name or a callable; see `Attention`.
        dropout: fraction of the weights dropped in training, after they are returned.
        weights_regularizer: a penalty on the weights (B, D, S), which is added to the losses.
        kernel_initializer: of `W1` and `W2`.
        kernel_regularizer: of `W1` and `W2`.
        kernel_constraint: of `W1` and `W2`.
        seed: of the dropout.

    Call arguments:
        inputs: (B, S, D).
        mask: boolean (B, S).
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        (B, D); with `return_attention_scores` the pair of it and the weights, (B, D, S), from
        before dropout.

    Raises:
        ValueError: in `__init__`, for a number of units that is none; in `build`, for a wrong
            rank or an unknown width; in the call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import MultiDimensionalPooling
    >>> pooled, weights = MultiDimensionalPooling()(
    ...     np.ones((2, 5, 4), "float32"), return_attention_scores=True
    ... )
    >>> pooled.shape.as_list(), weights.shape.as_list()
    ([2, 4], [2, 4, 5])

    Reference:
        Shen et al., "DiSAN: Directional Self-Attention Network for RNN/CNN-Free Language
        Understanding", AAAI 2018, section 3.2 (source2token self-attention).
    """

    def __init__(self, units=None, activation="elu", **kwargs):
        super().__init__(units, activation, **kwargs)
        self._scores = None

    def _build_weighing(self, inputs_shape, units):
        batch, length, width = inputs_shape
        self._scores = self.add_dense("scores", units, width)
        normalizers.build(self.normalizer, (batch, width, length))

    def _weigh(self, hidden, mask, training):
        found = ops.swapaxes(self._scores(hidden), -1, -2)  # (B, D, S)
        return self.normalizer(found, mask, training=training)

    def _read(self, weights, inputs):
        features = ops.swapaxes(inputs, -1, -2)  # (B, D, S)
        return ops.sum(ops.cast(weights, features.dtype) * features, axis=-1)  # (B, D)

    def compute_output_spec(self, inputs, mask=None, return_attention_scores=False, training=None):
        batch, length, width = inputs.shape
        pooled = keras.KerasTensor((batch, width), self.compute_dtype)
        weights = keras.KerasTensor((batch, width, length), self.compute_dtype)
        return (pooled, weights) if return_attention_scores else pooled
