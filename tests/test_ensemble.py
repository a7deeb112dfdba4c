"""Attention over models: masks, lists and encoders, of which the table does not speak."""

import keras
import numpy as np
import pytest
from case import DE, DQ, DV, EXACT, B, T, U
from cases import CASES
from keras import ops

from keras_attention.ensemble import AttentionEnsemble

ENSEMBLES = [case for case in CASES if case.name.startswith("ensemble")]


@pytest.fixture(params=ENSEMBLES, ids=lambda case: case.name)
def ensemble(request):
    return request.param


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, **(tolerance or EXACT))


def said_and_masks(case, hide_a_row=True):
    """Inputs, masks, and for each model where it is readable."""
    inputs, masks = case.inputs(), case.masks()
    if hide_a_row:
        masks["attention_mask"][0] = False
    outer = next(iter(inputs.values())).shape[:-1]
    readable = np.broadcast_to(masks["attention_mask"], (*outer, len(inputs)))
    readable = readable & np.broadcast_to(masks.get("mask", True), outer)[..., None]
    return inputs, masks, readable


def poisoned(inputs, readable, value):
    inputs = {name: np.array(x) for name, x in inputs.items()}
    for k, x in enumerate(inputs.values()):
        x[~readable[..., k]] = value
    return inputs


def test_reference_under_masks(ensemble, made, weights_of):
    layer = made(ensemble)
    inputs, masks, readable = said_and_masks(ensemble)
    mixed, weights = arrays(ensemble.outputs(layer, inputs, masks))
    assert_all_close((mixed, weights), ensemble.reference(weights_of(layer), inputs, masks))
    assert np.all(weights[~readable] == 0)
    assert np.all(mixed[~readable.any(-1)] == 0)


def test_a_model_that_says_nothing_has_no_influence(ensemble, made, backend):
    layer = made(ensemble)
    inputs, masks, readable = said_and_masks(ensemble)

    def function(inputs):
        mixed, weights = ensemble.outputs(layer, inputs, masks)
        return ops.sum(ops.square(mixed)) + ops.sum(ops.square(weights))

    expected = ensemble.outputs(layer, inputs, masks)
    zeros = backend.gradients(function, layer, poisoned(inputs, readable, 0.0))
    for value in (1e3, np.nan, np.inf):
        wrong = poisoned(inputs, readable, value)
        assert_all_close(ensemble.outputs(layer, wrong, masks), expected, rtol=0, atol=0)
        by_input, by_weight = backend.gradients(function, layer, wrong)
        assert_all_close(list(by_input.values()), list(zeros[0].values()), rtol=0, atol=0)
        assert_all_close(by_weight, zeros[1], rtol=0, atol=0)
        for k, gradient in enumerate(by_input.values()):
            assert np.all(gradient[~readable[..., k]] == 0)


def test_masks_of_integers(ensemble, made):
    layer = made(ensemble)
    inputs, masks, _ = said_and_masks(ensemble)
    integers = {name: mask.astype("int32") for name, mask in masks.items()}
    expected = ensemble.outputs(layer, inputs, masks)
    assert_all_close(ensemble.outputs(layer, inputs, integers), expected, rtol=0, atol=0)


def test_asking_for_weights_changes_nothing(ensemble, made):
    layer = made(ensemble)
    inputs, masks, _ = said_and_masks(ensemble)
    mixed, _ = ensemble.outputs(layer, inputs, masks)
    assert_all_close(layer(list(inputs.values()), **masks), mixed, rtol=0, atol=0)


def test_the_order_of_models_does_not_matter():
    """Where nothing projects them."""
    x = [np.random.default_rng(k).normal(size=(B, T, DV)) for k in range(3)]
    layer = AttentionEnsemble(dtype="float64")
    mixed, weights = arrays(layer(x, return_attention_scores=True))
    again, turned = arrays(layer([x[2], x[0], x[1]], return_attention_scores=True))
    assert_all_close([again, turned], [mixed, weights[..., [2, 0, 1]]])


def test_one_model_gets_all_the_weight():
    """And no warning, which is an error here."""
    x = np.ones((B, T, DV), "float32")
    mixed, weights = arrays(AttentionEnsemble()([x], return_attention_scores=True))
    assert_all_close([mixed, weights], [x, np.ones((B, T, 1))])


def test_models_are_taken_from_a_tuple_too():
    x = [np.random.default_rng(k).normal(size=(B, DV)) for k in range(2)]
    layer = AttentionEnsemble(dtype="float64")
    assert_all_close(layer(tuple(x)), layer(x), rtol=0, atol=0)


# --- Masks of a list ----------------------------------------------------------------------------


