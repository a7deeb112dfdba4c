"""Export to TFLite: several signatures over shared weights, refusals, and nothing half-written."""

import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_attention
from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.parity import ParityError, check_parity, load_tflite, run_artifact
from keras_attention.export.tflite import ExportError, export_tflite
from keras_attention.loops import run_steps, write_row
from keras_attention.targets import export_target

V, D, U, LONGEST = 300, 32, 48, 6
RANDOM = np.random.default_rng(0)


def ids(*shape):
    return RANDOM.integers(1, V, shape).astype("int32")


class Speaker:
    """Functions over one embedding and one cell, in the form a search takes."""

    def __init__(self):
        self.embedding = layers.Embedding(V, D)
        self.cell = layers.GRUCell(U)
        self.head = layers.Dense(V)
        self.embedding.build()
        self.cell.build((None, D))
        self.head.build((None, U))

    def encode(self, source):
        inputs = self.embedding(source)
        zeros = ops.zeros((ops.shape(source)[0], U))

        def step(inputs, states):
            output, states = self.cell(inputs[0], list(states))
            return (output,), tuple(states)

        (values,), states = run_steps(step, (inputs,), (zeros,))
        return {"values": values, "state_0": states[0]}

    def decode_step(self, token, state_0):
        output, (state,) = self.cell(self.embedding(token), [state_0])
        return {"logits": self.head(output), "next_state_0": state}

    def greedy(self, source):
        state = self.encode(source)["state_0"]
        batch = ops.shape(source)[0]
        token, tokens = ops.ones((batch,), "int32"), ops.zeros((LONGEST, batch), "int32")

        def body(index, token, state, tokens):
            found = self.decode_step(token, state)
            token = ops.squeeze(ops.top_k(found["logits"], 1)[1], -1)  # argmax is not builtin
            return index + 1, token, found["next_state_0"], write_row(tokens, index, token)

        *_, tokens = ops.while_loop(
            lambda index, *_: index < LONGEST, body, (0, token, state, tokens)
        )
        return {"tokens": ops.transpose(tokens), "scores": ops.cast(tokens[0], "float32")}

    def signatures(self):
        source = {"source": keras.InputSpec(shape=(None, None), dtype="int32")}
        step = {
            "token": tf.TensorSpec([None], tf.int32),
            "state_0": tf.TensorSpec([None, U], tf.float32),
        }
        greedy = tf.function(self.greedy, input_signature=[tf.TensorSpec([None, None], tf.int32)])
        return {
            "encode": (self.encode, source),
            "decode_step": (self.decode_step, step),
            "greedy": greedy,
        }


CALLS = {
    "encode": [{"source": ids(2, 5)}, {"source": ids(1, 1)}, {"source": ids(4, 9)}],
    "decode_step": [{"token": ids(3), "state_0": RANDOM.normal(size=(3, U)).astype("float32")}],
    "greedy": [{"source": ids(3, 4)}, {"source": ids(1, 7)}],
}


@pytest.fixture(scope="module")
def speaker():
    keras.utils.set_random_seed(0)
    return Speaker()


@pytest.fixture(scope="module")
def path(speaker, tmp_path_factory):
    return export_tflite(
        speaker.signatures(),
        tmp_path_factory.mktemp("speaker") / "new" / "speaker.tflite",
        metadata={"words.txt": "一\n二\n", "raw.bin": b"\x00\xff"},
        verify=CALLS,
    )


def dense(units=3, width=4, **options):
    return keras.Sequential([keras.Input((width,), **options), layers.Dense(units, name="out")])


def test_signatures_share_their_weights(path):
    report = inspect_tflite(path)
    assert set(report.signatures) == {"encode", "decode_step", "greedy"}
    assert report.signatures["encode"]["inputs"] == {"source": ((None, None), "int32")}
    assert report.signatures["decode_step"]["outputs"]["next_state_0"] == ((None, U), "float32")
    assert not report.flex
    assert not report.custom
    weights = 4 * (V * D + (D + U + 2) * 3 * U + (U + 1) * V)
    assert report.weights_bytes == pytest.approx(weights, rel=0.05)
    assert report.totals["WHILE"] == 3  # encode, and in greedy encode and the search


def test_equal_in_all_runtimes_after_resizing(speaker, path):
    report = check_parity(speaker.signatures(), path, CALLS)
    assert report.equal, str(report)
    assert {d.runtime for d in report.differences} == {"litert", "tf.lite"}
    assert {d.signature for d in report.differences} == set(CALLS)


