"""Coupled attentions."""

import reference
from case import DQ, DV, B, Case, S
from reference.coupled import coupled

from keras_attention.coupled import CoupledAttention

TOKENS_ONLY = "tokens are keys and outputs, but the weights have no axis of queries"


def coupled_case(name, width, slices, normalize=reference.softmax, **options):
    return Case(
        name,
        lambda **kw: CoupledAttention(slices, **{**options, **kw}),
        {"inputs": (B, S, width)},
        coupled(slices, options.get("num_layers", 2), normalize),
        key_mask="mask",
        keys=("inputs",),
        query_mask="mask",
        queries="inputs",
        sums=None if normalize is reference.sigmoid else 1.0,
        ordered="a recurrent network reads the tokens in their order",
        wrong_shapes=({"inputs": (B, width)}, {"inputs": (B, 1, S, width)}),
        exempt={
            "padded_query_row_is_zero": TOKENS_ONLY,
            "returned_weights": TOKENS_ONLY,
            "masks_from_upstream": "two outputs carry the mask",
        },
    )


OPTIONS = {
    "num_layers": 3,
    "normalizer": "sigmoid",
    "use_bias": True,
    "kernel_initializer": "he_normal",
    "kernel_regularizer": "l2",
    "kernel_constraint": "max_norm",
}

CASES = [
    coupled_case("coupled", DV, 4),
    coupled_case("coupled_options", DQ, 6, reference.sigmoid, **OPTIONS),
]
