"""Scores to which positions matter: any score, plus a term of how far the key stands away.

The last query stands at the last key, unless `offset` says where among the keys the first one
does: needed where keys of a cache are not filled yet. Masked keys have positions too, so where
queries and keys are of different sequences, padding behind the keys moves what a query is near.
"""

import keras
from keras import ops

from .masking import distances
from .scores import Score, compare, get, is_width, named, register


class _PositionalScore(Score):
    """Base: `e_ts = score(q_t, k_s) + bias(s - t)`.

    Scores of more axes, of heads (B, H, T, S) or of dimensions (B, K, T, S), have a bias for each.
    """

    positional = True

    def __init__(self, score="scaled_dot", **kwargs):
        super().__init__(**kwargs)
        self.score = get(score, dtype=self.dtype_policy)

    @property
    def dimensions(self):
        return self.score.dimensions

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.score.build(query_shape, key_shape)

    def _heads(self, query_shape, key_shape):
        """The axis before T of the scores, as a shape (H,); () where there is none."""
        heads = self.compute_output_shape(query_shape, key_shape)[1:-2][-1:]
        if None in heads:
            raise ValueError(
                f"{type(self).__name__} needs a known number of heads. "
                f"Received: query_shape={tuple(query_shape)}"
            )
        return heads

    def project_key(self, key):
        return self.score.project_key(key)

    def readable(self, projected_key):
        return self.score.readable(projected_key)

    def compare(self, query, projected_key, offset=None):
        scores = compare(self.score, query, projected_key, offset)  # (B, H, T, S)
        queries, keys = ops.shape(scores)[-2:]
        offset = keys - queries if offset is None else offset
        return scores + self._bias(distances(queries, keys, offset), scores.dtype)

    def _bias(self, distance, dtype):
        """The bias (H, T, S), or (T, S), of each distance from query to key (T, S)."""
        raise NotImplementedError(f"{type(self).__name__} must implement _bias")

    def compute_output_shape(self, query_shape, key_shape):
        return self.score.compute_output_shape(query_shape, key_shape)

    def get_config(self):
        config = super().get_config()
        return {**config, "score": keras.saving.serialize_keras_object(self.score)}


@register
@named("relative")
class RelativePositionScore(_PositionalScore):
    """A learned bias for each distance: `e_ts = score(q_t, k_s) + b[clip(s - t, -m, m)]`.

    Each head has biases of its own, or each dimension of a multi-dimensional score.

    Args:
        score: what is added to: a name or a `Score`; see `Attention`.
        max_distance: `m`; keys that stand further away share a bias.
        bias_initializer: of the biases, (2 m + 1,), or (H, 2 m + 1) with heads.
        bias_regularizer: of the biases.
        bias_constraint: of the biases.

    Call arguments:
        query: (B, T, Dq), or with heads (B, H, T, Dq).
        key: (B, S, Dk), or with heads (B, H, S, Dk).

    Returns:
        Scores (B, T, S) or (B, H, T, S).

    Raises:
        ValueError: in `__init__`, when `max_distance` is not a positive int; in `build`, when the
            shapes do not fit the score, or the number of heads is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import RelativePositionScore
    >>> score = RelativePositionScore("dot", max_distance=1, bias_initializer="ones")
    >>> score(np.zeros((1, 2, 4)), np.zeros((1, 3, 4))).numpy().tolist()
    [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]

    Reference:
        Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
        Transformer", JMLR 2020, section 2.1: a scalar for each distance and head. There far
        distances are put into logarithmic buckets, and all layers share the biases; here they are
        clipped, as in Shaw, Uszkoreit, Vaswani, "Self-Attention with Relative Position
        Representations", NAACL 2018, section 3.2, where each distance has a vector that is added
        to the key (equation 4).
    """

    def __init__(
        self,
        score="scaled_dot",
        max_distance=16,
        bias_initializer="zeros",
        bias_regularizer=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(score, **kwargs)
        if not is_width(max_distance):
            raise ValueError(
                f"max_distance must be a positive int. Received: max_distance={max_distance!r}"
            )
        self.max_distance = max_distance
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.bias = None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.bias = self.add_weight(
            name="bias",
            shape=(*self._heads(query_shape, key_shape), 2 * self.max_distance + 1),
            initializer=self.bias_initializer,
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )

    def _bias(self, distance, dtype):
        clipped = ops.clip(distance, -self.max_distance, self.max_distance)
        return ops.take(ops.cast(self.bias, dtype), clipped + self.max_distance, axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


@register
@named("alibi")
class AlibiScore(_PositionalScore):
    """A penalty that grows with the distance: `e_ts = score(q_t, k_s) - m_h |t - s|`.

    The slopes are not learned: `m_h = 2^(-8 h / H)` for the heads h = 1 ... H where H is a power
    of two. Else those of the greatest power P of two below it, and then every second slope of
    2 P heads, from the first. Without heads there is the slope of a single one, `2^-8`.

    Args:
        score: what is added to: a name or a `Score`; see `Attention`.

    Call arguments:
        query: (B, T, Dq), or with heads (B, H, T, Dq).
        key: (B, S, Dk), or with heads (B, H, S, Dk).

    Returns:
        Scores (B, T, S) or (B, H, T, S).

    Raises:
        ValueError: in `build`, when the shapes do not fit the score, or the number of heads is
            unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import AlibiScore
    >>> heads = np.zeros((1, 2, 1, 4)), np.zeros((1, 2, 3, 4))
    >>> AlibiScore("dot")(*heads).numpy().tolist()
    [[[[-0.125, -0.0625, 0.0]], [[-0.0078125, -0.00390625, 0.0]]]]

    Reference:
        Press, Smith, Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input
        Length Extrapolation", ICLR 2022, section 3, and the authors' code for other numbers of
        heads. The paper looks back alone; what stands behind a query is penalised here as what
        stands before it.
    """

    def __init__(self, score="scaled_dot", **kwargs):
        super().__init__(score, **kwargs)
        self._slopes = None  # known when built

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self._slopes = slopes(*(self._heads(query_shape, key_shape) or (1,)))

    def _bias(self, distance, dtype):
        slope = ops.reshape(ops.convert_to_tensor(self._slopes, dtype), (-1, 1, 1))  # (H, 1, 1)
        return -slope * ops.cast(ops.abs(distance), dtype)  # (H, T, S)


def slopes(heads: int) -> list[float]:
    """How much each of the heads minds a distance of 1."""
    power = 1 << (heads.bit_length() - 1)  # the greatest power of two
    further = range(1, 2 * (heads - power), 2)
    return [
        *(2.0 ** (-8 * h / power) for h in range(1, power + 1)),
        *(2.0 ** (-4 * h / power) for h in further),
    ]
