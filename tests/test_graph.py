"""Attention over graphs: what the table does not say of it."""

import keras
import numpy as np
import pytest
from case import DK, DQ, DV, EXACT, B, S, T
from cases import CASES
from keras import ops
from reference.graph import pagerank, proportional

import keras_attention as ka
from keras_attention import graph

GRAPH = next(case for case in CASES if case.name == "graph")
NEIGHBOURHOODS = [case for case in CASES if case.name.startswith("neighbourhood")]


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def dot(weights, q, k):
    return float(q @ k)


# --- A walk over sentences ----------------------------------------------------------------------


@pytest.mark.parametrize("damping", [0.01, 0.5, 0.9, 0.999])
def test_ranks_are_those_of_the_matrix_inverse(damping):
    """Whatever the damping: there are always as many factors as it takes."""
    query, value = random(B, T, DQ), random(B, S, DQ, seed=1)
    layer = graph.GraphAttention("dot", damping=damping, dtype="float64")
    layer.build(query.shape, value.shape)
    ranks = array(layer.rank(query, value))
    for b in range(B):
        for t in range(T):
            expected = pagerank(dot, softmax, {}, query[b, t], value[b], damping)
            # A system that is nearly singular loses digits in either way of solving it.
            close = {k: v / (1.0 - damping) for k, v in EXACT.items()}
            np.testing.assert_allclose(ranks[b, t], expected, **close)


def softmax(scores):
    exponents = np.exp(np.array(scores) - max(scores))
    return exponents / exponents.sum()


def test_a_salient_sentence_is_read_though_another_answers_better():
    """Three sentences speak of one thing; the query asks for a fourth, and a little for theirs."""
    value = np.array([[[0.0, 4.0], [3.0, 0.5], [3.0, 0.4], [3.0, 0.3]]])
    query = np.array([[[0.8, 1.0]]])
    plain = array(ka.Attention("dot")(query, value, return_attention_scores=True)[1])[0, 0]
    walked = graph.GraphAttention("dot")(query, value, return_attention_scores=True)[1]
    walked = array(walked)[0, 0]
    assert np.argmax(plain) == 0
    assert np.all(walked[1:] > plain[1:])
    assert np.argmax(walked) != 0


def test_small_damping_is_attention():
    query, value = random(B, T, DV), random(B, S, DV, seed=1)
    layer = graph.GraphAttention("dot", damping=1e-9, distraction=False, dtype="float64")
    weights = array(layer(query, value, return_attention_scores=True)[1])
    plain = ka.Attention("dot", dtype="float64")(query, value, return_attention_scores=True)[1]
    np.testing.assert_allclose(weights, array(plain), atol=1e-6)  # a walk of one step, nearly


def test_a_sentence_alone_is_read():
    value = random(B, 1, DV)
    context = graph.GraphAttention(dtype="float64")(random(B, 1, DV, seed=1), value)
    np.testing.assert_allclose(array(context), value, **EXACT)


def test_distraction_from_what_was_read(made):
    """Nothing whose rank has fallen is read; the first query has nothing to turn away from."""
    layer, inputs = made(GRAPH), GRAPH.inputs()
    weights = array(layer(**inputs, return_attention_scores=True)[1])
    ranks = array(layer.rank(**{k: ops.convert_to_tensor(v) for k, v in inputs.items()}))
    np.testing.assert_allclose(weights[:, 0], ranks[:, 0] / ranks[:, 0].sum(-1, keepdims=True))
    fallen = ranks[:, 1:] <= ranks[:, :-1]
    assert fallen.any() and np.all((weights[:, 1:] == 0) == fallen)


def test_nothing_is_read_where_no_rank_has_risen(backend):
    layer = graph.GraphAttention("dot", dtype="float64")
    layer.build((1, 1, DV), (1, S, DV))
    ranks = np.full((1, 1, S), 0.1)
    np.testing.assert_array_equal(array(layer.weigh(ranks, ranks + 0.1)), np.zeros((1, 1, S)))
    by_input, _ = backend.gradients(
        lambda x: ops.sum(ops.square(layer.weigh(x["ranks"], 1.0))), layer, {"ranks": ranks}
    )
    assert np.all(by_input["ranks"] == 0)


def test_one_query_at_a_time_is_the_whole_pass(made):
    layer, inputs, masks = made(GRAPH), GRAPH.inputs(), GRAPH.masks()
    mask = masks["value_mask"]
    whole = array(layer(**inputs, value_mask=mask, return_attention_scores=True)[1])
    query, value = (ops.convert_to_tensor(inputs[name]) for name in ("query", "value"))
    previous = 0.0
    for t in range(T):
        ranks = layer.rank(query[:, t : t + 1], value, value_mask=mask)
        weights = layer.weigh(ranks, previous)
        np.testing.assert_allclose(array(weights)[:, 0], whole[:, t], **EXACT)
        previous = ranks


def test_after_a_masked_query_distraction_begins_anew(made):
    layer, inputs = made(GRAPH), GRAPH.inputs()
    mask = np.array([[True, False, True]] * B)
    weights = array(layer(**inputs, query_mask=mask, return_attention_scores=True)[1])
    for t in (0, 2):
        alone = {**inputs, "query": inputs["query"][:, t : t + 1]}
        expected = array(layer(**alone, return_attention_scores=True)[1])
        np.testing.assert_allclose(weights[:, t], expected[:, 0], **EXACT)


