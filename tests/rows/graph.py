"""Attention over graphs: walks over sentences, and triples around an entity."""

import numpy as np
import reference
from case import DE, DQ, DV, B, Case, S, T, U
from reference.graph import graph, neighbourhood, proportional

from keras_attention import AdditiveScore
from keras_attention import graph as layers


def graph_case(name, create, expected, width=DV, **changes):
    return Case(
        name,
        create,
        {"query": (B, T, width), "value": (B, S, width)},
        expected,
        key_mask="value_mask",
        keys=("value",),
        query_mask="query_mask",
        queries="query",
        wrong_shapes=(
            {"query": (B, width)},
            {"value": (B, T, S, width)},
            {"query": (B, T, width + 1)},
        ),
        **changes,
    )


def neighbourhood_case(name, entities, widths, normalize=reference.softmax, **options):
    shapes = {
        part: (*entities, S, width)
        for part, width in zip(("heads", "relations", "tails"), widths, strict=True)
    }
    longer = (*entities, S + 1, widths[1])
    return Case(
        name,
        lambda **kw: layers.NeighbourhoodAttention(**options, **kw),
        shapes,
        neighbourhood(normalize),
        key_mask="heads_mask",
        keys=("heads", "relations", "tails"),
        sums=None if normalize is reference.sigmoid else 1.0,
        wrong_shapes=(
            {"relations": longer},
            {"heads": (B, widths[0])},
            {"tails": (*entities, 1, 1, S, widths[2])},
            {"heads": (*entities, 1, S, widths[0])},
        ),
    )


CASES = [
    graph_case("graph", layers.GraphAttention, graph(reference.general, "bilinear_score")),
    graph_case(
        "graph_as_in_the_paper",
        lambda **kw: layers.GraphAttention(
            "dot", layers.proportional, damping=0.6, distraction=False, **kw
        ),
        graph(reference.dot, "dot_score", proportional, damping=0.6, distraction=False),
        width=DQ,
        prepare={"query": np.abs, "value": np.abs},  # so that no edge is negative
    ),
    graph_case(
        "graph_sparse",
        lambda **kw: layers.GraphAttention(AdditiveScore(U, **kw), "sparsemax", damping=0.3, **kw),
        graph(reference.additive, "additive_score", reference.sparsemax, damping=0.3),
    ),
    neighbourhood_case("neighbourhood", (B,), (DV, DQ, DE)),
    neighbourhood_case(
        "neighbourhood_of_many",
        (B, T),
        (DQ, DV, DQ),
        reference.sigmoid,
        units=U,
        normalizer="sigmoid",
        use_bias=True,
        kernel_initializer="he_normal",
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
    ),
]
