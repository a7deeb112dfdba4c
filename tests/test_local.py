"""Windows: where they stand, what they cost, and what is left of full attention."""

import keras
import numpy as np
import pytest
from case import DQ, DV, EXACT, B, S, T, U
from keras import ops

import keras_attention as ka
from keras_attention import GumbelSoftmax, LocalAttention

SCORES = ("dot", "scaled_dot", "bilinear", "additive", "mlp", "cosine")


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def assert_close(actual, expected):
    np.testing.assert_allclose(array(actual), array(expected), **EXACT)


def inputs(queries=T, keys=S, width=DV, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(B, queries, width)), rng.normal(size=(B, keys, width))


def read_keys(layer, query, value, **kwargs):
    """Which keys the first row of the batch reads, query by query."""
    _, weights = layer(query, value, return_attention_scores=True, **kwargs)
    return [np.flatnonzero(row).tolist() for row in array(weights)[0]]


@pytest.mark.parametrize(
    "score, queries, keys, window",
    [
        *[(score, 3, 5, 1) for score in SCORES],
        ("dot", 5, 3, 1),
        ("dot", 7, 4, 2),
        ("dot", 2, 3, 9),
    ],
)
def test_monotonic_is_attention_under_a_window_mask(score, queries, keys, window):
    query, value = inputs(queries, keys)
    local = LocalAttention(window, score, dtype="float64")
    whole = ka.Attention(score, dtype="float64")
    local.build(query.shape, value.shape)
    whole.build(query.shape, value.shape)
    whole.set_weights(local.get_weights())
    near = np.abs(np.arange(keys) - np.arange(queries)[:, None]) <= window
    expected = whole(
        query,
        value,
        attention_mask=np.broadcast_to(near, (B, queries, keys)),
        return_attention_scores=True,
    )
    for found, wanted in zip(
        local(query, value, return_attention_scores=True), expected, strict=True
    ):
        assert_close(found, wanted)


@pytest.mark.parametrize("score", SCORES)
def test_predictive_is_attention_in_the_window_times_a_gaussian(score):
    query, value = inputs()
    local = LocalAttention(2, score, predictive=True, units=U, dtype="float64")
    whole = ka.Attention(score, dtype="float64")
    local.build(query.shape, value.shape)
    whole.build(query.shape, value.shape)
    *own, hidden, position = local.get_weights()
    whole.set_weights(own)
    center = S / (1 + np.exp(-np.tanh(query @ hidden) @ position))  # (B, T, 1)
    distance = np.arange(S) - center
    _, weights = whole(
        query, value, attention_mask=np.abs(distance) <= 2, return_attention_scores=True
    )
    expected = array(weights) * np.exp(-(distance**2) / 2)  # sigma = 2 / 2
    found, weights = local(query, value, return_attention_scores=True)
    assert_close(weights, expected)
    assert_close(found, expected @ value)


@pytest.mark.parametrize(
    "keys, window, wanted",
    [
        (4, 1, [1, 2, 3]),  # around 2
        (4, 2, [0, 1, 2, 3]),
        (5, 1, [2, 3]),  # around 2.5
        (5, 2, [1, 2, 3, 4]),
        (7, 2, [2, 3, 4, 5]),
        (3, 9, [0, 1, 2]),
    ],
)
def test_a_window_around_a_predicted_integer_or_half(keys, window, wanted):
    """A query of zeros looks at the middle of the memory."""
    query, value = np.zeros((B, 1, DV)), np.zeros((B, keys, DV))
    layer = LocalAttention(window, predictive=True, dtype="float64")
    assert read_keys(layer, query, value) == [wanted]
    _, weights = layer(query, value, return_attention_scores=True)
    distance = np.array(wanted) - keys / 2
    expected = np.exp(-(distance**2) / (2 * (window / 2) ** 2)) / len(wanted)
    assert_close(array(weights)[0, 0, wanted], expected)


def test_a_monotonic_window_at_the_edges():
    layer = LocalAttention(2)
    query, value = np.zeros((B, 7, DV), "float32"), np.zeros((B, 4, DV), "float32")
    wanted = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [2, 3], [3], []]
    assert read_keys(layer, query, value) == wanted
    assert read_keys(layer, query, value, start_index=2)[:5] == wanted[2:]


