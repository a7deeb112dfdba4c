"""Layers as artifacts: equal to Keras at any batch and length, with built-in operators only."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from case import DQ, DV, B, S, T, U
from cases import CASES
from keras import ops

import keras_attention as ka

pytestmark = pytest.mark.tensorflow("artifacts are made on TensorFlow")
pytest.importorskip("tensorflow")

# Two float32 runtimes that sum in different orders; relative to the largest number.
TOLERANCE = 1e-5


def row(name):
    return next(case for case in CASES if case.name == name)


def functions(case, layer):
    """The layer with its masks as one named function."""
    names = [*case.shapes, *case.masks()]

    def function(**tensors):
        outputs = case.outputs(layer, {name: tensors[name] for name in names})
        return {f"output_{i}": output for i, output in enumerate(outputs)}

    arguments = {
        name: keras.InputSpec(dtype="float32", shape=case.unknown(shape))
        for name, shape in case.shapes.items()
    }
    masks = {
        name: keras.InputSpec(dtype="bool", shape=case.unknown(shape))
        for name, shape in case.mask_shapes().items()
    }
    return {case.name: (function, {**arguments, **masks})}


def calls(case):
    """Several shapes on one interpreter, with half of it masked, a row with nothing to read, or
    only one key masked; a length of one, and once more."""
    short = {"T": 1, "S": 3, "W": 4}
    longer = {"B": 1, "T": 4, "S": 7, "W": 6}
    for sizes, most in (({}, False), (longer, True), (short, False), (short, False), ({}, True)):
        masks = case.masks(**sizes)
        for mask in masks.values():
            if most:
                mask[:] = True
                mask[..., -1] = False
        if case.has_masks and not most:
            masks[case.key_mask][0] = False
        yield {**case.inputs("float32", seed=len(sizes), **sizes), **masks}


def assert_near(actual, expected):
    for i, wanted in enumerate(expected):
        wanted, given = np.asarray(wanted), actual[f"output_{i}"]
        assert given.shape == wanted.shape
        atol = TOLERANCE * np.abs(wanted).max()
        np.testing.assert_allclose(given, wanted, rtol=0, atol=atol)
        np.testing.assert_array_equal(given == 0, wanted == 0)  # what is masked is exactly so


def assert_runs_as_keras(run, case, layer):
    for inputs in calls(case):
        assert_near(run(inputs), case.outputs(layer, inputs))


def test_tflite(tflite_case, made, tmp_path):
    from keras_attention.export.inspect import inspect_tflite
    from keras_attention.export.parity import load_tflite
    from keras_attention.export.tflite import export_tflite

    case = tflite_case
    layer = made(case, "float32")
    path = export_tflite(functions(case, layer), tmp_path / "layer.tflite")
    report = inspect_tflite(path)
    assert not report.flex and not report.custom
    assert_runs_as_keras(load_tflite(path, runtime="tf.lite"), case, layer)


def test_saved_model(served_case, made, tmp_path):
    from keras_attention.export.parity import load_saved_model
    from keras_attention.export.saved_model import export_saved_model

    case = served_case
    layer = made(case, "float32")
    path = export_saved_model(functions(case, layer), tmp_path / "served")
    assert_runs_as_keras(load_saved_model(path, case.name), case, layer)


def test_onnx(onnx_case, made, tmp_path):
    from keras_attention.export.onnx import export_onnx
    from keras_attention.export.parity import load_onnx

    case = onnx_case
    layer = made(case, "float32")
    path = export_onnx(functions(case, layer), tmp_path / "layer.onnx")
    assert_runs_as_keras(load_onnx(path), case, layer)


def test_searches_in_one_tflite_file(made, tmp_path):
    """Greedy and beam search over a decoder: tokens, scores, lengths and alignments."""
    from keras_attention.export.inspect import inspect_tflite
    from keras_attention.export.parity import load_tflite
    from keras_attention.export.tflite import export_tflite

    vocabulary, max_length = 9, 5
    decoder = ka.AttentionDecoder(U)
    embedding, head = keras.layers.Embedding(vocabulary, DQ), keras.layers.Dense(vocabulary)
    decoder.build((None, None, DQ), (None, None, DV))
    embedding.build()
    head.build((None, U))
    rng = np.random.default_rng(0)
    for weight in [*decoder.weights, *embedding.weights, *head.weights]:
        weight.assign(rng.normal(size=weight.shape))

    def step(tokens, states, values, keys, mask):
        hidden, states, weights = decoder.step(embedding(tokens), states, values, keys, mask)
        return head(hidden), states, weights

    def searched(search, **options):
        def function(memory, mask):
            found = search(
                step,
                decoder.initial_state(ops.shape(memory)[0]),
                (*decoder.prepare_memory(memory, mask), mask),
                start_id=0,
                end_id=1,
                max_length=max_length,
                **options,
            )
            return found._asdict()

        arguments = {
            "memory": keras.InputSpec(dtype="float32", shape=(None, None, DV)),
            "mask": keras.InputSpec(dtype="bool", shape=(None, None)),
        }
        return function, arguments

    searches = {
        "greedy": searched(ka.greedy_search),
        "beam": searched(ka.beam_search, beam_width=3, length_penalty_weight=0.6),
    }
    path = export_tflite(searches, tmp_path / "searches.tflite")
    assert not inspect_tflite(path).flex
    for name, (function, _) in searches.items():
        run = load_tflite(path, name, runtime="tf.lite")
        for batch, keys in ((B, S), (3, 4), (B, S)):
            inputs = {
                "memory": rng.normal(size=(batch, keys, DV)).astype("float32"),
                "mask": np.arange(keys) < rng.integers(1, keys + 1, (batch, 1)),
            }
            actual = run(inputs)
            expected = function(**{k: ops.convert_to_tensor(v) for k, v in inputs.items()})
            for key in ("tokens", "lengths"):
                np.testing.assert_array_equal(actual[key], expected[key])
            for key in ("scores", "alignments"):
                # Sums of float32 log probabilities over the steps.
                np.testing.assert_allclose(actual[key], expected[key], rtol=1e-5, atol=1e-5)


def test_a_fresh_process_needs_only_the_import(made, tmp_path):
    """No custom_objects, no other module."""
    model, feed = {}, {}
    for name in ("attention_mlp_sparsemax", "decoder_luong"):
        case = row(name)
        inputs = {n: keras.Input(shape[1:], name=n) for n, shape in case.shapes.items()}
        model[name] = keras.Model(inputs, case.outputs(made(case, "float32"), inputs))
        model[name].save(tmp_path / f"{name}.keras")
        feed[name] = case.inputs("float32")
        np.savez(tmp_path / f"{name}.npz", **feed[name])
    program = (
        "import sys, keras, numpy, keras_attention\n"
        "for name in sys.argv[1:]:\n"
        "    model = keras.models.load_model(name + '.keras')\n"
        "    found = model(dict(numpy.load(name + '.npz')))\n"
        "    numpy.savez(name + '.out.npz', *[keras.ops.convert_to_numpy(x) for x in found])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, *model], cwd=tmp_path, check=True, capture_output=True
    )
    for name in model:
        with np.load(tmp_path / f"{name}.out.npz") as found:
            for actual, expected in zip(found.values(), model[name](feed[name]), strict=True):
                np.testing.assert_array_equal(actual, expected)


def test_sizes_of_the_table_are_different():
    """So that a swapped axis cannot pass."""
    assert len({B, T, S, DQ, DV, U}) == 6
