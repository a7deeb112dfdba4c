"""Scores of positions and of heads: distances, offsets, wrapping, one head as the other."""

import keras
import numpy as np
import pytest
from case import DK, DQ, B, S, T, U
from keras import ops
from reference.scores import slopes

import keras_attention as ka
from keras_attention import positional_scores, scores
from keras_attention.attention import attend
from keras_attention.hard import GumbelSoftmax
from keras_attention.normalizers import entmax15, hardmax, sigmoid, softmax, sparsemax
from keras_attention.positional_scores import AlibiScore, RelativePositionScore
from keras_attention.scores import AdditiveScore, LocationScore, MultiDimensionalScore

H = 6
# Two orders of summation in float64; on JAX Keras's tanh makes float32 of it on its way.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
if keras.backend.backend() == "jax":
    CLOSE = {"rtol": 2e-6, "atol": 2e-6}


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def randomized(score, query_shape, key_shape):
    score.build(query_shape, key_shape)
    score.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(score.weights)])
    return score


def compared(score, query, key, offset=None):
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    return array(scores.compare(score, query, score.project_key(key), offset))


@pytest.mark.parametrize(
    "create, key_width",
    [
        (ka.DotScore, DQ),
        (ka.ScaledDotScore, DQ),
        (lambda **kw: ka.CosineScore(2.0, **kw), DQ),
        (ka.BilinearScore, DK),
        (lambda **kw: ka.MLPScore((U, 3), "sigmoid", **kw), DK),
        (ka.AdditiveScore, DK),
        (lambda **kw: AdditiveScore(U, normalize=True, **kw), DK),
        (lambda **kw: LocationScore(3, **kw), DK),
        (lambda **kw: RelativePositionScore("bilinear", 2, **kw), DK),
        (lambda **kw: AlibiScore("additive", **kw), DK),
    ],
)
def test_heads_are_compared_one_by_one(create, key_width):
    query, key = normal(B, H, T, DQ), normal(B, H, S, key_width, seed=1)
    together = randomized(create(dtype="float64"), query.shape, key.shape)
    found = compared(together, query, key)
    assert found.shape == (B, H, T, S)
    assert together.compute_output_shape(query.shape, key.shape) == found.shape
    for h in range(H):
        alone = create(dtype="float64")
        alone.build((B, T, DQ), (B, S, key_width))
        for mine, common in zip(alone.weights, together.weights, strict=True):
            mine.assign(common[h] if common.path.endswith("/bias") and common.ndim == 2 else common)
        if isinstance(alone, AlibiScore):
            alone._slopes = [together._slopes[h]]
        np.testing.assert_allclose(
            found[:, h], compared(alone, query[:, h], key[:, h]), **CLOSE, err_msg=f"head {h}"
        )


@pytest.mark.parametrize("heads", [(), (H,)])
@pytest.mark.parametrize(
    "create",
    [
        lambda: RelativePositionScore("additive", 2, dtype="float64"),
        lambda: AlibiScore("dot", dtype="float64"),
        lambda: RelativePositionScore(AlibiScore(dtype="float64"), 3, dtype="float64"),
    ],
)
def test_step_by_step_over_a_cache_is_the_whole_comparison(create, heads):
    """The cache has its full size from the first step on, so a step says where it stands."""
    x, cache = normal(B, *heads, S, DQ), normal(B, *heads, S, DQ, seed=1)
    score = randomized(create(), x.shape, cache.shape)
    whole = compared(score, x, cache)
    for position in range(S):
        step = x[..., position : position + 1, :]
        for offset in (position, ops.convert_to_tensor(position, "int32")):
            np.testing.assert_allclose(
                compared(score, step, cache, offset),
                whole[..., position : position + 1, :],
                **CLOSE,
            )
    # Without a word of it the last query stands at the last key.
    last = compared(score, x[..., 2:, :], cache)
    np.testing.assert_allclose(last, whole[..., 2:, :], **CLOSE)


