"""Faults of Keras's and others' exporters that this library works around: a test that fails says
that a work-around may go."""

import keras
import numpy as np
import pytest
from keras import layers, ops

pytestmark = pytest.mark.tensorflow("artifacts are made on TensorFlow")
tf = pytest.importorskip("tensorflow")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.export.quiet import quiet  # noqa: E402

U, D = 3, 4


def by_keras(model, path):
    with quiet():
        model.export(path, format="litert")
    return inspect_tflite(path)


def test_keras_adds_tensorflow_operators_for_a_loop_and_says_nothing(tmp_path):
    """keras#21674: the file cannot run in a stock runtime."""
    model = keras.Sequential([keras.Input((None, D)), layers.GRU(U)])
    assert by_keras(model, tmp_path / "m.tflite").flex


def test_keras_forgets_the_batch_size(tmp_path):
    """keras#21944."""
    model = keras.Sequential([keras.Input((D,), batch_size=1, name="x"), layers.Dense(2)])
    [signature] = by_keras(model, tmp_path / "m.tflite").signatures.values()
    [(shape, _)] = signature["inputs"].values()
    assert shape[0] is None


def test_time_distributed_gives_a_wrong_shape(tmp_path):
    """tensorflow#46809: of a batch of one and any length, without an error."""
    inputs = keras.Input((None, D), batch_size=1)
    model = keras.Model(inputs, layers.TimeDistributed(layers.Dense(U))(inputs))
    with quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        interpreter = tf.lite.Interpreter(model_content=converter.convert())
        place = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(place, (1, 5, D))
        interpreter.allocate_tensors()
        interpreter.set_tensor(place, np.ones((1, 5, D), "float32"))
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert found.shape != (1, 5, U)


def as_onnx(function, shape):
    tf2onnx = pytest.importorskip("tf2onnx")
    signature = [tf.TensorSpec(shape, tf.float32, name="x")]
    with quiet():
        return tf2onnx.convert.from_function(tf.function(function), input_signature=signature)[0]


def test_tf2onnx_has_no_exact_gelu():
    """tensorflow-onnx#2347: what is left of the operator is no ONNX."""
    model = as_onnx(lambda x: {"y": ops.gelu(x, approximate=False)}, (None, 4))
    assert "Erfc" in {node.op_type for node in model.graph.node}


def test_a_slice_written_in_a_loop_is_no_onnx():
    onnxruntime = pytest.importorskip("onnxruntime")

    def filled(x):
        length = ops.shape(x)[0]

        def body(index, buffer):
            row = ops.expand_dims(ops.take(x, index, axis=0), 0)
            return index + 1, ops.slice_update(buffer, [index, 0], row)

        start = (ops.convert_to_tensor(0), ops.zeros_like(x))
        return {"y": ops.while_loop(lambda index, _: index < length, body, start)[1]}

    model = as_onnx(filled, (None, 4))
    with pytest.raises(Exception, match=r"(?i)invalid|fail|not.*registered|error"):
        onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, {"x": np.ones((3, 4), "float32")})
