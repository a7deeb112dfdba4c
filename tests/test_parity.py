"""Comparing an artifact with its model: what counts as equal, and clear errors on wrong inputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.export.parity import (
    ArtifactError,
    ParityError,
    _differences,
    check_parity,
    load_tflite,
    run_artifact,
)
from keras_attention.export.tflite import export_tflite


def functions(scale=1.0, shift=0):
    x = {"x": keras.InputSpec(shape=(None, 2), dtype="float32")}
    ids = {"ids": keras.InputSpec(shape=(None,), dtype="int32")}
    return {
        "scaled": (lambda x: {"y": scale * x, "positive": x > 0}, x),
        "shifted": (lambda ids: {"ids_out": ids + shift}, ids),
    }


CALLS = {
    "scaled": [{"x": np.array([[1.0, -2.0]])}, {"x": np.ones((3, 2), "float32")}],
    "shifted": [{"ids": [1, 2, 3]}, {"ids": [4]}],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return export_tflite(functions(), tmp_path_factory.mktemp("parity") / "f.tflite")


def test_equal(path):
    report = check_parity(functions(), path, CALLS)
    assert report.equal
    report.require_equal(path)
    assert len(report.differences) == 2 * 3
    assert "ok  litert scaled y: max error 0.00e+00" in str(report)
    assert "100.00% equal" in str(report)


def test_only_some_signatures(path):
    report = check_parity(functions(), path, {"scaled": CALLS["scaled"][0]})
    assert {d.signature for d in report.differences} == {"scaled"}


def test_a_float_that_differs(path):
    report = check_parity(functions(scale=1.1), path, CALLS)
    assert not report.equal
    wrong = [d for d in report.differences if not d.equal]
    assert {(d.runtime, d.output) for d in wrong} == {("litert", "y"), ("tf.lite", "y")}
    assert wrong[0].relative == pytest.approx(0.1 / 1.1, rel=1e-3)
    assert wrong[0].absolute == pytest.approx(0.2, rel=1e-3)
    with pytest.raises(ParityError, match=r"NOT EQUAL litert scaled y: max error 2.00e-01"):
        report.require_equal(path)
    assert check_parity(functions(scale=1.1), path, CALLS, tolerance=0.2).equal


def test_an_integer_that_differs(path):
    report = check_parity(functions(shift=1), path, CALLS)
    assert [d.output for d in report.differences if not d.equal] == ["ids_out"] * 2


def test_quantised_rows_with_other_tokens_are_not_compared():
    reference = {"tokens": np.array([[1, 2], [3, 4]]), "scores": np.array([1.0, 5.0])}
    found = {"tokens": np.array([[1, 2], [3, 9]]), "scores": np.array([1.0, -5.0])}
    rows = {row[0]: row for row in _differences([(reference, found)], 1e-2, exact=False)}
    matched, equal = rows["tokens"][3], rows["tokens"][-1]
    assert matched == 0.75
    assert equal
    assert rows["scores"][-1]
    exact = _differences([(reference, found)], 1e-2, exact=True)
    assert [row[-1] for row in exact] == [False, False]


@pytest.mark.parametrize(
    "wanted, given, equal",
    [
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([-np.inf, 1.0], [-np.inf, 1.0], True),
        ([-np.inf, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [np.nan, 1.0], False),
        ([0.0, 0.0], [0.0, 1e-9], True),
        ([0.0, 0.0], [0.0, 1e-3], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_values_that_are_not_finite_or_zero(wanted, given, equal):
    pairs = [({"y": np.array(wanted)}, {"y": np.array(given)})]
    assert _differences(pairs, 1e-5, exact=True)[0][-1] is equal


def test_an_output_that_is_missing():
    assert not _differences([({"y": np.ones(2)}, {})], 1e-5, exact=True)[0][-1]


@pytest.mark.parametrize("runtime", ["litert", "tf.lite", None])
def test_runtimes(path, runtime):
    found = run_artifact(path, {"ids": [7, 8]}, "shifted", runtime=runtime)
    assert found["ids_out"].tolist() == [7, 8]
    assert found["ids_out"].dtype == np.int32


@pytest.mark.parametrize(
    "inputs, signature, message",
    [
        ({"x": [[1.0, 2.0]]}, None, "has the signatures scaled, shifted"),
        ({"x": [[1.0, 2.0]]}, "other", "Received: signature='other'"),
        ({"y": [[1.0, 2.0]]}, "scaled", r"takes \['x'\]. Received: \['y'\]"),
        ({"x": [[1.0]]}, "scaled", r"'x' must be of shape \(None, 2\). Received: \(1, 1\)"),
        ({"x": [1.0, 2.0]}, "scaled", "'x' must be of shape"),
        ({"ids": [1.5]}, "shifted", "'ids' must be int32. Received: float64"),
        ({"ids": ["a"]}, "shifted", "'ids' must be int32"),
        ({"ids": [2**40]}, "shifted", "'ids' must be int32"),
    ],
)
def test_wrong_inputs(path, inputs, signature, message):
    with pytest.raises(ValueError, match=message):
        run_artifact(path, inputs, signature)


def test_wrong_inputs_for_a_comparison(path):
    with pytest.raises(ValueError, match="unknown signatures"):
        check_parity(functions(), path, {"other": [{"x": [[1.0, 2.0]]}]})
    with pytest.raises(ValueError, match="several signatures"):
        check_parity(functions(), path, {"x": [[1.0, 2.0]]})
    scaled = {"scaled": functions()["scaled"]}
    for inputs, given in (
        ([], "Received: list$"),
        ([np.ones((1, 2))], "list of ndarray"),
        (np.ones((1, 2)), "ndarray of ndarray"),
        (lambda: None, "Received: function"),
    ):
        with pytest.raises(ValueError, match=rf"must be {{argument: array}}.*{given}"):
            check_parity(scaled, path, inputs)
    with pytest.raises(ValueError, match=r"signature 'scaled' takes \['x'\]"):
        check_parity(scaled, path, {"y": [[1.0, 2.0]]})
    rows = ({"x": [[1.0, float(i)]]} for i in range(2))
    assert check_parity(scaled, path, rows).equal


def test_unknown_runtime(path):
    with pytest.raises(ValueError, match=r"runtime must be one of litert, tf.lite or None"):
        load_tflite(path, "scaled", runtime="onnx")


def test_a_file_without_signatures(tmp_path):
    function = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([2], tf.float32)])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    path = tmp_path / "old.tflite"
    path.write_bytes(converter.convert())
    with pytest.raises(ArtifactError, match="has no signatures"):
        load_tflite(path)
