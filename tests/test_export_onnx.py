"""Export to ONNX: a file for each function, names and open sizes kept, nothing half-written."""

import json
import logging
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_attention as ka

pytestmark = pytest.mark.tensorflow("artifacts are made on TensorFlow")
tf = pytest.importorskip("tensorflow")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from keras_attention.export.onnx import ExportError, ParityError, export_onnx  # noqa: E402
from keras_attention.export.parity import (  # noqa: E402
    ArtifactError,
    check_parity,
    load_onnx,
    run_artifact,
)
from keras_attention.targets import export_target  # noqa: E402

V, D, M, U, LONGEST = 9, 4, 7, 8, 5
RANDOM = np.random.default_rng(0)


def spec(*shape, dtype="float32"):
    return keras.InputSpec(shape=shape, dtype=dtype)


def numbers(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def dense(**options):
    return keras.Sequential([keras.Input((4,), name="x", **options), layers.Dense(3, name="out")])


# Whole models.


@pytest.fixture(scope="module")
def model():
    ids = keras.Input((None,), dtype="int32", name="ids")
    question = keras.Input((None, M), name="question")
    embedded = layers.Embedding(V, D, mask_zero=True)(ids)
    values = layers.Bidirectional(layers.GRU(U, return_sequences=True))(embedded)
    context = ka.Attention("additive", name="context")(question, values)
    summary = layers.LSTM(3, name="summary")(context)
    return keras.Model([ids, question], [context, summary])


def texts(batch, length, queries, padded=()):
    ids = RANDOM.integers(1, V, (batch, length))
    for row, start in enumerate(padded):
        ids[row, start:] = 0
    return {"ids": ids, "question": numbers(batch, queries, M)}


# Several shapes, a padded row, one that is all padding, lengths of one.
CALLS = [texts(3, 5, 2, padded=(3, 0)), texts(1, 1, 1), texts(2, 9, 4)]


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "new"
    return export_onnx(model, folder / "model.onnx", metadata={"words": "一\n二"}, verify=CALLS)


def test_a_model_is_one_file_that_is_equal_at_any_size(model, path):
    assert path.name == "model.onnx" and path.is_file()
    assert list(path.parent.iterdir()) == [path]
    report = check_parity(model, path, CALLS)
    assert report.equal, str(report)
    assert {d.runtime for d in report.differences} == {"onnxruntime"}
    assert {d.output for d in report.differences} == {"context", "summary"}


def test_names_types_and_open_sizes_are_kept(path):
    run = load_onnx(path)
    assert run.signature == "serving_default"
    assert run.inputs == {"ids": ((None, None), "int32"), "question": ((None, None, M), "float32")}
    assert run.outputs["context"] == ((None, None, 2 * U), "float32")
    found = run(CALLS[1])
    assert set(found) == {"context", "summary"} and found["summary"].shape == (1, 3)
    given = {entry.name: entry for entry in onnx.load(path).graph.input}
    sizes = [size.dim_param for size in given["question"].type.tensor_type.shape.dim[:2]]
    assert sizes == ["question_0", "question_1"]


def test_metadata_travels_inside(path):
    metadata = load_onnx(path).metadata
    assert metadata["words"] == "一\n二"
    about = json.loads(metadata["keras_attention.json"])
    assert about["library_version"] == ka.__version__
    assert about["inputs"]["ids"] == {"shape": [None, None], "dtype": "int32"}


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18])
def test_the_version_of_operators(model, tmp_path, opset):
    path = export_onnx(model, tmp_path / "m.onnx", opset=opset, verify=CALLS)
    versions = {entry.domain: entry.version for entry in onnx.load(path).opset_import}
    assert versions[""] == opset


def test_fixed_sizes_stay_fixed(tmp_path):
    path = export_onnx(dense(batch_size=2), tmp_path / "m.onnx")
    assert load_onnx(path).inputs == {"x": ((2, 4), "float32")}
    with pytest.raises(ValueError, match=r"'x' must be of shape \(2, 4\)"):
        run_artifact(path, {"x": numbers(3, 4)})


# A decoder and its searches.


