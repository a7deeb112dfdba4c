"""Failures of export that people reported, each as a whole kind; the issues are cited.

Kinds that the tests of one exporter cover are not repeated here.
"""

import importlib

import keras
import numpy as np
import pytest
import stock
from keras import layers, ops

import keras_attention as ka

pytestmark = pytest.mark.tensorflow("artifacts are made on TensorFlow")
tf = pytest.importorskip("tensorflow")

from keras_attention.export.errors import ExportError  # noqa: E402
from keras_attention.export.inspect import inspect_tflite, read_tflite  # noqa: E402
from keras_attention.export.onnx import export_onnx  # noqa: E402
from keras_attention.export.parity import (  # noqa: E402
    check_parity,
    load_onnx,
    load_saved_model,
    run_artifact,
)
from keras_attention.export.saved_model import export_saved_model  # noqa: E402
from keras_attention.export.tflite import export_tflite  # noqa: E402

RANDOM = np.random.default_rng(0)
D = 4


def spec(*shape, dtype="float32"):
    return keras.InputSpec(shape=shape, dtype=dtype)


def numbers(*shape):
    return RANDOM.normal(size=shape).astype("float32")


# Loops.


def growing_array(x):
    array = tf.TensorArray("float32", 0, dynamic_size=True)
    _, array = tf.while_loop(
        lambda i, _: i < 5, lambda i, a: (i + 1, a.write(i, x[:, 0])), (0, array)
    )
    return {"y": array.stack()}


def array_of_known_size(x):
    array = tf.TensorArray("float32", 5)
    _, array = tf.while_loop(
        lambda i, _: i < 5, lambda i, a: (i + 1, a.write(i, x[:, 0])), (0, array)
    )
    return {"y": array.stack()}


def scan(x):
    return {"y": tf.scan(lambda state, row: state + row, tf.transpose(x, (1, 0, 2)))}


@pytest.mark.parametrize("function", [growing_array, array_of_known_size, scan])
def test_a_loop_that_collects_in_a_list_is_refused_with_what_to_use(function, tmp_path):
    """tensorflow#42181, #37134: decoders with `TensorArray(dynamic_size=True)` do not convert."""
    functions = {"fine": (lambda x: {"y": x + 1}, {"x": spec(None)})}
    functions["decode"] = (function, {"x": spec(None, None, D)})
    with pytest.raises(ExportError, match=r"^signature 'decode'(?s:.)*keras_attention's loops"):
        export_tflite(functions, tmp_path / "a.tflite")
    assert not list(tmp_path.iterdir())


def test_a_cache_that_grows_never_leaves_a_file_that_is_wrong(tmp_path):
    """tensorflow#46061: a cache that a loop makes longer by concatenation converts, and is wrong.

    A cache of fixed length with a position, which is right, is tested beside the Transformer.
    """

    def decode(x):
        def body(i, cache):
            return i + 1, tf.concat([cache, x[:, :1] * tf.cast(i, "float32")], 1)

        sizes = tf.TensorShape([]), tf.TensorShape([None, None, D])
        return {"y": tf.while_loop(lambda i, _: i < 5, body, (0, x[:, :0]), sizes)[1]}

    path = tmp_path / "a.tflite"
    calls = [{"x": numbers(2, 3, D)}, {"x": numbers(1, 1, D)}]
    functions = {"decode": (decode, {"x": spec(None, None, D)})}
    try:
        export_tflite(functions, path, verify={"decode": calls})
    except (ExportError, ValueError):
        assert not list(tmp_path.iterdir())
    else:
        assert check_parity(functions, path, calls).equal


RUNTIMES = ("ai_edge_litert.interpreter", "tensorflow.lite")


def interpreter_of(module, path, threads):
    if module == "tensorflow.lite":
        return tf.lite.Interpreter(str(path), num_threads=threads)
    return importlib.import_module(module).Interpreter(str(path), num_threads=threads)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", ["masked_lstm", "attention_over_gru"])
def test_a_call_leaves_nothing_behind_for_the_next(name, tmp_path):
    """tensorflow#47813, #46620: a recurrent layer answered its second call from the first's state.

    One interpreter, called again, resized, with rows that are all padding, on 1 and 4 threads.
    `masked_lstm` returns states beside the sequence, as tensorflow#62775 has it.
    """
    model = stock.MODELS[name].make(None, None)
    path = export_tflite(model, tmp_path / "m.tflite")
    calls = [stock.inputs(name, *sizes) for sizes in ((2, 6), (3, 9), (1, 2), (2, 6))]
    calls[1]["inputs"][1:] = 0  # rows with nothing to read
    calls.append(calls[0])
    wanted = [{k: np.asarray(v) for k, v in model(call["inputs"]).items()} for call in calls]
    for module in RUNTIMES:
        pytest.importorskip(module.split(".")[0])
        answers = []
        for threads in (1, 4):
            interpreter = interpreter_of(module, path, threads)
            run = interpreter.get_signature_runner("serving_default")
            answers.append([run(**call) for call in calls])
            for expected, found in zip(wanted, answers[-1], strict=True):
                assert set(found) == set(expected)
                for key, value in expected.items():
                    # Two float32 runtimes that sum in different orders.
                    np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5)
            for key, value in answers[-1][0].items():
                np.testing.assert_array_equal(answers[-1][-1][key], value)


