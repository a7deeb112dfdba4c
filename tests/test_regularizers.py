"""Penalties on weights: their formulas, what padding costs, and how they join a model's loss."""

import json
import math
import os
import subprocess
import sys
from functools import partial

import keras
import numpy as np
import pytest
from case import DQ, DV, EXACT, B, S, T
from keras import ops

from keras_attention import Attention, LocalAttention, SelfAttention
from keras_attention.regularizers import (
    CoveragePenalty,
    DiversityPenalty,
    DoublyStochasticPenalty,
    EntropyPenalty,
)

# Each for one matrix (T, S), and which rows and keys of it are real.


def diversity(a, rows, keys):
    """Lin et al. 2017, equation 8: |A A^T - I|_F^2."""
    return sum((sum(a[t, s] * a[r, s] for s in keys) - (t == r)) ** 2 for t in rows for r in rows)


def doubly_stochastic(a, rows, keys):
    """Xu et al. 2015, equation 14: sum_s (1 - sum_t a_ts)^2."""
    return sum((1 - sum(a[t, s] for t in rows)) ** 2 for s in keys)


def coverage(a, rows, keys):
    """See et al. 2017, equation 12: sum_t sum_s min(a_ts, c_ts)."""
    return sum(min(a[t, s], sum(a[r, s] for r in rows if r < t)) for t in rows for s in keys)


def entropy(a, rows, keys):
    return -sum(a[t, s] * math.log(a[t, s]) for t in rows for s in keys if a[t, s] > 0)


PENALTIES = [
    (DiversityPenalty, diversity),
    (DoublyStochasticPenalty, doubly_stochastic),
    (CoveragePenalty, coverage),
    (EntropyPenalty, entropy),
]
each = pytest.mark.parametrize(("penalty", "formula"), PENALTIES)
K = 4


def random_weights(shape, mask=None):
    """Rows that sum to 1 over what may be read, or to 0."""
    found = np.random.default_rng(0).random(shape) * (1.0 if mask is None else mask)
    return found / np.maximum(found.sum(-1, keepdims=True), 1e-9)


def number(x):
    return float(ops.convert_to_numpy(x))


@each
@pytest.mark.parametrize("shape", [(B, T, S), (B, K, T, S)])
def test_mean_of_the_formula_over_the_batch(penalty, formula, shape):
    weights = random_weights(shape)
    found = [formula(a, range(T), range(S)) for a in weights.reshape(-1, T, S)]
    np.testing.assert_allclose(number(penalty()(weights)), np.mean(found), **EXACT)
    np.testing.assert_allclose(number(penalty(-0.3)(weights)), -0.3 * np.mean(found), **EXACT)


@each
def test_padding_costs_nothing(penalty, formula):
    """Masked keys, padded queries, and a row of the batch that is nothing but padding."""
    batch = 3
    keys, queries = np.ones((batch, S), bool), np.ones((batch, T), bool)
    keys[0, 3:] = keys[1, 0] = queries[1, 1:] = keys[2] = False
    mask = keys[:, None, :] & queries[:, :, None]
    weights = random_weights(mask.shape, mask)
    found = [
        formula(a, np.flatnonzero(m.any(1)), np.flatnonzero(m.any(0)))
        for a, m in zip(weights, mask, strict=True)
    ]
    assert found[2] == 0
    expected = 0.7 * np.mean(found)
    for given in (mask, mask.astype("int32")):
        np.testing.assert_allclose(number(penalty(0.7)(weights, given)), expected, **EXACT)
    # Of each of K as of one, and the same whatever stands in the padding.
    many = np.where(mask, weights, 9.0)[:, None].repeat(K, 1)
    np.testing.assert_allclose(number(penalty(0.7)(many, mask)), expected, **EXACT)


@each
def test_masks_that_broadcast(penalty, formula):
    for shape in ((B, 1, S), (B, T, 1), (1, T, S)):
        mask = np.random.default_rng(1).random(shape) < 0.6
        whole = np.broadcast_to(mask, (B, T, S))
        weights = random_weights(whole.shape, whole)
        expected = number(penalty()(weights, whole))
        np.testing.assert_allclose(number(penalty()(weights, mask)), expected, **EXACT)