@pytest.mark.tensorflow("only TensorFlow has lengths that are tensors")
def test_an_offset_that_is_only_known_when_it_runs():
    import tensorflow as tf

    score = randomized(AlibiScore("dot"), (B, 1, DQ), (B, S, DQ))

    @tf.function(input_signature=[tf.TensorSpec([None, 1, DQ]), tf.TensorSpec([], "int32")])
    def step(query, offset):
        return score.compare(query, tf.ones((2, 5, DQ)), offset)

    query = normal(B, 1, DQ).astype("float32")
    for offset in (0, 3):
        expected = compared(score, query, np.ones((B, S, DQ), "float32"), offset)
        np.testing.assert_allclose(step(query, offset), expected, rtol=1e-6)


def test_attend_tells_the_offset_to_whom_it_matters():
    query, key = normal(1, 1, DQ), normal(1, S, DQ, seed=1)
    plain = randomized(ka.DotScore(dtype="float64"), query.shape, key.shape)
    by_position = randomized(AlibiScore("dot", dtype="float64"), query.shape, key.shape)
    assert not plain.positional and by_position.positional
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    expected = array(attend(plain, softmax, query, key))
    np.testing.assert_array_equal(array(attend(plain, softmax, query, key, offset=1)), expected)
    at_1 = array(attend(by_position, softmax, query, key, offset=1))
    penalty = np.exp(-abs(np.arange(S) - 1) / 256)
    np.testing.assert_allclose(at_1, expected * penalty / (expected * penalty).sum(), **CLOSE)


def test_far_keys_share_a_bias():
    score = RelativePositionScore("dot", max_distance=2, dtype="float64")
    score.build((1, 1, DQ), (1, 7, DQ))
    assert not array(score.bias).any()  # at first it is the score that it wraps
    score.bias.assign([1.0, 2.0, 3.0, 4.0, 5.0])
    zeros = np.zeros((1, 1, DQ)), np.zeros((1, 7, DQ))
    assert compared(score, *zeros, offset=3)[0, 0].tolist() == [1, 1, 2, 3, 4, 5, 5]
    assert compared(score, *zeros)[0, 0].tolist() == [1, 1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 40])
def test_slopes(heads):
    found = positional_scores.slopes(heads)
    assert len(found) == heads
    np.testing.assert_allclose(found, slopes(heads), rtol=1e-12)


def test_slopes_of_the_paper():
    """Section 3: 1/2, 1/4 ... 1/256 of 8 heads; of 16 those and their geometric means."""
    assert positional_scores.slopes(8) == [2.0**-i for i in range(1, 9)]
    assert positional_scores.slopes(16) == [2.0 ** (-i / 2) for i in range(1, 17)]


def test_wrapped_scores_are_saved_and_revived():
    inner = AlibiScore(MultiDimensionalScore(3, name="many"), name="linear")
    score = RelativePositionScore(inner, 2, name="learned")
    score.build((B, T, DQ), (B, S, DK))
    assert score.dimensions == 3 and score.bias.shape == (3, 5) and len(inner._slopes) == 3
    copy = scores.get(keras.saving.serialize_keras_object(score))
    assert not copy.built and not copy.score.built and not copy.score.score.built
    copy.build((B, T, DQ), (B, S, DK))
    copy.set_weights(score.get_weights())
    assert copy.get_config() == score.get_config()
    query, key = normal(B, T, DQ), normal(B, S, DK)
    np.testing.assert_array_equal(compared(copy, query, key), compared(score, query, key))


def test_terms_add_up_in_any_order():
    query, key = normal(B, T, DQ), normal(B, S, DQ, seed=1)
    learned_last = RelativePositionScore(AlibiScore("dot", dtype="float64"), 2, dtype="float64")
    learned_first = AlibiScore(RelativePositionScore("dot", 2, dtype="float64"), dtype="float64")
    found = [
        compared(randomized(score, query.shape, key.shape), query, key)
        for score in (learned_first, learned_last)
    ]
    np.testing.assert_allclose(*found, **CLOSE)