def decoder_functions():
    decoder = ka.AttentionDecoder(U)
    embedding, head = layers.Embedding(V, D), layers.Dense(V)
    decoder.build((None, None, D), (None, None, M))
    embedding.build()
    head.build((None, U))
    rng = np.random.default_rng(1)
    for weight in [*decoder.weights, *embedding.weights, *head.weights]:
        weight.assign(rng.normal(size=weight.shape))
    initial = [state.shape[-1] for state in decoder.initial_state(1)]

    def forced(tokens, memory, mask):
        outputs, states, weights = decoder(
            embedding(tokens), memory, memory_mask=mask, return_attention_scores=True
        )
        last = {f"state_{i}": state for i, state in enumerate(states)}
        return {"logits": head(outputs), "weights": weights, **last}

    def score(tokens, states, *memory):
        hidden, states, weights = decoder.step(embedding(tokens), states, *memory)
        return head(hidden), states, weights

    def step(token, memory, mask, **states):
        states = tuple(states[f"state_{i}"] for i in range(len(initial)))
        logits, states, weights = score(token, states, *decoder.prepare_memory(memory, mask), mask)
        moved = {f"next_state_{i}": state for i, state in enumerate(states)}
        return {"logits": logits, "weights": weights, **moved}

    def searched(search, **options):
        def function(memory, mask):
            found = search(
                score,
                decoder.initial_state(ops.shape(memory)[0]),
                (*decoder.prepare_memory(memory, mask), mask),
                start_id=0,
                end_id=1,
                max_length=LONGEST,
                **options,
            )
            return found._asdict()

        return function, reads

    reads = {"memory": spec(None, None, M), "mask": spec(None, None, dtype="bool")}
    states = {f"state_{i}": spec(None, width) for i, width in enumerate(initial)}
    return {
        "forced": (forced, {"tokens": spec(None, None, dtype="int32"), **reads}),
        "step": (step, {"token": spec(None, dtype="int32"), **reads, **states}),
        "greedy": searched(ka.greedy_search),
        "beam": searched(ka.beam_search, beam_width=3, length_penalty_weight=0.6),
    }


def memory(batch, keys, read=None):
    lengths = RANDOM.integers(1, keys + 1, batch) if read is None else np.array(read)
    mask = np.arange(keys) < lengths[:, np.newaxis]
    return {"memory": numbers(batch, keys, M), "mask": mask}


def decoder_calls(functions):
    states = functions["step"][1].keys() - {"token", "memory", "mask"}

    def words(*shape):
        return RANDOM.integers(0, V, shape).astype("int32")

    reads = [memory(2, 6), memory(3, 4, read=(4, 0, 2)), memory(1, 1)]
    return {
        "forced": [
            {"tokens": words(len(read["mask"]), length), **read}
            for read, length in zip(reads, (3, 1, 7), strict=True)
        ],
        "step": [
            {
                "token": words(len(read["mask"])),
                **read,
                **{name: numbers(len(read["mask"]), U) for name in states},
            }
            for read in reads
        ],
        "greedy": reads,
        "beam": reads,
    }


def test_a_decoder_and_its_searches_are_a_folder_of_equal_files(tmp_path):
    functions = decoder_functions()
    calls = decoder_calls(functions)
    folder = export_onnx(functions, tmp_path / "decoder", metadata={"a": "b"})
    assert {file.name for file in folder.iterdir()} == {f"{name}.onnx" for name in functions}
    report = check_parity(functions, folder, calls)
    assert report.equal, str(report)
    tokens = [d for d in report.differences if d.output in ("tokens", "lengths")]
    assert len(tokens) == 4 and all(d.matched == 1 for d in tokens)
    run = load_onnx(folder / "step.onnx")
    assert run.signature == "step" and run.inputs["mask"] == ((None, None), "bool")
    assert run.metadata["a"] == "b"
    # What is masked is read by exactly nothing.
    weights = run_artifact(folder, calls["forced"][1], "forced")["weights"]
    mask = np.broadcast_to(calls["forced"][1]["mask"][:, np.newaxis], weights.shape)
    assert not weights[~mask].any() and weights[mask].any()