def test_a_vertex_from_which_no_edge_leads_on():
    """Products below 0 are no edges of the paper's graph: a walk that comes there starts anew."""
    query, value = random(B, T, DQ), random(B, S, DQ, seed=1)
    layer = graph.GraphAttention(
        "dot", graph.proportional, damping=0.7, distraction=False, dtype="float64"
    )
    weights = array(layer(query, value, return_attention_scores=True)[1])
    for b in range(B):
        for t in range(T):
            ranks = pagerank(dot, proportional, {}, query[b, t], value[b], 0.7)
            expected = ranks / max(ranks.sum(), 1e-300)
            np.testing.assert_allclose(weights[b, t], expected, **EXACT)


def test_proportional():
    found = graph.proportional([[3.0, 1.0, -2.0], [-1.0, 0.0, -1.0]])
    np.testing.assert_allclose(array(found), [[0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    scores = np.array([[3.0, np.nan, 1.0], [np.inf, 2.0, np.nan]])
    mask = [[True, False, True], [False, True, False]]
    np.testing.assert_array_equal(
        array(graph.proportional(scores, mask=mask)), [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"damping": 0.0},
        {"damping": 1.0},
        {"normalizer": "unknown"},
        {"score": "unknown"},
        {"score": ka.scores.MultiDimensionalScore(3)},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match=f"Received: {next(iter(wrong))}="):
        graph.GraphAttention(**wrong)


def test_a_graph_has_vertices_of_one_width(made):
    layer, inputs = made(GRAPH), GRAPH.inputs()
    with pytest.raises(ValueError, match=r"one width.*Received: query_shape=.*value_shape="):
        graph.GraphAttention()(random(B, T, DQ), random(B, S, DK))
    for name, x in inputs.items():
        for wrong in (x[0], np.concatenate([x, x], -1), x[:1]):
            with pytest.raises(ValueError, match=r"Received: .*shape="):
                layer(**{**inputs, name: wrong})


# --- Triples around an entity -------------------------------------------------------------------


@pytest.mark.parametrize("part", ["heads", "relations", "tails"])
def test_a_triple_is_read_with_all_its_parts_or_not(made, part):
    case = NEIGHBOURHOODS[0]
    layer, inputs = made(case), case.inputs()
    mask = np.random.default_rng(0).random((B, S)) < 0.5
    mask[:, 0] = True
    expected = case.outputs(layer, inputs, {"heads_mask": mask})
    actual = case.outputs(layer, inputs, {f"{part}_mask": mask})
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(array(a), array(e))
    with pytest.raises(ValueError, match=f"Received: {part}_mask.shape="):
        case.outputs(layer, inputs, {f"{part}_mask": mask[:, :-1]})


def test_masks_of_all_parts_are_joined(made):
    case = NEIGHBOURHOODS[1]
    layer, inputs = made(case), case.inputs()
    masks = {
        f"{part}_mask": np.random.default_rng(i).random((B, T, S)) < 0.7
        for i, part in enumerate(case.shapes)
    }
    joined = np.logical_and.reduce(list(masks.values()))
    expected = case.outputs(layer, inputs, {"heads_mask": joined})
    assert not np.array_equal(joined, masks["heads_mask"])
    for a, e in zip(case.outputs(layer, inputs, masks), expected, strict=True):
        np.testing.assert_array_equal(array(a), array(e))


def test_many_entities_are_each_as_one(made):
    case = NEIGHBOURHOODS[1]
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    together = case.outputs(layer, inputs, masks)
    for t in range(T):
        alone = case.outputs(
            layer, {k: x[:, t] for k, x in inputs.items()}, {k: m[:, t] for k, m in masks.items()}
        )
        for a, e in zip(alone, together, strict=True):
            np.testing.assert_allclose(array(a), array(e)[:, t], **EXACT)


def test_lengths_must_be_the_same(made):
    layer, inputs = made(NEIGHBOURHOODS[0]), NEIGHBOURHOODS[0].inputs()
    for name, x in inputs.items():
        for wrong in (x[0], x[:1], x[:, :-1], np.concatenate([x, x], -1), x[:, None]):
            with pytest.raises(ValueError, match=r"Received: .*shape="):
                layer(**{**inputs, name: wrong})


@pytest.mark.parametrize("units", [0, 2.5, True])
def test_wrong_units(units):
    with pytest.raises(ValueError, match="Received: units="):
        graph.NeighbourhoodAttention(units)


def test_what_is_said_of_kernels():
    layer = graph.NeighbourhoodAttention(
        kernel_initializer=keras.initializers.GlorotUniform(),
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
    )
    layer.build((B, S, 2), (B, S, 4), (B, S, 2))
    relation, ends = layer.get_weights()
    assert relation.shape == ends.shape == (4, 4)  # by default the relations' width
    assert not np.allclose(relation, ends)
    assert len(layer.losses) == 2
    assert all(w.constraint is not None for w in layer.trainable_variables)


def test_units_are_the_width_of_what_is_compared():
    layer = graph.NeighbourhoodAttention(3, use_bias=True)
    layer.build((B, S, 2), (B, S, 4), (B, S, 5))
    assert [w.shape for w in layer.get_weights()] == [(4, 3), (3,), (7, 3), (3,)]
