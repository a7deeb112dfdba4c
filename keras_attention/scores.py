"""Scores: how well a key answers a query.

A score is a layer of `(query (B, T, Dq), key (B, S, Dk)) -> scores (B, T, S)`. It owns weights and
knows no mask. A decoder asks many queries of one memory, so a score comes in two parts:
`project_key(key)`, once per memory, and `compare(query, projected_key)`, once per query.
Further axes before T and S, such as heads in (B, H, T, D) and (B, H, S, D), are carried through,
so formulas count axes from the end.

To add one: subclass `Score`, write `build` and `compare` (and `project_key` where the key has a
part of its own), say by `named` how it is called for short, and give it rows in `tests/rows`.
"""

from collections.abc import Sequence

import keras
from keras import ops

from .given import revived
from .kernels import Kernels, project
from .normalizers import below, wide_dtype, widen

register = keras.saving.register_keras_serializable("keras_attention")

_NAMED = {}


def named(*names):
    """A decorator: these names mean that class of scores, made without arguments."""

    def add(kind):
        _NAMED.update(dict.fromkeys(names, kind))
        return kind

    return add


class Score(keras.layers.Layer):
    """Base of all scores: `e = compare(q, project_key(k))`.

    Attributes:
        dimensions: number K of scores for each pair, which stand in an axis of their own,
            (B, K, T, S); None for the one score of (B, T, S).
        positional: whether `compare` takes a third argument, `offset`: the position of the first
            query among the keys, by default (None) such that the last query stands at the last
            key.

    Call arguments:
        query: (B, T, Dq), or with heads (B, H, T, Dq).
        key: (B, S, Dk), or with heads (B, H, S, Dk).

    Returns:
        Scores (B, T, S) or (B, H, T, S), in float32 or wider.

    Raises:
        ValueError: in `build`, when the ranks are below 3 or differ, a width is unknown, or the
            two widths do not fit the score.

    Example:

    >>> import numpy as np
    >>> from keras_attention import AdditiveScore
    >>> score = AdditiveScore(units=8)
    >>> score(np.ones((2, 3, 4)), np.ones((2, 5, 7))).shape.as_list()
    [2, 3, 5]
    """

    dimensions = None
    positional = False

    def build(self, query_shape, key_shape):
        if self.built:
            # Two layers around one score would be saved as two scores and load as two.
            raise ValueError(
                "a score belongs to one layer: give each layer its own. "
                f"Received: score={self.name!r}, which is already built"
            )
        for name, shape in (("query", query_shape), ("key", key_shape)):
            if len(shape) < 3 or len(shape) != len(query_shape) or shape[-1] is None:
                raise ValueError(
                    f"{type(self).__name__} needs a {name} of shape (batch, ..., length, width) "
                    "with a known width, queries and keys of one rank. Received: "
                    f"query_shape={tuple(query_shape)}, key_shape={tuple(key_shape)}"
                )
        self.built = True

    def project_key(self, key):
        """What `compare` needs of the key, (B, S, ...); computed once per memory."""
        return key

    def compare(self, query, projected_key):
        """Scores (B, T, S) of each query against each projected key."""
        raise NotImplementedError(f"{type(self).__name__} must implement compare")

    def readable(self, projected_key):
        """Which keys the score speaks of, boolean (S,); None where it speaks of all."""
        return None

    def call(self, query, key):
        return self.compare(query, self.project_key(key))

    def compute_output_shape(self, query_shape, key_shape):
        return (*query_shape[:-1], key_shape[-2])

    def compute_output_spec(self, query, key):
        shape = self.compute_output_shape(query.shape, key.shape)
        return keras.KerasTensor(shape, wide_dtype(self.compute_dtype))

    def get_config(self):
        # Written out: the one that Keras makes up refuses a `DTypePolicy` object as `dtype`.
        return super().get_config()

    def _refuse_different_widths(self, query_shape, key_shape):
        if query_shape[-1] != key_shape[-1]:
            raise ValueError(
                f"{type(self).__name__} needs queries and keys of one width; 'bilinear' and "
                f"'additive' scores take two. Received: query_shape={tuple(query_shape)}, "
                f"key_shape={tuple(key_shape)}"
            )


