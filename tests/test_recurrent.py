"""The decoder as a loop: one step, several loops, the same numbers."""

import keras
import numpy as np
import pytest
from case import DE, DQ, DV, EXACT, B, S, T, U
from cases import CASES
from keras import ops

import keras_attention as ka

LUONG = next(case for case in CASES if case.name == "decoder_luong")


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, **(tolerance or EXACT))


def initial_states(layer, inputs):
    return (
        layer.initial_state(B, ops.convert_to_tensor(inputs["encoder_state"]))
        if ("encoder_state" in inputs)
        else layer.initial_state(B)
    )


def test_repeated_steps_are_the_whole_pass(decoder_case, made):
    case = decoder_case
    layer, inputs = made(case), case.inputs()
    mask = case.masks()["memory_mask"]
    expected = case.outputs(layer, inputs, {"memory_mask": mask})

    states = initial_states(layer, inputs)
    values, keys = layer.prepare_memory(ops.convert_to_tensor(inputs["memory"]), mask)
    outputs, weights = [], []
    for t in range(T):
        x = ops.convert_to_tensor(inputs["inputs"][:, t])
        output, states, weight = layer.step(x, states, values, keys, mask)
        outputs.append(output)
        weights.append(weight)
    assert isinstance(states, tuple)
    assert_all_close([ops.stack(outputs, 1), *states, ops.stack(weights, 1)], expected)


@pytest.mark.parametrize("target", ["tflite", "onnx", "saved_model"])
def test_the_exported_loop_is_the_trained_one(decoder_case, made, target):
    case = decoder_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    for given in ({}, masks):
        expected = case.outputs(layer, inputs, given)
        with ka.exporting(target):
            assert_all_close(case.outputs(layer, inputs, given), expected)


def test_going_on_from_the_last_states(decoder_case, made, weights_of):
    case = decoder_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    memory_mask = {"memory_mask": masks["memory_mask"]}
    outputs, *states, weights = arrays(case.outputs(layer, inputs, memory_mask))

    first = {**inputs, "inputs": inputs["inputs"][:, :2]}
    begun, *middle, begun_weights = arrays(case.outputs(layer, first, memory_mask))
    rest = {"inputs": inputs["inputs"][:, 2:], "memory": inputs["memory"]}
    rest["initial_state"] = tuple(middle)
    ended, *last, ended_weights = arrays(case.outputs(layer, rest, memory_mask))
    assert_all_close([np.concatenate([begun, ended], 1), *last], [outputs, *states])
    assert_all_close([np.concatenate([begun_weights, ended_weights], 1)], [weights])
    expected = case.reference(weights_of(layer), rest, memory_mask)
    assert_all_close([ended, *last, ended_weights], expected)


def test_padding_at_the_end_holds_the_states(decoder_case, made):
    case = decoder_case
    layer, inputs = made(case), case.inputs()
    mask = np.array([[True, True, False], [True, True, False]])
    outputs, *states, weights = arrays(case.outputs(layer, inputs, {"inputs_mask": mask}))
    short = {**inputs, "inputs": inputs["inputs"][:, :2]}
    short_outputs, *short_states, short_weights = arrays(case.outputs(layer, short))
    assert_all_close([outputs[:, :2], *states], [short_outputs, *short_states])
    assert_all_close([weights[:, :2]], [short_weights])
    assert np.all(outputs[:, 2] == 0) and np.all(weights[:, 2] == 0)


def test_the_memory_as_prepared_once(decoder_case, made):
    """Masked rows of a memory are zero whatever is in them, NaN too."""
    case = decoder_case
    layer, memory = made(case), case.inputs()["memory"]
    mask = case.masks()["memory_mask"]
    memory[~mask] = np.nan
    values, keys = layer.prepare_memory(ops.convert_to_tensor(memory), mask)
    assert_all_close([values], [np.where(mask[..., None], memory, 0.0)])
    assert np.isfinite(arrays([keys])[0]).all()


def test_without_an_encoder_state_it_begins_at_zero(made):
    layer, inputs = made(LUONG), LUONG.inputs()
    del inputs["encoder_state"]
    zeros = tuple(np.zeros((B, U)) for _ in range(2))
    assert_all_close(arrays(layer.initial_state(B)), zeros)
    expected = LUONG.outputs(layer, {**inputs, "initial_state": zeros})
    assert_all_close(LUONG.outputs(layer, inputs), expected)


def test_dropout(made):
    layer, inputs = made(LUONG), LUONG.inputs()
    plain = arrays(LUONG.outputs(layer, inputs))
    assert_all_close(arrays(LUONG.outputs(layer, inputs, training=False)), plain)
    dropped = arrays(LUONG.outputs(layer, inputs, training=True))
    again = LUONG.create(dtype="float64")
    LUONG.outputs(again, inputs)
    again.set_weights(layer.get_weights())
    assert_all_close(arrays(LUONG.outputs(again, inputs, training=True)), dropped)
    kept = dropped[0] != 0
    assert 0 < kept.sum() < kept.size
    # The first step has dropped nothing before: what is kept is scaled by 1 / (1 - rate).
    first = kept[:, 0]
    np.testing.assert_allclose(dropped[0][:, 0][first], plain[0][:, 0][first] / 0.6, **EXACT)
    # What was dropped is dropped from what is fed back.
    assert_all_close([dropped[-2]], [dropped[0][:, -1]])
    assert not np.allclose(dropped[0][:, 1][kept[:, 1]], plain[0][:, 1][kept[:, 1]] / 0.6)
    # Each step of each row has a mask of its own.
    assert not (kept[:, 0] == kept[:, 1]).all()
    assert not (kept[0] == kept[1]).all()


