"""Memories of slots that are read in several hops: key-value and end-to-end memory networks."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import attend, read
from .kernels import KernelLayer, fresh, widely
from .normalizers import wide_dtype
from .scores import is_width
from .shapes import check_batches, check_mask, check_shapes


def position_encoding(words, mask=None):
    """A sentence as a sum of its words that knows their order: `sum_j l_j * w_j`.

    `l_kj = (1 - j/J) - (k/d) (1 - 2 j/J)` for word `j` of `J` and component `k` of `d`, both
    counted from 1.

    Args:
        words: (..., W, D), the words of sentences.
        mask: boolean (..., W), True = may be read. `j` and `J` count the words that may.

    Returns:
        Sentences (..., D), zeros where there is no word.

    Example:

    >>> import numpy as np
    >>> from keras_attention import position_encoding
    >>> position_encoding(np.ones((1, 2, 4), "float32")).numpy().tolist()
    [[0.75, 1.0, 1.25, 1.5]]

    Reference:
        Sukhbaatar, Szlam, Weston, Fergus, "End-To-End Memory Networks", NeurIPS 2015, section
        4.1. `J` is the length of each sentence; programs often take that of the longest.
    """
    return _encoded(_bags(words, mask))


def _bags(words, mask=None):
    """`sum_j (1 - j/J) w_j` and `sum_j (1 - 2 j/J) w_j`, (..., 2, D), of words (..., W, D).

    A projection of these is that of all words, for which position encoding is the first less
    `k/d` times the second.
    """
    dtype = wide_dtype(words.dtype)
    real = ops.ones_like(words[..., 0], dtype=dtype)  # (..., W)
    if mask is not None:
        mask = ops.cast(mask, "bool")
        words, real = masking.select(words, mask), ops.where(mask, real, 0.0)
    length = ops.maximum(ops.sum(real, axis=-1, keepdims=True), 1.0)  # J, (..., 1)
    order = ops.cumsum(real, axis=-1) / length  # j/J, (..., W)
    weights = ops.stack([1.0 - order, 1.0 - 2.0 * order], axis=-2)  # (..., 2, W)
    return ops.matmul(ops.cast(weights, words.dtype), words)


def _encoded(bags):
    depth = bags.shape[-1]
    component = ops.arange(1, depth + 1, dtype=wide_dtype(bags.dtype)) / depth  # k/d, (D,)
    return bags[..., 0, :] - bags[..., 1, :] * ops.cast(component, bags.dtype)


class _Update(KernelLayer):
    """How a query goes on after a hop: `update(query, context, question, hop=k)`, each (B, D).

    `question` is the query before the first hop.
    """

    def __init__(self, hops, recurrent_initializer, **kwargs):
        super().__init__(**kwargs)
        self.hops = hops
        self.recurrent_initializer = recurrent_initializer
        self.maps = []
        self.supports_masking = True


class _Sum(_Update):
    """`q + o`."""

    def build(self, query_shape, context_shape, question_shape):
        if query_shape[-1] != context_shape[-1]:
            raise ValueError(
                "this update adds what is read to the query, so that values and queries need one "
                f"width; 'gru' and 'relu' take two. Received: query_shape={tuple(query_shape)}, "
                f"value_shape={tuple(context_shape)}"
            )

    def call(self, query, context, question, hop):
        return query + context


class _Linear(_Sum):
    """`R_k (q + o)`, a matrix for each hop."""

    def build(self, query_shape, context_shape, question_shape):
        super().build(query_shape, context_shape, question_shape)
        width = query_shape[-1]
        self.maps = [self.add_kernel(f"hop_{k}", (width, width)) for k in range(self.hops)]

    def call(self, query, context, question, hop):
        return ops.matmul(query + context, self.maps[hop])


class _RNN(_Sum):
    """`H q + o`, one matrix for all hops."""

    def build(self, query_shape, context_shape, question_shape):
        super().build(query_shape, context_shape, question_shape)
        self.maps = [self.add_kernel("map", (query_shape[-1], query_shape[-1]))]

    def call(self, query, context, question, hop):
        return ops.matmul(query, self.maps[0]) + context


class _ReLU(_Update):
    """`relu(W_k [q; o; question] + b_k)`, a layer for each hop."""

    def build(self, query_shape, context_shape, question_shape):
        width = query_shape[-1] + context_shape[-1] + question_shape[-1]
        self.maps = [self.add_dense(f"hop_{k}", width, query_shape[-1]) for k in range(self.hops)]

    def call(self, query, context, question, hop):
        return ops.relu(self.maps[hop](ops.concatenate([query, context, question], axis=-1)))


class _GRU(_Update):
    """`GRU(o, q)`, one cell for all hops."""

    def build(self, query_shape, context_shape, question_shape):
        cell = keras.layers.GRUCell(
            query_shape[-1],
            recurrent_initializer=widely(self.recurrent_initializer),
            name="gru",
            **self.kernel_arguments(),
        )
        cell.build((None, context_shape[-1]))
        self.maps = [cell]

    def call(self, query, context, question, hop):
        output, _ = self.maps[0](context, [query])
        return ops.cast(output, self.compute_dtype)  # Keras's tanh narrows float64 on JAX


_UPDATES = {"sum": _Sum, "linear": _Linear, "rnn": _RNN, "relu": _ReLU, "gru": _GRU}


class HopsLayer(KernelLayer):
    """Base of layers that read a memory in hops, after each of which the query goes on."""

    def __init__(
        self,
        hops,
        update,
        normalizer,
        recurrent_initializer="orthogonal",
        use_bias=True,
        **kwargs,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        if not is_width(hops):
            raise ValueError(f"hops must be a positive int. Received: hops={hops!r}")
        if update not in _UPDATES:
            raise ValueError(
                f"update must be one of {', '.join(_UPDATES)}. Received: update={update!r}"
            )
        self.hops = hops
        self.update = update
        self.normalizer = normalizers.get(normalizer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self._widths = None  # of the inputs; known when built
        self._update = _UPDATES[update](hops, name="update", **self.recurrent_arguments())
        self.supports_masking = True

    def recurrent_arguments(self):
        """What this layer was told of kernels, for a layer inside it that has a recurrent one."""
        return {
            "recurrent_initializer": fresh(self.recurrent_initializer),
            **self.kernel_arguments(),
        }

    def compute_mask(self, inputs, previous_mask=None):
        return None  # one vector a row comes out

    def get_config(self):
        return {
            **super().get_config(),
            "hops": self.hops,
            "update": self.update,
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
        }


class _View(KernelLayer):
    """What a hop sees of a memory: `A x_i + T(i)`, and of words `sum_j l_j * A x_ij + T(i)`.

    Without `units` there is no `A`, without `ages` no `T`. Words come as their `_bags`: what there
    is to project is then two rows a sentence, whatever its length.
    """

    def __init__(self, units, ages, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.ages = ages
        self.kernel = None
        self.temporal = None
        self.supports_masking = True

    def build(self, memory_shape):
        width = memory_shape[-1]
        if self.units is not None:
            self.kernel = self.add_kernel("kernel", (width, self.units))
        if self.ages is not None:
            self.temporal = self.add_kernel("temporal", (self.ages, self.units or width))

    def call(self, memory, age=None):
        if self.kernel is not None:
            memory = ops.matmul(memory, self.kernel)  # (B, S, U) or (B, S, 2, U)
        if len(memory.shape) == 4:
            memory = _encoded(memory)
        if age is not None:
            memory = memory + ops.take(self.temporal, age, axis=0)
        return memory  # (B, S, U)


# Which view the query, the keys of each hop and the values of each hop are seen by.
_TYINGS = {
    "layerwise": lambda hops: (0, [1] * hops, [2] * hops),
    "adjacent": lambda hops: (0, [*range(hops)], [*range(1, hops + 1)]),
}


@keras.saving.register_keras_serializable("keras_attention")
class KeyValueMemory(HopsLayer):
    """Reads a memory of keys and values in several hops, each asking with what was read before.

    In hop k the query `q_k` addresses the keys `m_i`, reads the values `c_i` and goes on:

        p_ki = normalizer(score(q_k, m_ki), mask)
        o_k = sum_i p_ki c_ki
        q_{k+1} = update(q_k, o_k)

    Key-value memory networks are the default: keys and values come embedded, `m_ki = key_i` and
    `c_ki = value_i`, and `q_{k+1} = R_k (q_k + o_k)`. In end-to-end memory networks the memory is
    one of sentences `x_i`, bags of words or embedded, of which `units` makes keys and values:

        q_1 = B q     m_ki = A_k x_i + T_Ak(i)     c_ki = C_k x_i + T_Ck(i)

    with `tying="layerwise"`, `A_k = A` and `C_k = C` (there with `update="rnn"`), or `"adjacent"`,
    `A_{k+1} = C_k` and `B = A_1` (with `update="sum"`). `T`, of `temporal`, is tied as they are.

    A query or a memory of one more axis is one of words: each sentence is the sum of its projected
    words by position encoding, `m_ki = sum_j l_j * (A_k x_ij)`; see `position_encoding`. To sum
    words up without it, sum them before: `A` of a sum is the sum of `A`s, and a sum of embedded
    words that of one-hot ones.

    Args:
        hops: number K of hops.
        update: how the query goes on: `"linear"`, `R_k (q + o)`; `"sum"`, `q + o`; `"rnn"`,
            `H q + o`; `"gru"`, `GRU(o, q)`; `"relu"`, `relu(W_k [q; o; q_1] + b_k)`.
        score: a name or a `Score`; see `Attention`.
        normalizer: a name or a callable; see `Attention`. `linear` is the one to start with.
        units: width U of the projections `A`, `B` and `C`; None where all is read as it comes.
        tying: `"layerwise"` or `"adjacent"`. The latter wants query, key and value of one width.
        temporal: how many ages of memories are told apart by learned rows `T`, of which row 0 is
            the last memory's that may be read; what is older than all is not read. None for none.
        kernel_initializer: of all kernels but the recurrent one of `"gru"`, and of `T`.
        recurrent_initializer: of the recurrent kernel of `"gru"`.
        kernel_regularizer: of what `kernel_initializer` names.
        kernel_constraint: of what `kernel_initializer` names.
        use_bias: whether `"gru"` and `"relu"` add biases; nothing else does.

    Call arguments:
        query: (B, D), or of words (B, W, D).
        key: (B, S, Dk), or of words (B, S, W, Dk).
        value: (B, S, Dv), or of words (B, S, W, Dv); the key when None.
        query_mask: boolean, as the query without its width, True = may be read.
        key_mask: boolean, as the key without its width. A sentence may be read if a word may.
        value_mask: boolean, as the value without its width.
        return_attention_scores: whether to return the weights too.
        training: handed on to the normalizer.

    Returns:
        The query after the last hop, (B, D) or (B, U); with `return_attention_scores` the pair of
        it and the weights of each hop, (B, K, S). A row with nothing to read goes on from contexts
        of zeros; one whose query is masked is zero.

    Raises:
        ValueError: in `__init__`, for an unknown name or a number that is none; in `build`, for a
            wrong rank or widths that do not fit; in the call, for a mask of the wrong rank or
            length.

    Example:

    >>> import keras
    >>> from keras_attention import KeyValueMemory
    >>> story = keras.Input((None, None), dtype="int32")
    >>> question = keras.Input((None,), dtype="int32")
    >>> embedding = keras.layers.Embedding(50, 16, mask_zero=True)
    >>> memory = KeyValueMemory(3, update="sum", units=20, tying="adjacent", temporal=30)
    >>> memory(embedding(question), embedding(story)).shape
    (None, 20)

    Reference:
        Miller et al., "Key-Value Memory Networks for Directly Reading Documents", EMNLP 2016,
        section 3.2; hashing, which chooses the memory, comes before. Sukhbaatar, Szlam, Weston,
        Fergus, "End-To-End Memory Networks", NeurIPS 2015, sections 2 and 4.1; the matrix of the
        answers, with adjacent tying the last `C`, comes after.
    """

    def __init__(
        self,
        hops=1,
        update="linear",
        score="dot",
        normalizer="softmax",
        units=None,
        tying="layerwise",
        temporal=None,
        **kwargs,
    ):
        super().__init__(hops, update, normalizer, **kwargs)
        for name, number in (("units", units), ("temporal", temporal)):
            if not (number is None or is_width(number)):
                raise ValueError(
                    f"{name} must be a positive int or None. Received: {name}={number!r}"
                )
        if tying not in _TYINGS:
            raise ValueError(
                f"tying must be one of {', '.join(_TYINGS)}. Received: tying={tying!r}"
            )
        self.score = scores.placeless(score, self.dtype_policy)
        self.units = units
        self.tying = tying
        self.temporal = temporal
        self._query_view, self._key_views, self._value_views = _TYINGS[tying](hops)
        memories = {*self._key_views, *self._value_views}
        self._views = [
            _View(
                units,
                temporal if i in memories else None,
                name=f"view_{i}",
                **self.kernel_arguments(),
            )
            for i in range(max(memories) + 1)
        ]

    def build(self, query_shape, key_shape, value_shape=None):
        value_shape = key_shape if value_shape is None else value_shape
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        self._check_shapes(shapes)
        self._widths = {name: shape[-1] for name, shape in shapes.items()}
        if self.tying == "adjacent" and len({*self._widths.values()}) > 1:
            received = ", ".join(f"{name}_shape={tuple(shape)}" for name, shape in shapes.items())
            raise ValueError(
                "adjacent tying projects query, key and value by the same matrices, so they must "
                f"have one width. Received: {received}"
            )
        for i, name in {
            self._query_view: "query",
            **dict.fromkeys(self._key_views, "key"),
            **dict.fromkeys(self._value_views, "value"),
        }.items():
            self._views[i].build((None, None, self._widths[name]))
        query, key, value = (
            (None, None, self._widths[name] if self.units is None else self.units)
            for name in ("query", "key", "value")
        )
        self.score.build(query, key)
        if self.score.dimensions is not None:
            raise ValueError(
                "a memory is read by one score for each pair, not by several. "
                f"Received: score={self.score.name!r} of {self.score.dimensions} dimensions"
            )
        normalizers.build(self.normalizer, (None, 1, None))
        self._update.build(query[1:], value[1:], query[1:])
        self.built = True

    def _check_shapes(self, shapes):
        check_shapes({"query": (shapes["query"], (2, 3))}, self._widths)
        memories = {name: (shapes[name], (3, 4)) for name in ("key", "value")}
        check_shapes(memories, self._widths, same_length=True)
        check_batches(**shapes)

    def call(
        self,
        query,
        key,
        value=None,
        query_mask=None,
        key_mask=None,
        value_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        one_memory = value is None
        value = key if one_memory else value
        self._check_shapes({"query": query.shape, "key": key.shape, "value": value.shape})
        check_mask("query_mask", query_mask, query.shape[:-1])
        check_mask("key_mask", key_mask, key.shape[:-1])
        check_mask("value_mask", value_mask, value.shape[:-1])
        if one_memory:
            key_mask, value_mask = masking.combine_masks(key_mask, value_mask), None

        query = ops.expand_dims(query, 1)  # a memory of one slot, (B, 1, D) or (B, 1, W, D)
        query_mask = None if query_mask is None else ops.expand_dims(query_mask, 1)
        asked = _sentences(query_mask)  # (B, 1)
        readable = masking.combine_masks(_sentences(key_mask), _sentences(value_mask))  # (B, S)
        age = None
        if self.temporal is not None:
            age = _age(key, readable)  # (B, S)
            readable = masking.combine_masks(readable, age < self.temporal)
            age = ops.minimum(age, self.temporal - 1)
        readable = masking.combine_masks(readable, asked)

        query = self._see([self._query_view], query, query_mask, asked)[self._query_view]
        if one_memory:
            views = {*self._key_views, *self._value_views}
            keys = values = self._see(views, key, key_mask, readable, age)
        else:
            keys = self._see({*self._key_views}, key, key_mask, readable, age)
            values = self._see({*self._value_views}, value, value_mask, readable, age)
        query, weights = self._hop(ops.squeeze(query, 1), keys, values, readable, training)
        if asked is not None:
            query = masking.select(query, ops.squeeze(asked, 1))
        if return_attention_scores:
            return query, ops.cast(ops.concatenate(weights, axis=1), self.compute_dtype)
        return query

    def _see(self, views, memory, mask, readable, age=None):
        """A memory by each of the views, `{view: (B, S, U)}`.

        What nobody may read is selected away before, so that NaN in padding reaches neither the
        result nor a gradient.
        """
        if readable is not None:
            if len(memory.shape) == 4:
                readable = ops.expand_dims(readable, -1)  # of the words, (B, S, 1)
            mask = masking.combine_masks(mask, readable)
            memory = masking.select(memory, mask)
        if len(memory.shape) == 4:
            memory = _bags(memory, mask)
        return {view: self._views[view](memory, age) for view in views}

    def _hop(self, query, keys, values, readable, training):
        """The query (B, U) after all hops, and the weights (B, 1, S) of each."""
        projected = {view: self.score.project_key(keys[view]) for view in {*self._key_views}}
        mask = masking.over_keys(readable)  # (B, 1, S)
        question, weights = query, []
        for hop, (of_key, of_value) in enumerate(
            zip(self._key_views, self._value_views, strict=True)
        ):
            asking = ops.expand_dims(query, 1)  # (B, 1, U)
            found = attend(self.score, self.normalizer, asking, projected[of_key], mask, training)
            context = ops.squeeze(read(found, values[of_value]), 1)  # (B, U)
            query = self._update(query, context, question, hop=hop)
            weights.append(found)
        return query, weights

    def compute_output_spec(self, query, key, value=None, return_attention_scores=False, **kwargs):
        batch, width = query.shape[0], self.units or query.shape[-1]
        output = keras.KerasTensor((batch, width), self.compute_dtype)
        weights = keras.KerasTensor((batch, self.hops, key.shape[1]), self.compute_dtype)
        return (output, weights) if return_attention_scores else output

    def get_config(self):
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(self.score),
            "units": self.units,
            "tying": self.tying,
            "temporal": self.temporal,
        }


def _sentences(mask):
    """Which slots may be read, (B, S): of a mask of words (B, S, W) those with such a word."""
    if mask is None or len(mask.shape) == 2:
        return mask
    return ops.any(ops.cast(mask, "bool"), axis=-1)


def _age(memory, readable):
    """How many memories that may be read are newer, (B, S): the last of them has age 0."""
    real = ops.ones(ops.shape(memory)[:2], dtype="int32")
    if readable is not None:
        real = ops.cast(readable, "int32")
    return ops.sum(real, axis=1, keepdims=True) - ops.cumsum(real, axis=1)
