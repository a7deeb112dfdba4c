"""Heads: what multi-head self-attention and cross-attention have in common.

Project, split into heads, attend with each, put together, project. A subclass says what queries
and keys are made of and what a query may read.
"""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import attend, read
from .kernels import KernelLayer, fresh
from .regularizers import penalty
from .scores import is_width
from .shapes import check_batches, check_built, check_mask, check_shapes


class WeightedLayer(KernelLayer):
    """Base of layers with kernels and biases: holds what Keras lets one say of either.

    Args:
        use_bias: whether the dense layers inside add a bias.
        bias_initializer: of every bias.
        bias_regularizer: of every bias.
        bias_constraint: of every bias.
        **kwargs: see `KernelLayer`.
    """

    def __init__(
        self,
        use_bias=True,
        bias_initializer="zeros",
        bias_regularizer=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def kernel_arguments(self):
        return {
            **super().kernel_arguments(),
            "bias_initializer": fresh(self.bias_initializer),
            "bias_regularizer": self.bias_regularizer,
            "bias_constraint": self.bias_constraint,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


class MultiHead(WeightedLayer):
    """Base of attention with heads: `y = [c_1; ...; c_H] W_o`.

    `c_h = sum_s a_hs v_gs` with `a_h = normalizer(score(q_h, k_g))`, where head h reads the keys
    and values of group `g = h // (H / G)`, G = `num_key_value_heads`. The arguments, and what a
    score of several dimensions does, are told in `SelfAttention`.
    """

    def __init__(
        self,
        num_heads=1,
        key_dim=None,
        value_dim=None,
        num_key_value_heads=None,
        score="scaled_dot",
        normalizer="softmax",
        dropout=0.0,
        weights_regularizer=None,
        use_output=True,
        output_dim=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.num_key_value_heads = num_key_value_heads
        self.score = scores.get(score, dtype=self.dtype_policy)
        self.normalizer = normalizers.get(normalizer)
        self.dropout = dropout
        self.weights_regularizer = penalty(weights_regularizer)
        self.use_output = use_output
        self.output_dim = output_dim
        self.seed = seed
        self._check_arguments()

        self._groups = num_key_value_heads or num_heads
        # A score of several dimensions compares queries and keys as a whole, once for each head.
        self._parts = (None, None) if self.score.dimensions else (num_heads, self._groups)
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self._widths = None  # of the inputs; known when built
        self._query = None
        self._key = None
        self._value = None
        self._output = None
        self.supports_masking = True

    def _check_arguments(self):
        for name in ("num_heads", "key_dim", "value_dim", "num_key_value_heads", "output_dim"):
            value = getattr(self, name)
            if not (is_width(value) or (value is None and name != "num_heads")):
                raise ValueError(f"{name} must be a positive int. Received: {name}={value!r}")
        if self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "num_heads must be a multiple of num_key_value_heads. Received: "
                f"num_heads={self.num_heads}, num_key_value_heads={self.num_key_value_heads}"
            )
        dimensions = self.score.dimensions
        if dimensions is not None and (
            dimensions != self.num_heads or self.num_key_value_heads not in (None, self.num_heads)
        ):
            raise ValueError(
                "a multi-dimensional score has one dimension for each head, and each head its own "
                f"keys. Received: score.dimensions={dimensions}, num_heads={self.num_heads}, "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.output_dim is not None and not self.use_output:
            raise ValueError(
                "output_dim is the width of the output projection. "
                f"Received: output_dim={self.output_dim}, use_output={self.use_output}"
            )

    def _head_widths(self, query_width):
        """Width of a key and of a value of one head."""
        if self.key_dim is None and query_width % self.num_heads:
            raise ValueError(
                "the width must be a multiple of num_heads where key_dim is not given. "
                f"Received: num_heads={self.num_heads}, width={query_width}"
            )
        key_dim = self.key_dim or query_width // self.num_heads
        return key_dim, self.value_dim or key_dim

    def output_width(self, query_width):
        """The width that comes out, for queries of this width."""
        if self.use_output:
            return self.output_dim or query_width
        return self.num_heads * self._head_widths(query_width)[1]

    def _compared_shape(self, query_width):
        """Shape of the queries, and of the keys, that the score sees."""
        key_dim, _ = self._head_widths(query_width)
        if self.score.dimensions:
            return (None, None, self.num_heads * key_dim)
        return (None, self.num_heads, None, key_dim)

    def _build_heads(self, query_width, memory_width):
        key_dim, value_dim = self._head_widths(query_width)
        self._query = self.add_dense("query", query_width, self.num_heads * key_dim)
        self._key = self.add_dense("key", memory_width, self._groups * key_dim)
        self._value = self.add_dense("value", memory_width, self._groups * value_dim)
        if self.use_output:
            width = self.output_width(query_width)
            self._output = self.add_dense("output", self.num_heads * value_dim, width)
        compared = self._compared_shape(query_width)
        self.score.build(compared, compared)
        normalizers.build(self.normalizer, self.score.compute_output_shape(compared, compared))

    def _project_query(self, query):
        return _split(self._query(query), self._parts[0])  # (B, H, T, d), or whole (B, T, H d)

    def _project_key(self, memory):
        return _split(self._key(memory), self._parts[1])  # (B, G, S, d), or whole (B, S, H d)

    def _project_value(self, memory):
        return _split(self._value(memory), self._groups)  # (B, G, S, dv)

    def _attend(self, query, projected_key, value, mask, training, offset=None):
        """The output (B, T, U) and the weights (B, H, T, S)."""
        repeats = self.num_heads // self._groups
        if repeats > 1:  # a group of heads reads one key
            projected_key = ops.repeat(projected_key, repeats, axis=1)  # (B, H, S, ...)
            value = ops.repeat(value, repeats, axis=1)  # (B, H, S, dv)
        weights = attend(
            self.score, self.normalizer, query, projected_key, mask, training, offset
        )  # (B, H, T, S)
        if self.weights_regularizer is not None:
            self.add_loss(self.weights_regularizer(weights, mask))
        output = _merge(read(self._dropout(weights, training=training), value))  # (B, T, H dv)
        if self.use_output:
            output = self._output(output)
        return output, ops.cast(weights, self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "score": keras.saving.serialize_keras_object(self.score),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "dropout": self.dropout,
            "weights_regularizer": keras.regularizers.serialize(self.weights_regularizer),
            "use_output": self.use_output,
            "output_dim": self.output_dim,
            "seed": self.seed,
        }


def _split(x, heads):
    """(B, T, H d) -> (B, H, T, d); as it is where heads is None."""
    if heads is None:
        return x
    batch, length = ops.shape(x)[:2]
    x = ops.reshape(x, (batch, length, heads, x.shape[-1] // heads))
    return ops.transpose(x, (0, 2, 1, 3))


def _merge(x):
    """(B, H, T, d) -> (B, T, H d)."""
    batch, heads, length, width = ops.shape(x)
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


@keras.saving.register_keras_serializable("keras_attention")
class CrossAttention(MultiHead):
    """Multi-head attention of queries over a memory, each with its own mask.

    The arguments are those of `SelfAttention` without `direction`, `window` and `positions`.

    Args:
        num_heads: number of heads H.
        key_dim: width of a query and a key in each head; the query's width over H when None.
        **kwargs: see `SelfAttention`.

    Call arguments:
        query: (B, T, D).
        memory: (B, S, Dm); not needed beside `projected_memory`.
        query_mask: boolean (B, T). A padded query leaves as zeros.
        memory_mask: boolean (B, S), True = may be read.
        attention_mask: boolean (B, T, S).
        projected_memory: what `project_memory` made of the memory, in its place.
        return_attention_scores: whether to return the weights too.
        training: whether to drop weights.

    Returns:
        (B, T, D); with `return_attention_scores` the pair of it and the weights (B, H, T, S). A
        real query with nothing to read gives the bias of the output projection.

    Raises:
        ValueError: in `__init__`, for numbers that do not fit; in `build`, for a wrong rank or
            width; in the call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention.heads import CrossAttention
    >>> query, memory = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 6), "float32")
    >>> CrossAttention(num_heads=4)(query, memory).shape.as_list()
    [2, 3, 8]

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.
    """

    def build(self, query_shape, memory_shape=None):
        if memory_shape is None:
            raise ValueError("CrossAttention is built with a memory. Received: memory=None")
        check_shapes({"query": (query_shape, (3,)), "memory": (memory_shape, (3,))})
        self._widths = {"query": query_shape[-1], "memory": memory_shape[-1]}
        self._build_heads(query_shape[-1], memory_shape[-1])
        self.built = True

    def project_memory(self, memory, memory_mask=None):
        """What every query reads of a memory, computed once: `(keys, values)`.

        Args:
            memory: (B, S, Dm).
            memory_mask: boolean (B, S).

        Returns:
            Projected keys (B, G, S, ...) and values (B, G, S, dv).
        """
        check_built(self, "project_memory")
        if memory_mask is not None:
            memory = masking.select(memory, ops.cast(memory_mask, "bool"))
        return self.score.project_key(self._project_key(memory)), self._project_value(memory)

    def call(
        self,
        query,
        memory=None,
        query_mask=None,
        memory_mask=None,
        attention_mask=None,
        projected_memory=None,
        return_attention_scores=False,
        training=None,
    ):
        shapes = {"query": query.shape}
        if memory is not None:
            shapes["memory"] = memory.shape
        elif projected_memory is None:
            raise ValueError("a memory or a projected_memory is needed. Received: memory=None")
        check_shapes({name: (shape, (3,)) for name, shape in shapes.items()}, self._widths)
        check_batches(**shapes)
        batch, queries = query.shape[:2]
        keys = projected_memory[1].shape[-2] if memory is None else memory.shape[1]
        check_mask("query_mask", query_mask, (batch, queries))
        check_mask("memory_mask", memory_mask, (batch, keys))
        check_mask("attention_mask", attention_mask, (batch, queries, keys))
        if query_mask is not None:
            query_mask = ops.cast(query_mask, "bool")
            query = masking.select(query, query_mask)
        mask = masking.combine_masks(
            masking.over_queries(query_mask), masking.over_keys(memory_mask), attention_mask
        )  # (B, T, S), each axis may be 1

        if projected_memory is None:
            readable = None if mask is None else ops.any(mask, axis=-2)
            projected_memory = self.project_memory(memory, readable)
        output, weights = self._attend(
            self._project_query(query), *projected_memory, mask, training
        )
        if query_mask is not None:
            output = masking.select(output, query_mask)
        return (output, weights) if return_attention_scores else output

    def compute_output_spec(
        self,
        query,
        memory=None,
        *args,
        projected_memory=None,
        return_attention_scores=False,
        **kwargs,
    ):
        batch, queries, width = query.shape
        keys = projected_memory[1].shape[-2] if memory is None else memory.shape[1]
        output = keras.KerasTensor((batch, queries, self.output_width(width)), self.compute_dtype)
        weights = keras.KerasTensor((batch, self.num_heads, queries, keys), self.compute_dtype)
        return (output, weights) if return_attention_scores else output
