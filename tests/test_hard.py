"""Normalizers that draw: what is sampled, what the gradient is, and how scores learn from it."""

import itertools

import keras
import numpy as np
import pytest
from case import DQ, DV, EXACT, B, S, T, U
from keras import ops

import keras_attention as ka
from keras_attention.hard import GumbelSoftmax, SampledAttention
from keras_attention.normalizers import get, hardmax, softmax

KINDS = {
    "hard": lambda **kw: GumbelSoftmax(0.7, **kw),
    "soft": lambda **kw: GumbelSoftmax(0.7, hard=False, **kw),
    "sampled": SampledAttention,
}
each_kind = pytest.mark.parametrize("create", KINDS.values(), ids=KINDS)
OPTIONS = {"entropy_weight": 0.2, "baseline_momentum": 0.5, "reward_weight": 0.1, "seed": 3}


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --- Draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [KINDS["hard"], KINDS["sampled"]], ids=["hard", "sampled"])
def test_keys_are_sampled_from_the_softmax(create):
    scores = np.array([[0.5, -1.0, 9.0, 1.5, 0.0]], "float32")
    mask = np.array([[True, True, False, True, True]])
    count = 8000
    many = np.repeat(scores, count, 0)
    weights = array(create(seed=1)(many, mask, training=True))
    assert set(np.unique(weights)) == {0.0, 1.0} and np.all(weights.sum(-1) == 1)
    expected = array(softmax(scores, mask))[0]
    # Six standard errors of a frequency.
    error = 6 * np.sqrt(expected * (1 - expected) / count)
    assert np.all(abs(weights.mean(0) - expected) <= error)
    assert np.all(weights[:, 2] == 0)


def test_the_temperature_divides_scores_and_noise():
    """Samples of one seed: the same key wins, by a distance that goes with 1 / temperature."""
    scores = normal(B, S)
    cold, warm = (
        np.log(array(GumbelSoftmax(t, hard=False, seed=5)(scores, training=True)))
        for t in (0.5, 2.0)
    )
    cold, warm = (x - x[:, :1] for x in (cold, warm))
    np.testing.assert_allclose(0.5 * cold, 2.0 * warm, rtol=1e-9)
    best = array(GumbelSoftmax(0.5, seed=5)(scores, training=True))
    np.testing.assert_array_equal(best.argmax(-1), cold.argmax(-1))


@each_kind
def test_draws_are_new_but_a_seed_repeats_them(create):
    scores = np.zeros((20, S))
    first, again = create(seed=4), create(seed=4)
    draws = [array(layer(scores, training=True)) for layer in (first, again, first, again)]
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[2], draws[3])
    assert not np.array_equal(draws[0], draws[2])


@each_kind
def test_at_inference_nothing_is_drawn(create):
    layer, scores = create(), normal(B, T, S)
    expected = softmax(scores / 0.7) if create is KINDS["soft"] else hardmax(scores)
    before = array(layer.seed_generator.state)
    for training in (None, False):
        np.testing.assert_allclose(array(layer(scores, training=training)), expected, **EXACT)
    np.testing.assert_array_equal(array(layer.seed_generator.state), before)


@each_kind
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_masked_scores_may_be_anything_in_training(create, dtype, backend):
    mask = np.array([[True, False, True, True], [False, False, False, False]])
    scores = np.where(mask, [[300.0, np.nan, 299.0, -300.0]], [[np.nan, 0, np.inf, -np.inf]])
    layer = create(seed=2, dtype=dtype)
    weights = array(layer(scores.astype(dtype), mask, training=True))
    assert weights.dtype == ("float64" if dtype == "float64" else "float32")
    assert np.all(weights[~mask] == 0)
    np.testing.assert_allclose(weights.sum(-1), [1, 0], atol=1e-6)

    def function(inputs):
        weights = layer(inputs["scores"], mask, training=True)
        return ops.sum(weights * ops.convert_to_tensor([1.0, 2.0, 3.0, 4.0], weights.dtype))

    gradient = backend.gradients(function, layer, {"scores": scores.astype(dtype)})[0]["scores"]
    assert np.isfinite(gradient).all() and np.all(gradient[~mask] == 0)