def test_a_window_of_its_own_key():
    query, value = inputs(queries=T, keys=S)
    mask = np.array([[True] * S, [True, False, *[True] * (S - 2)]])
    context = LocalAttention(0, dtype="float64")(query, value, value_mask=mask)
    expected = np.where(mask[:, :T, None], value[:, :T], 0.0)
    np.testing.assert_array_equal(array(context), expected)


def test_step_by_step_is_the_whole_pass():
    query, value = inputs(queries=4)
    layer = LocalAttention(1, "bilinear", dtype="float64")
    expected = array(layer(query, value))
    for t in range(4):
        position = ops.convert_to_tensor(t, "int32")
        assert_close(layer(query[:, t], value, start_index=position), expected[:, t])
    assert_close(layer(query[:, 2:], value, start_index=2), expected[:, 2:])


def test_more_padding_moves_no_prediction():
    query, value = inputs()
    layer = LocalAttention(1, "additive", predictive=True, dtype="float64")
    expected = layer(query, value, return_attention_scores=True)
    longer = np.concatenate([value, np.full((B, 4, DV), np.nan)], axis=1)
    mask = np.arange(S + 4) < S
    context, weights = layer(
        query, longer, value_mask=np.stack([mask] * B), return_attention_scores=True
    )
    assert_close(context, expected[0])
    assert_close(array(weights)[..., :S], expected[1])
    assert np.all(array(weights)[..., S:] == 0)
    # Nor is it the number of readable keys that counts: padding may stand before them.
    mask = np.stack([np.arange(S) > 1] * B)
    seen = read_keys(LocalAttention(1, predictive=True), 0 * query, value, value_mask=mask)
    assert seen == [[2, 3]] * T  # around S / 2


def test_keys_outside_of_all_windows_are_not_touched():
    query, value = inputs(queries=2, keys=9)
    layer = LocalAttention(1, dtype="float64")
    expected = array(layer(query, value))
    value[:, 3:] = np.nan
    np.testing.assert_array_equal(array(layer(query, value)), expected)


def test_predicted_positions_are_not_rounded_in_half_precision():
    """From 2^10 on there are no halves in float16."""
    layer = LocalAttention(1, predictive=True, dtype="float16")
    query, value = np.zeros((1, 1, DV)), np.zeros((1, 3001, DV))
    assert read_keys(layer, query, value) == [[1500, 1501]]


@pytest.mark.parametrize("predictive", [False, True])
def test_memory_grows_with_the_window_and_not_with_the_memory(predictive):
    """No tensor of a forward and backward pass has as many entries as (T, S)."""
    length = 20_000
    layer = LocalAttention(2, predictive=predictive)
    layer.build((1, length, DQ), (1, length, DQ))
    largest = _largest_tensor(layer, (1, length, DQ))
    assert length * DQ <= largest < length**2 / 100
    assert _largest_tensor(layer, (1, 100, DQ), return_attention_scores=True) >= 100**2


def _largest_tensor(layer, shape, **kwargs):
    def function(query, value):
        outputs = keras.tree.flatten(layer(query, value, **kwargs))
        return sum(ops.sum(ops.square(x)) for x in outputs)

    if keras.backend.backend() == "jax":
        import jax

        given = [jax.ShapeDtypeStruct(shape, "float32")] * 2
        return max(_sizes(jax.make_jaxpr(jax.grad(function, argnums=(0, 1)))(*given).jaxpr))
    import tensorflow as tf

    def gradients(query, value):
        with tf.GradientTape() as tape:
            tape.watch((query, value))
            result = function(query, value)
        return [tf.convert_to_tensor(x) for x in tape.gradient(result, (query, value))]

    specs = [tf.TensorSpec(shape)] * 2
    graph = tf.function(gradients, autograph=False).get_concrete_function(*specs).graph
    shapes = [x.shape for operation in graph.get_operations() for x in operation.outputs]
    return max(shape.num_elements() or 0 for shape in shapes if shape.rank is not None)