def compare(score, query, projected_key, offset=None):
    """`score.compare`, told where the first query stands if positions matter to it."""
    if score.positional:
        return score.compare(query, projected_key, offset)
    return score.compare(query, projected_key)


@register
@named("dot")
class DotScore(Score):
    """Dot product: `e = q . k`.

    The product is made in float32 or wider, so half precision does not overflow.

    Call arguments:
        query: (B, T, D).
        key: (B, S, D).

    Returns:
        Scores (B, T, S).

    Raises:
        ValueError: in `build`, when query and key differ in width.

    Example:

    >>> import numpy as np
    >>> from keras_attention import DotScore
    >>> query, key = np.array([[[1.0, 2.0]]]), np.array([[[3.0, 4.0], [5.0, 6.0]]])
    >>> DotScore()(query, key).numpy().tolist()
    [[[11.0, 17.0]]]

    Reference:
        Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine
        Translation", EMNLP 2015, section 3.1 (dot).
    """

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self._refuse_different_widths(query_shape, key_shape)

    def compare(self, query, projected_key):
        return ops.matmul(widen(query), ops.swapaxes(widen(projected_key), -1, -2))  # (B, T, S)


@register
@named("scaled_dot")
class ScaledDotScore(DotScore):
    """Scaled dot product: `e = q . k / sqrt(D)`.

    Call arguments:
        query: (B, T, D).
        key: (B, S, D).

    Returns:
        Scores (B, T, S).

    Raises:
        ValueError: in `build`, when query and key differ in width.

    Example:

    >>> import numpy as np
    >>> from keras_attention import ScaledDotScore
    >>> ScaledDotScore()(np.ones((1, 1, 4)), 2 * np.ones((1, 1, 4))).numpy().tolist()
    [[[4.0]]]

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, equation 1.
    """

    def compare(self, query, projected_key):
        return super().compare(widen(query) * query.shape[-1] ** -0.5, projected_key)