@pytest.mark.parametrize(
    "normalizer",
    [softmax, sparsemax, entmax15, sigmoid, hardmax, GumbelSoftmax(hard=False)],
    ids=lambda x: getattr(x, "__name__", "gumbel_softmax"),
)
@pytest.mark.parametrize("wrap", [lambda score: score, AlibiScore])
def test_keys_without_a_location_are_masked(normalizer, wrap):
    """Whether a mask is given or not, and although NaN stands there."""
    location = LocationScore(3)
    score = randomized(wrap(location), (B, T, DQ), (B, S, DK))
    location.query_dense.kernel.assign(20 + normal(DQ, 3))  # so that no sigmoid rounds to 0
    query, key = np.ones((B, T, DQ), "float32"), normal(B, S, DK).astype("float32")
    key[:, 3:] = np.nan
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    for mask in (None, np.ones((B, 1, S), bool), np.arange(S)[None, None] > 2):
        mask = None if mask is None else ops.convert_to_tensor(mask)
        weights = array(attend(score, normalizer, query, score.project_key(key), mask))
        assert np.all(weights[..., 3:] == 0)
        readable = mask is None or array(mask)[..., 0].all()
        assert np.all(weights.sum(-1) > 0.9) if readable else np.all(weights == 0)


def test_a_memory_may_be_shorter_than_the_locations():
    score = randomized(LocationScore(9, dtype="float64"), (B, T, DQ), (B, S, DK))
    query = normal(B, T, DQ)
    found = compared(score, query, normal(B, 2, DK))
    kernel = array(score.query_dense.kernel)
    np.testing.assert_allclose(found, query @ kernel[:, :2], **CLOSE)


def test_weight_normalization_of_the_additive_score(backend):
    """As long as `g` says, whatever the length of `v`; nothing where `v` is 0."""
    query, key = normal(B, T, DQ), normal(B, S, DK, seed=1)
    score = AdditiveScore(U, normalize=True, dtype="float64")
    score.build(query.shape, key.shape)
    np.testing.assert_allclose(array(score.scale), U**-0.5, rtol=1e-6)
    assert not array(score.query_dense.bias).any()
    found = compared(score, query, key)
    kernel = score.score_dense.kernel
    kernel.assign(3.0 * array(kernel))
    np.testing.assert_allclose(compared(score, query, key), found, **CLOSE)
    score.scale.assign(2.0 * array(score.scale))
    np.testing.assert_allclose(compared(score, query, key), 2.0 * found, **CLOSE)

    kernel.assign(np.zeros(kernel.shape))
    inputs = {"query": query, "key": key}
    assert not compared(score, query, key).any()
    by_input, by_weight = backend.gradients(lambda x: ops.sum(score(**x)), score, inputs)
    assert all(np.isfinite(x).all() for x in (*by_input.values(), *by_weight))


def test_weights_of_the_plain_additive_score_keep_their_names():
    score = AdditiveScore(U, name="additive")
    score.build((B, T, DQ), (B, S, DK))
    assert [w.path for w in score.weights] == [
        f"additive/{part}/kernel" for part in ("query", "key", "score")
    ]


def test_what_is_said_of_the_biases_is_used():
    score = RelativePositionScore(
        "dot", 1, bias_initializer="ones", bias_regularizer="l2", bias_constraint="non_neg"
    )
    score.build((B, T, DQ), (B, S, DQ))
    assert array(score.bias).tolist() == [1.0, 1.0, 1.0]
    assert len(score.losses) == 1 and score.bias.constraint is not None


def test_get():
    assert isinstance(scores.get("relative"), RelativePositionScore)
    assert isinstance(scores.get("alibi"), AlibiScore)
    for name in ("location", "multi_dimensional"):
        with pytest.raises(ValueError, match=rf"alibi, .*LocationScore\(max_length\).*'{name}'"):
            scores.get(name)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: LocationScore(0),
        lambda: LocationScore(2.0),
        lambda: MultiDimensionalScore(True),
        lambda: MultiDimensionalScore(-1),
        lambda: RelativePositionScore(max_distance=0),
        lambda: RelativePositionScore("unknown"),
        lambda: AlibiScore(3),
        lambda: AlibiScore("dot").build((B, None, T, DQ), (B, None, S, DQ)),
        lambda: RelativePositionScore("dot").build((B, None, T, DQ), (B, None, S, DQ)),
        lambda: AlibiScore("dot").build((B, T, DQ), (B, S, DK)),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_a_wrapped_score_belongs_to_one():
    inner = ka.DotScore()
    AlibiScore(inner).build((B, T, DQ), (B, S, DQ))
    with pytest.raises(ValueError, match="already built"):
        RelativePositionScore(inner).build((B, T, DQ), (B, S, DQ))