# Shapes.


@pytest.mark.parametrize("batch", [1, 3])
def test_the_batch_size_of_the_user_is_kept(batch, tmp_path):
    """keras#21674, keras PR #21944: `Input(batch_size=1)` left with a free batch."""
    inputs = keras.Input((None, D), batch_size=batch, name="x")
    model = keras.Model(inputs, layers.GRU(3, name="y")(inputs))
    tflite = export_tflite(model, tmp_path / "m.tflite")
    signature = inspect_tflite(tflite).signatures["serving_default"]
    assert signature["inputs"] == {"x": ((batch, None, D), "float32")}
    assert signature["outputs"] == {"y": ((batch, 3), "float32")}
    served = load_saved_model(export_saved_model(model, tmp_path / "served"))
    assert served.inputs == {"x": ((batch, None, D), "float32")}
    for path in (tflite, tmp_path / "served"):
        call = {"x": numbers(batch, 5, D)}
        np.testing.assert_allclose(run_artifact(path, call)["y"], model(call["x"]), atol=1e-5)


@pytest.mark.parametrize(
    "index",
    [
        lambda x: x[..., None] * 1.0,
        lambda x: x[:, None, :, :] * 1.0,
        lambda x: ops.cast(x > 0, "float32")[:, :, None, :],
    ],
)
def test_indexing_by_none_is_refused_with_what_to_write(index, tmp_path):
    """keras-hub PR #2608, keras PR #22188: `mask[:, None, :, :]` of free sizes needs Flex."""
    with pytest.raises(ExportError, match=r"StridedSlice\n.*keras.ops.expand_dims"):
        export_tflite(
            {"f": (lambda x: {"y": index(x)}, {"x": spec(None, None, D)})}, tmp_path / "a.tflite"
        )
    assert not list(tmp_path.iterdir())


def projected_to_heads(x):
    return ops.einsum("btd,hdk->bhtk", x, WEIGHTS)


def scores_of_heads(x):
    heads = projected_to_heads(x)
    return ops.einsum("bhtk,bhsk->bhts", heads, heads)


def of_three(x):
    return ops.einsum("btd,de,bse->bts", x, SQUARE, x)


WEIGHTS, SQUARE = numbers(2, D, 3), numbers(D, D)
DENSE = layers.EinsumDense("btd,dhk->bthk", output_shape=(None, 2, 3), bias_axes="hk")
DENSE.build((None, None, D))
EINSUMS = {f.__name__: f for f in (projected_to_heads, scores_of_heads, of_three)}
EINSUMS |= {
    "scores": lambda x: ops.einsum("btd,bsd->bts", x, x),
    "transposed": lambda x: ops.einsum("...ij->...ji", x),
    "dense": lambda x: DENSE(x),
}


def test_an_einsum_of_free_sizes_converts(tmp_path):
    """tensorflow#44326, #33718, coremltools#1251: einsum with an unknown batch did not."""
    specs = {"x": spec(None, None, D)}

    def every(x):
        return {name: function(x) for name, function in EINSUMS.items()}

    functions = {"every": (every, specs)}
    calls = {"every": [{"x": numbers(2, 3, D)}, {"x": numbers(1, 1, D)}, {"x": numbers(3, 7, D)}]}
    path = export_tflite(functions, tmp_path / "m.tflite", verify=calls)
    assert inspect_tflite(path).totals["BATCH_MATMUL"]
    export_onnx(functions, tmp_path / "m.onnx", verify=calls)


def test_an_einsum_without_a_product_of_matrices_is_named(tmp_path):
    """The same; what does convert of it is a sum of products."""
    specs = {"x": spec(None, None, D)}
    with pytest.raises(ExportError, match="not built into TFLite: Einsum"):
        export_tflite(
            {"f": (lambda x: {"y": ops.einsum("btd,btd->bt", x, x)}, specs)}, tmp_path / "a.tflite"
        )
    export_tflite(
        {"f": (lambda x: {"y": ops.sum(x * x, axis=-1)}, specs)},
        tmp_path / "a.tflite",
        verify={"f": [{"x": numbers(2, 3, D)}]},
    )


# What a delegate can take.


