"""Transformer blocks: with what they make themselves, and with attentions that are given."""

import math

import reference
from case import DE, DK, DQ, DV, B, Case, S, T, U
from reference import positions, transformer
from reference import self_attention as attention

from keras_attention.heads import CrossAttention
from keras_attention.positions import RotaryPositions
from keras_attention.scores import AdditiveScore
from keras_attention.self_attention import SelfAttention
from keras_attention.transformer import TransformerDecoderBlock, TransformerEncoderBlock

SCALED = attention.content(reference.scaled_dot, "scaled_dot_score")


def named(arguments, name):
    """The block's arguments for an attention inside it, which has a name of its own."""
    return {**arguments, "name": name}


def encoder_case(name, create, block, shape, **changes):
    return Case(
        name,
        create,
        {"inputs": shape},
        block,
        key_mask="mask",
        keys=("inputs",),
        query_mask="mask",
        queries="inputs",
        wrong_shapes=({"inputs": shape[1:]}, {"inputs": (*shape, 4)}),
        **changes,
    )


def decoder_case(name, create, block, inputs, memory, **changes):
    return Case(
        name,
        create,
        {"inputs": inputs, "memory": memory},
        block,
        key_mask="memory_mask",
        keys=("memory",),
        query_mask="inputs_mask",
        queries="inputs",
        wrong_shapes=(
            {"inputs": inputs[1:]},
            {"memory": (*memory, 4)},
            {"memory": (B + 1, *memory[1:])},
        ),
        weights=2,
        void="the residual connections go on without what was read",
        exempt={"row_with_nothing_to_read_is_zero": "the self-attention still reads"},
        **changes,
    )


CASES = [
    encoder_case(
        "transformer_encoder_block",
        lambda **kw: TransformerEncoderBlock(DE, 2, **kw),
        transformer.Block(
            attention.Heads(SCALED, reference.softmax, 2), reference.relu, 1e-5, first=False
        ),
        (B, T, DQ),
        exempt={
            "order_of_the_keys_does_not_matter": "the keys are the queries too: the output moves"
        },
    ),
    encoder_case(
        "transformer_encoder_block_options",
        lambda **kw: TransformerEncoderBlock(
            intermediate_dim=7,
            attention=SelfAttention(
                4,
                num_key_value_heads=2,
                direction="causal",
                positions=RotaryPositions(30, **kw),
                **named(kw, "attention"),
            ),
            activation="tanh",
            dropout=0.2,
            layer_norm_epsilon=1e-2,
            normalize_first=True,
            seed=3,
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
            kernel_constraint="max_norm",
            **kw,
        ),
        transformer.Block(
            attention.Heads(SCALED, reference.softmax, 4, groups=2, place=positions.turned(30)),
            math.tanh,
            1e-2,
            first=True,
            pattern={"direction": "causal"},
        ),
        (B, S, U),
        ordered="a causal mask and positions",
    ),
    decoder_case(
        "transformer_decoder_block",
        lambda **kw: TransformerDecoderBlock(U, 2, activation="silu", normalize_first=True, **kw),
        transformer.Block(
            attention.Heads(SCALED, reference.softmax, 2),
            transformer.silu,
            1e-5,
            first=True,
            pattern={"direction": "causal"},
            cross_attention=attention.Heads(SCALED, reference.softmax, 2),
        ),
        (B, T, DQ),
        (B, S, DV),
    ),
    decoder_case(
        "transformer_decoder_block_options",
        lambda **kw: TransformerDecoderBlock(
            intermediate_dim=4,
            attention=SelfAttention(
                3,
                normalizer="sparsemax",
                direction="causal",
                window=1,
                **named(kw, "attention"),
            ),
            cross_attention=CrossAttention(
                4,
                key_dim=6,
                value_dim=2,
                num_key_value_heads=2,
                score=AdditiveScore(DE, **kw),
                output_dim=DK,
                **named(kw, "cross_attention"),
            ),
            activation="sigmoid",
            dropout=0.1,
            layer_norm_epsilon=1e-3,
            seed=8,
            bias_initializer="ones",
            bias_regularizer="l1",
            bias_constraint="non_neg",
            **kw,
        ),
        transformer.Block(
            attention.Heads(SCALED, reference.sparsemax, 3),
            reference.logistic,
            1e-3,
            first=False,
            pattern={"direction": "causal", "window": 1},
            cross_attention=attention.Heads(
                attention.content(reference.additive, "additive_score"),
                reference.softmax,
                4,
                groups=2,
            ),
        ),
        (B, T, DK),
        (B, S, DQ),
    ),
]
