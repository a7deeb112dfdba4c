"""Monotonic alignments: the recurrence, decisions and expectations, one query at a time."""

import keras
import numpy as np
import pytest
from case import DQ, DV, EXACT, B, S, T
from cases import CASES
from keras import ops
from reference.monotonic import decided, expected

import keras_attention as ka
from keras_attention import MonotonicAttention

ROWS = [x for x in CASES if x.name in ("monotonic_soft_mlp_key", "monotonic_hard_bilinear")]


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def assert_close(actual, expected, **tolerance):
    np.testing.assert_allclose(array(actual), array(expected), **(tolerance or EXACT))


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(B, T, DV)), rng.normal(size=(B, S, DV))


def weights_of_energies(energies, dtype="float64", **options):
    """The weights (T, S) for energies (T, S): query i is the unit vector i."""
    energies = np.asarray(energies, dtype)
    query, key = np.eye(len(energies), dtype=dtype), energies.T
    layer = MonotonicAttention("dot", dtype=dtype, **options)
    return array(layer(query[None], key[None], return_attention_scores=True)[1])[0]


def recursion(p):
    """Equations 13 and 14 in float64: weights (T, S) of probabilities (T, S)."""
    weights, last = np.zeros(p.shape), np.eye(p.shape[1])[0]
    for i in range(len(p)):
        q = 0.0
        for j in range(p.shape[1]):
            q = (1.0 - p[i, j - 1]) * q * (j > 0) + last[j]
            weights[i, j] = p[i, j] * q
        last = weights[i]
    return weights


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_repeated_steps_are_the_whole_pass(row, made):
    layer, given = made(row), row.inputs()
    mask = row.masks()[row.key_mask]
    context, weights = row.outputs(layer, given, {row.key_mask: mask})
    value = ops.convert_to_tensor(given["value"])
    key = ops.convert_to_tensor(given["key"]) if "key" in given else None
    values, keys = layer.prepare_memory(value, mask, key)
    last = layer.initial_weights(B, S)
    for t in range(T):
        query = ops.convert_to_tensor(given["query"][:, t])
        found, last = layer.step(query, last, values, keys, mask)
        assert_close(found, context[:, t])
        assert_close(last, weights[:, t])


