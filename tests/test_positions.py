"""Position layers: steps and wholes, far positions, what lies beyond, and wrong use."""

import keras
import numpy as np
import pytest
from case import DK, DOUBLE, DV, EXACT, B, S
from conftest import randomize
from keras import ops

from keras_attention.positions import LearnedPositions, RotaryPositions, SinusoidalPositions

KINDS = {
    "sinusoidal": lambda **kw: SinusoidalPositions(**kw),
    "learned": lambda **kw: LearnedPositions(12, **kw),
    "rotary": lambda **kw: RotaryPositions(**kw),
}
RANDOM = np.random.default_rng(0)


def built(kind, dtype="float64", width=DK):
    layer = KINDS[kind](dtype=dtype)
    layer.build((None, None, width))
    randomize(layer)
    return layer


def array(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float64")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_placed_as_the_whole_would_place_it(kind, backend):
    layer, x = built(kind), RANDOM.normal(size=(B, S, DK))
    whole = array(layer(x))
    step = backend.jit(lambda x, index: layer(x, start_index=index))
    for t in range(S):
        found = step(ops.convert_to_tensor(x[:, t : t + 1]), ops.convert_to_tensor(t, "int32"))
        np.testing.assert_allclose(array(found), whole[:, t : t + 1], **EXACT)
    for found in (layer(x[:, 2:], start_index=2), layer(x[:, 2:], positions=np.arange(2, S))):
        np.testing.assert_allclose(array(found), whole[:, 2:], **EXACT)
    order = np.array([[3, 0], [1, 4]])
    moved = np.take_along_axis(x, order[:, :, None], axis=1)
    expected = np.take_along_axis(whole, order[:, :, None], axis=1)
    np.testing.assert_allclose(array(layer(moved, positions=order)), expected, **EXACT)
    heads = np.stack([x, 2 * x, 3 * x, x], axis=1)  # (B, H, S, D)
    found = array(layer(np.take_along_axis(heads, order[:, None, :, None], 2), positions=order))
    expected = array(layer(heads))
    np.testing.assert_allclose(
        found, np.take_along_axis(expected, order[:, None, :, None], 2), **EXACT
    )


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_the_encoding_is_what_is_added(kind):
    layer, x = built(kind), RANDOM.normal(size=(B, S, DK))
    encoding = array(layer.encoding(x, start_index=3))
    assert encoding.shape == x.shape
    np.testing.assert_allclose(array(layer(x, start_index=3)), x + encoding, **EXACT)


def test_rotated_products_depend_on_the_distance_alone():
    layer = built("rotary")
    q, k = RANDOM.normal(size=(2, 1, 1, DK))

    def product(at, other):
        q_at, k_at = layer(q[None], start_index=at), layer(k[None], start_index=other)
        return float(np.sum(array(q_at) * array(k_at)))

    # Keras's sines and cosines on JAX are those of float32.
    close = {"rtol": 1e-10 if DOUBLE else 1e-4}
    np.testing.assert_allclose(product(7, 3), product(1004, 1000), **close)
    assert abs(product(7, 3) - product(3, 7)) > 1e-2
    np.testing.assert_allclose(product(5, 5), float(np.sum(q * k)), **close)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_far_positions_are_exact_in_half_precision(kind):
    """Angles in bfloat16 would be off by whole turns: it has 8 bits."""
    x = np.ones((1, 3, DK))
    exact = array(built(kind)(x, start_index=3001))
    half = array(built(kind, "bfloat16")(x, start_index=3001))
    np.testing.assert_allclose(half, exact, atol=2**-6)  # roundings of numbers up to 2


def test_what_lies_beyond_the_learned_positions(backend):
    layer, x = built("learned"), RANDOM.normal(size=(B, S, DK))
    assert layer(x, start_index=12 - S) is not None
    with pytest.raises(ValueError, match=r"beyond the 12 positions.*Received: start_index=8"):
        layer(x, start_index=8)
    last = array(layer.embeddings)[-1]
    compiled = backend.jit(lambda x, index: layer(x, start_index=index))
    found = array(compiled(ops.convert_to_tensor(x), ops.convert_to_tensor(8, "int32")))
    np.testing.assert_allclose(found[:, 3:], x[:, 3:] + last, **EXACT)
    found = array(layer(x, positions=[-1, 0, 11, 12, 99]))
    np.testing.assert_allclose(found[:, 2:], x[:, 2:] + last, **EXACT)
    np.testing.assert_allclose(found[:, 0] - x[:, 0], found[:, 1] - x[:, 1], **EXACT)


def test_an_odd_depth_ends_with_a_sine():
    encoding = array(SinusoidalPositions(dtype="float64").encoding(np.zeros((1, 4, DV)), 0))
    expected = np.sin(np.arange(4) / 10000 ** (6 / 7))
    np.testing.assert_allclose(encoding[0, :, -1], expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_model_the_mask_goes_on(kind):
    embedded = keras.layers.Embedding(9, DK, mask_zero=True)(keras.Input((None,), dtype="int32"))
    placed = KINDS[kind]()(embedded)
    assert placed.shape == (None, None, DK)
    assert placed._keras_mask is embedded._keras_mask


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SinusoidalPositions(max_wavelength=0),
        lambda: RotaryPositions(max_wavelength="long"),
        lambda: LearnedPositions(0),
        lambda: LearnedPositions(2.5),
        lambda: RotaryPositions()(np.ones((B, S, DV))),
        lambda: SinusoidalPositions()(np.ones((B, S, DV)), positions=np.ones((B, S, 1))),
        lambda: SinusoidalPositions()(np.ones((B, S, DV)), positions=np.ones(S - 1)),
        lambda: SinusoidalPositions()(np.ones((B, S, DV)), positions=np.ones((B + 1, S))),
        lambda: built("learned")(np.ones((B, S, DK + 1))),
    ],
)
def test_wrong_use_is_refused(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()