@register
@named("cosine")
class CosineScore(DotScore):
    """Cosine: `e = scale * q . k / (|q| |k|)`.

    A zero vector has cosine 0 to everything, and gradient 0.

    Args:
        scale: sharpness of the weights; with the default 1 all scores lie in [-1, 1], where
            softmax is close to uniform.

    Call arguments:
        query: (B, T, D).
        key: (B, S, D).

    Returns:
        Scores (B, T, S).

    Raises:
        ValueError: in `build`, when query and key differ in width.

    Example:

    >>> import numpy as np
    >>> from keras_attention import CosineScore
    >>> query, key = np.array([[[2.0, 0.0]]]), np.array([[[3.0, 0.0], [0.0, 0.0]]])
    >>> CosineScore()(query, key).numpy().tolist()
    [[[1.0, 0.0]]]

    Reference:
        Graves, Wayne, Danihelka, "Neural Turing Machines", 2014, equations 5 and 6. There the
        sharpness is emitted by the controller; here it is a constant.
    """

    def __init__(self, scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def project_key(self, key):
        return _unit(widen(key))

    def compare(self, query, projected_key):
        return self.scale * super().compare(_unit(widen(query)), projected_key)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


def _unit(x):
    """`x / |x|`, and 0 with gradient 0 where x is 0."""
    square = ops.sum(ops.square(x), axis=-1, keepdims=True)
    nonzero = square > 0
    # The inner selection keeps the gradient of the branch not taken finite.
    return ops.where(nonzero, x * ops.rsqrt(ops.where(nonzero, square, 1.0)), 0.0)


@register
@named("bilinear", "general")
class BilinearScore(Kernels, Score):
    """Bilinear form, Luong's "general": `e = q^T W k`.

    Args:
        kernel_initializer: of `W`.
        kernel_regularizer: of `W`.
        kernel_constraint: of `W`.

    Call arguments:
        query: (B, T, Dq).
        key: (B, S, Dk).

    Returns:
        Scores (B, T, S).

    Raises:
        ValueError: in `build`, when a rank is not 3 or a width is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import BilinearScore
    >>> BilinearScore()(np.ones((2, 3, 4)), np.ones((2, 5, 7))).shape.as_list()
    [2, 3, 5]

    Reference:
        Luong, Pham, Manning, EMNLP 2015, section 3.1 (general).
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.key_dense = None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.key_dense = self.add_dense("key", key_shape[-1], query_shape[-1])

    def project_key(self, key):
        return self.key_dense(key)  # (B, S, Dq)

    def compare(self, query, projected_key):
        return ops.matmul(widen(query), ops.swapaxes(widen(projected_key), -1, -2))  # (B, T, S)


@register
@named("mlp")
class MLPScore(Kernels, Score):
    """A perceptron over the concatenation: `e = v^T f(W_n ... f(W_1 [q; k] + b_1) ... + b_n)`.

    `W_1 [q; k]` is computed as `W_q q + W_k k`, the same sum, so that the key's part is made once
    per memory.

    Args:
        units: width of each hidden layer, an int or a sequence of ints; None is one hidden layer
            of the key's width.
        activation: `f`.
        use_bias: whether the hidden layers add `b_i`.
        kernel_initializer: of every kernel.
        kernel_regularizer: of every kernel.
        kernel_constraint: of every kernel.

    Call arguments:
        query: (B, T, Dq).
        key: (B, S, Dk).

    Returns:
        Scores (B, T, S). The hidden layers take memory O(T S U).

    Raises:
        ValueError: in `__init__`, when a width is not a positive int; in `build`, when a rank is
            not 3 or a width is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import MLPScore
    >>> score = MLPScore(units=(16, 8), activation="relu")
    >>> score(np.ones((2, 3, 4)), np.ones((2, 5, 7))).shape.as_list()
    [2, 3, 5]

    Reference:
        Luong, Pham, Manning, EMNLP 2015, section 3.1 (concat), for one hidden layer with tanh and
        no bias; deeper ones are the same perceptron continued.
    """

    def __init__(self, units=None, activation="tanh", use_bias=True, **kwargs):
        super().__init__(**kwargs)
        widths = units if isinstance(units, Sequence) else [] if units is None else [units]
        if units is not None and not (widths and all(is_width(width) for width in widths)):
            raise ValueError(
                "units must be a positive int or a sequence of them, one a hidden layer. "
                f"Received: units={units!r}"
            )
        self.units = list(units) if isinstance(units, Sequence) else units
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.query_dense = None
        self.key_dense = None
        self.hidden_denses = []
        self.score_dense = None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        units = key_shape[-1] if self.units is None else self.units
        first, *deeper = units if isinstance(units, Sequence) else [units]
        self.query_dense = self.add_dense("query", query_shape[-1], first, use_bias=self.use_bias)
        self.key_dense = self.add_dense("key", key_shape[-1], first)
        width = first
        for i, following in enumerate(deeper):
            self.hidden_denses.append(
                self.add_dense(f"hidden_{i}", width, following, use_bias=self.use_bias)
            )
            width = following
        self.score_dense = self.add_dense("score", width, 1)

    def project_key(self, key):
        return self.key_dense(key)  # (B, S, U)

    def compare(self, query, projected_key):
        query = ops.expand_dims(project(self.query_dense, query), -2)  # (B, T, 1, U)
        hidden = self.activation(query + ops.expand_dims(projected_key, -3))  # (B, T, S, U)
        for dense in self.hidden_denses:
            hidden = self.activation(project(dense, hidden))
        return widen(ops.squeeze(project(self.score_dense, hidden), -1))  # (B, T, S)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
        }


@register
@named("additive")
class AdditiveScore(MLPScore):
    """Additive, Bahdanau's: `e = v^T tanh(W q + U k)`.

    With `normalize` length and direction of `v` are learned apart, and there is a bias:
    `e = g v^T / |v| tanh(W q + U k + b)`.

    Args:
        units: width of the hidden layer; None is the key's width.
        normalize: whether `v` is normalised; `g` begins as `sqrt(1 / units)`, `b` as 0.
        kernel_initializer: of `W`, `U` and `v`.
        kernel_regularizer: of `W`, `U` and `v`.
        kernel_constraint: of `W`, `U` and `v`.

    Call arguments:
        query: (B, T, Dq).
        key: (B, S, Dk).

    Returns:
        Scores (B, T, S). The hidden layer takes memory O(T S U).

    Raises:
        ValueError: in `__init__`, when `units` is not a positive int; in `build`, when a rank is
            not 3 or a width is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import AdditiveScore
    >>> AdditiveScore(units=6)(np.ones((2, 3, 4)), np.ones((2, 5, 7))).shape.as_list()
    [2, 3, 5]

    Reference:
        Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2 (the alignment model, no biases).
        Normalised: Salimans, Kingma, "Weight Normalization", NeurIPS 2016, equation 2, as
        `BahdanauAttention(normalize=True)` of TensorFlow Addons has it.
    """

    def __init__(self, units: int | None = None, normalize: bool = False, **kwargs):
        if not (units is None or is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        super().__init__(units=units, activation="tanh", use_bias=normalize, **kwargs)
        self.normalize = normalize
        self.scale = None  # g

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        if self.normalize:
            length = self.score_dense.kernel.shape[0] ** -0.5
            initializer = keras.initializers.Constant(length)
            self.scale = self.add_weight(name="scale", shape=(), initializer=initializer)

    def compare(self, query, projected_key):
        scores = super().compare(query, projected_key)  # (B, T, S)
        if not self.normalize:
            return scores
        square = ops.sum(ops.square(widen(self.score_dense.kernel)))
        # A `v` of 0 has no direction, and no score.
        length = ops.where(square > 0, ops.rsqrt(ops.where(square > 0, square, 1.0)), 0.0)
        return scores * (widen(self.scale) * length)

    def get_config(self):
        config = {**super().get_config(), "normalize": self.normalize}
        return {k: v for k, v in config.items() if k not in ("activation", "use_bias")}


@register
class LocationScore(Kernels, Score):
    """By position, from the query alone: `e_s = w_s . q`, one row of `W` for each position.

    Only the first `max_length` keys have a row; those behind them are not readable, and are
    masked whatever the mask says. What the keys hold does not matter.

    Args:
        max_length: number of positions L; memories may be shorter or longer.
        kernel_initializer: of `W`.
        kernel_regularizer: of `W`.
        kernel_constraint: of `W`.

    Call arguments:
        query: (B, T, Dq).
        key: (B, S, Dk).

    Returns:
        Scores (B, T, S).

    Raises:
        ValueError: in `__init__`, when `max_length` is not a positive int; in `build`, when a
            rank is below 3 or a width is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import Attention, LocationScore
    >>> layer = Attention(LocationScore(max_length=4))
    >>> query, memory = np.ones((2, 3, 6)), np.ones((2, 5, 7))
    >>> weights = layer(query, memory, return_attention_scores=True)[1]
    >>> weights.shape.as_list(), weights.numpy()[..., 4:].max().item()
    ([2, 3, 5], 0.0)

    Reference:
        Luong, Pham, Manning, EMNLP 2015, section 3.1 (location): "for short sentences, we only use
        the top part of a_t and for long sentences, we ignore words near the end".
    """

    def __init__(self, max_length: int, **kwargs):
        super().__init__(**kwargs)
        if not is_width(max_length):
            raise ValueError(
                f"max_length must be a positive int. Received: max_length={max_length!r}"
            )
        self.max_length = max_length
        self.query_dense = None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.query_dense = self.add_dense("query", query_shape[-1], self.max_length)

    def readable(self, projected_key):
        return _positions(projected_key) < self.max_length  # (S,)

    def compare(self, query, projected_key):
        scores = widen(project(self.query_dense, query))  # (B, T, L)
        positions = ops.minimum(_positions(projected_key), self.max_length - 1)
        scores = ops.take(scores, positions, axis=-1)  # (B, T, S)
        # No `normalizer` sees this one, but whoever calls the score by itself.
        return ops.where(self.readable(projected_key), scores, below(scores))

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}


def _positions(key):
    return ops.arange(ops.shape(key)[-2], dtype="int32")  # (S,)


@register
class MultiDimensionalScore(Kernels, Score):
    """Several scores for each pair: `e_k = tanh(q^T W_k v)` for k = 1 ... K.

    A layer around it reads one context for each of the K.

    Args:
        dimensions: number K of scores.
        kernel_initializer: of `W`, the K matrices side by side, (Dq, K Dk).
        kernel_regularizer: of `W`.
        kernel_constraint: of `W`.

    Call arguments:
        query: (B, T, Dq); an axis of heads is refused, for it is where the K stand.
        key: (B, S, Dk).

    Returns:
        Scores (B, K, T, S). Beside them the queries take memory O(K T Dk).

    Raises:
        ValueError: in `__init__`, when `dimensions` is not a positive int; in `build`, when a
            rank is not 3 or a width is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_attention import Attention, MultiDimensionalScore
    >>> query, memory = np.ones((2, 3, 4), "float32"), np.ones((2, 5, 7), "float32")
    >>> Attention(MultiDimensionalScore(dimensions=6))(query, memory).shape.as_list()
    [2, 6, 3, 7]

    Reference:
        Wang, Pan, Dahlmeier, Xiao, "Coupled Multi-Layer Attentions for Co-Extraction of Aspect
        and Opinion Terms", AAAI 2017, equation 1, the tensor operator. There a recurrent network
        makes one score of the K; here each is normalised by itself.
    """

    def __init__(self, dimensions: int, **kwargs):
        super().__init__(**kwargs)
        if not is_width(dimensions):
            raise ValueError(
                f"dimensions must be a positive int. Received: dimensions={dimensions!r}"
            )
        self.dimensions = dimensions
        self.query_dense = None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        if len(query_shape) != 3:
            raise ValueError(
                "MultiDimensionalScore has an axis of its own where heads would stand: it needs "
                "a query of shape (batch, length, width). "
                f"Received: query_shape={tuple(query_shape)}"
            )
        self.query_dense = self.add_dense("query", query_shape[-1], self.dimensions * key_shape[-1])

    def compare(self, query, projected_key):
        # The queries are multiplied first: in a decoder there is one, of many keys.
        shape = (*ops.shape(query)[:2], self.dimensions, projected_key.shape[-1])
        queries = ops.swapaxes(ops.reshape(self.query_dense(query), shape), 1, 2)  # (B, K, T, Dk)
        keys = ops.swapaxes(ops.expand_dims(projected_key, 1), -1, -2)  # (B, 1, Dk, S)
        scores = ops.matmul(widen(queries), widen(keys))  # (B, K, T, S)
        return ops.cast(ops.tanh(scores), scores.dtype)  # on JAX Keras's tanh narrows float64

    def compute_output_shape(self, query_shape, key_shape):
        return (query_shape[0], self.dimensions, query_shape[1], key_shape[1])

    def get_config(self):
        return {**super().get_config(), "dimensions": self.dimensions}


def is_width(width) -> bool:
    """Whether this is a positive int; True is none."""
    return isinstance(width, int) and not isinstance(width, bool) and width > 0


def get(score: str | dict | Score, **kwargs) -> Score:
    """The score of that name or config, or the score itself.

    Args:
        score: a name (`"dot"`, `"scaled_dot"`, `"bilinear"` or its other name `"general"`,
            `"additive"`, `"mlp"`, `"cosine"`, `"relative"`, `"alibi"`), a serialized score, or a
            `Score`.
        **kwargs: arguments of a score that is given by name.

    Raises:
        ValueError: for an unknown name, naming those there are.
    """
    if isinstance(score, Score):
        return score
    if isinstance(score, str) and score in _NAMED:
        return _NAMED[score](**kwargs)
    if isinstance(score, dict):
        return revived(score)
    raise ValueError(
        f"score must be one of {', '.join(_NAMED)}, or a Score, as for those that need an "
        f"argument: LocationScore(max_length), MultiDimensionalScore(dimensions). "
        f"Received: score={score!r}"
    )


def placeless(score: str | dict | Score, dtype) -> Score:
    """The score of `get`, which must not depend on where query and key stand.

    Raises:
        ValueError: for an unknown name, and for a score that does.
    """
    score = get(score, dtype=dtype)
    if score.positional:
        raise ValueError(
            "score must not depend on positions: these queries stand nowhere among the keys. "
            f"Received: score={type(score).__name__}"
        )
    return score


def pair_score(score: str | dict | Score, dtype, refused=()) -> Score:
    """The score of `get`, which must be one number for a query and a key, wherever they stand.

    Args:
        score: a name, a config or a `Score`.
        dtype: of a score that is given by name.
        refused: further classes of scores that are not that.

    Raises:
        ValueError: for an unknown name, and for a score that is not that.
    """
    score = get(score, dtype=dtype)
    if score.dimensions is not None or score.positional or isinstance(score, refused):
        raise ValueError(
            "score must give one score for each pair of query and key, wherever they stand. "
            f"Received: score={type(score).__name__}"
        )
    return score
