"""Episodes: facts that are gone through in order, in each pass with a new memory of them."""

import keras
from keras import ops

from . import masking, normalizers
from .attention import read
from .attention_gru import AttentionGRU
from .memory import HopsLayer
from .normalizers import widen
from .scores import is_width
from .shapes import check_batches, check_mask, check_shapes


class _Soft(keras.layers.Layer):
    """Soft attention, `sum_i g_i f_i`, which does not know the order of the facts."""

    def build(self, facts_shape, gates_shape):
        pass

    def call(self, facts, gates):
        return ops.squeeze(read(ops.expand_dims(gates, 1), facts), 1)


_EPISODES = {
    "gru": lambda of, width: AttentionGRU(width, name="episode", **of.recurrent_arguments()),
    "soft": lambda of, width: _Soft(name="episode", dtype=of.dtype_policy),
}


@keras.saving.register_keras_serializable("keras_attention")
class EpisodicMemory(HopsLayer):
    """Goes through facts several times, each time attending to what the last pass has missed.

    With the question as the first memory `m_0 = q`, pass t gates the facts by how they compare to
    question and memory, makes an episode of them and moves the memory on:

        z_ti = [f_i * q; f_i * m_{t-1}; |f_i - q|; |f_i - m_{t-1}|]
        g_t = normalizer(W_2 tanh(W_1 z_t + b_1) + b_2, mask)
        c_t = AttentionGRU(f, g_t)                          or soft, sum_i g_ti f_i
        m_t = relu(W_t [m_{t-1}; c_t; q] + b_t)             or GRU(c_t, m_{t-1})

    The attention and the GRUs are the same in all passes, each `W_t` is of its own.

    Args:
        hops: number K of passes.
        episode: `"gru"`, the last state of an `AttentionGRU`, which knows the order of the facts,
            or `"soft"`, their weighted sum.
        update: `"relu"` or `"gru"`; further ones see `KeyValueMemory`.
        normalizer: a name or a callable; see `Attention`.
        units: width of the hidden layer of the gates; None is that of the question.
        kernel_initializer: of all kernels but the recurrent ones.
        recurrent_initializer: of the recurrent kernels of the GRUs.
        kernel_regularizer: of the kernels that `kernel_initializer` names.
        kernel_constraint: of the kernels that `kernel_initializer` names.
        use_bias: whether to add biases.

    Call arguments:
        facts: (B, S, D).
        question: (B, D).
        facts_mask: boolean (B, S), True = may be read.
        return_attention_scores: whether to return the gates too.
        training: handed on to the normalizer.

    Returns:
        The memory after the last pass, (B, D); with `return_attention_scores` the pair of it and
        the gates of each pass, (B, K, S). A row without facts goes on from episodes of zeros.

    Raises:
        ValueError: in `__init__`, for an unknown name or a number that is none; in `build` and in
            the call, for a wrong rank or width; in the call, for a mask of the wrong rank or
            length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import EpisodicMemory
    >>> facts, question = np.ones((2, 5, 4), "float32"), np.ones((2, 4), "float32")
    >>> memory, gates = EpisodicMemory(3)(facts, question, return_attention_scores=True)
    >>> memory.shape.as_list(), gates.shape.as_list()
    ([2, 4], [2, 3, 5])

    Reference:
        Xiong, Merity, Socher, "Dynamic Memory Networks for Visual and Textual Question
        Answering", ICML 2016, section 3.3, equations 8 to 13.
    """

    def __init__(
        self,
        hops=3,
        episode="gru",
        update="relu",
        normalizer="softmax",
        units=None,
        **kwargs,
    ):
        super().__init__(hops, update, normalizer, **kwargs)
        if episode not in _EPISODES:
            raise ValueError(
                f"episode must be one of {', '.join(_EPISODES)}. Received: episode={episode!r}"
            )
        if not (units is None or is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        self.episode = episode
        self.units = units
        self._hidden = None
        self._gate = None
        self._episode = None

    def build(self, facts_shape, question_shape):
        check_shapes({"question": (question_shape, (2,))})
        width = question_shape[-1]
        self._widths = {"facts": width, "question": width}
        self._check_shapes(facts_shape, question_shape)
        units = width if self.units is None else self.units
        self._hidden = self.add_dense("hidden", 4 * width, units)
        self._gate = self.add_dense("gate", units, 1)
        normalizers.build(self.normalizer, (None, None))
        self._episode = _EPISODES[self.episode](self, width)
        self._episode.build((None, None, width), (None, None))
        self._update.build((None, width), (None, width), (None, width))
        self.built = True

    def _check_shapes(self, facts_shape, question_shape):
        check_shapes({"facts": (facts_shape, (3,))}, self._widths)
        check_shapes({"question": (question_shape, (2,))}, self._widths)
        check_batches(facts=facts_shape, question=question_shape)

    def call(self, facts, question, facts_mask=None, return_attention_scores=False, training=None):
        self._check_shapes(facts.shape, question.shape)
        check_mask("facts_mask", facts_mask, facts.shape[:2])
        if facts_mask is not None:
            facts_mask = ops.cast(facts_mask, "bool")
            facts = masking.select(facts, facts_mask)
        product, distance = _compare(facts, question)
        memory, weights = question, []
        for hop in range(self.hops):
            product_m, distance_m = _compare(facts, memory)
            compared = ops.concatenate([product, product_m, distance, distance_m], axis=-1)
            hidden = ops.tanh(_widely(self._hidden, compared))  # (B, S, U)
            scores = ops.squeeze(_widely(self._gate, hidden), -1)  # (B, S)
            gates = self.normalizer(scores, mask=facts_mask, training=training)
            memory = self._update(memory, self._episode(facts, gates), question, hop=hop)
            weights.append(gates)
        if return_attention_scores:
            return memory, ops.cast(ops.stack(weights, axis=1), self.compute_dtype)
        return memory

    def compute_output_spec(self, facts, question, return_attention_scores=False, **kwargs):
        memory = keras.KerasTensor(question.shape, self.compute_dtype)
        shape = (facts.shape[0], self.hops, facts.shape[1])
        weights = keras.KerasTensor(shape, self.compute_dtype)
        return (memory, weights) if return_attention_scores else memory

    def get_config(self):
        return {**super().get_config(), "episode": self.episode, "units": self.units}


def _compare(facts, vector):
    """`(f * v, |f - v|)`, each (B, S, D), in float32 or wider, which hold such products."""
    facts, vector = widen(facts), widen(ops.expand_dims(vector, 1))
    return facts * vector, ops.abs(facts - vector)


def _widely(dense, x):
    """`dense(x)`, computed in float32 or wider."""
    x = ops.matmul(widen(x), widen(dense.kernel))
    return x if dense.bias is None else x + widen(dense.bias)