def huge_constants(path):
    """Which operators that add or multiply read a constant that is large enough to mask."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(read_tflite(path)[0], 0)
    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    found = []
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
            for tensor in (graph.tensors[i] for i in operator.inputs if i >= 0):
                data = model.buffers[tensor.buffer].data
                if name in ("ADD", "SUB", "MUL") and data is not None:
                    if tensor.type == schema.TensorType.FLOAT32:
                        constant = np.frombuffer(np.asarray(data, "uint8").tobytes(), "float32")
                        found += [name] * bool(np.abs(constant).max(initial=0.0) > 1e4)
    return found


def test_a_step_of_decoding_suits_a_gpu(tmp_path):
    """keras-hub#1236, LiteRT#8593: GPU delegates refuse WHILE, and got sums with masks wrong.

    A step has no loop, and every mask selects. That the search for constants finds a mask that is
    added shows on Keras's own attention.
    """
    from keras_attention.recipes import searches, translation
    from keras_attention.recipes.translation_options import Config

    model = translation.build_model(9, 7, embedding=5, encoder_units=3, units=6)
    config = Config(max_length=5)
    step = searches.signatures(translation.decoding(model, config), config)["decode_step"]

    def attend(ids):
        mask = ka.padding_mask(ids)
        x = embedding(ids)
        return {"own": own(x, mask=mask), "local": local(x, x, value_mask=mask)}

    embedding = layers.Embedding(9, 8)
    own, local = ka.SelfAttention(2, direction="causal"), ka.LocalAttention(window=2)
    attend(np.ones((1, 3), "int32"))
    specs = {"ids": spec(None, None, dtype="int32")}
    path = export_tflite({"decode_step": step, "attend": (attend, specs)}, tmp_path / "m.tflite")
    report = inspect_tflite(path)
    assert report.totals["WHILE"] == 0
    assert report.operators["decode_step"]["SELECT_V2"] and report.operators["attend"]["SELECT_V2"]
    assert huge_constants(path) == []
    adding = stock.MODELS["attention_over_gru"].make(None, None)
    assert huge_constants(export_tflite(adding, tmp_path / "adding.tflite"))


# Integers.


def test_normalising_in_16_bits_is_refused_when_it_is_exported(tmp_path):
    """LiteRT#4383, tensorflow#56505, #59506: it converted, and had no kernel on the device."""
    inputs = keras.Input((6, 8), name="x")
    model = keras.Model(inputs, layers.Dense(4, name="y")(layers.LayerNormalization()(inputs)))
    rows = [{"x": numbers(1, 6, 8)} for _ in range(8)]
    path = tmp_path / "m.tflite"
    with pytest.raises(ExportError, match=r'cannot run in these integers.*quantization="dynamic"'):
        export_tflite(model, path, quantization="int16x8", representative_data=rows)
    assert not list(tmp_path.iterdir())


# ONNX.


@pytest.mark.parametrize("layer", [layers.GRU, layers.LSTM])
def test_a_recurrent_layer_is_one_loop_in_onnx(layer, tmp_path):
    """tensorflow-onnx#1684, #1546: it became a graph that grows with the sequence."""
    onnx = pytest.importorskip("onnx")
    counts = []
    for length in (3, 40):
        inputs = keras.Input((length, D), name="x")
        model = keras.Model(inputs, layer(5, name="y")(inputs))
        path = export_onnx(model, tmp_path / f"{length}.onnx")
        assert load_onnx(path)({"x": numbers(2, length, D)})["y"].shape == (2, 5)
        graph = onnx.load(path).graph
        assert [node.op_type for node in graph.node].count("Loop") == 1
        [body] = [a.g for n in graph.node if n.op_type == "Loop" for a in n.attribute]
        counts.append(len(graph.node) + len(body.node))
    assert counts[0] == counts[1] < 100


def test_a_converter_too_old_for_numpy_is_named(tmp_path, monkeypatch):
    """keras#21346, fast-plate-ocr#73: tf2onnx before 1.17 fails on `np.object` of NumPy 2."""
    tf2onnx = pytest.importorskip("tf2onnx")
    monkeypatch.setattr(tf2onnx, "__version__", "1.16.1")
    model = keras.Sequential([keras.Input((D,), name="x"), layers.Dense(2)])
    with pytest.raises(ImportError, match=r"tf2onnx.*1\.17"):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_loop_runs_no_step_but_those_of_the_inputs(tmp_path):
    """A step over nothing, to learn shapes, took time and had ranges that integers broke on."""
    decoder = ka.AttentionDecoder(5, score="cosine")
    inputs, memory = np.ones((2, 3, 4), "float32"), np.ones((2, 6, 5), "float32")
    decoder(inputs, memory)

    def function(inputs, memory):
        output, _, weights = decoder(inputs, memory, return_attention_scores=True)
        return {"output": output, "weights": weights}

    sizes = {"inputs": (None, None, 4), "memory": (None, None, 5)}
    specs = {name: spec(*shape) for name, shape in sizes.items()}
    short = {"inputs": inputs[:1], "memory": memory[:1, :2]}
    calls = [{"inputs": inputs, "memory": memory}, short]
    path = export_tflite({"f": (function, specs)}, tmp_path / "a.tflite", verify={"f": calls})
    # The candidate of the GRU, and what is fed to the next step.
    assert inspect_tflite(path).totals["TANH"] == 2
