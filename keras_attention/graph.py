"""Attention over graphs: a walk over the sentences of a document, and the triples of an entity."""

import math

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import pair_spec, read
from .kernels import KernelLayer
from .normalizers import proportional, widen
from .shapes import check_alike, check_built, check_mask, checked_masks, widths_of


@keras.saving.register_keras_serializable("keras_attention")
class GraphAttention(keras.layers.Layer):
    """Reads sentences by their rank in a graph, in which the query stands too.

    Attention alone asks how well a sentence answers the query; a summary also wants to know how
    much it matters to the other sentences. So a walk begins at the query and goes from vertex to
    vertex, along `P`, by how well they answer one another; with probability `1 - damping` it
    starts anew. Sentences are read by how often the walk comes by, which is PageRank with the
    query as its topic:

        P_ij = normalizer_i(score(h_j, h_i))      from j to i, i != j, the query among them
        f = (1 - damping) (I - damping P)^{-1} y  y is 1 at the query, else 0
        a_s = f_s / sum_r f_r                     c = sum_s a_s v_s

    With `distraction` a query reads only what has risen above its rank at the query before, so
    that what was read once is not read again: with `f` of query t,

        a_ts = max(f_ts - f_(t-1)s, 0) / sum_r max(f_tr - f_(t-1)r, 0),    f_0 = 0.

    Masks are boolean, True = may be read. A masked sentence is no vertex of the graph. A query
    with nothing to read, or one that is masked itself, reads a context of zeros; so does one for
    which no sentence has risen. A masked query has ranks of 0, so that after it distraction
    begins anew.

    Each query has a graph of its own: memory O(T S^2) and time O(T S^3) a row. It is meant for the
    sentences of a document, tens or hundreds of them.

    Args:
        score: a name or a `Score`, of two vectors of one width; see `Attention`.
        normalizer: what makes probabilities of the scores from one vertex to all others: a name or
            a callable; see `Attention`. Its weights must not sum to more than 1.
        damping: the probability to walk on, above 0 and below 1.
        distraction: whether to read only what has risen since the query before.

    Call arguments:
        query: (B, T, D), in order, the states of a decoder of sentences for example.
        value: the sentences, (B, S, D).
        query_mask: boolean (B, T).
        value_mask: boolean (B, S).
        return_attention_scores: whether to return the weights too.
        training: handed on to the normalizer.

    Returns:
        The context (B, T, D); with `return_attention_scores` the pair of it and the weights
        (B, T, S).

    Raises:
        ValueError: for a damping out of range, or a score that knows positions or gives several
            numbers; in `build`, for a wrong rank or for two widths; in
            the call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import GraphAttention
    >>> states, sentences = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> attention = GraphAttention()
    >>> context, weights = attention(states, sentences, return_attention_scores=True)
    >>> context.shape.as_list(), weights.shape.as_list()
    ([2, 3, 8], [2, 3, 5])

    One query at a time, as when a summary is written:

    >>> previous = 0.0
    >>> for t in range(3):
    ...     ranks = attention.rank(states[:, t : t + 1], sentences)
    ...     weights = attention.weigh(ranks, previous)
    ...     previous = ranks

    Reference:
        Tan, Wan, Xiao, "Abstractive Document Summarization with a Graph-Based Attentional Neural
        Model", ACL 2017, section 3.3. There `P` is `h_j^T M h_i` divided by the sum over `i`,
        which is a probability only where no product is negative; the softmax makes the edge
        `exp(h_j^T M h_i)`. `normalizer=proportional` divides by the sum, and gives negative
        products no edge.
    """

    def __init__(
        self, score="bilinear", normalizer="softmax", damping=0.9, distraction=True, **kwargs
    ):
        super().__init__(**kwargs)
        if not 0.0 < damping < 1.0:
            raise ValueError(f"damping must lie between 0 and 1. Received: damping={damping!r}")
        self.score = scores.pair_score(score, self.dtype_policy)
        self.normalizer = normalizers.get(normalizer)
        self.damping = damping
        self.distraction = distraction
        self._widths = None  # of the inputs; known when built
        self.supports_masking = True

    def build(self, query_shape, value_shape):
        self._widths = widths_of(query_shape, value_shape, value_shape, ranks=(3,))
        if query_shape[-1] != value_shape[-1]:
            raise ValueError(
                "query and value must have one width: both are vertices of one graph. Received: "
                f"query_shape={tuple(query_shape)}, value_shape={tuple(value_shape)}"
            )
        self.score.build(query_shape, value_shape)
        normalizers.build(self.normalizer, (*query_shape[:2], value_shape[1]))
        self.built = True

    def rank(self, query, value, query_mask=None, value_mask=None, training=None):
        """How often the walk from each query comes by each sentence: `f`, (B, T, S).

        Args:
            query: (B, T, D).
            value: (B, S, D).
            query_mask: boolean (B, T).
            value_mask: boolean (B, S).
            training: handed on to the normalizer.
        """
        check_built(self, "rank")
        readable = masking.combine_masks(
            masking.over_queries(query_mask), masking.over_keys(value_mask)
        )  # (B, T, S), each axis may be 1
        if query_mask is not None:
            query = masking.select(query, ops.cast(query_mask, "bool"))
        if value_mask is not None:
            value = masking.select(value, ops.cast(value_mask, "bool"))
        sentences = self.score.project_key(value)
        first = self.normalizer(
            self.score.compare(query, sentences), mask=readable, training=training
        )  # (B, T, S): where the walk goes from the query
        on, back = self._steps(
            self.score.compare(value, sentences),
            self.score.compare(value, self.score.project_key(query)),
            value_mask,
            training,
        )
        visits = self._visits(ops.expand_dims(first, -2), self.damping * on)  # (B, T, S)
        returns = ops.sum(visits * back, axis=-1, keepdims=True)  # (B, T, 1)
        at_query = (1.0 - self.damping) / (1.0 - self.damping**2 * returns)
        return self.damping * at_query * visits

    def _steps(self, among, to_query, value_mask, training):
        """The probabilities of a step from each sentence.

        Args:
            among: scores of the sentences with one another, (B, S, S).
            to_query: scores of the sentences with the queries, (B, S, T).
            value_mask: boolean (B, S).

        Returns:
            To each sentence (B, T, S, S), and back to the query (B, T, S).
        """
        to_query = ops.expand_dims(ops.swapaxes(to_query, -1, -2), -1)  # (B, T, S, 1)
        among = ops.expand_dims(among, 1) + ops.zeros_like(to_query)  # (B, T, S, S)
        size = ops.shape(among)[-1]
        # The query stands last among those to go to; no sentence goes to itself.
        mask = masking.directional_mask(size, size + 1, direction="no_diagonal")  # (S, S + 1)
        if value_mask is not None:
            value_mask = ops.cast(value_mask, "bool")
            vertices = ops.concatenate([value_mask, ops.ones_like(value_mask[:, :1])], axis=-1)
            mask = masking.combine_masks(mask, ops.expand_dims(vertices, (1, 2)))
        steps = self.normalizer(
            ops.concatenate([among, to_query], axis=-1), mask=mask, training=training
        )  # (B, T, S, S + 1)
        return steps[..., :-1], steps[..., -1]

    def _visits(self, first, hops):
        """`first (I - hops)^{-1}`, which is `first (I + hops) (I + hops^2) (I + hops^4) ...`.

        TFLite inverts no matrix. A hop is taken with probability `damping` at most, so that of n
        factors `damping^(2^n)` is missing: soon less than a float64 can tell.
        """
        factors = math.ceil(math.log2(math.log(2.0**-53) / math.log(self.damping)))
        visits = first + ops.matmul(first, hops)  # (B, T, 1, S)
        for _ in range(factors - 1):
            hops = ops.matmul(hops, hops)
            visits = visits + ops.matmul(visits, hops)
        return ops.squeeze(visits, -2)

    def weigh(self, ranks, previous=0.0):
        """Weights by how far ranks are above those of the query before: (B, T, S).

        Args:
            ranks: (B, T, S), of `rank`.
            previous: (B, T, S), those of the query before each, or 0.
        """
        return proportional(ranks - previous)

    def call(
        self,
        query,
        value,
        query_mask=None,
        value_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        query_mask, value_mask = checked_masks(
            self._widths, query, value, value, query_mask, value_mask, None
        )
        ranks = self.rank(query, value, query_mask, value_mask, training)  # (B, T, S)
        previous = 0.0
        if self.distraction:
            previous = ops.concatenate([ops.zeros_like(ranks[:, :1]), ranks[:, :-1]], axis=1)
        weights = self.weigh(ranks, previous)
        if value_mask is not None:
            value = masking.select(value, value_mask)
        context = read(weights, value)  # (B, T, D)
        if return_attention_scores:
            return context, ops.cast(weights, self.compute_dtype)
        return context

    def compute_output_spec(self, query, value, return_attention_scores=False, **kwargs):
        return pair_spec(query, value, return_attention_scores, self.compute_dtype)

    def compute_mask(self, query, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(self.score),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "damping": self.damping,
            "distraction": self.distraction,
        }


@keras.saving.register_keras_serializable("keras_attention")
class NeighbourhoodAttention(KernelLayer):
    """Reads the triples (head, relation, tail) around an entity of a knowledge graph.

    How well a relation fits the two entities that it joins says how much its triple counts:

        e_n = (W_r r_n) . tanh(W_h h_n + W_t t_n)
        a = normalizer(e)
        g = sum_n a_n [h_n; t_n]

    Masks are boolean, True = may be read; a triple of which any part is masked is not read. An
    entity without triples reads zeros.

    Args:
        units: width of the two sides that are compared; None is the relations' width.
        normalizer: a name or a callable; see `Attention`.
        use_bias: whether `W_r r_n` and `W_h h_n + W_t t_n` add biases.
        kernel_initializer: of `W_r`, `W_h` and `W_t`.
        kernel_regularizer: of `W_r`, `W_h` and `W_t`.
        kernel_constraint: of `W_r`, `W_h` and `W_t`.

    Call arguments:
        heads: (B, S, Dh), or of T entities a row (B, T, S, Dh).
        relations: (B, S, Dr) or (B, T, S, Dr).
        tails: (B, S, Dt) or (B, T, S, Dt).
        heads_mask: boolean (B, S) or (B, T, S).
        relations_mask: as `heads_mask`.
        tails_mask: as `heads_mask`.
        return_attention_scores: whether to return the weights too.
        training: handed on to the normalizer.

    Returns:
        A vector for each entity, (B, Dh + Dt) or (B, T, Dh + Dt); with
        `return_attention_scores` the pair of it and the weights, (B, S) or (B, T, S). It has no
        mask: a word of which no triple is known is still a word.

    Raises:
        ValueError: for units that are not a positive int; in `build`, for a wrong rank or an
            unknown width; in the call, for heads, relations and tails of different lengths, and
            for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import NeighbourhoodAttention
    >>> heads, tails = np.ones((2, 5, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> relations = np.ones((2, 5, 4), "float32")
    >>> NeighbourhoodAttention()(heads, relations, tails).shape.as_list()
    [2, 16]

    Reference:
        Zhou, Young, Huang, Zhao, Xu, Zhu, "Commonsense Knowledge Aware Conversation Generation
        with Graph Attention", IJCAI-ECAI 2018, static graph attention, equations 5 to 7. Its
        dynamic graph attention is two of our `Attention`, an additive one over these vectors and
        a bilinear one over the triples.
    """

    def __init__(self, units=None, normalizer="softmax", **kwargs):
        super().__init__(**kwargs)
        if not (units is None or scores.is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        self.units = units
        self.normalizer = normalizers.get(normalizer)
        self._widths = None  # of the inputs; known when built
        self._relation = None
        self._ends = None
        self.supports_masking = True

    def build(self, heads_shape, relations_shape, tails_shape):
        shapes = {"heads": heads_shape, "relations": relations_shape, "tails": tails_shape}
        check_alike(shapes, ranks=(3, 4))
        self._widths = {name: shape[-1] for name, shape in shapes.items()}
        units = relations_shape[-1] if self.units is None else self.units
        self._relation = self.add_dense("relation", relations_shape[-1], units)
        # `W_h h + W_t t` is one kernel over `[h; t]`, which is read anyway.
        self._ends = self.add_dense("ends", heads_shape[-1] + tails_shape[-1], units)
        normalizers.build(self.normalizer, tuple(heads_shape[:-1]))
        self.built = True

    def call(
        self,
        heads,
        relations,
        tails,
        heads_mask=None,
        relations_mask=None,
        tails_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        shapes = {"heads": heads.shape, "relations": relations.shape, "tails": tails.shape}
        check_alike(shapes, ranks=(3, 4), widths=self._widths)
        check_mask("heads_mask", heads_mask, heads.shape[:-1])
        check_mask("relations_mask", relations_mask, heads.shape[:-1])
        check_mask("tails_mask", tails_mask, heads.shape[:-1])
        mask = masking.combine_masks(heads_mask, relations_mask, tails_mask)  # (B, S), (B, T, S)
        ends = ops.concatenate([heads, tails], axis=-1)  # (..., S, Dh + Dt)
        if mask is not None:
            ends, relations = masking.select(ends, mask), masking.select(relations, mask)
        fit = widen(self._relation(relations)) * widen(ops.tanh(self._ends(ends)))
        weights = self.normalizer(ops.sum(fit, axis=-1), mask=mask, training=training)  # (..., S)
        entity = ops.squeeze(read(ops.expand_dims(weights, -2), ends), -2)  # (..., Dh + Dt)
        if return_attention_scores:
            return entity, ops.cast(weights, self.compute_dtype)
        return entity

    def compute_output_spec(self, heads, relations, tails, return_attention_scores=False, **kwargs):
        shape = (*heads.shape[:-2], heads.shape[-1] + tails.shape[-1])
        entity = keras.KerasTensor(shape, self.compute_dtype)
        weights = keras.KerasTensor(heads.shape[:-1], self.compute_dtype)
        return (entity, weights) if return_attention_scores else entity

    def compute_mask(self, heads, previous_mask=None):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
        }
