"""Transformer blocks: attention and a feed-forward network, each with a residual connection."""

import keras
from keras import ops

from . import masking
from .given import build_given, given_layer
from .heads import CrossAttention, WeightedLayer
from .scores import is_width
from .self_attention import ONWARD, SelfAttention
from .shapes import check_built, check_mask, check_shapes

register = keras.saving.register_keras_serializable("keras_attention")


class _Block(WeightedLayer):
    """Base of the blocks: `norm(x + f(x))`, or `x + f(norm(x))`, for one sublayer after another."""

    _direction = None  # of the self-attention that the block makes for itself
    _sublayers = 2

    def __init__(
        self,
        intermediate_dim,
        num_heads=None,
        attention=None,
        activation="relu",
        dropout=0.0,
        layer_norm_epsilon=1e-5,
        normalize_first=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, number in (("intermediate_dim", intermediate_dim), ("num_heads", num_heads)):
            if not (is_width(number) or (number is None and name == "num_heads")):
                raise ValueError(f"{name} must be a positive int. Received: {name}={number!r}")
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.seed = seed
        self.attention = self._given_or_made(
            attention, SelfAttention, "attention", direction=self._direction
        )

        self._widths = None  # of the inputs; known when built
        self._norms = []
        self._hidden = None
        self._output = None
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self.supports_masking = True

    def _given_or_made(self, attention, kind, name, **kwargs):
        """The attention that was given, or one made of the block's own arguments."""
        attention = given_layer(attention, kind, name)
        if attention is not None:
            return attention
        if self.num_heads is None:
            raise ValueError(
                f"num_heads is needed where {name} is not given. Received: num_heads=None"
            )
        return kind(
            self.num_heads,
            dropout=self.dropout,
            seed=self.seed,
            name=name,
            **self.kernel_arguments(),
            **kwargs,
        )

    def _build_attention(self, name, *shapes):
        attention = getattr(self, name)
        width = shapes[0][-1]
        if attention.output_width(width) != width:
            raise ValueError(
                f"{name} must give the width {width} of the block's inputs, to which it is "
                f"added. Received: {name} of output width {attention.output_width(width)}"
            )
        build_given(attention, *shapes)

    def _build_block(self, inputs_shape):
        width = inputs_shape[-1]
        self._widths = {"inputs": width}
        self._build_attention("attention", inputs_shape)
        for i in range(self._sublayers):
            norm = keras.layers.LayerNormalization(
                epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=f"norm_{i}"
            )
            norm.build((None, None, width))
            self._norms.append(norm)
        self._hidden = self.add_dense("hidden", width, self.intermediate_dim)
        self._output = self.add_dense("output", self.intermediate_dim, width)

    def initial_cache(self, batch_size, length):
        """The cache of the self-attention before the first step: see `SelfAttention`."""
        check_built(self, "initial_cache")
        return self.attention.initial_cache(batch_size, length)

    def _real(self, inputs, name, mask):
        """The inputs with padding selected to 0, and the mask as booleans."""
        check_shapes({"inputs": (inputs.shape, (3,))}, self._widths)
        check_mask(name, mask, inputs.shape[:2])
        if mask is None:
            return inputs, None
        mask = ops.cast(mask, "bool")
        return masking.select(inputs, mask), mask

    def _sublayer(self, i, function, x, training):
        """Sublayer i around its residual connection, and what else it returns, as a list."""
        norm = self._norms[i]
        returned = function(norm(x) if self.normalize_first else x)
        output, *more = returned if isinstance(returned, tuple) else (returned,)
        x = x + self._dropout(output, training=training)
        return x if self.normalize_first else norm(x), more

    def _feed_forward(self, x):
        return self._output(self.activation(self._hidden(x)))

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "attention": keras.saving.serialize_keras_object(self.attention),
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "seed": self.seed,
        }