def test_metadata_is_a_zip_behind_the_model(path):
    with zipfile.ZipFile(path) as files:
        assert files.testzip() is None
        assert files.read("words.txt").decode() == "一\n二\n"
        assert files.read("raw.bin") == b"\x00\xff"
        about = json.loads(files.read("keras_attention.json"))
    assert about["library_version"] == keras_attention.__version__
    assert about["signatures"]["greedy"]["outputs"]["tokens"]["dtype"] == "int32"
    assert about["signatures"]["encode"]["inputs"] == {
        "source": {"shape": [None, None], "dtype": "int32"}
    }
    assert inspect_tflite(path).metadata["words.txt"].decode() == "一\n二\n"


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_interpreters_load_the_file_by_path_and_by_content(path):
    from ai_edge_litert.interpreter import Interpreter

    for kind in (Interpreter, tf.lite.Interpreter):
        for given in ({"model_path": str(path)}, {"model_content": path.read_bytes()}):
            assert "greedy" in kind(**given).get_signature_list()


def test_the_same_model_gives_the_same_metadata_bytes(tmp_path):
    model = dense()
    first = export_tflite(model, tmp_path / "a.tflite", metadata={"a": "b"})
    second = export_tflite(model, tmp_path / "b.tflite", metadata={"a": "b"})
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("quantization, share", [("float16", 0.55), ("dynamic", 0.35)])
def test_quantised_files_are_smaller_and_near(speaker, path, tmp_path, quantization, share):
    functions, calls = {"greedy": speaker.signatures()["greedy"]}, CALLS["greedy"]
    smaller = export_tflite(
        functions, tmp_path / "q.tflite", quantization=quantization, verify=calls
    )
    assert inspect_tflite(smaller).weights_bytes < share * inspect_tflite(path).weights_bytes
    found = {d.output: d for d in check_parity(functions, smaller, calls).differences}
    assert found["tokens"].matched is not None
    assert found["tokens"].equal


def test_a_model_with_several_inputs_and_outputs(tmp_path):
    first, second = keras.Input((None, 3), name="first"), keras.Input((2,), name="second")
    sequence, state = layers.GRU(2, return_sequences=True, return_state=True, name="gru")(first)
    model = keras.Model([first, second], [sequence, state, layers.Add(name="sum")([state, second])])
    model.compile("adam", "mse")
    given = {"first": np.ones((2, 4, 3)), "second": np.ones((2, 2))}
    extra = (lambda x: {"y": 2 * x}, {"x": tf.TensorSpec([None], tf.float32)})
    path = export_tflite(
        model,
        tmp_path / "m.tflite",
        signatures={"double": extra},
        verify={"serving_default": given, "double": {"x": [1.0, 2.0]}},
    )
    assert check_parity(model, path, {"double": {"x": [3.0]}}, signatures={"double": extra}).equal
    found = run_artifact(path, given)
    assert {k: v.shape for k, v in found.items()} == {
        "gru": (2, 4, 2),
        "gru_1": (2, 2),
        "sum": (2, 2),
    }
    np.testing.assert_array_equal(run_artifact(path, {"x": [3]}, "double")["y"], [6])


def test_static_shapes(tmp_path):
    path = export_tflite(dense(batch_size=2), tmp_path / "s.tflite", shapes="static")
    assert inspect_tflite(path).signatures["serving_default"]["outputs"]["out"][0] == (2, 3)
    with pytest.raises(ValueError, match=r"'serving_default', argument 'x' has shape \(None, 4\)"):
        export_tflite(dense(name="x"), tmp_path / "n.tflite", shapes="static")


def test_a_file_for_each_length(speaker, tmp_path):
    """A free first size is 1, every other one is the length."""
    functions = {name: speaker.signatures()[name] for name in ("encode", "decode_step")}
    calls = {
        "encode": [{"source": ids(1, 6)}, {"source": ids(1, 4)}],
        "decode_step": [{"token": ids(1), "state_0": np.ones((1, U), "float32")}],
    }
    folder = tmp_path / "speaker"
    assert export_tflite(functions, folder, shapes=[6, 4, 6], verify=calls) == folder
    assert sorted(file.name for file in folder.iterdir()) == ["4.tflite", "6.tflite"]
    report = inspect_tflite(folder / "4.tflite")
    assert report.signatures["encode"]["inputs"] == {"source": ((1, 4), "int32")}
    assert report.signatures["encode"]["outputs"]["values"] == ((1, 4, U), "float32")
    assert report.signatures["decode_step"]["inputs"]["token"] == ((1,), "int32")
    export_tflite(functions, folder, shapes=[5])  # in the place of the old ones
    assert [file.name for file in folder.iterdir()] == ["5.tflite"]
    with pytest.raises(ValueError, match=r"no inputs of verify of .*\(1, 4\)"):
        export_tflite(
            functions, tmp_path / "n", shapes=[4], verify={"encode": {"source": ids(1, 6)}}
        )
    with pytest.raises(ValueError, match="a file is there"):
        export_tflite(functions, folder / "5.tflite", shapes=[4])
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"folder of .tflite files alone"):
        export_tflite(functions, folder, shapes=[4])
    assert (folder / "notes.txt").exists()