def test_a_hard_sample_has_the_gradient_of_the_soft_one(backend):
    scores, upstream = normal(B, T, S), normal(B, T, S, seed=1)

    def gradient(layer):
        def function(inputs):
            return ops.sum(layer(inputs["scores"], training=True) * upstream)

        return backend.gradients(function, layer, {"scores": scores})[0]["scores"]

    hard, soft = (gradient(GumbelSoftmax(0.7, hard=hard, seed=6)) for hard in (True, False))
    np.testing.assert_allclose(hard, soft, **EXACT)
    a = array(GumbelSoftmax(0.7, hard=False, seed=6)(scores, training=True))
    mean = (a * upstream).sum(-1, keepdims=True)
    np.testing.assert_allclose(soft, a * (upstream - mean) / 0.7, **EXACT)
    assert not gradient(SampledAttention(seed=6)).any()


# --- REINFORCE --------------------------------------------------------------------------------


def log_likelihood(weights, values, phi):
    """`log p(y | s)` of one answer, which depends on what all the queries read: (N,)."""
    context = ops.matmul(weights, ops.convert_to_tensor(values))  # (N, T, V)
    return -ops.softplus(-ops.sum(context * phi, axis=(1, 2)))


@pytest.mark.parametrize("baseline", [0.0, -0.7])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_the_expected_gradient_is_that_of_the_expected_objective(
    baseline, entropy_weight, masked, backend
):
    """Equation 11: every sample, weighed by its probability, in place of random ones."""
    queries, keys, width = 2, 3, 4
    scores, phi = normal(queries, keys), normal(queries, width, seed=1)
    values = normal(keys, width, seed=2)
    mask = np.array([[True, True, not masked], [True] * keys])  # (T, S)
    choices = itertools.product(*[np.flatnonzero(row) for row in mask])
    samples = np.array([np.eye(keys)[list(choice)] for choice in choices])  # (N, T, S)
    probabilities = (array(softmax(scores, mask)) * samples).sum(-1).prod(-1)  # (N,)
    np.testing.assert_allclose(probabilities.sum(), 1.0)
    layer = SampledAttention(entropy_weight=entropy_weight, dtype="float64")
    layer.baseline.assign(baseline)
    nothing = keras.layers.Identity()  # the layer has no weight to train

    def sampled(inputs):
        reward = log_likelihood(samples, values, inputs["phi"])
        chosen = layer.log_probability(inputs["scores"], samples, mask)
        entropy = layer.entropy(inputs["scores"], mask)
        return layer.surrogate(chosen, reward, entropy) - ops.mean(reward)

    def expected(inputs):
        found = softmax(inputs["scores"], mask)
        joint = ops.prod(ops.sum(found * samples, axis=-1), axis=-1)  # (N,)
        objective = ops.sum(joint * log_likelihood(samples, values, inputs["phi"]))
        logarithms = ops.log(ops.where(mask, found, 1.0))
        return objective - entropy_weight * ops.sum(found * logarithms)

    count = len(samples)
    rows = {"scores": np.stack([scores] * count), "phi": np.stack([phi] * count)}
    found, _ = backend.gradients(sampled, nothing, rows)
    exact, _ = backend.gradients(expected, nothing, {"scores": scores, "phi": phi})
    for name in ("scores", "phi"):
        # The loss is a mean over the rows, and minus what is to be raised.
        weighed = -count * np.tensordot(probabilities, found[name], 1)
        np.testing.assert_allclose(weighed, exact[name], **EXACT)
    assert np.all(found["scores"][:, ~mask] == 0)


def test_the_baseline_follows_the_rewards():
    layer = SampledAttention(baseline_momentum=0.9, dtype="float64")
    expected = 0.0
    for reward in ([-1.0, -3.0], [0.5, 0.5], [2.0, 0.0]):
        # What was earned before is compared with, not what is earned now.
        loss = array(layer.surrogate(np.array([-1.0, -2.0]), np.array(reward)))
        advantage = np.array(reward) - expected
        np.testing.assert_allclose(loss, -np.mean(advantage * [-1.0, -2.0]), **EXACT)
        expected = 0.9 * expected + 0.1 * np.mean(reward)
        np.testing.assert_allclose(array(layer.baseline), expected, **EXACT)


