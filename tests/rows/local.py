"""`LocalAttention`: both alignments, windows smaller and larger than the memory."""

import numpy as np
import reference
from case import DK, DQ, DV, B, Case, S, T, U
from reference.local import local

import keras_attention as ka

POSITIONS = "a window stands at a position"


def local_case(name, create, expected, shapes, **changes):
    rank_3 = len(shapes["query"]) == 3
    return Case(
        name,
        create,
        shapes,
        expected,
        key_mask=changes.pop("key_mask", "value_mask"),
        keys=("value", "key") if "key" in shapes else ("value",),
        query_mask="query_mask" if rank_3 else "",
        queries="query" if rank_3 else "",
        wrong_shapes=(
            {"query": (B, T, S, shapes["query"][-1])},
            {"value": (B, DV)},
            *([{"key": (B, S + 1, shapes["key"][-1])}] if "key" in shapes else []),
            *changes.pop("wrong_shapes", ()),
        ),
        ordered=POSITIONS,
        **changes,
    )


CASES = [
    local_case(
        "local_monotonic_dot",
        lambda **kw: ka.LocalAttention(1, **kw),
        local(reference.dot, reference.softmax, "dot_score", 1),
        {"query": (B, T, DV), "value": (B, S, DV)},
        wrong_shapes=({"query": (B, T, DQ)},),
    ),
    local_case(
        "local_monotonic_additive_from_a_position",
        lambda **kw: ka.LocalAttention(2, "additive", "sparsemax", dropout=0.4, seed=7, **kw),
        local(reference.additive, reference.sparsemax, "additive_score", 2, start=2),
        {"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
        key_mask="key_mask",
        call={"start_index": 2},
    ),
    local_case(
        "local_monotonic_own_key_one_query",
        lambda **kw: ka.LocalAttention(0, "cosine", **kw),
        local(reference.cosine(1.0), reference.softmax, "cosine_score", 0, start=1),
        {"query": (B, DV), "value": (B, S, DV)},
        call={"start_index": 1},
    ),
    local_case(
        "local_predictive_bilinear",
        lambda **kw: ka.LocalAttention(
            2,
            "bilinear",
            predictive=True,
            units=U,
            weights_regularizer=ka.DiversityPenalty(0.3),
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
            kernel_constraint="max_norm",
            **kw,
        ),
        local(reference.general, reference.softmax, "bilinear_score", 2, predictive=True),
        {"query": (B, T, DQ), "value": (B, S, DV)},
        sums=None,
    ),
    local_case(
        "local_predictive_mlp_one_query_key",
        lambda **kw: ka.LocalAttention(1, ka.MLPScore(U, **kw), "sigmoid", predictive=True, **kw),
        local(reference.concat(np.tanh), reference.sigmoid, "mlp_score", 1, predictive=True),
        {"query": (B, DQ), "value": (B, S, DV), "key": (B, S, DK)},
        sums=None,
    ),
    local_case(
        "local_predictive_dot_wide",
        lambda **kw: ka.LocalAttention(S + 4, predictive=True, **kw),
        local(reference.dot, reference.softmax, "dot_score", S + 4, predictive=True),
        {"query": (B, T, DV), "value": (B, S, DV)},
        sums=None,
    ),
]