def test_nothing_is_printed(tmp_path, capfd):
    model = dense(name="x")
    export_tflite(model, tmp_path / "m.tflite", verify={"x": np.ones((1, 4))})
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def spec(*shape):
    return keras.InputSpec(shape=shape, dtype="float32")


def product(x):
    return {"y": tf.math.cumprod(x, axis=1)}


def test_an_operator_that_is_not_builtin_is_named(tmp_path):
    functions = {
        "fine": (lambda x: {"y": x + 1.0}, {"x": spec(None, None)}),
        "bad": (product, {"x": spec(None, None)}),
    }
    with pytest.raises(ExportError, match=r"^signature 'bad': .*Cumprod") as caught:
        export_tflite(functions, tmp_path / "bad.tflite")
    assert "cumulative sum of logarithms" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3
    assert list(tmp_path.iterdir()) == []


def test_a_keras_rnn_inside_a_function_gets_the_hint(tmp_path):
    gru = layers.GRU(3)
    functions = {"run": (lambda x: {"y": gru(x)}, {"x": spec(None, None, 2)})}
    with pytest.raises(ExportError, match=r"signature 'run'.*(?s:.)*portable\(model\)"):
        export_tflite(functions, tmp_path / "bad.tflite")


def test_failure_keeps_the_older_file(tmp_path):
    path = export_tflite(dense(), tmp_path / "kept.tflite")
    before = path.read_bytes()
    with pytest.raises(ExportError):
        export_tflite({"bad": (product, {"x": spec(None, None)})}, path)
    lying = (lambda x: {"y": x + (export_target() is not None)}, {"x": spec(None)})
    with pytest.raises(ParityError, match=r"kept.tflite does not equal(?s:.)*litert lying y"):
        export_tflite({"lying": lying}, path, verify={"x": [1.0, 2.0]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"quantization": "int2"}, "one of None, 'float16', .*'int8', .* Received: .*'int2'"),
        ({"shapes": "any"}, "one of 'dynamic', 'static' or a list of lengths. Received: .*'any'"),
        ({"shapes": [8, 0]}, r"list of lengths. Received: shapes=\[8, 0\]"),
        ({"shapes": []}, r"list of lengths. Received: shapes=\[\]"),
        ({"shapes": "buckets"}, "one of 'dynamic', 'static'"),
        ({"metadata": {"keras_attention.json": "x"}}, "metadata"),
        ({"metadata": {"a": 3}}, r"metadata\['a'\] must be bytes or str"),
        ({"model": 3}, "model must be"),
        ({"model": {}}, "at least one signature"),
        ({"model": {"f": lambda x: x}}, "signature 'f' must be a tf.function"),
        ({"model": {"f": (len, {"x": 3})}}, "signature 'f', argument 'x'"),
        ({"model": {"f": (lambda x: x, {"x": spec(None)})}}, "signature 'f' must return"),
    ],
)
def test_wrong_arguments(tmp_path, change, message):
    arguments = {"model": dense(), "path": tmp_path / "x.tflite", **change}
    with pytest.raises(ValueError, match=message):
        export_tflite(arguments.pop("model"), arguments.pop("path"), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_another_backend_is_refused(tmp_path):
    code = (
        "import keras, sys\n"
        "from keras_attention.export.tflite import export_tflite\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "try:\n"
        "    export_tflite(model, sys.argv[1])\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.tflite")],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        check=True,
    )
    assert "needs KERAS_BACKEND=tensorflow, and Keras runs on numpy" in child.stdout


def test_a_folder_in_the_place_of_the_file(tmp_path):
    with pytest.raises(ValueError, match="a folder is there"):
        export_tflite(dense(), tmp_path)


def test_a_runner_is_used_again_and_again(path):
    run = load_tflite(path, "encode")
    assert run.inputs == {"source": ((None, None), "int32")}
    for shape in ((1, 2), (3, 1), (1, 2), (2, 8)):
        assert run({"source": ids(*shape)})["values"].shape == (*shape, U)


@pytest.mark.parametrize("count", [2, 7])  # of integers up to 1 and up to 6
def test_positions_are_clipped_without_relu6(count, tmp_path):
    inputs = layers.Input((None, 4))
    x = keras_attention.LearnedPositions(count)(inputs)
    local = keras_attention.LocalAttention(window=3)(x, x, return_attention_scores=True)
    model = keras.Model(inputs, local)
    path = export_tflite(model, tmp_path / "m.tflite")
    for length in (1, count):
        check_parity(model, path, {model.inputs[0].name: RANDOM.normal(size=(2, length, 4))})