def test_a_reward_of_each_step_is_for_that_step():
    """(B, T) rewards; one for all of a row has the probabilities of all its steps."""
    chosen, entropy = normal(B, T), normal(B, T, seed=1)
    each, whole = normal(B, T, seed=2), normal(B, seed=3)
    layer = SampledAttention(0.3, reward_weight=0.5, baseline_momentum=1.0, dtype="float64")
    layer.baseline.assign(0.2)
    loss = array(layer.surrogate(chosen, each, entropy))
    gain = 0.5 * (each - 0.2) * chosen + 0.3 * entropy
    np.testing.assert_allclose(loss, -np.mean(gain), **EXACT)
    loss = array(layer.surrogate(chosen, whole, entropy))
    gain = 0.5 * (whole - 0.2) * chosen.sum(1) + 0.3 * entropy.sum(1)
    np.testing.assert_allclose(loss, -np.mean(gain), **EXACT)
    assert array(layer.baseline) == 0.2


def test_log_probability_and_entropy():
    layer, scores = SampledAttention(), 50 * normal(T, S)
    mask = np.ones((T, S), bool)
    mask[0, 1] = False
    mask[1] = False
    for row in range(T):
        p = array(softmax(scores[row], mask[row]))
        for s in np.flatnonzero(mask[row]):
            found = array(layer.log_probability(scores, np.eye(S)[[s] * T], mask))[row]
            readable = scores[row][mask[row]]
            total = np.log(np.exp(readable - readable.max()).sum()) + readable.max()
            np.testing.assert_allclose(found, scores[row, s] - total, rtol=1e-6, atol=1e-6)
        terms = p[p > 0] * np.log(p[p > 0])
        np.testing.assert_allclose(array(layer.entropy(scores, mask))[row], -terms.sum(), atol=1e-9)
    assert array(layer.log_probability(scores, np.zeros((T, S)), mask))[1] == 0
    assert array(layer.entropy(scores, mask))[1] == 0


class Reader(keras.Model):
    """Looks at one key and answers with what is written there."""

    def __init__(self, normalizer):
        super().__init__()
        self.attention = ka.Attention("bilinear", normalizer=normalizer)
        self.head = keras.layers.Dense(2)

    def call(self, inputs, training=None):
        query, memory = inputs
        context, weights = self.attention(
            query, memory, return_attention_scores=True, training=training
        )
        return self.head(context), weights

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        (query, memory), (logits, weights) = x, y_pred
        reward = -keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        if not training:
            return -ops.mean(reward)
        sampled, scores = self.attention.normalizer, self.attention.score(query, memory)
        chosen = sampled.log_probability(scores, weights)
        return sampled.surrogate(chosen, reward, sampled.entropy(scores)) - ops.mean(reward)


def test_a_model_learns_where_to_look():
    """The answer stands at the key that is marked; chance would give a loss of log 2."""
    rng = np.random.default_rng(0)
    marked, answer = rng.integers(0, 4, 256), rng.integers(0, 2, (256, 1))
    memory = rng.choice([-1.0, 1.0], size=(256, 4, 2)).astype("float32")
    memory[..., 0] = np.arange(4) == marked[:, None]
    memory[np.arange(256), marked, 1] = 2.0 * answer[:, 0] - 1.0
    query = np.ones((256, 1, 1), "float32")
    model = Reader(SampledAttention(entropy_weight=0.01, seed=1))
    model.compile(keras.optimizers.Adam(0.05))
    model.fit((query, memory), answer, batch_size=64, epochs=15, verbose=0)
    assert -1.0 < array(model.attention.normalizer.baseline) < -0.01
    weights = array(model((query, memory))[1])[:, 0]
    assert np.mean(weights.argmax(-1) == marked) == 1.0
    assert model.evaluate((query, memory), answer, verbose=0) < 0.3


# --- In a layer -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        GumbelSoftmax(0.3, hard=False, seed=5, name="named"),
        SampledAttention(**OPTIONS, name="named"),
    ],
    ids=["gumbel_softmax", "sampled_attention"],
)
def test_config_keeps_every_argument(layer):
    config = layer.get_config()
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    given = {"temperature": 0.3, "hard": False, "seed": 5}
    given = OPTIONS if isinstance(layer, SampledAttention) else given
    assert {name: config[name] for name in given} == given
    assert {name: getattr(copy, name) for name in given} == given


