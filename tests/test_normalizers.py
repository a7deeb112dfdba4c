"""From scores to weights, over many rows that nobody would think of."""

import keras
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops
from reference.normalizers import entmax15, hardmax

import keras_attention as ka
from keras_attention import normalizers

REFERENCES = {
    "softmax": reference.softmax,
    "sparsemax": reference.sparsemax,
    "entmax15": entmax15,
    "sigmoid": reference.sigmoid,
    "hardmax": hardmax,
}
NAMES = tuple(REFERENCES)
SUMMING_TO_ONE = tuple(name for name in NAMES if name != "sigmoid")
S = 6
# One length and few rows: JAX compiles for each shape.
quickly = settings(deadline=None, max_examples=40)
masks = arrays(bool, (2, S))


def scores_up_to(bound, dtype="float64"):
    width = {"float64": 64, "float32": 32, "float16": 16}[dtype]
    # TensorFlow takes numbers below the normal ones for 0.
    elements = st.floats(-bound, bound, width=width, allow_subnormal=False)
    return arrays(dtype, (2, S), elements=elements)


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def normalized(name, scores, mask):
    normalizer = normalizers.get(name)
    return array(normalizer(ops.convert_to_tensor(scores), ops.convert_to_tensor(mask)))


def expected_weights(name, scores, mask):
    weights = np.zeros(scores.shape)
    for row, readable in enumerate(mask):
        if readable.any():
            found = REFERENCES[name]([float(e) for e in scores[row][readable]])
            weights[row][readable] = found
    return weights


@pytest.mark.parametrize("name", NAMES)
@quickly
@given(scores=scores_up_to(20), mask=masks)
def test_equal_to_the_definition(name, scores, mask):
    actual = normalized(name, scores, mask)
    # Sums of six terms in float64.
    np.testing.assert_allclose(actual, expected_weights(name, scores, mask), atol=1e-13)


@pytest.mark.parametrize("name", SUMMING_TO_ONE)
@quickly
@given(scores=scores_up_to(2.0**100, "float32"), mask=masks)
def test_huge_scores(name, scores, mask):
    weights = normalized(name, scores, mask)
    assert weights.dtype == "float32"
    assert np.all(weights[~mask] == 0)
    assert np.isfinite(weights).all() and np.all(weights >= 0)
    # Six roundings to float32.
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@quickly
@given(scores=scores_up_to(65504, "float16"), mask=masks)
def test_half_precision_scores_are_normalized_in_float32(name, scores, mask):
    weights = normalized(name, scores, mask)
    assert weights.dtype == "float32"
    expected = expected_weights(name, scores.astype("float64"), mask)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("low", [-1e9, -1e30])