@pytest.mark.slow
def test_the_signatures_of_a_translation_run(tmp_path):
    from keras_attention.recipes import searches, translation, translation_export
    from keras_attention.recipes.runs import Run
    from keras_attention.recipes.tokenizers import SPECIAL, Tokenizer
    from keras_attention.recipes.translation_options import Config

    config = Config(max_length=6, beam_width=2)
    vocabulary = Tokenizer((*SPECIAL, *"abc早"), "spaces", "none")
    model = translation.build_model(
        vocabulary.size, vocabulary.size, embedding=3, encoder_units=4, units=5
    )
    run = Run(config, model, vocabulary, vocabulary, tmp_path)
    folder = translation_export.export(run, "onnx")
    assert folder == tmp_path / "export" / "onnx"
    names = {"encode", "decode_step", "greedy", "beam"}
    assert {file.stem for file in folder.iterdir()} == names
    source = np.array([[4, 5, 6, 2], [7, 2, 0, 0]], "int32")
    functions = searches.signatures(translation.decoding(model, config), config)
    encoded = run_artifact(folder, {"source": source}, "encode")
    one_step = {"token": np.array([1, 1], "int32"), **encoded}
    # The other two have been compared by the export.
    report = check_parity(functions, folder, {"decode_step": one_step, "beam": {"source": source}})
    assert report.equal, str(report)
    metadata = load_onnx(folder, "greedy").metadata
    assert metadata["target_vocabulary.txt"].splitlines()[-1] == "早"
    assert json.loads(metadata["translation.json"])["max_target_length"] == 6


# What a function may be.


@pytest.mark.parametrize(
    "function, specs, inputs",
    [
        pytest.param(
            lambda B, a: {"b": B - 2 * a, "A": a},
            {"a": spec(None), "B": spec(None)},
            {"a": [1.0, 2.0], "B": [3.0, 5.0]},
            id="names that differ in case",
        ),
        pytest.param(
            lambda x, spare: {"x_out": x, "again": x, "twice": 2 * x},
            {"x": spec(None), "spare": spec(None)},
            {"x": [1.0], "spare": [2.0]},
            id="handed through and not read",
        ),
        pytest.param(lambda x: {"y": x + 1}, {"x": spec()}, {"x": 2.0}, id="a number"),
        pytest.param(
            lambda x: {"y": keras.activations.gelu(x, approximate=False)},
            {"x": spec(None, 4)},
            {"x": numbers(3, 4)},
            id="exact gelu",
        ),
        pytest.param(
            lambda x: {
                "y": ops.while_loop(
                    lambda i, s: i < 3, lambda i, s: (i + 1, ops.gelu(s, approximate=False)), (0, x)
                )[1]
            },
            {"x": spec(None, 4)},
            {"x": numbers(3, 4)},
            id="exact gelu in a loop",
        ),
    ],
)
def test_functions(tmp_path, function, specs, inputs):
    path = export_onnx({"f": (function, specs)}, tmp_path / "f.onnx", verify=inputs)
    assert load_onnx(path).signature == "f"


def test_a_tensor_that_a_function_closes_over_becomes_a_constant(tmp_path):
    table = tf.constant(numbers(V, D))
    inside = tf.constant(numbers(D, D))

    def look(ids):
        found = ops.take(table, ids, axis=0)
        _, found = ops.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x @ inside), (0, found))
        return {"found": found}

    functions = {"look": (look, {"ids": spec(None, dtype="int32")})}
    path = export_onnx(functions, tmp_path / "f.onnx", verify={"ids": [1, 2]})
    assert list(load_onnx(path).inputs) == ["ids"]


def test_nan_in_padding_is_not_read(tmp_path):
    attention = ka.Attention("additive")

    def read(query, value, mask):
        context, weights = attention(query, value, value_mask=mask, return_attention_scores=True)
        return {"context": context, "weights": weights}

    inputs = {"query": numbers(2, 3, D), "value": numbers(2, 5, M)}
    inputs["mask"] = np.arange(5) < np.array([[3], [5]])
    inputs["value"][~inputs["mask"]] = np.nan
    specs = {"query": spec(None, None, D), "value": spec(None, None, M)}
    specs["mask"] = spec(None, None, dtype="bool")
    path = export_onnx({"read": (read, specs)}, tmp_path / "f.onnx", verify=inputs)
    assert all(np.isfinite(found).all() for found in run_artifact(path, inputs).values())


