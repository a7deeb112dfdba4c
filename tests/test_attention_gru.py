"""The gated recurrent unit beside Keras's own, and what a gate of 0 and of 1 does."""

import keras
import numpy as np
import pytest
from case import DQ, EXACT, B, S, T, U
from cases import CASES
from conftest import randomize
from keras import ops

import keras_attention as ka
from keras_attention.attention_gru import AttentionGRU

ROWS = [case for case in CASES if case.name.startswith(("attention_gru", "episodic"))]


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


def assert_all_close(actual, expected):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, **EXACT)


def inputs_of(seed=0, length=S):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(B, length, DQ)), rng.random((B, length))


def gru(**options):
    layer = AttentionGRU(U, dtype="float64", **options)
    layer.build((B, S, DQ), (B, S))
    randomize(layer)
    return layer


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_gates_of_one_make_it_keras_gru(reset_after, use_bias):
    options = {
        "reset_after": reset_after,
        "use_bias": use_bias,
        "return_sequences": True,
        "return_state": True,
    }
    layer = gru(gate="scale", **options)
    known = keras.layers.GRU(U, dtype="float64", zero_output_for_mask=True, **options)
    known.build((B, S, DQ))
    known.set_weights(layer.get_weights())
    inputs, _ = inputs_of()
    state = np.random.default_rng(1).normal(size=(B, U))
    mask = np.array([[True, True, False, True, False], [True] * 3 + [False] * 2])
    ones = np.ones((B, S))
    assert_all_close(layer(inputs, ones), known(inputs))
    assert_all_close(layer(inputs, ones, inputs_mask=mask), known(inputs, mask=mask))
    assert_all_close(
        layer(inputs, ones, initial_state=state, inputs_mask=mask),
        known(inputs, initial_state=ops.convert_to_tensor(state), mask=mask),
    )


@pytest.mark.parametrize("gate", ["replace", "scale"])
@pytest.mark.parametrize("reset_after", [True, False])
def test_a_gate_of_zero_leaves_the_state_as_it_is(gate, reset_after):
    layer = gru(gate=gate, reset_after=reset_after)
    inputs, gates = inputs_of()
    state = np.random.default_rng(1).normal(size=(B, U))
    np.testing.assert_array_equal(
        *arrays([layer(inputs, np.zeros((B, S)), initial_state=state), state])
    )
    # As if that step were not there.
    gates[:, 2] = 0.0
    rest = [0, 1, 3, 4]
    assert_all_close(layer(inputs, gates), layer(inputs[:, rest], gates[:, rest]))


def test_a_gate_of_one_forgets_the_state_but_for_the_candidate():
    """With no recurrent product nothing is left of what came before."""
    layer = gru()
    layer.recurrent_kernel.assign(np.zeros(layer.recurrent_kernel.shape))
    inputs, gates = inputs_of()
    gates[:, -1] = 1.0
    assert_all_close(layer(inputs, gates), layer(inputs[:, -1:], gates[:, -1:]))


def test_the_order_of_the_steps_matters():
    """What soft attention cannot tell apart."""
    layer = gru()
    inputs, gates = inputs_of()
    moved = layer(inputs[:, ::-1], gates[:, ::-1])
    assert not np.allclose(arrays([moved])[0], arrays([layer(inputs, gates)])[0])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("target", ["tflite", "onnx", "saved_model"])
def test_the_exported_loop_is_the_trained_one(row, target, made):
    layer, inputs, masks = made(row), row.inputs(), row.masks()
    for given in ({}, masks):
        expected = row.outputs(layer, inputs, given)
        with ka.exporting(target):
            assert_all_close(row.outputs(layer, inputs, given), expected)


@pytest.mark.parametrize("gate", ["replace", "scale"])
def test_going_on_from_the_last_state(gate):
    layer = gru(gate=gate, return_sequences=True, return_state=True)
    inputs, gates = inputs_of()
    sequence, last = layer(inputs, gates)
    begun, middle = layer(inputs[:, :2], gates[:, :2])
    ended, end = layer(inputs[:, 2:], gates[:, 2:], initial_state=middle)
    assert_all_close([ops.concatenate([begun, ended], 1), end], [sequence, last])


