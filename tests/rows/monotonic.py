"""`MonotonicAttention`: expectations and decisions."""

import keras
import numpy as np
import reference
from case import DK, DQ, DV, B, Case, S, T, U
from reference.monotonic import decided, expected, monotonic

import keras_attention as ka


def monotonic_case(name, create, reference_score, score_name, follow, **changes):
    shapes = {"query": (B, T, DQ), "value": (B, S, DV), **changes.pop("shapes", {})}
    return Case(
        name,
        create,
        shapes,
        monotonic(reference_score, score_name, follow),
        key_mask=changes.pop("key_mask", "value_mask"),
        keys=("value", "key") if "key" in shapes else ("value",),
        query_mask="query_mask",
        queries="query",
        wrong_shapes=(
            {"query": (B, shapes["query"][-1])},
            {"value": (B, DV)},
            *([{"key": (B, S + 1, shapes["key"][-1])}] if "key" in shapes else []),
        ),
        sums=None,
        ordered="keys are read in their order",
        **changes,
    )


CASES = [
    monotonic_case(
        "monotonic_soft_additive",
        lambda **kw: ka.MonotonicAttention(hard_inference=False, **kw),
        reference.additive,
        "additive_score",
        expected,
    ),
    monotonic_case(
        "monotonic_soft_mlp_key",
        lambda **kw: ka.MonotonicAttention(
            ka.MLPScore(U, **kw),
            noise=0.3,
            hard_inference=False,
            bias_initializer=keras.initializers.Constant(-2.0),
            seed=5,
            **kw,
        ),
        reference.concat(np.tanh),
        "mlp_score",
        expected,
        shapes={"key": (B, S, DK)},
        key_mask="key_mask",
    ),
    monotonic_case(
        "monotonic_hard_bilinear",
        lambda **kw: ka.MonotonicAttention("bilinear", noise=0.0, bias_initializer="ones", **kw),
        reference.general,
        "bilinear_score",
        decided,
    ),
    monotonic_case(
        "monotonic_hard_dot",
        lambda **kw: ka.MonotonicAttention(
            "dot", bias_initializer=keras.initializers.Constant(-4.0), **kw
        ),
        reference.dot,
        "dot_score",
        decided,
        shapes={"query": (B, T, DV)},
    ),
]
