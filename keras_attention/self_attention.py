"""Self-attention: each position of a sequence reads the others."""

from functools import partial

import keras
from keras import ops

from . import masking
from .given import build_given, given_layer
from .heads import MultiHead
from .loops import write_rows
from .scores import is_width
from .shapes import check_batches, check_built, check_mask, check_shapes

_DIRECTIONS = {
    None: None,
    "causal": masking.causal_mask,
    "forward": partial(masking.directional_mask, direction="forward"),
    "backward": partial(masking.directional_mask, direction="backward"),
    "no_diagonal": partial(masking.directional_mask, direction="no_diagonal"),
}
# In which no query reads what comes after it, so that a cache of what came before will do.
ONWARD = ("causal", "forward")


@keras.saving.register_keras_serializable("keras_attention")
class SelfAttention(MultiHead):
    """Multi-head self-attention with any score: `y_t = [c_1t; ...; c_Ht] W_o + b_o`.

    `c_ht = sum_s a_hts v_gs`, `a_ht = normalizer(score(q_ht, k_g))`, with
    `q_h = x W_q^h + b_q^h` and so on; head h reads the keys and values of its group g.

    Masks are boolean, True = may be read. A padded position has weight exactly 0 as a key and
    leaves as exact zeros as a query. A real position with nothing to read (the first one with
    `direction="forward"`) has weights and contexts of zero, and gives the bias of the output
    projection. What upstream layers say of padding arrives by itself; a mask that is given wins.

    A multi-dimensional score (`MultiDimensionalScore(dimensions=num_heads)`) sees the projected
    query and key as a whole and scores each head by a dimension of its own; only values are split
    into heads. With as many heads as features, `SelfAttention(D, score=MultiDimensionalScore(D),
    direction="forward")`, each feature has weights of its own: the token2token attention of
    DiSAN. There feature k is scored `c tanh([W_1 x_s + W_2 x_t + b]_k / c)` with c = 5; here
    `tanh(q_t^T W_k k_s)`, of the projections.

    `keras.layers.MultiHeadAttention` and `GroupQueryAttention` compute the same for the scaled dot
    product; their kernels have the heads in an axis of their own, and so other glorot limits. A
    row with nothing to read is a mean of all values there, and a causal mask begins at the first
    key, which is of no use over a cache.

    Args:
        num_heads: number of heads H.
        key_dim: width of a query and a key in each head; the input's width over H when None.
        value_dim: width of a value in each head; `key_dim` when None.
        num_key_value_heads: number of groups G, each of H / G heads that share keys and values
            (1: multi-query attention); H when None.
        score: a name (`"scaled_dot"`, `"additive"`, `"bilinear"`, ...) or a `Score`, such as
            `AlibiScore()` or `RelativePositionScore(max_distance=16)`. Its weights, where it
            has some, are shared by the heads.
        normalizer: a name (`"softmax"`, `"sparsemax"`, `"sigmoid"`) or a callable
            `(scores, mask, training) -> weights`.
        direction: which positions may be read: None, all; `"causal"`, those up to the own;
            `"forward"`, those before; `"backward"`, those behind; `"no_diagonal"`, all but the
            own.
        window: how far to either side positions may be read; None, without limit.
        positions: a layer that places queries and keys, such as `RotaryPositions()`.
        dropout: fraction of the weights dropped in training, after they are returned.
        weights_regularizer: a penalty on the weights, `(weights, mask) -> scalar`.
        use_bias: whether the projections add a bias.
        use_output: whether the heads' contexts go through an output projection, or leave side by
            side, (B, T, H value_dim).
        output_dim: width of the output; the input's when None.
        kernel_initializer: of every kernel of the projections.
        bias_initializer: of every bias of the projections.
        kernel_regularizer: of those kernels.
        bias_regularizer: of those biases.
        kernel_constraint: of those kernels.
        bias_constraint: of those biases.
        seed: of the dropout.

    Call arguments:
        inputs: (B, T, D).
        mask: boolean (B, T), which positions are real.
        inputs_mask: the same, by the name under which Keras hands it over where a cache or an
            attention mask is given too; `mask` wins.
        attention_mask: boolean (B, T, T); over a cache (B, T, L).
        cache: for decoding step by step, what `initial_cache` or the call before returned; needs
            the direction "causal" or "forward".
        cache_index: position of the first of these inputs, an int or an integer scalar tensor.
            Inputs may come one at a time or in chunks. They must fit: `cache_index + T <= L`.
            (On TensorFlow no gradient goes through a cache.)
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        (B, T, D). With `return_attention_scores` the weights, (B, H, T, T) or over a cache
        (B, H, T, L), come second, from before dropout; with a cache the cache comes last.

    Raises:
        ValueError: in `__init__`, for numbers and names that do not fit; in `build`, for a wrong
            rank or a width that H does not divide; in the call, for a mask of the wrong rank or
            length, or a cache that does not fit.

    Example:

    >>> import keras
    >>> from keras_attention import SelfAttention
    >>> model = keras.Sequential([keras.Input((None,), dtype="int32")])
    >>> model.add(keras.layers.Embedding(100, 32, mask_zero=True))
    >>> model.add(SelfAttention(num_heads=4))
    >>> model.output_shape
    (None, None, 32)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.2. Groups: Shazeer,
        "Fast Transformer Decoding: One Write-Head is All You Need", 2019, and Ainslie et al.,
        "GQA", EMNLP 2023, section 2.2. Directions and token2token: Shen et al., "DiSAN", AAAI
        2018, section 3.2 and equations 11 to 15. Windows: Beltagy, Peters, Cohan, "Longformer",
        2020, section 3.1 (there a window of w reads w / 2 to either side).
    """

    def __init__(
        self,
        num_heads=1,
        key_dim=None,
        value_dim=None,
        *,
        direction=None,
        window=None,
        positions=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        if direction not in _DIRECTIONS:
            raise ValueError(
                f"direction must be one of {', '.join(map(str, _DIRECTIONS))}. "
                f"Received: direction={direction!r}"
            )
        if not (window is None or is_width(window)):
            raise ValueError(f"window must be a positive int or None. Received: window={window!r}")
        self.direction = direction
        self.window = window
        self.positions = given_layer(positions, keras.layers.Layer, "positions")

    def build(self, inputs_shape):
        check_shapes({"inputs": (inputs_shape, (3,))})
        width = inputs_shape[-1]
        self._widths = {"inputs": width}
        self._build_heads(width, width)
        if self.positions is not None:
            build_given(self.positions, self._compared_shape(width))
        self.built = True

    def initial_cache(self, batch_size, length):
        """The cache before the first step: `(keys, values, readable)`, of zeros and False.

        Args:
            batch_size: number of rows B.
            length: most positions L that it will hold.

        Returns:
            Keys (B, G, L, ...) as the score projects them, values (B, G, L, value_dim), and which
            positions may be read, boolean (B, L).
        """
        check_built(self, "initial_cache")
        one = ops.zeros((1, 1, self._widths["inputs"]), dtype=self.compute_dtype)
        parts = self.score.project_key(self._project_key(one)), self._project_value(one)
        keys, values = (  # made for their shapes alone
            ops.zeros((batch_size, *x.shape[1:-2], length, x.shape[-1]), dtype=self.compute_dtype)
            for x in parts
        )
        return keys, values, ops.zeros((batch_size, length), dtype="bool")

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        cache=None,
        cache_index=None,
        return_attention_scores=False,
        training=None,
    ):
        check_shapes({"inputs": (inputs.shape, (3,))}, self._widths)
        self._check_cache(inputs.shape, cache, cache_index)
        batch, length = inputs.shape[:2]
        keys = length if cache is None else cache[0].shape[-2]
        mask = inputs_mask if mask is None else mask
        check_mask("mask", mask, (batch, length))
        check_mask("attention_mask", attention_mask, (batch, length, keys))
        if mask is not None:
            mask = ops.cast(mask, "bool")
            inputs = masking.select(inputs, mask)

        offset = 0 if cache is None else ops.cast(cache_index, "int32")
        query, key = self._project_query(inputs), self._project_key(inputs)
        if self.positions is not None:
            query = self.positions(query, start_index=offset)
            key = self.positions(key, start_index=offset)
        key, value = self.score.project_key(key), self._project_value(inputs)
        readable = mask
        if cache is not None:
            if mask is None:
                readable = ops.ones(ops.shape(inputs)[:2], dtype="bool")
            cache = key, value, readable = _written(cache, (key, value, readable), offset)

        allowed = masking.combine_masks(
            masking.over_queries(mask),
            masking.over_keys(readable),
            attention_mask,
            self._pattern(ops.shape(query)[-2], ops.shape(value)[-2], offset),
        )  # (B, T, S), each axis may be 1
        output, weights = self._attend(query, key, value, allowed, training, offset)
        if mask is not None:
            output = masking.select(output, mask)
        returned = (
            output,
            *([weights] if return_attention_scores else []),
            *([cache] if cache is not None else []),
        )
        return returned if len(returned) > 1 else output

    def _check_cache(self, inputs_shape, cache, cache_index):
        if (cache is None) != (cache_index is None):
            raise ValueError(
                "a cache needs the cache_index of the first input, and the other way round. "
                f"Received: cache={cache}, cache_index={cache_index}"
            )
        if cache is None:
            return
        if self.direction not in ONWARD:
            raise ValueError(
                f"a cache needs a direction of {' or '.join(ONWARD)}: it holds nothing of what "
                f"comes after. Received: direction={self.direction!r}"
            )
        if len(cache) != 3:
            raise ValueError(
                "cache must be (keys, values, readable), as initial_cache makes it. "
                f"Received: {len(cache)} tensors"
            )
        keys, values, _ = cache
        check_batches(inputs=inputs_shape, keys=keys.shape, values=values.shape)
        length, room = inputs_shape[1], values.shape[-2]
        known = isinstance(cache_index, int) and None not in (length, room)
        if known and not 0 <= cache_index <= room - length:
            raise ValueError(
                f"{length} inputs do not fit into a cache of length {room} from there on. "
                f"Received: cache_index={cache_index}"
            )

    def _pattern(self, queries, keys, offset):
        """What the direction and the window allow, (1, T, S); None where that is all."""
        direction = _DIRECTIONS[self.direction]
        window = None if self.window is None else partial(masking.window_mask, window=self.window)
        patterns = [mask(queries, keys, offset=offset) for mask in (direction, window) if mask]
        return ops.expand_dims(masking.combine_masks(*patterns), 0) if patterns else None

    def compute_output_spec(
        self, inputs, *args, cache=None, return_attention_scores=False, **kwargs
    ):
        batch, length, width = inputs.shape
        keys = length if cache is None else cache[0].shape[-2]
        output = keras.KerasTensor((batch, length, self.output_width(width)), self.compute_dtype)
        returned = [output]
        if return_attention_scores:
            shape = (batch, self.num_heads, length, keys)
            returned.append(keras.KerasTensor(shape, self.compute_dtype))
        if cache is not None:
            returned.append(tuple(keras.KerasTensor(x.shape, x.dtype) for x in cache))
        return tuple(returned) if len(returned) > 1 else output

    def get_config(self):
        return {
            **super().get_config(),
            "direction": self.direction,
            "window": self.window,
            "positions": keras.saving.serialize_keras_object(self.positions),
        }


def _written(cache, new, index):
    """The cache with what is new in its place, from `index` on along the axis of positions."""
    return tuple(
        write_rows(buffer, index, ops.cast(rows, buffer.dtype), axis)
        for buffer, rows, axis in zip(cache, new, (-2, -2, -1), strict=True)
    )
