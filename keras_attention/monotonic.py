"""Monotonic attention: what is read only moves forward."""

import keras
from keras import ops

from . import masking
from .attention import pair_spec, read
from .loops import run_steps
from .normalizers import wide_dtype, widen
from .scores import pair_score
from .shapes import check_built, checked_masks, widths_of


@keras.saving.register_keras_serializable("keras_attention")
class MonotonicAttention(keras.layers.Layer):
    """Reads one key for each query, the keys in their order.

    For the query i the keys are looked at one after the other, from the one that the query before
    had read; each is read with the probability `p_ij`, and the first that is read ends the search.
    A query that finds none reads a context of zeros, and so do all behind it.

        e_ij = score(q_i, k_j) + r        p_ij = sigmoid(e_ij + noise)
        a_ij = p_ij sum_{k<=j} a_{i-1,k} prod_{k<=l<j} (1 - p_il)

    is the probability that query i reads key j, `r` a learned number. The first query starts at
    the first key. In training the context is the expectation `c_i = sum_j a_ij v_j`, and the noise
    drives the probabilities to 0 and 1. Otherwise each decision is taken, `p_ij > 1/2`: a query
    reads one key, and the whole sequence is read in time O(T + S). `hard_inference=False` keeps
    the expectation there too.

    The recurrence is computed as it stands, without the division of the paper's parallel form by
    products that underflow: exact for any number of keys and for probabilities of 0 and 1.

    Masks are boolean, True = may be read. A masked key is passed over, `p = 0`; a masked query
    reads a context of zeros, and the next goes on from where the last real one was.

    Args:
        score: a name or a `Score` of one score for each pair; see `Attention`. One to which the
            positions of queries matter is refused.
        noise: standard deviation of what is added to the energies in training.
        hard_inference: whether decisions are taken outside of training, or their expectation.
        bias_initializer: of `r`. The paper starts with a negative number, so that the first
            queries do not find all they need in the first keys.
        seed: of the noise.

    Call arguments:
        query: (B, T, Dq).
        value: (B, S, Dv).
        key: (B, S, Dk); the value when None.
        query_mask: boolean (B, T).
        value_mask: boolean (B, S).
        key_mask: boolean (B, S).
        return_attention_scores: whether to return the weights too.
        training: whether to add noise, and to read expectations.

    Returns:
        The context (B, T, Dv), or with `return_attention_scores` the pair of it and the weights
        (B, T, S). The weights of a query sum to 1 or less.

    Raises:
        ValueError: in `__init__`, for a negative noise, or for a score of many dimensions or of
            positions; in `build`, for a wrong rank or for widths that the score cannot compare; in
            the call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import MonotonicAttention
    >>> query = np.array([[[1.0], [-1.0], [1.0]]], "float32")
    >>> value = np.array([[[-3.0], [5.0], [-7.0], [2.0]]], "float32")
    >>> context, weights = MonotonicAttention("dot")(query, value, return_attention_scores=True)
    >>> context[0, :, 0].numpy().tolist()
    [5.0, -7.0, 2.0]

    Reference:
        Raffel, Luong, Liu, Weiss, Eck, "Online and Linear-Time Attention by Enforcing Monotonic
        Alignments", ICML 2017, sections 2.2 (decisions), 2.3 (their expectation, equations 9 to 14)
        and 2.5 (noise). The energy of its section 2.4 is an additive one whose `v` has a learned
        norm; here the score may be any.
    """

    def __init__(
        self,
        score="additive",
        noise=1.0,
        hard_inference=True,
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if noise < 0:
            raise ValueError(f"noise must be 0 or more. Received: noise={noise!r}")
        self.score = pair_score(score, self.dtype_policy)
        self.noise = noise
        self.hard_inference = hard_inference
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self._widths = None  # of the inputs; known when built
        self.bias = None
        self._seeds = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._widths = widths_of(query_shape, value_shape, key_shape, ranks=(3,))
        self.score.build(query_shape, key_shape)
        self.bias = self.add_weight(name="bias", shape=(), initializer=self.bias_initializer)
        self.built = True

    def initial_weights(self, batch_size, length):
        """The weights before the first query, (B, S): all on the first key.

        Args:
            batch_size: B, an int or an integer scalar tensor.
            length: S, likewise.
        """
        first = ops.cast(ops.arange(length, dtype="int32") < 1, self.compute_dtype)  # (S,)
        return ops.broadcast_to(first, (batch_size, length))

    def prepare_memory(self, value, memory_mask=None, key=None):
        """What every step reads of a memory, computed once: `(values, keys)`.

        Args:
            value: (B, S, Dv).
            memory_mask: boolean (B, S).
            key: (B, S, Dk); the value when None.

        Returns:
            The values with masked rows selected to 0, (B, S, Dv), and the projected keys.
        """
        check_built(self, "prepare_memory")
        key = value if key is None else key
        if memory_mask is not None:
            memory_mask = ops.cast(memory_mask, "bool")
            key, value = masking.select(key, memory_mask), masking.select(value, memory_mask)
        return value, self.score.project_key(key)

    def step(
        self, query, previous_weights, values, keys, memory_mask=None, *, noise=None, training=None
    ):
        """The read of one query; repeated from `initial_weights` on it equals the whole call.

        Args:
            query: (B, Dq).
            previous_weights: (B, S), what the step before returned.
            values: (B, S, Dv), from `prepare_memory`.
            keys: (B, S, ...), from `prepare_memory`.
            memory_mask: boolean (B, S).
            noise: (B, S), added to the energies: that of a training pass, drawn outside of loops.
            training: whether to read the expectation in any case.

        Returns:
            `(context (B, Dv), weights (B, S))`. An expectation is a loop over the keys.
        """
        weights = self._align(
            ops.expand_dims(query, 1),
            previous_weights,
            keys,
            masking.over_keys(memory_mask),
            noise=None if noise is None else ops.expand_dims(noise, 1),
            training=training,
        )  # (B, 1, S)
        # Not squeezed: of a loop's result no length is known in a graph, not even this one.
        return read(weights, values)[:, 0], ops.cast(weights[:, 0], self.compute_dtype)

    def _align(self, query, previous, keys, mask, query_mask=None, noise=None, training=None):
        """Weights (B, T, S), in float32 or wider, of queries behind the previous weights (B, S)."""
        energies = self.score.compare(query, keys) + widen(self.bias)
        if noise is not None:
            energies = energies + ops.cast(noise, energies.dtype)
        if self.hard_inference and not training:
            align, chosen = _decide, ops.cast(energies > 0, energies.dtype)
        else:
            align, chosen = _expect, ops.sigmoid(energies)
        mask = masking.combine_masks(mask, self.score.readable(keys))
        if mask is not None:
            chosen = ops.where(mask, chosen, 0.0)
        previous = ops.cast(previous, chosen.dtype)
        if query_mask is None:
            return align(chosen, previous)
        # A query that chooses whatever it sees stays where the one before was.
        real = masking.over_queries(query_mask)  # (B, T, 1)
        return ops.where(real, align(ops.where(real, chosen, 1.0), previous), 0.0)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        key = value if key is None else key
        query_mask, readable = checked_masks(
            self._widths, query, value, key, query_mask, value_mask, key_mask
        )
        if query_mask is not None:
            query = masking.select(query, query_mask)
        values, keys = self.prepare_memory(value, readable, key)
        batch, queries, length = *ops.shape(query)[:2], ops.shape(value)[1]
        noise = None
        if self.noise and training:
            noise = keras.random.normal(
                (batch, queries, length),
                stddev=self.noise,
                dtype=wide_dtype(self.compute_dtype),
                seed=self._seeds,
            )
        weights = self._align(
            query,
            self.initial_weights(batch, length),
            keys,
            masking.over_keys(readable),
            query_mask,
            noise,
            training,
        )
        context = read(weights, values)  # (B, T, Dv)
        if return_attention_scores:
            return context, ops.cast(weights, self.compute_dtype)
        return context

    def compute_output_spec(self, query, value, key=None, return_attention_scores=False, **kwargs):
        return pair_spec(query, value, return_attention_scores, self.compute_dtype)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(self.score),
            "noise": self.noise,
            "hard_inference": self.hard_inference,
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
        }


