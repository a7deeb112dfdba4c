"""Self-attention: heads, groups, scores, directions, windows and positions."""

import reference
from case import DK, DQ, DV, B, Case, S, T, U
from reference import positions
from reference import self_attention as attention

from keras_attention.positional_scores import AlibiScore, RelativePositionScore
from keras_attention.positions import RotaryPositions
from keras_attention.scores import AdditiveScore, MultiDimensionalScore
from keras_attention.self_attention import SelfAttention

PLACES = "directions and positions depend on the order"
EQUIVARIANT = {
    "order_of_the_keys_does_not_matter": "the keys are the queries too: what comes out moves along"
}


def self_attention_case(name, create, shape, heads, pattern=None, wrong_shapes=(), **changes):
    return Case(
        name,
        create,
        {"inputs": shape},
        attention.self_attention(heads, **(pattern or {})),
        key_mask="mask",
        keys=("inputs",),
        query_mask="mask",
        queries="inputs",
        wrong_shapes=({"inputs": shape[1:]}, {"inputs": (*shape, 4)}, *wrong_shapes),
        **{"ordered": PLACES, **changes},
    )


CASES = [
    self_attention_case(
        "self_attention",
        lambda **kw: SelfAttention(2, **kw),
        (B, T, DQ),
        attention.Heads(
            attention.content(reference.scaled_dot, "scaled_dot_score"), reference.softmax, 2
        ),
        wrong_shapes=({"inputs": (B, T, DQ + 3)},),  # not a multiple of the heads
        ordered="",
        exempt=EQUIVARIANT,
    ),
    self_attention_case(
        "self_attention_additive_options",
        lambda **kw: SelfAttention(
            num_heads=3,
            key_dim=4,
            value_dim=6,
            score=AdditiveScore(7, **kw),
            normalizer="sigmoid",
            use_bias=False,
            output_dim=9,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
            kernel_constraint="max_norm",
            dropout=0.3,
            seed=5,
            **kw,
        ),
        (B, S, DV),
        attention.Heads(
            attention.content(reference.additive, "additive_score"), reference.sigmoid, 3
        ),
        ordered="",
        sums=None,
        exempt=EQUIVARIANT,
    ),
    self_attention_case(
        "self_attention_grouped_rotary_causal",
        lambda **kw: SelfAttention(
            4,
            num_key_value_heads=2,
            direction="causal",
            positions=RotaryPositions(max_wavelength=100, **kw),
            bias_initializer="ones",
            bias_regularizer="l1",
            bias_constraint="non_neg",
            **kw,
        ),
        (B, S, U),
        attention.Heads(
            attention.content(reference.scaled_dot, "scaled_dot_score"),
            reference.softmax,
            4,
            groups=2,
            place=positions.turned(100),
        ),
        {"direction": "causal"},
    ),
    self_attention_case(
        "self_attention_one_key_window_no_diagonal",
        lambda **kw: SelfAttention(
            3,
            num_key_value_heads=1,
            score="bilinear",
            direction="no_diagonal",
            window=1,
            use_output=False,
            **kw,
        ),
        (B, S, DK),
        attention.Heads(
            attention.content(reference.general, "bilinear_score"),
            reference.softmax,
            3,
            groups=1,
        ),
        {"direction": "no_diagonal", "window": 1},
    ),
    self_attention_case(
        "self_attention_alibi",
        lambda **kw: SelfAttention(3, score=AlibiScore("dot", **kw), **kw),
        (B, S, DK),
        attention.Heads(
            attention.alibi(attention.content(reference.dot, ""), [2.0**-4, 2.0**-8, 2.0**-2]),
            reference.softmax,
            3,
        ),
        more_masks={"attention_mask": (B, S, S)},
        exempt={"masks_from_upstream": "no upstream layer says what each query may read"},
    ),
    self_attention_case(
        "self_attention_relative_backward_window",
        lambda **kw: SelfAttention(
            2,
            score=RelativePositionScore(max_distance=2, **kw),
            direction="backward",
            window=3,
            **kw,
        ),
        (B, S, DQ),
        attention.Heads(
            attention.relative(
                attention.content(reference.scaled_dot, ""), "relative_position_score", 2
            ),
            reference.softmax,
            2,
        ),
        {"direction": "backward", "window": 3},
    ),
    self_attention_case(
        "self_attention_multi_dimensional_forward",
        lambda **kw: SelfAttention(
            DQ, score=MultiDimensionalScore(DQ, **kw), direction="forward", **kw
        ),
        (B, S, DQ),
        attention.Heads(
            attention.tensor("multi_dimensional_score"), reference.softmax, DQ, whole=True
        ),
        {"direction": "forward"},
    ),
]