@each
def test_gradient_is_finite_at_weights_of_zero(penalty, formula, backend):
    weights = np.zeros((B, T, S))
    weights[0, :, 1] = weights[1, 0, 2] = 1.0

    def function(inputs):
        return penalty()(inputs["weights"])

    (gradient,) = backend.gradients(function, keras.layers.Layer(), {"weights": weights})[
        0
    ].values()
    assert np.isfinite(gradient).all()


def test_entropy_has_no_gradient_at_a_weight_of_zero(backend):
    def function(inputs):
        return EntropyPenalty()(inputs["weights"])

    given = {"weights": np.array([[[0.0, 0.5]]])}
    (gradient,) = backend.gradients(function, keras.layers.Layer(), given)[0].values()
    np.testing.assert_allclose(gradient, [[[0.0, -math.log(0.5) - 1.0]]], **EXACT)


@each
def test_wide_inside(penalty, formula):
    """Float16 counts no further than 2048 in steps of one."""
    weights = np.zeros((1, 3, 5000), "float16")
    weights[0, 1, 0] = 1.0
    found = penalty()(weights)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = formula(weights[0].astype("float64"), range(3), range(5000))
    np.testing.assert_allclose(number(found), expected, rtol=1e-6)


@each
def test_an_empty_batch_costs_nothing(penalty, formula):
    assert number(penalty()(np.zeros((0, T, S)))) == 0


@each
def test_config(penalty, formula):
    config = json.loads(json.dumps(keras.regularizers.serialize(penalty(0.3))))
    copy = keras.regularizers.get(config)
    assert type(copy) is penalty
    assert copy.get_config() == {"weight": 0.3}


@each
def test_wrong_rank_is_refused(penalty, formula):
    for shape in ((B, S), (B, 2, K, T, S)):
        with pytest.raises(ValueError, match=r"Received: weights\.shape="):
            penalty()(np.ones(shape))


@each
def test_joins_the_loss_of_a_model(penalty, formula, tmp_path):
    """In training and in evaluation, and after loading."""
    query, value = keras.Input((T, DQ)), keras.layers.Masking()(source := keras.Input((S, DV)))
    context, weights = Attention("additive", weights_regularizer=penalty(0.3))(
        query, value, return_attention_scores=True
    )
    model = keras.Model([query, source], context)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(B, n, d)).astype("float32") for n, d in ((T, DQ), (S, DV))]
    x[1][0, 3:] = 0.0
    y = np.zeros((B, T, DV), "float32")

    seen = [np.asarray(a) for a in keras.Model(model.inputs, [context, weights])(x)]
    found = [
        formula(a, range(T), range(3 if b == 0 else S)) for b, a in enumerate(seen[1].astype(float))
    ]
    expected = np.mean(np.square(seen[0])) + 0.3 * np.mean(found)
    assert model.train_on_batch(x, y) == pytest.approx(expected, rel=1e-5)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)


REPLICAS = """
import sys, keras, numpy as np, tensorflow as tf
from keras_attention import Attention, LocalAttention, SelfAttention
from keras_attention.regularizers import DiversityPenalty

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(4, 3, 5)).astype("float32"), rng.normal(size=(4, 3, 5)).astype("float32")
for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
    keras.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(devices).scope():
        inputs = keras.Input((3, 5))
        attention = Attention("bilinear", weights_regularizer=DiversityPenalty(0.5))
        model = keras.Model(inputs, attention(inputs, inputs))
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    np.save(sys.argv[len(devices)], model.get_weights()[0])
"""


@pytest.mark.tensorflow("replicas of tf.distribute")
def test_the_same_on_one_replica_and_on_two(tmp_path):
    files = [str(tmp_path / f"{count}.npy") for count in (1, 2)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-c", REPLICAS, *files], check=True, capture_output=True, env=quiet
    )
    one, two = map(np.load, files)
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [Attention, partial(LocalAttention, window=2), SelfAttention])
@pytest.mark.parametrize("wrong", ["l2", keras.regularizers.L1(0.1), lambda weights: 0.0])
def test_a_regularizer_of_kernels_is_refused(layer, wrong):
    with pytest.raises(ValueError, match=r"\(weights, mask\) -> scalar.*Received: weights_reg"):
        layer(weights_regularizer=wrong)
