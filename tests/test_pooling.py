"""Pooling by attention in models, and what a row of the table cannot say of it."""

import keras
import numpy as np
import pytest
from case import DOUBLE, DV, EXACT, B, S, U
from keras import ops

from keras_attention import AdditiveScore, Attention, GumbelSoftmax, MultiDimensionalScore
from keras_attention.pooling import AttentionPooling, MultiDimensionalPooling
from keras_attention.regularizers import DiversityPenalty

POOLINGS = (AttentionPooling, MultiDimensionalPooling)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_behind_a_recurrent_layer_in_a_sequential_model(pooling):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(20, 6, mask_zero=True),
            keras.layers.GRU(5, return_sequences=True),
            pooling(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    tokens = np.array([[4, 7, 2], [9, 3, 0], [0, 0, 0]])
    history = model.fit(tokens, np.ones((3, 1)), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    padded = np.pad(tokens, ((0, 0), (0, 4)))
    np.testing.assert_allclose(array(model(padded)), array(model(tokens)), atol=1e-6)
    # Nothing but padding: what is left is the bias.
    np.testing.assert_allclose(array(model(tokens))[2], array(model.layers[-1].bias))


def test_is_attention_asked_by_the_learned_query():
    inputs = numbers(B, S, DV)
    pooling = AttentionPooling(activation="linear", hops=3, score="additive", dtype="float64")
    pooled, weights = pooling(inputs, return_attention_scores=True)
    attention = Attention(AdditiveScore(dtype="float64"), dtype="float64")
    query = np.broadcast_to(array(pooling.query), (B, 3, DV))
    hidden = inputs @ array(pooling._hidden.kernel)
    attention.build(query.shape, inputs.shape, hidden.shape)
    attention.set_weights([array(w) for w in pooling.score.weights])
    expected = attention(query, inputs, hidden, return_attention_scores=True)
    np.testing.assert_allclose(array(pooled), array(expected[0]), **EXACT)
    np.testing.assert_allclose(array(weights), array(expected[1]), **EXACT)


def test_structured_self_attentive_embedding():
    """Lin et al. 2017: the penalty is of the weights that are returned."""
    layer = AttentionPooling(
        U, hops=4, use_bias=False, weights_regularizer=DiversityPenalty(0.1), dtype="float64"
    )
    mask = np.ones((B, S), bool)
    mask[0, 2:] = mask[1] = False
    _, weights = layer(numbers(B, S, DV), mask=mask, return_attention_scores=True)
    first = array(weights)[0]
    expected = 0.1 * np.sum(np.square(first @ first.T - np.eye(4))) / B  # the second reads nothing
    np.testing.assert_allclose([float(x) for x in layer.losses], [expected], **EXACT)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_weights_are_from_before_dropout(pooling):
    inputs = numbers(B, S, DV)
    layers = [pooling(dropout=0.5, seed=3, dtype="float64") for _ in range(2)]
    for layer in layers:
        layer.build(inputs.shape)
        layer.set_weights(layers[0].get_weights())
    pooled, weights = layers[0](inputs, return_attention_scores=True, training=True)
    undropped, same = layers[0](inputs, return_attention_scores=True)
    np.testing.assert_array_equal(array(weights), array(same))
    assert not np.allclose(array(pooled), array(undropped))
    np.testing.assert_array_equal(array(layers[1](inputs, training=True)), array(pooled))


@pytest.mark.parametrize("hops", [None, 4])
def test_score_of_several_dimensions(hops):
    layer = AttentionPooling(
        U, hops, score=MultiDimensionalScore(3, dtype="float64"), dtype="float64"
    )
    inputs = numbers(B, S, DV)
    pooled, weights = layer(inputs, return_attention_scores=True)
    axes = (B, 3) if hops is None else (B, 3, hops)
    assert array(pooled).shape == (*axes, DV)
    assert array(weights).shape == (*axes, S)
    symbolic = layer(keras.Input((S, DV), B, dtype="float64"), return_attention_scores=True)
    assert [x.shape for x in symbolic] == [(*axes, DV), (*axes, S)]
    read = np.einsum("...s,bsd->b...d", array(weights)[0], inputs[:1])[0]
    np.testing.assert_allclose(array(pooled)[0], read, **EXACT)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_normalizer_that_draws(pooling):
    layer = pooling(normalizer=GumbelSoftmax(seed=1))
    inputs = numbers(40, S, DV)
    _, drawn = layer(inputs, return_attention_scores=True, training=True)
    _, best = layer(inputs, return_attention_scores=True)
    for weights in (drawn, best):
        np.testing.assert_allclose(array(weights).max(-1), 1.0, atol=1e-6)
    assert not np.array_equal(array(drawn).round(), array(best))


def test_kernel_arguments_reach_every_kernel():
    arguments = {
        "kernel_initializer": "ones",
        "kernel_regularizer": keras.regularizers.L2(1.0),
        "kernel_constraint": keras.constraints.MaxNorm(0.5),
    }
    for pooling, entries in ((AttentionPooling, DV * U + U), (MultiDimensionalPooling, 2 * DV * U)):
        layer = pooling(U, **arguments)
        layer.build((B, S, DV))
        kernels = [w for w in layer.weights if "bias" not in w.path]
        assert all(np.all(array(w) == 1) for w in kernels)
        assert all(w.constraint is not None for w in kernels)
        assert sum(float(x) for x in layer.losses) == entries


def test_width_of_the_hidden_layer_is_that_of_the_inputs():
    layer = AttentionPooling()
    layer.build((None, None, DV))
    assert layer.query.shape == (1, DV)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_other_width_than_built_for_is_refused(pooling):
    layer = pooling()
    layer(numbers(B, S, DV))
    with pytest.raises(ValueError, match=r"Received: inputs_shape=\(2, 5, 8\)"):
        layer(numbers(B, S, 8))


def test_wrong_numbers_are_refused():
    for pooling in POOLINGS:
        for units in (0, -1, 2.5, "8", True):
            with pytest.raises(ValueError, match="Received: units="):
                pooling(units)
    for hops in (0, 1.5, True):
        with pytest.raises(ValueError, match="Received: hops="):
            AttentionPooling(hops=hops)


@pytest.mark.skipif(not DOUBLE, reason="Keras's tanh computes in float32 on JAX")
def test_one_hop_is_no_hops_with_an_axis():
    inputs = numbers(B, S, DV)
    layers = [AttentionPooling(hops=hops, dtype="float64") for hops in (None, 1)]
    for layer in layers:
        layer.build(inputs.shape)
        layer.set_weights(layers[0].get_weights())
    one, axis = (layer(inputs, return_attention_scores=True) for layer in layers)
    for without, having in zip(one, axis, strict=True):
        np.testing.assert_array_equal(array(without)[:, None], array(having))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_mask_for_all_rows(pooling):
    layer, inputs = pooling(), numbers(B, S, DV)
    mask = np.array([[True, False, True, True, False]])
    expected = layer(inputs, mask=mask.repeat(B, 0), return_attention_scores=True)
    for found, wanted in zip(
        layer(inputs, mask=mask, return_attention_scores=True), expected, strict=True
    ):
        np.testing.assert_array_equal(array(found), array(wanted))