@pytest.mark.parametrize("target", ["tflite", "onnx", "saved_model"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_exported_loop_is_the_trained_one(row, made, target):
    layer, given, masks = made(row), row.inputs(), row.masks()
    wanted = row.outputs(layer, given, masks)
    with ka.exporting(target):
        for found, trained in zip(row.outputs(layer, given, masks), wanted, strict=True):
            assert_close(found, trained)


@pytest.mark.parametrize("follow, hard", [(expected, False), (decided, True)])
def test_the_formula_on_many_alignments(follow, hard):
    for seed in range(5):
        energies = np.random.default_rng(seed).normal(size=(6, 8))
        found, last = weights_of_energies(energies, hard_inference=hard), np.eye(8)[0]
        for i, row in enumerate(1 / (1 + np.exp(-energies))):
            last = follow(row, last)
            assert_close(found[i], last)


def test_many_keys_and_saturated_probabilities():
    """Where products underflow and divisions would fail: 500 keys, p near 0 and 1 and at them."""
    rng = np.random.default_rng(0)
    scale, shift = rng.choice([1.0, 10.0, 100.0, 1e4], size=(12, 500)), rng.normal(size=(12, 1))
    energies = (scale * rng.normal(size=(12, 500)) + 4.0 * shift).astype("float32")
    with np.errstate(over="ignore"):
        p = 1 / (1 + np.exp(-energies.astype("float64")))
    found = weights_of_energies(energies, "float32", hard_inference=False)
    # Rounding of one probability, carried on by factors of at most 1.
    np.testing.assert_allclose(found, recursion(p), rtol=0, atol=1e-6)
    # Most mass goes by all keys but the last ones: nothing is lost on the way.
    energies = np.full((2, 500), -5.0, "float32")
    p = 1 / (1 + np.exp(5.0))
    found = weights_of_energies(energies, "float32", hard_inference=False)[0]
    np.testing.assert_allclose(found, p * (1 - p) ** np.arange(500), rtol=1e-4)


def test_gradients_of_long_alignments(backend):
    """Finite, and in float32 those of float64."""
    rng = np.random.default_rng(1)
    energies = rng.choice([1.0, 30.0, 1e4], size=(1, 300, 8)) * rng.normal(size=(1, 300, 8))

    def gradient(dtype):
        layer = MonotonicAttention("dot", hard_inference=False, dtype=dtype)
        query = np.eye(8, dtype=dtype)[None]
        layer.build(query.shape, energies.shape)

        def function(given):
            weights = layer(query, given["value"], return_attention_scores=True)[1]
            return ops.sum(weights * ops.cast(ops.arange(300), weights.dtype)) / 300

        return backend.gradients(function, layer, {"value": energies.astype(dtype)})[0]["value"]

    found, wanted = gradient("float32"), gradient("float64")
    assert np.isfinite(found).all() and np.any(found != 0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_decisions_are_the_limit_of_expectations():
    for seed in range(5):
        energies = np.random.default_rng(seed).normal(size=(5, 9))
        hard = weights_of_energies(energies)
        soft = weights_of_energies(1e6 * energies, hard_inference=False)
        assert_close(hard, soft)


def test_decisions_move_forward_and_end():
    energies = np.full((5, 6), -1.0)
    energies[0, 2] = energies[1, 2] = energies[2, [1, 4]] = energies[4] = 1.0
    # The third query must not go back; the fourth finds nothing, so the fifth has nothing left.
    wanted = np.zeros((5, 6))
    wanted[[0, 1, 2], [2, 2, 4]] = 1.0
    np.testing.assert_array_equal(weights_of_energies(energies), wanted)


@pytest.mark.parametrize("hard", [False, True])
def test_masked_keys_are_passed_over(hard):
    """Also at the front, where the first query starts: as though they were not there."""
    query, value = inputs()
    mask = np.array([[False, True, False, True, True], [False, False, True, True, True]])
    layer = MonotonicAttention("dot", hard_inference=hard, dtype="float64")
    context, weights = layer(query, value, value_mask=mask, return_attention_scores=True)
    for b in range(B):
        rest = layer(query[b : b + 1], value[b : b + 1, mask[b]], return_attention_scores=True)
        assert_close(context[b], rest[0][0])
        assert_close(array(weights)[b][:, mask[b]], rest[1][0])
        assert np.all(array(weights)[b][:, ~mask[b]] == 0)


@pytest.mark.parametrize("hard", [False, True])
def test_a_masked_query_leaves_the_place_where_it_is(hard):
    query, value = inputs()
    layer = MonotonicAttention("dot", hard_inference=hard, dtype="float64")
    for gap in range(T):
        mask = np.arange(T) != gap
        rest = layer(query[:, mask], value)
        context = array(layer(query, value, query_mask=np.stack([mask] * B)))
        assert_close(context[:, mask], rest)
        assert np.all(context[:, gap] == 0)


def test_training_reads_expectations_of_noisy_energies():
    query, value = inputs()
    soft = MonotonicAttention("dot", noise=0.0, hard_inference=False, dtype="float64")
    without = MonotonicAttention("dot", noise=0.0, dtype="float64")
    assert_close(without(query, value, training=True), soft(query, value))
    assert not np.allclose(array(without(query, value)), array(soft(query, value)))

    layer = MonotonicAttention("dot", noise=0.7, seed=5, dtype="float64")
    context = layer(query, value, training=True)
    drawn = 0.7 * array(
        keras.random.normal((B, T, S), dtype="float64", seed=keras.random.SeedGenerator(5))
    )
    values, keys = layer.prepare_memory(ops.convert_to_tensor(value))
    last = layer.initial_weights(B, S)
    for t in range(T):
        row = ops.convert_to_tensor(query[:, t])
        found, last = layer.step(row, last, values, keys, noise=drawn[:, t], training=True)
        assert_close(found, context[:, t])
    assert not np.allclose(array(context), array(layer(query, value, training=True)))
    assert_close(layer(query, value), without(query, value))


@pytest.mark.tensorflow("artifacts are made on TensorFlow")
def test_searches_in_one_tflite_file(tmp_path):
    """The weights travel as a state, at batches and lengths that are unknown."""
    from keras_attention.export.inspect import inspect_tflite
    from keras_attention.export.parity import load_tflite
    from keras_attention.export.tflite import export_tflite

    rng = np.random.default_rng(0)
    cell, head = keras.layers.GRUCell(DQ), keras.layers.Dense(9)
    cell.build((None, 9 + DV))
    head.build((None, DQ))

    def searched(hard):
        layer = MonotonicAttention("bilinear", hard_inference=hard)
        layer.build((None, None, DQ), (None, None, DV))
        for weight in (*layer.weights, *cell.weights, *head.weights):
            weight.assign(rng.normal(size=weight.shape))

        def step(tokens, states, values, keys, mask):
            hidden, last = states
            context, last = layer.step(hidden, last, values, keys, mask)
            hidden, _ = cell(ops.concatenate([ops.one_hot(tokens, 9), context], -1), [hidden])
            return head(hidden), (hidden, last), last

        def function(memory, mask):
            batch, length = ops.shape(memory)[:2]
            states = ops.zeros((batch, DQ)), layer.initial_weights(batch, length)
            memory = (*layer.prepare_memory(memory, mask), mask)
            return ka.greedy_search(
                step, states, memory, start_id=0, end_id=1, max_length=6
            )._asdict()

        memory = keras.InputSpec(dtype="float32", shape=(None, None, DV))
        return function, {"memory": memory, "mask": keras.InputSpec("bool", (None, None))}

    functions = {"hard": searched(True), "soft": searched(False)}
    path = export_tflite(functions, tmp_path / "searches.tflite")
    assert not inspect_tflite(path).flex
    for name, (function, _) in functions.items():
        run = load_tflite(path, name, runtime="tf.lite")
        for batch, length in ((B, S), (3, 8), (1, 1)):
            given = {
                "memory": rng.normal(size=(batch, length, DV)).astype("float32"),
                "mask": np.arange(length) < rng.integers(1, length + 1, (batch, 1)),
            }
            wanted = function(**{k: ops.convert_to_tensor(v) for k, v in given.items()})
            found = run(given)
            np.testing.assert_array_equal(found["tokens"], wanted["tokens"])
            # Two float32 runtimes.
            assert_close(found["alignments"], wanted["alignments"], rtol=0, atol=1e-5)


@pytest.mark.tensorflow("a length is unknown in its graphs alone")
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_at_unknown_lengths(backend, compiled):
    import tensorflow as tf

    query, value = (x.astype("float32") for x in inputs())
    layer = MonotonicAttention(hard_inference=False)
    layer.build(query.shape, value.shape)

    def gradients(query, value):
        with tf.GradientTape() as tape:
            result = ops.sum(ops.square(layer(query, value)))
        return tape.gradient(result, layer.trainable_weights)

    spec = tf.TensorSpec((None, None, DV))
    traced = tf.function(gradients, [spec] * 2, autograph=False, jit_compile=compiled)
    wanted = gradients(*map(tf.convert_to_tensor, (query, value)))
    for found, eager in zip(traced(query, value), wanted, strict=True):
        assert_close(found, eager, rtol=1e-4, atol=1e-6)  # two orders of summation in float32


def test_the_bias_shifts_all_energies():
    query, value = inputs()
    layer = MonotonicAttention("dot", bias_initializer=keras.initializers.Constant(1e3))
    _, weights = layer(query, value, return_attention_scores=True)
    np.testing.assert_array_equal(array(weights)[..., 0], 1)
    assert [w.path.split("/")[-1] for w in layer.trainable_variables] == ["bias"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MonotonicAttention(noise=-0.1),
        lambda: MonotonicAttention("unknown"),
        lambda: MonotonicAttention(ka.MultiDimensionalScore(3)),
        lambda: MonotonicAttention(ka.AlibiScore()),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_a_built_layer_refuses_other_shapes():
    layer = MonotonicAttention()
    query, value = inputs()
    layer(query, value)
    for wrong in ((query[..., 1:], value), (query, value[..., 1:]), (query[:1], value)):
        with pytest.raises(ValueError, match=r"Received: .*shape="):
            layer(*wrong)


def test_training_aligns_a_sequence_with_itself():
    """Each item stands twice in the memory; the alignment that learns to copy skips one."""
    items, length = 6, 4
    ids, doubled = keras.Input((length,), dtype="int32"), keras.Input((None,), dtype="int32")
    layer = MonotonicAttention("bilinear", seed=2)
    embedding = keras.layers.Embedding(items, DQ)
    read = layer(embedding(ids), embedding(doubled))
    model = keras.Model([ids, doubled], keras.layers.Dense(items, "softmax")(read))
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy")
    given = np.random.default_rng(0).integers(items, size=(128, length))
    losses = model.fit([given, np.repeat(given, 2, axis=1)], given, epochs=10, verbose=0)
    losses = losses.history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]
