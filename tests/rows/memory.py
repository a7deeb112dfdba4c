"""`KeyValueMemory`: each update, both tyings, memories of vectors and of words."""

import reference
from case import DK, DQ, DV, B, Case, S, T, U, W
from reference import memory as paper

from keras_attention.memory import KeyValueMemory
from keras_attention.normalizers import linear

SCORES = {
    "dot": (reference.dot, "dot_score"),
    "bilinear": (reference.general, "bilinear_score"),
    "additive": (reference.additive, "additive_score"),
}
NORMALIZERS = {
    "softmax": reference.softmax,
    "sparsemax": reference.sparsemax,
    linear: paper.unweighted,
}


def memory_case(name, options, shapes, **changes):
    described = {
        "hops": 1,
        "update": "linear",
        "score": "dot",
        "normalizer": "softmax",
        "tying": "layerwise",
        "temporal": None,
    }
    described |= {k: v for k, v in options.items() if k in described}
    normalizer = NORMALIZERS[described["normalizer"]]
    expected = paper.memory(
        *SCORES[described["score"]],
        normalizer,
        getattr(paper, f"update_{described['update']}"),
        described["hops"],
        described["tying"],
        described["temporal"],
    )
    returned = changes.get("weights", 1) + 1
    return Case(
        name,
        lambda **kw: KeyValueMemory(**options, **kw),
        shapes,
        lambda *given: expected(*given)[:returned],
        key_mask="value_mask" if "value" in shapes else "key_mask",
        keys=("value", "key") if "value" in shapes else ("key",),
        carries_mask=False,
        void="a query goes on from contexts of zeros",
        sums=None if normalizer is paper.unweighted else 1.0,
        wrong_shapes=(
            {"query": (B, T, S, shapes["query"][-1])},
            {"key": (B, shapes["key"][-1])},
            {"key": (B + 1, *shapes["key"][1:])},
            *([{"value": (B, S + 1, shapes["value"][-1])}] if "value" in shapes else []),
            *changes.pop("wrong_shapes", ()),
        ),
        **changes,
    )


CASES = [
    memory_case(
        "memory",
        {},
        {"query": (B, DQ), "key": (B, S, DQ)},
        wrong_shapes=({"key": (B, S, DK)},),
    ),
    memory_case(
        "memory_key_value",
        {"hops": 3, "score": "bilinear"},
        {"query": (B, DQ), "key": (B, S, DK), "value": (B, S, DQ)},
        wrong_shapes=({"value": (B, S, DV)},),
    ),
    memory_case(
        "memory_adjacent_words",
        {"hops": 3, "update": "sum", "units": U, "tying": "adjacent", "temporal": 4},
        {"query": (B, T, DQ), "key": (B, S, W, DQ)},
        weights=0,  # a mask of words has another shape than the weights of sentences
        ordered="words have an order",
        prepare={"key": lambda x: 0.3 * x},  # else far too steep for a difference of finite steps
        wrong_shapes=({"key": (B, S, W, DK)}, {"query": (B, DK)}),
    ),
    memory_case(
        "memory_layerwise_linear_start",
        {"hops": 2, "update": "rnn", "units": U, "temporal": 3, "normalizer": linear},
        {"query": (B, DQ), "key": (B, S, DK), "value": (B, S, DV)},
        ordered="a memory has an age",
        exempt={
            "masked_keys_weigh_exactly_nothing_in_half_precision": (
                "the weights are the scores, which are too large for half precision there"
            )
        },
    ),
    memory_case(
        "memory_adjacent_temporal",
        {"hops": 2, "update": "gru", "tying": "adjacent", "temporal": 4},
        {"query": (B, DQ), "key": (B, S, DQ)},
        ordered="a memory has an age",
    ),
    memory_case(
        "memory_gru_options",
        {
            "hops": 2,
            "update": "gru",
            "score": "bilinear",
            "normalizer": "sparsemax",
            "kernel_initializer": "he_normal",
            "recurrent_initializer": "glorot_uniform",
            "kernel_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "use_bias": False,
        },
        {"query": (B, DQ), "key": (B, S, DK), "value": (B, S, DV)},
    ),
    memory_case(
        "memory_relu",
        {"update": "relu", "score": "additive"},
        {"query": (B, DQ), "key": (B, S, DK), "value": (B, S, DV)},
    ),
]
