"""Layers of the table and models of Keras's own layers, quantised or not, of free and fixed sizes.

Rows are exported several to a file, for most of the time goes into files. With `--matrix` all of
them are, in every combination.
"""

import itertools

import keras
import numpy as np
import pytest
import stock
from case import B
from cases import CASES
from test_contracts_export import calls, functions

pytestmark = pytest.mark.tensorflow("artifacts are made on TensorFlow")
pytest.importorskip("tensorflow")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.export.parity import TOLERANCES, check_parity, load_tflite  # noqa: E402
from keras_attention.export.signatures import signatures_of, trace  # noqa: E402
from keras_attention.export.tflite import export_tflite  # noqa: E402

QUANTIZATIONS = (None, "float16", "dynamic", "int8")
COMBINATIONS = list(itertools.product(QUANTIZATIONS, ("dynamic", "static")))
IN_A_FILE = 8
ROWS = [case for case in CASES if "tflite" not in case.exempt]
SAMPLED_ROWS = ROWS[3::32]
SAMPLED = [(None, "static"), ("float16", "dynamic")]
SAMPLED_MODELS = [
    ("encoder_decoder", None, "dynamic"),
    ("grouped_attention", None, "dynamic"),
    ("masked_lstm", "float16", "static"),
    ("time_distributed", None, "dynamic"),
]
LARGEST = float(np.finfo("float16").max)
NO_LOOPS = "TensorFlow's calibration crashes on loops of fixed sizes (tensorflow#62281)"


def pytest_generate_tests(metafunc):
    whole = metafunc.config.getoption("--matrix")
    combinations = COMBINATIONS if whole else SAMPLED
    if "row" in metafunc.fixturenames:
        rows = ROWS if whole else SAMPLED_ROWS
        files = [rows[i : i + IN_A_FILE] for i in range(0, len(rows), IN_A_FILE)]
        metafunc.parametrize(
            ("row", "beside", "quantization", "shapes"),
            [
                pytest.param(
                    row,
                    rows,
                    *combination,
                    id=f"{row.name}-{name(*combination)}",
                    marks=pytest.mark.xdist_group(f"{number}-{name(*combination)}"),
                )
                for combination in combinations
                for number, rows in enumerate(files)
                for row in rows
            ],
        )
    if "model_name" in metafunc.fixturenames:
        every = [(model, *combination) for combination in COMBINATIONS for model in stock.MODELS]
        chosen = every if whole else SAMPLED_MODELS
        metafunc.parametrize(
            ("model_name", "quantization", "shapes"),
            [pytest.param(model, *of, id=f"{model}-{name(*of)}") for model, *of in chosen],
        )


def name(quantization, shapes):
    return f"{quantization or 'float32'}-{shapes}"


class File:
    """Some rows in one file: their layers, and runners by name; of those that can be in it."""

    def __init__(self, rows, make, path, quantization, shapes):
        self.layers = {row.name: make(row, "float32") for row in rows}
        given = {}
        for row in rows:
            [(function, specs)] = functions(row, self.layers[row.name]).values()
            if shapes == "static":
                arrays = sized_calls(row)[0]
                specs = {
                    key: keras.InputSpec(shape=np.shape(arrays[key]), dtype=spec.dtype)
                    for key, spec in specs.items()
                }
            if (quantization, shapes) != ("int8", "static") or not loops((function, specs)):
                given[row.name] = (function, specs)
        self.names = list(given)
        if not given:
            return
        rows = [row for row in rows if row.name in given]
        examples = {row.name: sized_calls(row, 10) for row in rows}
        self.path = export_tflite(
            given,
            path,
            quantization=quantization,
            shapes=shapes,
            representative_data=examples if quantization == "int8" else None,
        )


def loops(given) -> bool:
    [function] = trace(signatures_of({"f": given}), "tflite").values()
    graph = function.graph.as_graph_def()
    inner = [node for called in graph.library.function for node in called.node_def]
    return any(node.op in ("While", "StatelessWhile") for node in (*graph.node, *inner))


def sized_calls(row, count=3):
    """Calls of the sizes of the table alone."""
    return [{**row.inputs("float32", seed=i), **row.masks(seed=i)} for i in range(count)]


@pytest.fixture(scope="module")
def files():
    return {}


@pytest.fixture
def file_of(files, made, tmp_path_factory):
    def find(rows, quantization, shapes):
        key = (rows[0].name, quantization, shapes)
        if key not in files:
            path = tmp_path_factory.mktemp("rows") / "rows.tflite"
            files[key] = File(rows, made, path, quantization, shapes)
        return files[key]

    return find


def test_a_row_is_its_layer(row, beside, quantization, shapes, file_of):
    file = file_of(beside, quantization, shapes)
    if row.name not in file.names:
        pytest.skip(NO_LOOPS)
    report = inspect_tflite(file.path)
    assert report.flex == report.custom == []
    run = load_tflite(file.path, row.name, runtime="tf.lite")
    worst = 0.0
    for inputs in sized_calls(row) if shapes == "static" else calls(row):
        wanted = row.outputs(file.layers[row.name], inputs)
        found = run(inputs)
        for i, reference in enumerate(wanted):
            reference, given = np.asarray(reference), found[f"output_{i}"]
            assert given.shape == reference.shape
            assert np.all(np.isfinite(given))
            if quantization == "float16":  # which is how -1e9, a masked score, is written, too
                reference = np.clip(reference, -LARGEST, LARGEST)
            scale = np.abs(reference[np.abs(reference) < LARGEST]).max(initial=0.0) or 1.0
            worst = max(worst, np.abs(given - reference).max(initial=0.0) / scale)
            if quantization != "int8":
                # What is masked is exactly so.
                np.testing.assert_array_equal(given[reference == 0], 0)
    if quantization != "int8":  # whose worth is that of its task
        assert worst <= TOLERANCES[quantization]
    print(f"{row.name} {name(quantization, shapes)}: relative error {worst:.1e}")


# Keras's own warnings: of a mask that ends at a layer, of a softmax over a single key.
@pytest.mark.filterwarnings("ignore:(?s).*(destroy the mask|using a softmax over axis)")
def test_a_model_of_kerass_layers(model_name, quantization, shapes, tmp_path):
    batch, length = (B, 6) if shapes == "static" else (None, None)
    if (quantization, shapes) == ("int8", "static") and stock.MODELS[model_name].loops:
        pytest.skip(NO_LOOPS)
    model = stock.MODELS[model_name].make(batch, length)
    sizes = [(B, 6)] if shapes == "static" else [(B, 6), (1, 1), (3, 9)]
    examples = [stock.inputs(model_name, B, 6, seed) for seed in range(10)]
    path = export_tflite(
        model,
        tmp_path / "model.tflite",
        quantization=quantization,
        shapes=shapes,
        representative_data=examples if quantization == "int8" else None,
    )
    report = inspect_tflite(path)
    assert report.flex == report.custom == []
    found = check_parity(model, path, [stock.inputs(model_name, *size) for size in sizes])
    print(found)
    assert found.equal, str(found)
    assert report.signatures["serving_default"]["inputs"]["inputs"][0][:2] == (batch, length)
