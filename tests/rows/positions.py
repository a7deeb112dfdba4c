"""Position layers: over sequences and over heads, from a start and at given places."""

from case import DK, DV, B, Case, T, U
from reference import positions as reference

from keras_attention.positions import LearnedPositions, RotaryPositions, SinusoidalPositions

HEADS = 4


def position_case(name, create, place, shapes, wrong_shapes=(), **call):
    return Case(
        name,
        create,
        shapes,
        reference.layer(place, **call),
        call=call,
        wrong_shapes=(
            {"inputs": shapes["inputs"][-2:]},
            {"inputs": (B, *shapes["inputs"], 1)},
            *wrong_shapes,
            *([{"positions": (B, T + 1)}] if "positions" in shapes else []),
        ),
    )


CASES = [
    position_case(
        "sinusoidal_positions",
        SinusoidalPositions,
        reference.sine_or_cosine(10000),
        {"inputs": (B, T, DV)},  # odd
        start_index=3,
    ),
    position_case(
        "sinusoidal_positions_of_heads",
        lambda **kw: SinusoidalPositions(max_wavelength=50.0, **kw),
        reference.sine_or_cosine(50),
        {"inputs": (B, HEADS, T, DK), "positions": (B, T)},
    ),
    position_case(
        "learned_positions",
        lambda **kw: LearnedPositions(9, **kw),
        reference.learned,
        {"inputs": (B, T, DV)},
        ({"inputs": (B, 11, DV)},),
    ),
    position_case(
        "learned_positions_options",
        lambda **kw: LearnedPositions(
            max_length=8,
            embeddings_initializer="he_normal",
            embeddings_regularizer="l2",
            embeddings_constraint="max_norm",
            **kw,
        ),
        reference.learned,
        {"inputs": (B, HEADS, T, DK)},
        start_index=4,
    ),
    position_case(
        "rotary_positions",
        RotaryPositions,
        reference.turned(10000),
        {"inputs": (B, T, DK)},
        ({"inputs": (B, T, DV)},),  # odd
        start_index=2,
    ),
    position_case(
        "rotary_positions_of_heads",
        lambda **kw: RotaryPositions(max_wavelength=20.0, **kw),
        reference.turned(20),
        {"inputs": (B, HEADS, T, U), "positions": (B, T)},
    ),
]