def test_gradients_under_dropout_and_compiled(made, backend):
    """Dropout is drawn outside the loop: no tracer of it is left behind."""
    layer = made(LUONG, "float32")
    inputs = [ops.convert_to_tensor(x) for x in LUONG.inputs("float32").values()]

    def function(*tensors):
        fed = dict(zip(LUONG.shapes, tensors, strict=True))
        outputs = LUONG.outputs(layer, fed, training=True)
        return ops.sum(outputs[0])

    if backend.name == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def gradients(*tensors):
            with tf.GradientTape() as tape:
                result = function(*tensors)
            return tape.gradient(result, [w.value for w in layer.trainable_variables])
    else:
        import jax

        def stateless(weights, *tensors):
            everything = [*layer.trainable_variables, *layer.non_trainable_variables]
            held = [w.value for w in layer.non_trainable_variables]
            mapping = list(zip(everything, [*weights, *held], strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(*tensors)

        def gradients(*tensors):
            weights = [w.value for w in layer.trainable_variables]
            return jax.jit(jax.grad(stateless))(weights, *tensors)

    found = gradients(*inputs)
    assert all(np.isfinite(g).all() and np.any(g != 0) for g in arrays(found))


@pytest.mark.parametrize(
    "score",
    [
        "additive",
        *(
            pytest.param(score, marks=pytest.mark.slow)
            for score in ("bilinear", ka.MLPScore([4, 3]), ka.LocationScore(7))
        ),
    ],
)
def test_compiled_training_with_a_smaller_last_batch(score):
    inputs = [keras.Input((T, DE)), keras.Input((S, DV))]
    outputs, _ = ka.AttentionDecoder(U, score=score)(*inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("sgd", "mse", jit_compile=True)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(4, T, DE)), rng.normal(size=(4, S, DV))]
    history = model.fit(x, np.ones((4, T, 1)), batch_size=3, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_training_a_model_that_saves_and_loads(tmp_path):
    """Encoder, bridge, decoder, upstream masks: trained, saved, loaded."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(source)
    memory, state = keras.layers.GRU(7, return_sequences=True, return_state=True, use_cudnn=False)(
        embedded
    )
    fed = keras.layers.Embedding(9, 5, mask_zero=True)(target)
    outputs, _ = ka.AttentionDecoder(8, dropout=0.2, seed=1)(fed, memory, state)
    model = keras.Model([source, target], keras.layers.Dense(9)(outputs))
    model.compile(
        keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    tokens = np.random.default_rng(0).integers(1, 9, size=(8, 5))
    tokens[:, -1] = 0
    history = model.fit([tokens, tokens], tokens, epochs=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for layer in loaded.layers:
        assert layer.built
    assert_all_close([loaded([tokens, tokens])], [model([tokens, tokens])], rtol=0, atol=0)


def test_a_model_that_takes_and_gives_states(tmp_path, made):
    """One step as a functional model, its states as inputs and outputs."""
    decoder = made(LUONG, "float32")
    inputs = keras.Input((None, DQ))
    memory = keras.Input((None, DV))
    states = [keras.Input((U,)) for _ in range(2)]
    outputs, after = decoder(inputs, memory, initial_state=tuple(states))
    model = keras.Model([inputs, memory, *states], [outputs, *after])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    rng = np.random.default_rng(0)
    feed = [rng.normal(size=(B, T, DQ)), rng.normal(size=(B, S, DV))]
    feed = [x.astype("float32") for x in [*feed, *rng.normal(size=(2, B, U))]]
    expected = decoder(feed[0], feed[1], initial_state=tuple(feed[2:]))
    assert_all_close(model(feed), expected)
    assert_all_close(loaded(feed), expected)


def test_wrong_states(made):
    layer, inputs = made(LUONG), LUONG.inputs()
    with pytest.raises(ValueError, match=r"2 tensors.*Received: 1"):
        LUONG.outputs(layer, {**inputs, "initial_state": (np.zeros((B, U)),)})


def test_a_token_that_comes_embedded_with_a_mask():
    """Cells that are given nothing else would warn of it, and a warning is an error here."""
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    decoder = ka.AttentionDecoder(6, query="current", input_feeding=False)
    memory, tokens = np.ones((2, 5, 3), "float32"), np.array([[1, 2], [3, 0]])
    decoder(embedding(tokens), memory)
    values, keys = decoder.prepare_memory(memory)
    states = decoder.initial_state(2)
    output, _, _ = decoder.step(embedding(tokens[:, 0]), states, values, keys)
    assert tuple(output.shape) == (2, 6)


def test_only_the_options_that_are_used_have_weights():
    layer = ka.AttentionDecoder(8, use_bias=False)
    layer.build((B, T, DQ), (B, S, DV))
    paths = [weight.path for weight in layer.weights]
    assert not any("bias" in path or "bridge" in path for path in paths)
    layer = ka.AttentionDecoder(8)
    layer.build((B, T, DQ), (B, S, DV), (B, DE))
    assert sum("bridge" in weight.path for weight in layer.weights) == 2


def test_unknown_target():
    with pytest.raises(ValueError, match=r"tflite, onnx, saved_model.*Received: target='coreml'"):
        with ka.exporting("coreml"):
            pass


def test_the_target_ends_with_its_context():
    from keras_attention.targets import export_target

    assert export_target() is None
    with pytest.raises(KeyError), ka.exporting("tflite"):
        with ka.exporting("onnx"):
            assert export_target() == "onnx"
        assert export_target() == "tflite"
        raise KeyError
    assert export_target() is None