@pytest.mark.parametrize("around", ["attention", "decoder"])
@each_kind
def test_a_layer_around_it_is_saved_and_cloned(create, around, tmp_path):
    query, memory = keras.Input((None, DQ)), keras.Input((None, DV))
    if around == "attention":
        layer = ka.Attention("bilinear", create(seed=3), name="layer")
    else:
        layer = ka.AttentionDecoder(U, normalizer=create(seed=3), name="layer")
    model = keras.Model([query, memory], keras.tree.flatten(layer(query, memory)))
    if create is SampledAttention:
        layer.normalizer.baseline.assign(-0.4)
        assert any(weight is layer.normalizer.baseline for weight in model.weights)
    feed = [normal(B, T, DQ).astype("float32"), normal(B, S, DV).astype("float32")]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for copy in (loaded, clone):
        for found, expected in zip(copy(feed), model(feed), strict=True):
            np.testing.assert_array_equal(array(found), array(expected))
        normalizer = copy.get_layer("layer").normalizer
        assert normalizer is not layer.normalizer
        assert normalizer.get_config() == layer.normalizer.get_config()
        if create is SampledAttention:
            np.testing.assert_allclose(array(normalizer.baseline), -0.4)


@each_kind
def test_one_belongs_to_one_layer(create):
    normalizer = create()
    assert get(normalizer) is normalizer
    ka.Attention(normalizer=normalizer)(np.ones((B, T, DV)), np.ones((B, S, DV)))
    with pytest.raises(ValueError, match=r"each layer its own\. Received.*already built"):
        ka.Attention(normalizer=normalizer)(np.ones((B, T, DV)), np.ones((B, S, DV)))


def test_in_training_attention_looks_at_one_sampled_key():
    layer = ka.Attention("dot", SampledAttention(seed=1))
    query, value = np.zeros((50, T, DV), "float32"), normal(50, S, DV).astype("float32")
    mask = np.arange(S) < 3
    context, weights = layer(
        query,
        value,
        value_mask=np.tile(mask, (50, 1)),
        return_attention_scores=True,
        training=True,
    )
    weights = array(weights)
    assert len(np.unique(weights.argmax(-1))) == 3 and np.all(weights[..., ~mask] == 0)
    looked_at = np.take_along_axis(value, weights.argmax(-1)[..., None], axis=1)
    np.testing.assert_array_equal(array(context), looked_at)


@each_kind
def test_a_decoder_draws_step_by_step_and_not_in_its_loop(create, backend):
    decoder = ka.AttentionDecoder(U, normalizer=create(seed=1), dtype="float64")
    inputs, memory = normal(B, T, DQ), normal(B, S, DV)
    decoder.build(inputs.shape, memory.shape)
    decoder(inputs, memory)
    with pytest.raises(ValueError, match=r"loop of your own\. Received: normalizer='"):
        decoder(inputs, memory, training=True)

    def function(given):
        values, keys = decoder.prepare_memory(given["memory"])
        states, total = decoder.initial_state(B), 0.0
        for t in range(T):
            output, states, weights = decoder.step(
                given["inputs"][:, t], states, values, keys, training=True
            )
            total = total + ops.sum(output) + ops.sum(weights * np.arange(S))
        return total

    by_input, by_weight = backend.gradients(function, decoder, {"inputs": inputs, "memory": memory})
    assert all(np.isfinite(x).all() for x in (*by_input.values(), *by_weight))
    by_score = [
        g for w, g in zip(decoder.trainable_variables, by_weight, strict=True) if "score" in w.path
    ]
    # Only a sample that is a function of the scores has a gradient there.
    assert any(np.any(g != 0) for g in by_score) == (create is not SampledAttention)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: GumbelSoftmax(0.0),
        lambda: GumbelSoftmax(-1.0),
        lambda: SampledAttention(baseline_momentum=1.5),
        lambda: SampledAttention(baseline_momentum=-0.1),
        lambda: SampledAttention(0.1).surrogate(np.zeros(B), np.zeros(B)),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()