def test_a_list_of_masks_is_joined(made, weights_of):
    case = ENSEMBLES[0]
    layer, inputs = made(case), case.inputs()
    one, other = np.array([[True, True, False]] * B), np.array([[False, True, True]] * B)
    expected = case.reference(weights_of(layer), inputs, {"mask": one & other})
    assert_all_close(case.outputs(layer, inputs, {"mask": [one, None, other, one]}), expected)
    nothing = case.outputs(layer, inputs, {"mask": [None] * 4})
    assert_all_close(nothing, case.outputs(layer, inputs), rtol=0, atol=0)


@pytest.mark.parametrize("with_attention_mask", [False, True])
def test_masks_from_upstream(made, with_attention_mask):
    """They arrive by themselves, are joined, go on downstream, and an explicit one wins."""
    case = ENSEMBLES[0]
    layer, values, masks = made(case), case.inputs(), case.masks()
    inputs = {
        name: keras.Input(batch_shape=case.unknown(shape), name=name, dtype="float64")
        for name, shape in case.shapes.items()
    }
    first = next(iter(inputs))
    masked = {**inputs, first: keras.layers.Masking(dtype="float64")(inputs[first])}
    before = masked[first]._keras_mask
    more = {"attention_mask": masks["attention_mask"]} if with_attention_mask else {}
    given = {k: keras.Input(m.shape[1:], dtype="bool", name=k) for k, m in more.items()}
    outputs = case.outputs(layer, {**masked, **given})
    assert masked[first]._keras_mask is before
    assert outputs[0]._keras_mask is not None
    assert getattr(outputs[1], "_keras_mask", None) is None

    passed_on = keras.layers.GlobalAveragePooling1D(dtype="float64")(outputs[0])
    model = keras.Model({**inputs, **given}, [*outputs, passed_on])
    values[first][~masks["mask"]] = 0.0
    expected = arrays(case.outputs(layer, values, {"mask": masks["mask"], **more}))
    mean = expected[0].sum(1) / masks["mask"].sum(1, keepdims=True)
    assert_all_close(model({**values, **more}), [*expected, mean])

    everything = np.ones_like(masks["mask"])
    model = keras.Model(
        {**inputs, **given}, case.outputs(layer, {**masked, **given}, {"mask": everything})
    )
    assert_all_close(model({**values, **more}), case.outputs(layer, values, more))


@pytest.mark.tensorflow("eager JAX arrays carry no mask")
def test_eager_masks_of_inputs_stay(made):
    case = ENSEMBLES[0]
    layer, values = made(case), case.inputs()
    masked = {name: keras.layers.Masking(dtype="float64")(x) for name, x in values.items()}
    before = {name: x._keras_mask for name, x in masked.items()}
    mixed, _ = case.outputs(layer, masked)
    assert all(masked[name]._keras_mask is before[name] for name in masked)
    assert np.all(arrays(mixed._keras_mask)[0])


# --- Encoders -----------------------------------------------------------------------------------


def bidirectional():
    return keras.layers.Bidirectional(keras.layers.LSTM(2, return_sequences=True), name="encoder")


