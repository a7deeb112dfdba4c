"""Coupled attentions: what the table does not say of them."""

import keras
import numpy as np
import pytest
from case import DV, EXACT, B, S
from cases import CASES
from keras import ops

import keras_attention as ka
from keras_attention.coupled import CoupledAttention

COUPLED = [case for case in CASES if case.name.startswith("coupled")]


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


@pytest.fixture(params=COUPLED, ids=lambda case: case.name)
def coupled(request):
    return request.param


def test_padded_tokens_leave_as_zeros(coupled, made):
    case = coupled
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    aspect, opinion, weights = arrays(case.outputs(layer, inputs, masks))
    for features in (aspect, opinion):
        assert np.all(features[~masks["mask"]] == 0)
        assert np.all(np.any(features[masks["mask"]] != 0, axis=-1))
    if case.sums:
        np.testing.assert_allclose(weights.sum(-1), case.sums, **EXACT)
    asked_not = arrays(case.outputs(layer, inputs, masks, return_attention_scores=False))
    for actual, expected in zip(asked_not, (aspect, opinion), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_padding_does_not_move_the_network_on(coupled, made):
    """The same features, as if the padding between the tokens were not there."""
    layer, tokens = made(coupled), coupled.inputs()["inputs"]
    mask = np.array([True, False, True, True, False])
    padded = arrays(layer(tokens, mask=np.stack([mask, mask])))
    short = arrays(layer(tokens[:, mask]))
    for actual, expected in zip(padded, short, strict=True):
        np.testing.assert_allclose(actual[:, mask], expected, **EXACT)


def test_both_outputs_carry_the_mask_from_upstream(made):
    case = COUPLED[0]
    layer, values, masks = made(case), case.inputs(), case.masks()
    tokens = keras.Input(batch_shape=case.unknown(case.shapes["inputs"]), dtype="float64")
    masked = keras.layers.Masking(dtype="float64")(tokens)
    outputs = layer(masked, return_attention_scores=True)
    assert all(x._keras_mask is masked._keras_mask for x in outputs[:2])
    assert getattr(outputs[2], "_keras_mask", None) is None
    values["inputs"][~masks["mask"]] = 0.0
    model = keras.Model(tokens, outputs)
    expected = arrays(case.outputs(layer, values, masks))
    for actual, wanted in zip(arrays(model(values["inputs"])), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_each_attention_hears_of_the_other(made):
    """What the opinions look for changes the features of the aspects, from the first layer on."""
    case = COUPLED[0]
    layer, tokens = made(case), case.inputs()["inputs"]
    before = arrays(layer(tokens))
    for side in ("aspect", "opinion"):
        moved = next(w for w in layer.weights if w.path.endswith(f"{side}/prototype"))
        value = arrays(moved)[0]
        moved.assign(value + 1.0)
        for actual, expected in zip(arrays(layer(tokens)), before, strict=True):
            assert np.all(np.any(actual != expected, axis=-1))
        moved.assign(value)


@pytest.mark.parametrize("target", ["tflite", "onnx", "saved_model"])
def test_the_exported_loop_is_the_trained_one(made, target):
    case = COUPLED[1]
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    expected = arrays(case.outputs(layer, inputs, masks))
    with ka.exporting(target):
        actual = arrays(case.outputs(layer, inputs, masks))
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, **EXACT)


def test_kernels_of_one_initializer_differ():
    layer = CoupledAttention(3, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((B, S, DV))
    assert len({round(float(arrays(w)[0].ravel()[0]), 7) for w in layer.weights}) == 14


def test_what_is_said_of_kernels():
    layer = CoupledAttention(
        3, use_bias=True, kernel_regularizer="l2", kernel_constraint="max_norm"
    )
    layer.build((B, S, DV))
    biases = [w for w in layer.weights if w.path.endswith("bias")]
    kernels = [w for w in layer.weights if not w.path.endswith("bias")]
    assert len(biases) == 2
    assert len(layer.losses) == len(kernels) == 14
    assert all(w.constraint is not None for w in kernels)


@pytest.mark.parametrize(
    "wrong",
    [{"slices": 0}, {"slices": 2.0}, {"num_layers": 1}, {"num_layers": True}, {"normalizer": 3}],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match=f"Received: {next(iter(wrong))}="):
        CoupledAttention(**wrong)


def test_a_built_layer_refuses_another_width(made):
    case = COUPLED[0]
    layer, tokens = made(case), case.inputs()["inputs"]
    with pytest.raises(ValueError, match="Received: inputs_shape="):
        layer(np.concatenate([tokens, tokens], axis=-1))


def test_training_finds_two_kinds_of_words():
    """Fit through mixed precision and masks from upstream: the loss falls."""
    words = keras.Input((None,), dtype="int32")
    tokens = keras.layers.Embedding(9, 6, mask_zero=True)(words)
    aspect, opinion = CoupledAttention(4, dtype="mixed_bfloat16")(tokens)
    outputs = [keras.layers.Dense(1, dtype="float32")(x) for x in (aspect, opinion)]
    model = keras.Model(words, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), [loss, loss])
    ids = np.random.default_rng(0).integers(1, 9, size=(16, 5))
    ids[0, 3:] = 0
    found = [(ids == kind).astype("float32")[..., None] for kind in (2, 3)]
    losses = model.fit(ids, found, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