def _sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (int(np.prod(x.aval.shape)) for x in equation.outvars)
        for inner in equation.params.values():
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _sizes(inner)


def test_a_regularizer_takes_all_weights_and_what_may_be_read():
    query, value = inputs(queries=3, keys=5)
    seen = []

    def penalty(weights, mask):
        seen.extend([array(weights), array(mask)])
        return ops.sum(weights)

    layer = LocalAttention(1, weights_regularizer=penalty, dtype="float64")
    mask = np.array([[True] * S, [False, *[True] * (S - 1)]])
    context = layer(query, value, value_mask=mask)
    plain = LocalAttention(1, dtype="float64")
    expected = plain(query, value, value_mask=mask, return_attention_scores=True)
    assert_close(context, expected[0])
    assert_close(seen[0], expected[1])
    near = np.abs(np.arange(S) - np.arange(T)[:, None]) <= 1
    np.testing.assert_array_equal(seen[1], near & mask[:, None])
    assert_close(layer.losses[0], array(expected[1]).sum())


def test_weights_are_from_before_dropout():
    query, value = inputs()
    layer = LocalAttention(2, predictive=True, dropout=0.5, seed=3, dtype="float64")
    context, weights = layer(query, value, return_attention_scores=True, training=True)
    expected = layer(query, value, return_attention_scores=True)
    assert_close(weights, expected[1])
    assert not np.allclose(array(context), array(expected[0]))


def test_a_normalizer_that_draws(tmp_path):
    query, value = inputs()
    given = keras.Input((None, DV)), keras.Input((None, DV))
    layer = LocalAttention(1, normalizer=GumbelSoftmax(hard=True, seed=4))
    model = keras.Model(given, layer(*given, return_attention_scores=True))
    drawn = array(model([query, value], training=True)[1])
    assert np.all(np.sort(drawn, axis=-1)[..., -1] == 1) and np.all(drawn.sum(-1) == 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded([query, value])[0], model([query, value])[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: LocalAttention(-1),
        lambda: LocalAttention(1.5),
        lambda: LocalAttention(True),
        lambda: LocalAttention(0, predictive=True),
        lambda: LocalAttention(1, units=0),
        lambda: LocalAttention(1, "unknown"),
        lambda: LocalAttention(1, ka.MultiDimensionalScore(3)),
        lambda: LocalAttention(1, ka.AlibiScore()),
        lambda: LocalAttention(1, ka.LocationScore(9)),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_a_built_layer_refuses_other_shapes():
    layer = LocalAttention(1)
    query, value = inputs()
    layer(query, value)
    for wrong in ((query[..., 1:], value), (query, value[..., 1:]), (query[:1], value)):
        with pytest.raises(ValueError, match=r"Received: .*shape="):
            layer(*wrong)


def test_the_predictor_takes_what_a_kernel_takes():
    layer = LocalAttention(
        1,
        predictive=True,
        units=U,
        kernel_initializer=keras.initializers.GlorotUniform(),
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
    )
    layer.build((B, T, DQ), (B, S, DQ))
    hidden, position = layer.trainable_variables
    assert hidden.shape == (DQ, U) and position.shape == (U, 1)
    assert len(layer.losses) == 2
    assert all(w.constraint is not None for w in (hidden, position))
    assert array(hidden).ravel()[0] != array(position).ravel()[0]
    layer = LocalAttention(1, predictive=True)
    layer.build((B, T, DQ), (B, S, DQ))
    assert layer.trainable_variables[0].shape == (DQ, DQ)


def test_training_learns_where_to_look():
    """The query says at which of 8 places the answer stands."""
    places = 8
    query, value = keras.Input((places,)), keras.Input((places, 2))
    layer = LocalAttention(2, predictive=True)
    read = layer(keras.layers.Dense(2, use_bias=False)(query), value)
    model = keras.Model([query, value], keras.layers.Dense(1)(read))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    rng = np.random.default_rng(0)
    at, values = rng.integers(places, size=64), rng.normal(size=(64, places, 2))
    data = [np.eye(places)[at], values], values[np.arange(64), at, :1]
    losses = model.fit(*data, epochs=12, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