def test_an_encoder_sees_the_whole_sequence_of_each_model():
    """Contextualized meta-embeddings: weights are those of the states, not of the words."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(B, T, width)).astype("float32") for width in (DQ, DE)]
    mask = np.array([[True, True, False], [True, True, True]])
    layer = AttentionEnsemble(U, encoder=bidirectional())
    mixed, weights = arrays(layer(x, mask=mask, return_attention_scores=True))

    variables = {w.path.split("/", 1)[1]: arrays(w)[0] for w in layer.weights}
    projected = [
        (x[k] @ variables[f"projection_{k}/kernel"] + variables[f"projection_{k}/bias"])
        for k in range(2)
    ]
    states = np.stack([arrays(layer.encoder(p, mask=mask))[0] for p in projected], axis=-2)
    scores = states @ variables["score/kernel"][:, 0]
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) * mask[..., None]
    single = {"rtol": 1e-5, "atol": 1e-6}
    assert_all_close(weights, expected, **single)
    assert_all_close(mixed, np.einsum("btk,btku->btu", expected, np.stack(projected, -2)), **single)

    moved = [np.array(part) for part in x]
    moved[0][:, 1] += 1.0
    other = arrays(layer(moved, mask=mask, return_attention_scores=True))[1]
    assert not np.allclose(other[:, 0], weights[:, 0])


@pytest.mark.parametrize(
    "encoder", [bidirectional, lambda: keras.layers.Conv1D(5, 3, padding="same", name="encoder")]
)
def test_an_encoder_sees_nothing_of_padding(encoder):
    """Whether it knows of masks or not: the same as of a shorter sequence."""
    x = [np.random.default_rng(k).normal(size=(B, T, DQ)).astype("float32") for k in range(2)]
    layer, rng = AttentionEnsemble(U, encoder=encoder()), np.random.default_rng(2)
    layer.build([x[0].shape] * 2)
    for weight in layer.weights:  # biases too
        weight.assign(0.3 * rng.normal(size=weight.shape))
    mask = np.array([[True, True, False]] * B)
    padded = arrays(layer(x, mask=mask, return_attention_scores=True))
    short = arrays(layer([part[:, :2] for part in x], return_attention_scores=True))
    assert_all_close([part[:, :2] for part in padded], short, rtol=1e-5, atol=1e-6)


def test_an_encoder_is_saved_with_the_ensemble(tmp_path):
    words = keras.Input((None,), dtype="int32")
    embedded = [keras.layers.Embedding(9, width, mask_zero=True)(words) for width in (DQ, DE)]
    mixed = AttentionEnsemble(U, encoder=bidirectional(), name="mixture")(embedded)
    model = keras.Model(words, keras.layers.Dense(1)(mixed))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    ids = np.random.default_rng(0).integers(1, 9, size=(8, 5))
    ids[:, -1] = 0
    target = (ids == 3).astype("float32")[..., None]
    losses = model.fit(ids, target, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_all_close(loaded(ids), model(ids), rtol=0, atol=0)


@pytest.mark.parametrize(
    "encoder",
    [
        lambda: keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(2)]),
        lambda: keras.Sequential([keras.Input((None, DV)), keras.layers.Dense(2)]),
        lambda: keras.layers.RNN(
            [keras.layers.GRUCell(3), keras.layers.GRUCell(2)], return_sequences=True
        ),
    ],
    ids=["layers", "with_an_input", "cells"],
)
def test_encoders_of_several_layers_are_saved_and_loaded(encoder, tmp_path):
    inputs = [keras.Input((None, DV)) for _ in range(2)]
    model = keras.Model(inputs, AttentionEnsemble(encoder=encoder())(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    given = [np.random.default_rng(k).normal(size=(B, T, DV)) for k in range(2)]
    assert_all_close(loaded(given), model(given), rtol=0, atol=0)
    if not isinstance(loaded.layers[-1].encoder, keras.Model):  # which is built by itself
        assert [w.path for w in loaded.weights] == [w.path for w in model.weights]


def test_an_encoder_belongs_to_one_ensemble():
    encoder = keras.layers.Dense(3)
    x = np.ones((B, T, DV), "float32")
    AttentionEnsemble(encoder=encoder)([x, x])
    with pytest.raises(ValueError, match="already built"):
        AttentionEnsemble(encoder=encoder)([x, x])


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [
        (B, T, DV),
        [],
        [(B, T, DV), (B, DV)],
        [(B, T, DV), (B, T + 1, DV)],
        [(B, T, DV), (B + 1, T, DV)],
        [(B, T, DV), (B, T, None)],
        [(B, 1, T, DV)] * 2,
        [(B, T, DV), (B, T, DQ)],  # nothing projects them
    ],
)
def test_wrong_inputs(shapes):
    with pytest.raises(ValueError, match=r"Received: inputs.*shape="):
        AttentionEnsemble().build(shapes)


def test_a_built_ensemble_refuses_other_inputs():
    x = [np.ones((B, T, width), "float32") for width in (DQ, DV)]
    layer = AttentionEnsemble(U)
    layer(x)
    for wrong, message in (
        (x[:1], "Received: 1 tensors"),
        (x[0], "Received: inputs_shape="),
        (x[::-1], "Received: .*shape="),
        ([x[0], x[1][:1]], "Received: .*shape="),
        ([x[0][:, 0], x[1]], "Received: .*shape="),
    ):
        with pytest.raises(ValueError, match=message):
            layer(wrong)
    for name, wrong in (
        ("mask", np.ones((B, T + 1), bool)),
        ("mask", np.ones((B,), bool)),
        ("attention_mask", np.ones((B, T, 3), bool)),
        ("attention_mask", np.ones((B, 2), bool)),
    ):
        with pytest.raises(ValueError, match=rf"Received: {name}.shape="):
            layer(x, **{name: wrong})


@pytest.mark.parametrize("wrong", [{"units": 0}, {"units": True}, {"encoder": 3}])
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match=f"Received: {next(iter(wrong))}="):
        AttentionEnsemble(**wrong)


def test_what_is_said_of_kernels():
    layer = AttentionEnsemble(
        DV,
        kernel_initializer=keras.initializers.GlorotUniform(),
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
    )
    layer.build([(B, T, DV)] * 2)
    kernels = [w for w in layer.trainable_variables if w.path.endswith("kernel")]
    first, second, _ = arrays(kernels)
    assert not np.allclose(first, second)
    assert len(layer.losses) == 3
    assert all(w.constraint is not None for w in kernels)


def test_biases_are_added_unless_they_are_declined():
    for use_bias, number in ((True, 3), (False, 0)):
        layer = AttentionEnsemble(U, use_bias=use_bias)
        layer.build([(B, T, DV)] * 2)
        assert sum(w.path.endswith("bias") for w in layer.weights) == number
