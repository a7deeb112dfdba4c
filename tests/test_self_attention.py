"""Self-attention: caches, directions, masks from upstream beside others, and wrong use."""

import keras
import numpy as np
import pytest
from case import DQ, DV, EXACT, B, S, U
from conftest import randomize
from keras import ops

import keras_attention as ka
from keras_attention.heads import CrossAttention
from keras_attention.loops import write_rows
from keras_attention.positional_scores import AlibiScore, RelativePositionScore
from keras_attention.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from keras_attention.regularizers import DiversityPenalty
from keras_attention.scores import AdditiveScore, MultiDimensionalScore
from keras_attention.self_attention import SelfAttention

LENGTH = 7  # of a cache, longer than what is written
X = np.random.default_rng(0).normal(size=(B, S, U))
MASK = np.array([[0, 1, 1, 1, 1], [1, 1, 0, 1, 0]], bool)


def built(dtype="float64", width=U, heads=4, **options):
    layer = SelfAttention(heads, dtype=dtype, **options)
    layer.build((None, None, width))
    randomize(layer)
    return layer


def array(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float64")))


DOUBLE = {"dtype": "float64"}
CACHED = {
    "plain": dict,
    "forward": lambda: {"direction": "forward"},
    "windowed": lambda: {"window": 1},
    "grouped": lambda: {"num_key_value_heads": 2, "value_dim": 3},
    "multi_query_additive": lambda: {
        "num_key_value_heads": 1,
        "score": AdditiveScore(5, **DOUBLE),
    },
    "cosine": lambda: {"score": "cosine", "use_output": False},
    "rotary": lambda: {"positions": RotaryPositions(**DOUBLE), "num_key_value_heads": 2},
    "sinusoidal": lambda: {"positions": SinusoidalPositions(**DOUBLE), "window": 2},
    "learned": lambda: {"positions": LearnedPositions(9, **DOUBLE)},
    "alibi": lambda: {"score": AlibiScore(**DOUBLE)},
    "relative": lambda: {"score": RelativePositionScore(max_distance=2, **DOUBLE)},
    "multi_dimensional": lambda: {"score": MultiDimensionalScore(4, **DOUBLE)},
}


def cached(kind):
    return built(**{"direction": "causal", **CACHED[kind]()})


def in_chunks(layer, sizes, mask=None):
    """Output and weights of the chunks put together, and the last cache."""
    cache, index, outputs, weights = layer.initial_cache(B, LENGTH), 0, [], []
    for size in sizes:
        part = slice(index, index + size)
        given = {} if mask is None else {"mask": mask[:, part]}
        output, weight, cache = layer(
            X[:, part], cache=cache, cache_index=index, return_attention_scores=True, **given
        )
        outputs.append(array(output))
        weights.append(array(weight))
        index += size
    return np.concatenate(outputs, 1), np.concatenate(weights, 2), cache


@pytest.mark.parametrize("kind", CACHED)
def test_over_a_cache_each_part_is_as_in_the_whole(kind):
    """One by one and in chunks, with and without padding: never as if a chunk were the start."""
    layer = cached(kind)
    for mask in (None, MASK):
        output, weights = layer(X, mask=mask, return_attention_scores=True)
        for sizes in ([1] * S, [2, 3], [3, 1, 1]):
            found, found_weights, _ = in_chunks(layer, sizes, mask)
            np.testing.assert_allclose(found, array(output), **EXACT)
            np.testing.assert_allclose(found_weights[..., :S], array(weights), **EXACT)
            assert np.all(found_weights[..., S:] == 0)


def test_a_compiled_step_takes_its_index_as_a_tensor(backend):
    layer = cached("rotary")
    expected = array(layer(X))
    step = backend.jit(lambda x, *rest: layer(x, cache=rest[:3], cache_index=rest[3]))
    cache = layer.initial_cache(B, LENGTH)
    for t in range(S):
        x, index = ops.convert_to_tensor(X[:, t : t + 1]), ops.convert_to_tensor(t, "int32")
        output, cache = step(x, *cache, index)
        np.testing.assert_allclose(array(output), expected[:, t : t + 1], **EXACT)


def test_nothing_is_kept_between_calls():
    layer = cached("plain")
    empty = layer.initial_cache(B, LENGTH)
    first, _ = layer(X[:, :1], cache=empty, cache_index=0)
    again, filled = layer(X[:, :1], cache=empty, cache_index=0)
    np.testing.assert_array_equal(array(first), array(again))
    assert not np.any(array(empty[2])) and array(filled[2]).sum() == B
    assert {keras.backend.standardize_dtype(x.dtype) for x in empty} == {"float64", "bool"}
    half = built("mixed_float16", direction="causal", score="cosine").initial_cache(B, LENGTH)
    assert keras.backend.standardize_dtype(half[0].dtype) == "float16"


@pytest.mark.parametrize("target", [None, "tflite", "onnx", "saved_model"])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_rows_are_written_alike_for_every_target(target, axis):
    buffer, index = np.zeros((4, 5, 3), "float32"), 2
    shape = list(buffer.shape)
    shape[axis] = 2
    rows = np.random.default_rng(0).normal(size=shape).astype("float32")
    expected = np.moveaxis(buffer.copy(), axis, 0)
    expected[index : index + 2] = np.moveaxis(rows, axis, 0)
    index = ops.convert_to_tensor(index, "int32")
    given = ops.convert_to_tensor(buffer), index, ops.convert_to_tensor(rows), axis
    if target is None:
        found = write_rows(*given)
    else:
        with ka.exporting(target):
            found = write_rows(*given)
    np.testing.assert_array_equal(array(found), np.moveaxis(expected, 0, axis))


@pytest.mark.tensorflow("artifacts are made on TensorFlow")
@pytest.mark.parametrize("kind", ["rotary", "relative"])
@pytest.mark.parametrize("target", ["tflite", "onnx"])
def test_a_step_as_an_artifact(kind, target, tmp_path):
    pytest.importorskip("tensorflow")
    if target == "onnx":
        pytest.importorskip("tf2onnx")
    from keras_attention.export.parity import run_artifact

    options = {
        "rotary": {"positions": RotaryPositions(), "num_key_value_heads": 2, "window": 2},
        "relative": {"score": RelativePositionScore(max_distance=2)},
    }
    layer = built("float32", direction="causal", **options[kind])
    names = ("keys", "values", "readable")

    def step(inputs, mask, index, keys, values, readable):
        cache = keys, values, readable
        output, cache = layer(inputs, mask=mask, cache=cache, cache_index=index)
        return {"output": output, **{f"next_{n}": x for n, x in zip(names, cache, strict=True)}}

    empty = layer.initial_cache(B, LENGTH)
    arguments = {
        "inputs": keras.InputSpec(shape=(None, None, U), dtype="float32"),
        "mask": keras.InputSpec(shape=(None, None), dtype="bool"),
        "index": keras.InputSpec(shape=(), dtype="int32"),
        **{
            name: keras.InputSpec(
                shape=(None, *[None if n == LENGTH else n for n in x.shape[1:]]),
                dtype=keras.backend.standardize_dtype(x.dtype),
            )
            for name, x in zip(names, empty, strict=True)
        },
    }
    if target == "tflite":
        from keras_attention.export.tflite import export_tflite

        path = export_tflite({"step": (step, arguments)}, tmp_path / "step.tflite")
    else:
        onnx = pytest.importorskip("keras_attention.export.onnx")
        path = onnx.export_onnx({"step": (step, arguments)}, tmp_path / "step.onnx")

    x = X.astype("float32")
    expected = array(layer(x, mask=MASK))
    cache, index = [np.asarray(ops.convert_to_numpy(part)) for part in empty], 0
    for size in (2, 1, 1, 1):
        part = slice(index, index + size)
        given = dict(zip(names, cache, strict=True))
        found = run_artifact(
            path,
            {"inputs": x[:, part], "mask": MASK[:, part], "index": np.int32(index), **given},
        )
        # Two float32 runtimes that sum in different orders.
        np.testing.assert_allclose(found["output"], expected[:, part], rtol=1e-5, atol=1e-5)
        cache, index = [found[f"next_{name}"] for name in names], index + size


def test_a_cache_in_a_functional_model(tmp_path):
    x, index = keras.Input((None, U)), keras.Input(batch_shape=(), dtype="int32")
    keys, values = keras.Input((4, LENGTH, 2)), keras.Input((4, LENGTH, 2))
    readable = keras.Input((LENGTH,), dtype="bool")
    layer = SelfAttention(4, direction="causal")
    output, weights, cache = layer(
        x, cache=(keys, values, readable), cache_index=index, return_attention_scores=True
    )
    assert weights.shape == (None, 4, None, LENGTH)
    assert [c.shape for c in cache] == [keys.shape, values.shape, readable.shape]
    model = keras.Model([x, index, keys, values, readable], [output, weights, *cache])
    model.save(tmp_path / "step.keras")
    loaded = keras.models.load_model(tmp_path / "step.keras")
    step = ops.convert_to_tensor(X[:, :2].astype("float32"))
    given = [step, ops.convert_to_tensor(1, "int32"), *layer.initial_cache(B, LENGTH)]
    for found, wanted in zip(loaded(given), model(given), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(array(found), array(wanted))


def test_in_a_sequential_model():
    model = keras.Sequential([keras.Input((None,), dtype="int32")])
    model.add(keras.layers.Embedding(9, U, mask_zero=True))
    model.add(SelfAttention(num_heads=4))
    tokens = np.array([[4, 5, 0, 0], [1, 2, 3, 0]])
    found = array(model(tokens))
    assert np.all(found[tokens == 0] == 0) and np.all(np.any(found[tokens != 0] != 0, -1))
    shorter = array(model(tokens[:1, :2]))
    np.testing.assert_allclose(found[:1, :2], shorter, rtol=1e-5, atol=1e-6)


def test_a_mask_from_upstream_arrives_beside_an_attention_mask():
    """Keras hands it over by another name where there are more tensors than one."""
    layer = built("float64")
    x = keras.Input((S, U), dtype="float64")
    allowed = keras.Input((S, S), dtype="bool")
    masked = keras.layers.Masking(dtype="float64")(x)
    model = keras.Model([x, allowed], layer(masked, attention_mask=allowed))
    zeros = np.where(MASK[..., None], X, 0.0)
    pairs = np.random.default_rng(1).random((B, S, S)) < 0.7
    expected = array(layer(X, mask=MASK, attention_mask=pairs))
    np.testing.assert_allclose(array(model([zeros, pairs])), expected, **EXACT)
    explicit = keras.Model([x, allowed], layer(masked, mask=MASK[:, ::-1], attention_mask=allowed))
    expected = array(layer(zeros, mask=MASK[:, ::-1], attention_mask=pairs))
    np.testing.assert_allclose(array(explicit([zeros, pairs])), expected, **EXACT)


def test_outputs_move_along_with_their_inputs():
    layer, order = built(), np.array([3, 0, 4, 1, 2])
    output = array(layer(X, mask=MASK))
    np.testing.assert_allclose(
        array(layer(X[:, order], mask=MASK[:, order])), output[:, order], **EXACT
    )


@pytest.mark.parametrize(
    "direction, reads", [("causal", [1, 1, 0]), ("forward", [1, 0, 0]), ("backward", [0, 0, 1])]
)
def test_a_direction_hides_what_it_says(direction, reads):
    _, weights = built(direction=direction)(X, return_attention_scores=True)
    np.testing.assert_array_equal(array(weights)[0, 0, 2, 1:4] > 0, reads)


def test_a_real_position_with_nothing_to_read_gives_the_bias():
    layer = built(direction="forward")
    output, weights = layer(X, return_attention_scores=True)
    assert np.all(array(weights)[:, :, 0] == 0)
    bias = array(next(w for w in layer.weights if w.path.endswith("output/bias")))
    np.testing.assert_allclose(array(output)[:, 0], np.tile(bias, (B, 1)), **EXACT)
    bare = built(direction="forward", use_output=False)
    assert np.all(array(bare(X))[:, 0] == 0)


def test_weights_are_from_before_dropout():
    layer = built(dropout=0.5, seed=3)
    dropped, weights = layer(X, return_attention_scores=True, training=True)
    output, same = layer(X, return_attention_scores=True)
    np.testing.assert_array_equal(array(weights), array(same))
    assert not np.allclose(array(dropped), array(output))
    again = built(dropout=0.5, seed=3)
    np.testing.assert_array_equal(array(again(X, training=True)), array(dropped))


def test_a_penalty_on_the_weights_is_a_loss():
    penalty = DiversityPenalty(0.5)
    layer = built(weights_regularizer=penalty, direction="causal")
    _, weights = layer(X, mask=MASK, return_attention_scores=True)
    allowed = MASK[:, :, None] & MASK[:, None, :] & np.tril(np.ones((S, S), bool))
    expected = array(penalty(weights, allowed))
    np.testing.assert_allclose(array(layer.losses[0]), expected, rtol=1e-6)


def test_kernels_of_one_initializer_differ():
    layer = SelfAttention(4, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((None, None, U))
    kernels = [w.numpy() for w in layer.weights if w.path.endswith("kernel")]
    assert len({kernel[0, 0] for kernel in kernels}) == 4


def test_regularizers_and_constraints_are_used():
    layer = built(
        kernel_regularizer="l2",
        bias_regularizer="l1",
        kernel_constraint="max_norm",
        bias_constraint="non_neg",
        bias_initializer="ones",
    )
    assert len(layer.losses) == 8
    assert all(weight.constraint is not None for weight in layer.trainable_variables)
    fresh = SelfAttention(2, bias_initializer="ones")
    fresh.build((None, None, DQ))
    assert all(np.all(w.numpy() == 1) for w in fresh.weights if w.path.endswith("bias"))


def test_each_head_without_a_key_of_its_own_saves_weights():
    def count(groups):
        return built(num_key_value_heads=groups).count_params()

    width = 2  # of a head
    assert count(4) - count(2) == 2 * 2 * (U * width + width)
    assert count(4) - count(1) == 2 * 3 * (U * width + width)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SelfAttention(0),
        lambda: SelfAttention(2, key_dim=0),
        lambda: SelfAttention(2, value_dim=1.5),
        lambda: SelfAttention(4, num_key_value_heads=3),
        lambda: SelfAttention(2, score=MultiDimensionalScore(3)),
        lambda: SelfAttention(2, score=MultiDimensionalScore(2), num_key_value_heads=1),
        lambda: SelfAttention(2, direction="down"),
        lambda: SelfAttention(2, window=0),
        lambda: SelfAttention(2, positions="rotary"),
        lambda: SelfAttention(2, output_dim=4, use_output=False),
        lambda: SelfAttention(2, dropout=1.5),
        lambda: SelfAttention(3)(X),
        lambda: SelfAttention(3).initial_cache(B, LENGTH),
        lambda: SelfAttention(4, positions=RotaryPositions())(np.ones((B, S, 4 * 3))),
        lambda: built()(X, attention_mask=np.ones((B, S), bool)),
        lambda: built()(X[..., :DV]),
        lambda: built()(X, cache=built().initial_cache(B, LENGTH), cache_index=0),
        lambda: cached("plain")(X, cache=built().initial_cache(B, LENGTH)),
        lambda: cached("plain")(X, cache_index=0),
        lambda: cached("plain")(X, cache=built().initial_cache(B, LENGTH)[:2], cache_index=0),
        lambda: cached("plain")(X, cache=built().initial_cache(B, LENGTH), cache_index=3),
        lambda: cached("plain")(X, cache=built().initial_cache(B, LENGTH), cache_index=-1),
        lambda: cached("plain")(X, cache=built().initial_cache(B + 1, LENGTH), cache_index=0),
    ],
)
def test_wrong_use_is_refused(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_positions_belong_to_one_layer():
    positions = RotaryPositions()
    SelfAttention(2, positions=positions)(np.ones((B, S, U)))
    with pytest.raises(ValueError, match="already built"):
        SelfAttention(2, positions=positions)(np.ones((B, S, U)))


def test_cross_attention_of_a_memory_projected_before(weights_of):
    layer = CrossAttention(2, num_key_value_heads=1, score="cosine", dtype="float64")
    memory = np.random.default_rng(1).normal(size=(B, 7, DV))
    mask = np.random.default_rng(2).random((B, 7)) < 0.6
    layer.build((B, S, U), (B, 7, DV))
    randomize(layer)
    flags = {"query_mask": MASK, "memory_mask": mask, "return_attention_scores": True}
    output, weights = layer(X, memory, **flags)
    assert weights.shape == (B, 2, S, 7)
    memory[~mask] = np.nan
    projected = layer.project_memory(ops.convert_to_tensor(memory), mask)
    for found in (layer(X, memory, **flags), layer(X, projected_memory=projected, **flags)):
        np.testing.assert_allclose(array(found[0]), array(output), **EXACT)
        np.testing.assert_allclose(array(found[1]), array(weights), **EXACT)
    symbolic = layer(keras.Input((None, U)), keras.Input((7, DV)), return_attention_scores=True)
    assert [x.shape for x in symbolic] == [(None, None, U), (None, 2, None, 7)]
    copy = CrossAttention.from_config(layer.get_config())
    assert copy.get_config() == {**layer.get_config(), "score": copy.get_config()["score"]}
    with pytest.raises(ValueError, match="Received: memory=None"):
        layer(X)
    with pytest.raises(ValueError, match="Received: memory=None"):
        CrossAttention(2)(X)
    with pytest.raises(ValueError, match=r"memory_mask.*Received"):
        layer(X, memory, memory_mask=mask[:, :-1])


def test_what_no_query_may_read_has_no_influence_in_cross_attention():
    layer = CrossAttention(2, dtype="float64")
    memory = np.random.default_rng(1).normal(size=(B, 3, DV))
    pairs = np.ones((B, S, 3), bool)
    pairs[:, :, 1] = False
    expected = array(layer(X, memory, attention_mask=pairs))
    memory[:, 1] = np.nan
    np.testing.assert_array_equal(array(layer(X, memory, attention_mask=pairs)), expected)
