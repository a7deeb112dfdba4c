"""Attention: score, mask, normalise, read."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .regularizers import penalty
from .shapes import check_mask, checked_masks, widths_of


def attend(score, normalizer, query, projected_key, mask=None, training=None, offset=None):
    """Score, mask, normalise: weights (B, T, S) in float32 or wider.

    Scores of more axes, (B, K, T, S), give weights of as many: what may be read is the same for
    each of the K. `offset` is the position of the first query among the keys, for a score to
    which positions matter; by default the last query stands at the last key.
    """
    found = scores.compare(score, query, projected_key, offset)
    if mask is not None:
        for _ in range(len(found.shape) - len(mask.shape)):
            mask = ops.expand_dims(mask, 1)
    mask = masking.combine_masks(mask, score.readable(projected_key))
    return normalizer(found, mask=mask, training=training)


def read(weights, value):
    """The context `c = sum_s a_s v_s`: (B, T, S), (B, S, Dv) -> (B, T, Dv).

    Of weights (B, K, T, S) each of the K reads for itself: (B, K, T, Dv).
    """
    for _ in range(len(weights.shape) - len(value.shape)):
        value = ops.expand_dims(value, 1)
    return ops.matmul(ops.cast(weights, value.dtype), value)


def as_sequence(query, query_mask=None):
    """One query a row, (B, Dq) with a mask (B,), as a sequence of one: (B, 1, Dq) and (B, 1)."""
    if query_mask is not None and len(ops.shape(query_mask)) == 1:
        query_mask = ops.expand_dims(query_mask, 1)
    return ops.expand_dims(query, 1), query_mask


def pair_spec(query, value, return_attention_scores, dtype):
    """What a call returns, symbolically: the context, or the pair of it and the weights."""
    context = keras.KerasTensor((*query.shape[:-1], value.shape[-1]), dtype)
    weights = keras.KerasTensor((*query.shape[:-1], value.shape[1]), dtype)
    return (context, weights) if return_attention_scores else context


@keras.saving.register_keras_serializable("keras_attention")
class Attention(keras.layers.Layer):
    """Reads values by how well their keys answer a query.

    `e = score(q, k)`, `a = normalizer(e, mask)`, `c = sum_s a_s v_s`.

    Masks are boolean, True = may be read. A masked key has a weight of exactly 0; a query with
    nothing to read, or one that is masked itself, reads a context of zeros. What upstream layers
    say of padding (`Embedding(mask_zero=True)`, `Masking`) arrives by itself; a mask that is
    given wins.

    Args:
        score: a name (`"dot"`, `"scaled_dot"`, `"bilinear"`, `"additive"`, `"mlp"`, `"cosine"`,
            `"relative"`, `"alibi"`) or a `Score`.
        normalizer: a name (`"softmax"`, `"sparsemax"`, `"entmax15"`, `"sigmoid"`, `"hardmax"`) or
            a callable `(scores, mask, training) -> weights`, such as `GumbelSoftmax()`.
        dropout: fraction of the weights dropped in training, after they are returned.
        weights_regularizer: a penalty on the weights, `(weights, mask) -> scalar`, which is
            added to the losses; `DiversityPenalty` for example.
        seed: of the dropout.

    Call arguments:
        query: (B, T, Dq), or one query a row (B, Dq). A list `[query, value]` or
            `[query, value, key]` is accepted in its place, as `keras.layers.Attention` takes it.
        value: (B, S, Dv).
        key: (B, S, Dk); the value when None.
        query_mask: boolean (B, T), or (B,) of a query of rank 2.
        value_mask: boolean (B, S).
        key_mask: boolean (B, S).
        attention_mask: boolean (B, T, S).
        use_causal_mask: whether a query may read only keys up to its own position, the last query
            standing at the last key. (`keras.layers.Attention` lets the first query stand at the
            first key: the same where T = S, of no use over a cache.) Padding at the end of the
            keys is counted: where T != S, give rows of other lengths an `attention_mask`.
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        The context (B, T, Dv), or (B, Dv) of a query of rank 2; with `return_attention_scores`
        the pair of it and the weights, (B, T, S) or (B, S), from before dropout. A
        multi-dimensional score of K dimensions reads K contexts: (B, K, T, Dv) with weights
        (B, K, T, S), and without the axis T for a query of rank 2.

    Raises:
        ValueError: in `build`, for a wrong rank or for widths that the score cannot compare; in
            the call, for a mask of the wrong rank or length.

    Example:

    >>> import keras
    >>> from keras_attention import Attention
    >>> query = keras.Input((None, 16))
    >>> source = keras.Input((None,), dtype="int32")
    >>> memory = keras.layers.Embedding(100, 32, mask_zero=True)(source)
    >>> context, weights = Attention("additive")(query, memory, return_attention_scores=True)
    >>> context.shape, weights.shape
    ((None, None, 32), (None, None, None))

    Reference:
        Bahdanau, Cho, Bengio, ICLR 2015, equations 5 and 6; Luong, Pham, Manning, EMNLP 2015,
        section 3.1.
    """

    def __init__(
        self,
        score="dot",
        normalizer="softmax",
        dropout=0.0,
        weights_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.score = scores.get(score, dtype=self.dtype_policy)
        self.normalizer = normalizers.get(normalizer)
        self.dropout = dropout
        self.weights_regularizer = penalty(weights_regularizer)
        self.seed = seed
        self._widths = None  # of the inputs; known when built
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self.supports_masking = True

    def __call__(self, query, value=None, key=None, mask=None, **kwargs):
        # Keras's list form, unpacked here so that Keras itself sees separate tensors and hands
        # over the mask of each.
        if isinstance(query, (list, tuple)) and value is None:
            if len(query) not in (2, 3):
                raise ValueError(
                    "a list of inputs must be [query, value] or [query, value, key]. "
                    f"Received: {len(query)} inputs"
                )
            query, value, key = (*query, None)[:3]
        if value is None:
            raise ValueError(
                "Attention needs a query and a value; a sequence attends to itself by "
                "attention(x, x). Received: value=None"
            )
        if mask is not None:
            kwargs.update(zip(("query_mask", "value_mask", "key_mask"), mask, strict=False))
        inputs = (query, value) if key is None else (query, value, key)
        return super().__call__(*inputs, **kwargs)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._widths = widths_of(query_shape, value_shape, key_shape, ranks=(2, 3))
        if len(query_shape) == 2:
            query_shape = (query_shape[0], 1, query_shape[1])
        self.score.build(query_shape, key_shape)
        scores_shape = self.score.compute_output_shape(query_shape, key_shape)
        normalizers.build(self.normalizer, scores_shape)
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        use_causal_mask=False,
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
        check_mask("attention_mask", attention_mask, (*query.shape[:2], value.shape[1]))

        mask = masking.combine_masks(
            masking.over_queries(query_mask),
            masking.over_keys(readable),
            attention_mask,
            self._causal_mask(query, value) if use_causal_mask else None,
        )  # (B, T, S), each axis may be 1
        if mask is not None:
            # What nobody may read is selected away, so that NaN in padding reaches neither the
            # result nor a gradient.
            readable = ops.any(mask, axis=-2)
            key, value = masking.select(key, readable), masking.select(value, readable)
        if query_mask is not None:
            query = masking.select(query, query_mask)

        weights = attend(
            self.score,
            self.normalizer,
            query,
            self.score.project_key(key),
            mask,
            training,
        )  # (B, T, S) or (B, K, T, S)
        if self.weights_regularizer is not None:
            self.add_loss(self.weights_regularizer(weights, mask))
        context = read(self._dropout(weights, training=training), value)  # (B, T, Dv)
        if one_query:
            weights, context = ops.squeeze(weights, -2), ops.squeeze(context, -2)
        if return_attention_scores:
            return context, ops.cast(weights, self.compute_dtype)
        return context

    def _causal_mask(self, query, value):
        queries, keys = ops.shape(query)[1], ops.shape(value)[1]
        return ops.expand_dims(masking.causal_mask(queries, keys, offset=keys - queries), 0)

    def compute_output_spec(self, query, value, key=None, return_attention_scores=False, **kwargs):
        one_query = len(query.shape) == 2
        queries = (query.shape[0], 1, query.shape[1]) if one_query else query.shape
        shape = self.score.compute_output_shape(queries, (value if key is None else key).shape)
        if one_query:
            shape = (*shape[:-2], shape[-1])
        context = keras.KerasTensor((*shape[:-1], value.shape[-1]), self.compute_dtype)
        weights = keras.KerasTensor(shape, self.compute_dtype)
        return (context, weights) if return_attention_scores else context

    def compute_mask(self, query, previous_mask=None):
        # With K contexts a query there is no axis for it to lie on.
        return previous_mask if self.score.dimensions is None else None

    def get_config(self):
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(self.score),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "dropout": self.dropout,
            "weights_regularizer": keras.regularizers.serialize(self.weights_regularizer),
            "seed": self.seed,
        }