def test_reshapes_one_after_the_other(tmp_path):
    """What tf2onnx joins wrongly by itself: a flat product, its axes, a swap with an axis of 1."""
    vector = keras.Variable(numbers(D, 1))

    def rate(x, mask):
        rates = ops.swapaxes(ops.matmul(x, vector), -1, -2)
        return {"rates": ops.where(ops.expand_dims(mask, 1), rates, 0.0)}

    calls = [
        {"x": numbers(batch, length, D), "mask": np.ones((batch, length), bool)}
        for batch, length in ((2, 5), (1, 3))
    ]
    specs = {"x": spec(None, None, D), "mask": spec(None, None, dtype="bool")}
    functions = {"rate": (rate, specs)}
    assert export_onnx(functions, tmp_path / "f.onnx", verify=calls).exists()


def test_one_function_in_a_folder_and_further_ones(tmp_path):
    folder = export_onnx(dense(), tmp_path / "one")
    assert [file.name for file in folder.iterdir()] == ["serving_default.onnx"]
    double = (lambda x: {"y": 2 * x}, {"x": spec(None)})
    calls = {"serving_default": {"x": numbers(2, 4)}, "double": {"x": [1.0]}}
    model = dense()
    folder = export_onnx(model, folder, signatures={"double": double}, verify=calls)
    assert {file.name for file in folder.iterdir()} == {"double.onnx", "serving_default.onnx"}
    assert list(tmp_path.iterdir()) == [folder]
    assert run_artifact(folder, {"x": [3]}, "double")["y"].tolist() == [6]
    assert run_artifact(folder, {"x": numbers(1, 4)})["out"].shape == (1, 3)
    with pytest.raises(ValueError, match="has the signatures double, serving_default"):
        load_onnx(folder, "other")
    with pytest.raises(
        ValueError, match=r"has the signatures double\. Received: signature='other'"
    ):
        load_onnx(folder / "double.onnx", "other")


# What is refused.


@pytest.mark.parametrize(
    "function, specs, message",
    [
        (
            lambda state: {"state": state + 1},
            {"state": spec(None)},
            r"signature 'f': result 'state' has the name of an argument.*'next_state'",
        ),
        (
            lambda text: {"length": tf.strings.length(text)},
            {"text": tf.TensorSpec([None], tf.string)},
            "signature 'f', argument 'text': strings are not for ONNX",
        ),
        (
            lambda x: {"text": tf.strings.as_string(x)},
            {"x": spec(None)},
            "signature 'f', result 'text': strings are not for ONNX",
        ),
        (
            lambda x: {"y": x + 1},
            {"x": tf.TensorSpec(None, tf.float32)},
            "signature 'f', argument 'x': the number of axes must be known",
        ),
        (
            lambda x: {"y": ops.argmax(x, axis=-1)},
            {"x": spec(None)},
            r"signature 'f': needs operators that ONNX does not have: Bitcast, BitwiseAnd\n.*top_k",
        ),
        (
            lambda x: {"y": tf.signal.rfft(x)},
            {"x": spec(None)},
            "signature 'f' does not convert: Failed to convert node 'rfft': .*ComplexAbs",
        ),
        (
            lambda x: {"y": x + 1},
            {"x": spec(None, dtype="bfloat16")},
            "signature 'f': cannot be loaded .*bfloat16",
        ),
    ],
    ids=["clash", "string", "string result", "rank", "operator", "node", "type"],
)
def test_what_does_not_convert_is_named(tmp_path, function, specs, message):
    functions = {"fine": (lambda x: {"y": 2 * x}, {"x": spec(None)}), "f": (function, specs)}
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(functions, tmp_path / "folder")
    assert len(str(caught.value).splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "tf2onnx"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"needs {missing}: .*keras-attention-layers\[onnx\]"):
        export_onnx(dense(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_running_needs_onnxruntime(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"keras-attention-layers\[onnx\]"):
        load_onnx(path)


def broken():
    lying = (lambda x: {"y": x + (export_target() is not None)}, {"x": spec(None)})
    bad = (lambda x: {"y": ops.argmax(x, -1)}, {"x": spec(None)})
    return lying, bad


def test_failure_keeps_the_older_file(tmp_path):
    path = export_onnx(dense(), tmp_path / "kept.onnx")
    before = path.read_bytes()
    lying, bad = broken()
    with pytest.raises(ExportError, match="signature 'bad'"):
        export_onnx({"bad": bad}, path)
    with pytest.raises(ParityError, match=r"kept.onnx does not equal(?s:.)*onnxruntime lying y"):
        export_onnx({"lying": lying}, path, verify={"x": [1.0, 2.0]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_failure_keeps_the_older_folder(tmp_path):
    folder = export_onnx(dense(), tmp_path / "kept")
    [file] = folder.iterdir()
    before = file.read_bytes()
    lying, bad = broken()
    fine = (lambda x: {"y": 2 * x}, {"x": spec(None)})
    with pytest.raises(ExportError, match="signature 'bad'"):
        export_onnx({"fine": fine, "bad": bad}, folder)
    with pytest.raises(ParityError, match="kept does not equal"):
        export_onnx({"fine": fine, "lying": lying}, folder, verify={"lying": {"x": [1.0]}})
    assert list(folder.iterdir()) == [file] and file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"opset": 12}, "opset must be from 13 to 18. Received: opset=12"),
        ({"metadata": {"keras_attention.json": "x"}}, "metadata cannot have"),
        ({"metadata": {"a": b"x"}}, r"metadata\['a'\] must be str. Received: bytes"),
        ({"model": 3}, "model must be"),
        ({"signatures": {"f": (len, {"x": spec(None)})}}, "one file for each of serving_def"),
        (
            {"name": "f", "signatures": {"../f": (len, {"x": spec(None)})}},
            "'../f' cannot be the name of a file",
        ),
    ],
)
def test_wrong_arguments(tmp_path, change, message):
    arguments = {"model": dense(), "name": "x.onnx", **change}
    with pytest.raises(ValueError, match=message):
        export_onnx(arguments.pop("model"), tmp_path / arguments.pop("name"), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_what_stands_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match="a folder is there"):
        export_onnx(dense(), tmp_path / "folder.onnx")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="a file is there"):
        export_onnx(dense(), tmp_path / "file")
    with pytest.raises(ValueError, match=r"for ONNX files alone, and it holds file, folder\.onnx"):
        (tmp_path / "folder.onnx" / "x").touch()
        export_onnx(dense(), tmp_path)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.onnx"]