def _expect(chosen, previous):
    """`a_ij = p_ij r_ij`, with `r_ij = a_{i-1,j} + (1 - p_{i,j-1}) r_{i,j-1}` that j is reached.

    The cells (i, j) of one diagonal need those of the last one alone. So the loop runs over the
    T + S - 1 diagonals, all keys of one at a time, and its state is one row.

    Args:
        chosen: `p`, (B, T, S).
        previous: `a_0`, (B, S).
    """

    def step(rows, states):
        (chosen,), (weights, passed) = rows, states
        passed = ops.concatenate([ops.zeros_like(passed[:, :1]), passed[:, :-1]], axis=-1)
        reached = weights + passed
        weights = chosen * reached
        return (weights,), (weights, reached - weights)

    # Before the first and behind the last query a key keeps what it has: there p is 1. So the
    # state begins as the weights before the first query, and each key's own first query finds it.
    diagonals = _skew(chosen, 1.0)
    states, keys = (previous, ops.zeros_like(previous)), ops.shape(chosen)[2]
    (weights,), _ = run_steps(step, (diagonals,), states, width=keys)
    return _straighten(weights, ops.shape(chosen)[1])


def _skew(rows, filler):
    """(B, T, S) as diagonals (B, T + S - 1, S): the key j of query i stands in the row i + j."""
    batch, queries, keys = ops.shape(rows)
    columns = ops.pad(ops.swapaxes(rows, 1, 2), ((0, 0), (0, 0), (0, keys)), constant_values=filler)
    # Each of the S rows of length T + S, cut one shorter, begins one further to the right.
    flat = ops.reshape(columns, (batch, keys * (queries + keys)))[:, :-keys]
    return ops.swapaxes(ops.reshape(flat, (batch, keys, queries + keys - 1)), 1, 2)


def _straighten(diagonals, queries):
    """The inverse of `_skew`."""
    batch, count, keys = ops.shape(diagonals)
    flat = ops.reshape(ops.swapaxes(diagonals, 1, 2), (batch, keys * count))
    columns = ops.reshape(ops.pad(flat, ((0, 0), (0, keys))), (batch, keys, count + 1))
    return ops.swapaxes(columns[:, :, :queries], 1, 2)


def _decide(chosen, previous):
    """The first chosen key, from the one read before on; nothing where there is none.

    Args:
        chosen: 1 where a key is chosen, else 0, (B, T, S).
        previous: 1 at the key read before, (B, S).
    """

    def step(rows, states):
        (chosen,), (previous,) = rows, states
        open_keys = chosen * ops.cumsum(previous, axis=-1)
        first = open_keys * ops.cast(ops.cumsum(open_keys, axis=-1) < 2, chosen.dtype)
        return (first,), (first,)

    (weights,), _ = run_steps(step, (chosen,), (previous,), width=ops.shape(chosen)[2])
    return weights