@register
class TransformerEncoderBlock(_Block):
    """A block of a Transformer encoder: self-attention, then a feed-forward network.

    `y = norm(x + attention(x))`, `z = norm(y + W_2 f(W_1 y + b_1) + b_2)`; with
    `normalize_first` the normalisation stands inside, `y = x + attention(norm(x))`, and a stack
    of such blocks wants one more `keras.layers.LayerNormalization` at its end.

    With a causal attention it is the block of a decoder-only language model:
    `TransformerEncoderBlock(256, attention=SelfAttention(4, direction="causal"))`. Scores,
    grouped heads, windows and rotary positions are said there too.

    Padded positions are read by none and leave as exact zeros. Dropout is applied to what each
    sublayer gives, as in the paper, and to the attention weights, as in its authors' code.

    Args:
        intermediate_dim: width of the hidden layer `W_1`.
        num_heads: number of heads of the attention, where that is not given.
        attention: a `SelfAttention`, of the output width that its input has. When None,
            `SelfAttention(num_heads)` with the dropout, initializers, regularizers, constraints,
            `use_bias` and seed of the block.
        activation: `f`. Keras's `"gelu"` is the exact one, which does not convert to ONNX; with
            `approximate=True` it does.
        dropout: fraction dropped in training.
        layer_norm_epsilon: what the normalisations add to the variance.
        normalize_first: whether to normalise before each sublayer instead of after it.
        use_bias: whether the projections add biases.
        kernel_initializer: of every kernel.
        bias_initializer: of every bias.
        kernel_regularizer: of every kernel.
        bias_regularizer: of every bias.
        kernel_constraint: of every kernel.
        bias_constraint: of every bias.
        seed: of the dropout.

    Call arguments:
        inputs: (B, T, D).
        mask: boolean (B, T), which positions are real.
        inputs_mask: the same, by the name under which Keras hands it over where a cache or an
            attention mask is given too; `mask` wins.
        attention_mask: boolean (B, T, T), True = may be read; over a cache (B, T, L).
        cache: for decoding step by step, from `initial_cache` or the call before; needs an
            attention of direction "causal" or "forward".
        cache_index: position of the first of these inputs.
        return_attention_scores: whether to return the weights too.
        training: whether to drop.

    Returns:
        (B, T, D). With `return_attention_scores` the weights (B, H, T, T), or over a cache (B, H,
        T, L), come second; with a cache the cache comes last.

    Raises:
        ValueError: in `__init__`, for numbers that do not fit or without heads; in `build`, for a
            wrong rank or width; in the call, for a mask of the wrong rank or length or a cache
            that does not fit.

    Example:

    >>> import keras
    >>> from keras_attention import TransformerEncoderBlock
    >>> model = keras.Sequential([keras.Input((None,), dtype="int32")])
    >>> model.add(keras.layers.Embedding(100, 32, mask_zero=True))
    >>> for _ in range(2):
    ...     model.add(TransformerEncoderBlock(intermediate_dim=64, num_heads=4))
    >>> model.output_shape
    (None, None, 32)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sections 3.1 and 3.3. With
        `normalize_first`: Xiong et al., "On Layer Normalization in the Transformer Architecture",
        ICML 2020, figure 1 (b).
    """

    def build(self, inputs_shape):
        check_shapes({"inputs": (inputs_shape, (3,))})
        self._build_block(inputs_shape)
        self.built = True

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
        x, mask = self._real(inputs, "mask", inputs_mask if mask is None else mask)

        def attention(x):
            return self.attention(
                x,
                mask=mask,
                attention_mask=attention_mask,
                cache=cache,
                cache_index=cache_index,
                return_attention_scores=return_attention_scores,
                training=training,
            )

        x, more = self._sublayer(0, attention, x, training)
        x, _ = self._sublayer(1, self._feed_forward, x, training)
        if mask is not None:
            x = masking.select(x, mask)
        return (x, *more) if more else x

    def compute_output_spec(self, inputs, *args, **kwargs):
        return self.attention.compute_output_spec(inputs, *args, **kwargs)