def test_a_readable_score_may_be_very_low(name, low):
    """Lower than what other libraries write in place of a masked score."""
    scores = np.array([[low, 0.0, 3.0]], "float32")
    weights = normalized(name, scores, np.array([[True, False, False]]))
    np.testing.assert_array_equal(weights, [[0.0 if name == "sigmoid" else 1.0, 0, 0]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_without_a_readable_key_are_zero(name, dtype, backend):
    scores = ops.cast([[1.0, -2.0, 3.0], [5.0, 60000.0, 0.0]], dtype)
    mask = np.array([[False, False, False], [True, False, True]])
    weights = normalizers.get(name)(scores, mask)
    assert array(weights)[0].tolist() == [0, 0, 0]
    assert array(weights)[1, 1] == 0
    layer = keras.layers.Identity()  # something without weights

    def function(inputs):
        return ops.sum(
            normalizers.get(name)(inputs["scores"], mask)
            * ops.convert_to_tensor([[1.0, 2.0, 3.0]], dtype=weights.dtype)
        )

    if dtype == "bfloat16":
        return  # NumPy has none to take the gradient at
    gradient = backend.gradients(function, layer, {"scores": array(scores)})[0]["scores"]
    assert np.isfinite(gradient).all()
    assert np.all(gradient[~mask] == 0)


@pytest.mark.parametrize("name", NAMES)
def test_masked_scores_may_be_anything(name, backend):
    mask = np.array([[True, False, True, False, True, True]])
    clean = np.array([[0.3, 0.0, -0.2, 0.0, 0.4, -3.0]])
    layer = keras.layers.Identity()

    def function(inputs):
        weights = normalizers.get(name)(inputs["scores"], mask)
        return ops.sum(weights * np.arange(1.0, 7.0))

    expected = normalized(name, clean, mask)
    gradient = backend.gradients(function, layer, {"scores": clean})[0]["scores"]
    assert np.any(gradient != 0) == (name != "hardmax")
    for anything in (1e300, np.inf, -np.inf, np.nan):
        scores = np.where(mask, clean, anything)
        np.testing.assert_array_equal(normalized(name, scores, mask), expected)
        found = backend.gradients(function, layer, {"scores": scores})[0]["scores"]
        np.testing.assert_array_equal(found, gradient)


UPSTREAM = np.arange(1.0, S + 1)


def gradient_of(name, scores):
    """Of `sum(UPSTREAM * weights)`."""

    def function(x):
        return ops.sum(normalizers.get(name)(x) * UPSTREAM)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        x = tf.constant(scores)
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
        return tape.gradient(result, x).numpy()
    import jax

    return np.asarray(jax.grad(function)(scores))


@quickly
@given(scores=scores_up_to(3))
def test_gradient_of_sparsemax(scores):
    """Martins and Astudillo, equation 10: on the support S, g minus the mean of g over S."""
    weights = array(ka.sparsemax(ops.convert_to_tensor(scores)))
    # At an edge of the support, or between equal scores, the gradient is not unique.
    tau = np.array([max(row) - max(reference.sparsemax(list(row))) for row in scores])
    if np.any(abs(scores - tau[:, None]) < 1e-6):
        return

    gradient = gradient_of("sparsemax", scores)
    for row in range(len(scores)):
        support = weights[row] > 0
        expected = np.where(support, UPSTREAM - UPSTREAM[support].mean(), 0.0)
        np.testing.assert_allclose(gradient[row], expected, atol=1e-10)


@quickly
@given(scores=scores_up_to(3))
def test_gradient_of_entmax15(scores):
    """Peters, Niculae and Martins, proposition 2: g minus its mean, weighed by sqrt(a).

    It is the same from both sides of an edge of the support, where a is 0.
    """
    gradient = gradient_of("entmax15", scores)
    for row in range(len(scores)):
        roots = np.sqrt(entmax15(list(scores[row])))
        expected = roots * (UPSTREAM - (roots @ UPSTREAM) / roots.sum())
        # The root of a rounding error of 1e-16 in a.
        np.testing.assert_allclose(gradient[row], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_long_rows(name):
    """Thousands of keys, all but equal or far apart, in float32."""
    rng = np.random.default_rng(0)
    alike = np.full(4000, -1.9999)
    alike[7] = 0.0
    rows = [rng.normal(size=4000), 100 * rng.normal(size=4000), alike, np.zeros(4000)]
    scores = np.array(rows, "float32")
    weights = array(normalizers.get(name)(scores))
    # What many weights near 0, of 4000 roundings each, may add up to.
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-3)
    for row, found in zip(scores, weights, strict=True):
        np.testing.assert_allclose(found, REFERENCES[name](list(map(float, row))), atol=1e-5)


def test_hardmax_takes_the_first_of_equals():
    scores = np.array([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    mask = np.array([[True, False, True, True, True], [False, False, True, True, False]])
    expected = np.zeros((2, 5))
    expected[:, 2] = 1
    np.testing.assert_array_equal(array(normalizers.hardmax(scores, mask)), expected)
    np.testing.assert_array_equal(array(normalizers.hardmax(scores))[:, :2], [[0, 1], [1, 0]])


def test_masks_of_any_form():
    """Broadcast, of integers, from lists."""
    scores = np.random.default_rng(0).normal(size=(2, 3, 4))
    mask = np.array([[1, 0, 1, 1], [1, 1, 0, 0]])[:, None, :]
    for name in NAMES:
        normalizer = normalizers.get(name)
        expected = array(normalizer(scores, np.broadcast_to(mask, scores.shape).astype(bool)))
        np.testing.assert_array_equal(array(normalizer(scores, mask)), expected)
        np.testing.assert_array_equal(array(normalizer(scores, mask.tolist())), expected)
        np.testing.assert_array_equal(
            array(normalizer(scores)), array(normalizer(scores, np.ones((2, 3, 4), bool)))
        )


def test_get():
    for name in NAMES:
        function = getattr(normalizers, name)
        assert normalizers.get(name) is function
        assert normalizers.get(function) is function
        assert normalizers.get(keras.saving.serialize_keras_object(function)) is function
    with pytest.raises(ValueError, match=r"softmax, sparsemax, .*Received: .*'hard'"):
        normalizers.get("hard")


def test_a_normalizer_of_ones_own():
    @keras.saving.register_keras_serializable("test_normalizers")
    def uniform(scores, mask=None, training=None):
        return ops.ones_like(scores) / ops.shape(scores)[-1]

    layer = ka.Attention("bilinear", normalizer=uniform)
    value = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    context = array(layer(np.ones((2, 3, 4), "float32"), value))
    np.testing.assert_allclose(
        context, np.repeat(value.mean(1, keepdims=True), 3, 1), rtol=1e-5, atol=1e-6
    )
    assert ka.Attention.from_config(layer.get_config()).normalizer is uniform


@pytest.mark.parametrize("wrong", [ops.softmax, keras.activations.softmax, ka.GumbelSoftmax])
def test_what_knows_no_mask_is_refused(wrong):
    with pytest.raises(ValueError, match=r"\(scores, mask, training\) -> weights"):
        normalizers.get(wrong)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "hardmax"])
def test_masked_scores_lie_near_in_an_artifact_of_integers(name):
    """One of -1e38 would take the whole range of 256 numbers."""
    scores = np.array([[1.0, 2.0, 9.0], [-70.0, -71.0, 5.0], [3.0, 0.0, 1.0]], "float32")
    mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    normalizer = normalizers.get(name)
    wanted = normalizer(scores, mask)
    with ka.exporting("tflite", calibrated=True):
        seen = np.asarray(normalizers.masked_scores(scores, mask))
        found = normalizer(scores, mask)
    assert seen.min() >= scores.min() - 16
    np.testing.assert_array_equal(seen[mask], scores[mask])
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-5)
    assert np.all(np.asarray(found)[~mask] == 0)
    assert np.asarray(normalizers.masked_scores(scores, mask)).min() < -1e30