def test_gates_of_an_attention_and_a_mask_from_upstream():
    """Both in one functional model, as a memory network has them."""
    facts, query = keras.Input((None, DQ), dtype="float64"), keras.Input((DQ,), dtype="float64")
    masked = keras.layers.Masking(dtype="float64")(facts)
    attention, layer = ka.Attention("bilinear", dtype="float64"), gru()
    _, gates = attention(query, masked, return_attention_scores=True)
    model = keras.Model([facts, query], layer(masked, gates))
    inputs, _ = inputs_of()
    inputs[:, 3:] = 0.0
    asked = np.random.default_rng(1).normal(size=(B, DQ))
    mask = np.any(inputs != 0, axis=-1)
    _, gates = attention(asked, inputs, value_mask=mask, return_attention_scores=True)
    expected = layer(inputs, gates, inputs_mask=mask)
    assert_all_close(model([inputs, asked]), expected)
    assert_all_close(expected, layer(inputs[:, :3], gates[:, :3]))


def test_gates_may_be_of_another_type():
    layer = AttentionGRU(U, dtype="mixed_bfloat16")
    inputs, _ = inputs_of()
    ones = layer(inputs.astype("float32"), np.ones((B, S), "int32"))
    assert keras.backend.standardize_dtype(ones.dtype) == "bfloat16"
    np.testing.assert_array_equal(
        *(np.asarray(ops.cast(x, "float32")) for x in (ones, layer(inputs, np.ones((B, S)))))
    )


def test_regularizers_and_constraints_are_used():
    layer = AttentionGRU(
        U,
        kernel_regularizer="l2",
        recurrent_regularizer="l2",
        bias_regularizer="l2",
        kernel_constraint="non_neg",
        recurrent_constraint="max_norm",
        bias_constraint="unit_norm",
        bias_initializer="ones",
    )
    layer.build((B, T, DQ), (B, T))
    assert len(layer.losses) == 3
    kernel, recurrent, bias = layer.trainable_variables
    kinds = [type(w.constraint).__name__ for w in (kernel, recurrent, bias)]
    assert kinds == ["NonNeg", "MaxNorm", "UnitNorm"]
    assert np.all(arrays([bias])[0] == 1)
    # Orthogonal rows, as Keras starts them.
    product = arrays([recurrent])[0] @ arrays([recurrent])[0].T
    np.testing.assert_allclose(product, np.eye(U), atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": 0},
        {"units": "8"},
        {"units": True},
        {"units": 8, "gate": "add"},
        {"units": 8, "gate": None},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        AttentionGRU(**wrong)


def test_a_built_layer_refuses_other_shapes():
    layer = gru()
    inputs, gates = inputs_of()
    for wrong in (
        (inputs[..., :-1], gates),
        (inputs[0], gates),
        (inputs, gates[:, :-1]),
        (inputs, gates[:1]),
        (inputs, gates[..., None]),
        (inputs, gates, np.zeros((B, U + 1))),
        (inputs, gates, np.zeros((B + 1, U))),
        (inputs, gates, np.zeros((B, 1, U))),
    ):
        with pytest.raises(ValueError, match=r"Received: .*shape="):
            layer(*wrong)
    with pytest.raises(ValueError, match=r"inputs_mask must have shape.*Received"):
        layer(inputs, gates, inputs_mask=np.ones((B, 1), bool))


def test_training_lowers_the_loss():
    """The state must remember a marked step, which the gates alone point out."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(32, S, DQ)).astype("float32")
    marked = rng.integers(0, S, 32)
    gates = np.eye(S, dtype="float32")[marked]
    target = inputs[np.arange(32), marked, :1]
    x, g = keras.Input((None, DQ)), keras.Input((None,))
    state = AttentionGRU(U, dtype="mixed_bfloat16")(x, g)
    model = keras.Model([x, g], keras.layers.Dense(1, dtype="float32")(state))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    losses = model.fit([inputs, gates], target, epochs=15, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.3 * losses[0]