@register
class TransformerDecoderBlock(_Block):
    """A block of a Transformer decoder: causal self-attention, attention to a memory, feed-forward.

    Each of the three with a residual connection and a normalisation, as in
    `TransformerEncoderBlock`. (Without a memory, a decoder-only model is made of encoder blocks
    with causal attention.)

    Step by step, the keys and values of the memory are made once, by `project_memory`, and those
    of earlier steps are kept in a cache:

        projected = block.project_memory(memory, memory_mask)
        cache = block.initial_cache(batch_size, length)
        y, cache = block(x, projected_memory=projected, memory_mask=memory_mask,
                         cache=cache, cache_index=index)

    Args:
        intermediate_dim: width of the hidden layer.
        num_heads: number of heads of each attention that is not given.
        attention: a `SelfAttention` of direction "causal" or "forward"; when None,
            `SelfAttention(num_heads, direction="causal")` with the block's own dropout,
            initializers, regularizers, constraints, `use_bias` and seed.
        cross_attention: a `keras_attention.heads.CrossAttention`; when None, one of `num_heads`
            heads with the same arguments.
        activation: of the hidden layer.
        dropout: fraction dropped in training.
        layer_norm_epsilon: what the normalisations add to the variance.
        normalize_first: whether to normalise before each sublayer instead of after it.
        use_bias: whether the projections add biases.
        kernel_initializer: of every kernel.
        bias_initializer: of every bias.
        kernel_regularizer: of every kernel.
        bias_regularizer: of every bias.
        kernel_constraint: of every kernel.
        bias_constraint: of every bias.
        seed: of the dropout.

    Call arguments:
        inputs: (B, T, D), what was emitted before.
        memory: (B, S, Dm), what is read; not needed beside `projected_memory`.
        inputs_mask: boolean (B, T), which positions are real.
        memory_mask: boolean (B, S), True = may be read.
        projected_memory: what `project_memory` made of the memory, in its place.
        cache: for decoding step by step, from `initial_cache` or the call before.
        cache_index: position of the first of these inputs.
        return_attention_scores: whether to return the weights too.
        training: whether to drop.

    Returns:
        (B, T, D). With `return_attention_scores` the weights of the self-attention, (B, H, T, T)
        or over a cache (B, H, T, L), come second, and those over the memory, (B, H, T, S), third;
        with a cache the cache comes last.

    Raises:
        ValueError: in `__init__`, for numbers that do not fit, without heads, or for an attention
            that sees what comes after; in `build`, for a wrong rank or width; in the call, for a
            mask of the wrong rank or length or a cache that does not fit.

    Example:

    >>> import keras
    >>> from keras_attention import TransformerDecoderBlock
    >>> x, memory = keras.Input((None, 32)), keras.Input((None, 48))
    >>> TransformerDecoderBlock(intermediate_dim=64, num_heads=4)(x, memory).shape
    (None, None, 32)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sections 3.1 to 3.3. With
        `normalize_first`: Xiong et al., ICML 2020, figure 1 (b).
    """

    _direction = "causal"
    _sublayers = 3

    def __init__(
        self, intermediate_dim, num_heads=None, attention=None, cross_attention=None, **kwargs
    ):
        super().__init__(intermediate_dim, num_heads, attention, **kwargs)
        if self.attention.direction not in ONWARD:
            raise ValueError(
                f"a decoder's attention must have a direction of {' or '.join(ONWARD)}, or it "
                f"would see what it is to predict. Received: {self.attention.direction!r}"
            )
        self.cross_attention = self._given_or_made(
            cross_attention, CrossAttention, "cross_attention"
        )

    def build(self, inputs_shape, memory_shape=None):
        if memory_shape is None:
            raise ValueError("the block is built with a memory. Received: memory=None")
        check_shapes({"inputs": (inputs_shape, (3,)), "memory": (memory_shape, (3,))})
        self._build_block(inputs_shape)
        self._build_attention("cross_attention", inputs_shape, memory_shape)
        self.built = True

    def project_memory(self, memory, memory_mask=None):
        """The keys and values of a memory (B, S, Dm), computed once for all steps.

        Returns:
            Keys (B, G, S, ...) and values (B, G, S, value_dim).
        """
        check_built(self, "project_memory")
        return self.cross_attention.project_memory(memory, memory_mask)

    def call(
        self,
        inputs,
        memory=None,
        inputs_mask=None,
        memory_mask=None,
        projected_memory=None,
        cache=None,
        cache_index=None,
        return_attention_scores=False,
        training=None,
    ):
        x, inputs_mask = self._real(inputs, "inputs_mask", inputs_mask)
        flags = {"return_attention_scores": return_attention_scores, "training": training}

        def attention(x):
            return self.attention(
                x, mask=inputs_mask, cache=cache, cache_index=cache_index, **flags
            )

        def cross_attention(x):
            return self.cross_attention(
                x,
                memory,
                query_mask=inputs_mask,
                memory_mask=memory_mask,
                projected_memory=projected_memory,
                **flags,
            )

        x, more = self._sublayer(0, attention, x, training)
        x, alignment = self._sublayer(1, cross_attention, x, training)
        x, _ = self._sublayer(2, self._feed_forward, x, training)
        if inputs_mask is not None:
            x = masking.select(x, inputs_mask)
        own = len(alignment)  # the weights of each, or none
        returned = (x, *more[:own], *alignment, *more[own:])
        return returned if len(returned) > 1 else x

    def compute_output_spec(
        self, inputs, memory=None, *args, projected_memory=None, cache=None, **kwargs
    ):
        flags = {"return_attention_scores": kwargs.get("return_attention_scores", False)}
        own = self.attention.compute_output_spec(inputs, cache=cache, **flags)
        if not flags["return_attention_scores"]:
            return own
        output, weights, *cache = own
        _, alignment = self.cross_attention.compute_output_spec(
            inputs, memory, projected_memory=projected_memory, **flags
        )
        return (output, weights, alignment, *cache)

    def get_config(self):
        return {
            **super().get_config(),
            "cross_attention": keras.saving.serialize_keras_object(self.cross_attention),
        }