def test_files_that_are_not_onnx(tmp_path, path):
    with pytest.raises(ArtifactError, match="no such file"):
        load_onnx(tmp_path / "missing.onnx")
    with pytest.raises(ArtifactError, match=r"holds no \.onnx file"):
        load_onnx(tmp_path)
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ArtifactError, match=r"cut.onnx: is damaged"):
        run_artifact(tmp_path / "cut.onnx", {})
    with pytest.raises(ValueError, match=r"runtime is for .tflite files"):
        run_artifact(path, {}, runtime="litert")


def test_inputs_that_do_not_fit(path):
    with pytest.raises(ValueError, match=r"takes \['ids', 'question'\]. Received: \['ids'\]"):
        run_artifact(path, {"ids": [[1]]})
    with pytest.raises(ValueError, match=r"model.onnx: does not run on inputs of shapes.*\(2, 3\)"):
        run_artifact(path, {"ids": np.ones((2, 3), int), "question": numbers(3, 1, M)})


def test_a_file_of_somebody_else(tmp_path):
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, [None]) for name in "xy"
    ]
    graph = onnx.helper.make_graph([node], "negative", tensors[:1], tensors[1:])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "n.onnx"
    )
    run = load_onnx(tmp_path / "n.onnx")
    assert run.inputs == {"x": ((None,), "float64")} and run.metadata == {}
    assert run({"x": [1.0]})["y"].tolist() == [-1.0]


def test_nothing_is_printed_and_logging_is_as_before(model, tmp_path, capfd):
    logger = logging.getLogger("tf2onnx")
    before = logger.level, logger.propagate, list(logger.handlers)
    path = export_onnx(model, tmp_path / "m.onnx", verify=CALLS)
    with pytest.raises(ExportError):
        export_onnx({"bad": broken()[1]}, path)
    with pytest.raises(ValueError, match="does not run"):
        run_artifact(path, {"ids": np.ones((2, 3), int), "question": numbers(3, 1, M)})
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
