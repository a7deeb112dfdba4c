"""Reading artifacts: what they hold, and files that only claim to be one."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from keras_attention.export.inspect import ArtifactError, inspect_tflite
from keras_attention.export.inspect_saved_model import inspect_saved_model
from keras_attention.export.parity import run_artifact
from keras_attention.export.saved_model import export_saved_model
from keras_attention.export.tflite import export_tflite

SIGNATURES = {
    "serving_default": {
        "inputs": {"ids": ((None, None), "int32")},
        "outputs": {"gru": ((None, 3), "float32")},
    }
}
WEIGHTS = 4 * (20 * 4 + 4 * 9 + 3 * 9)  # bytes, without biases


@pytest.fixture(scope="module")
def model():
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedded = layers.Embedding(20, 4, mask_zero=True)(ids)
    return keras.Model(ids, layers.GRU(3, name="gru")(embedded))


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    return export_tflite(model, folder / "gru.tflite", metadata={"words.txt": "a\nb"})


@pytest.fixture(scope="module")
def saved_model(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "words.txt").write_text("a\nb", "utf-8")
    return export_saved_model(model, folder / "m", assets={"words.txt": folder / "words.txt"})


@pytest.fixture(scope="module")
def onnx_file(model, tmp_path_factory):
    pytest.importorskip("tf2onnx")
    onnx = pytest.importorskip("keras_attention.export.onnx")
    folder = tmp_path_factory.mktemp("inspect")
    return onnx.export_onnx(model, folder / "gru.onnx", metadata={"words.txt": "a\nb"})


@pytest.fixture(scope="module")
def content(path):
    return path.read_bytes()


@pytest.fixture(scope="module")
def bare(path, content):
    """The flatbuffer alone, as files of other tools are."""
    with zipfile.ZipFile(path) as files:
        return content[: min(entry.header_offset for entry in files.infolist())]


def test_report(path, content):
    report = inspect_tflite(path)
    assert report.signatures == SIGNATURES
    assert report.totals["WHILE"] == 1
    assert len(report.operators) == 3  # the model, and condition and body of its loop
    assert sum(c["DYNAMIC_UPDATE_SLICE"] for c in report.operators.values()) == 1
    assert report.flex == report.custom == []
    assert report.bytes == len(content)
    assert WEIGHTS <= report.weights_bytes < report.bytes
    assert report.sealed
    assert report.metadata["words.txt"] == b"a\nb"
    assert set(report.metadata) == {"words.txt", "keras_attention.json"}


def test_report_of_a_saved_model(saved_model):
    for path in (saved_model, saved_model.parent):
        report = inspect_saved_model(path)
        assert report.version == saved_model
        assert report.signatures == SIGNATURES
        assert report.assets == ["words.txt"] and report.files["assets/words.txt"] == 3
        assert report.bytes == sum(p.stat().st_size for p in saved_model.rglob("*") if p.is_file())
        assert WEIGHTS <= report.weights_bytes < report.bytes
        assert report.operators["While"] + report.operators["StatelessWhile"] > 0  # in functions
        assert report.sealed and set(report.about["signatures"]) == {"serving_default"}


def test_report_of_an_onnx_file(onnx_file):
    from keras_attention.export.inspect_onnx import inspect_onnx

    report = inspect_onnx(onnx_file)
    assert {report.signature: {"inputs": report.inputs, "outputs": report.outputs}} == SIGNATURES
    assert report.operators["Loop"] == 1
    assert report.operators["ScatterND"] == 1  # in the body of the loop
    assert report.opset[""] == 17
    assert report.bytes == onnx_file.stat().st_size
    assert WEIGHTS <= report.weights_bytes < report.bytes
    assert report.metadata["words.txt"] == "a\nb"
    assert report.sealed


@pytest.mark.parametrize(
    ("made", "kind"),
    [("path", "tflite"), ("saved_model", "saved_model"), ("onnx_file", "onnx")],
)
def test_the_command_inspects_every_kind(request, command_line, capfd, made, kind):
    path = request.getfixturevalue(made)
    said = command_line(capfd)
    code, out, err = said("inspect", path)
    assert code == 0 and not err
    assert out[0].startswith(f"{path}: {path.stat().st_size:,} bytes" if path.is_file() else "")
    assert {"signature serving_default", "  input  ids: int32 [None, None]"} <= set(out)
    assert "checksum: right, this is what was exported" in out
    assert any(line.startswith("file ") and "words.txt: 3 bytes" in line for line in out)
    code, (line,), err = said("inspect", path, "--json")
    found = json.loads(line)
    assert code == 0 and not err and found["sealed"] and found["format"] == kind
    assert found["signatures"]["serving_default"]["outputs"] == {"gru": [[None, 3], "float32"]}


def test_the_command_inspects_a_folder_of_functions(onnx_file, tmp_path, command_line, capfd):
    for name in ("encode", "greedy"):
        (tmp_path / f"{name}.onnx").write_bytes(onnx_file.read_bytes())
    said = command_line(capfd)
    code, (line,), _ = said("inspect", tmp_path, "--json")
    found = json.loads(line)
    assert code == 0 and set(found["signatures"]) == set(found["operators"]) == {"encode", "greedy"}
    assert found["bytes"] == 2 * onnx_file.stat().st_size
    (tmp_path / "greedy.onnx").write_bytes(b"just a text file, and no model at all\n")
    code, out, err = said("inspect", tmp_path)
    assert code == 1 and not out and len(err) == 1
    assert f"{tmp_path / 'greedy.onnx'}: is not a sound ONNX file" in err[0]


@pytest.mark.parametrize("content", [b"\x00garbage", b"", bytes(1000)])
def test_folders_that_are_no_saved_model(tmp_path, content):
    with pytest.raises(ArtifactError, match=r"no saved_model.pb"):
        inspect_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"saved_model.pb(: is empty| is damaged)") as caught:
        inspect_saved_model(tmp_path)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


def test_a_file_without_metadata(bare, tmp_path):
    path = tmp_path / "bare.tflite"
    path.write_bytes(bare)
    report = inspect_tflite(path)
    assert report.metadata == {} and not report.sealed
    assert run_artifact(path, {"ids": [[1, 2]]})["gru"].shape == (1, 3)


def test_flex_and_custom_operators_are_listed(tmp_path):
    import tensorflow as tf

    function = tf.function(
        lambda x: tf.math.cumprod(x), input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], tf.Module()
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.SELECT_TF_OPS]
    path = tmp_path / "flex.tflite"
    path.write_bytes(converter.convert())
    assert inspect_tflite(path).flex == ["FlexCumprod", "FlexIdentity"]
    assert inspect_tflite(path).custom == []
    with pytest.raises(ArtifactError, match="not built in: FlexCumprod"):
        run_artifact(path, {"x": [1.0]})


@pytest.mark.parametrize(
    "given, reason",
    [
        (b"", "is empty"),
        (b"just a text file, no model at all\n", "is not a TFLite file"),
        (b"TFL3", "is not a TFLite file"),
        (b"\x1c\x00\x00\x00TFL3", "truncated or damaged"),
        (b"\xff\xff\xff\xffTFL3" + bytes(100), "truncated or damaged"),
        (np.random.default_rng(0).bytes(5000), "is not a TFLite file"),
        (b"\x1c\x00\x00\x00TFL3" + np.random.default_rng(0).bytes(5000), "truncated or damaged"),
        (b"PK\x03\x04" + bytes(50), "is a ZIP archive"),
    ],
)
def test_hostile_files(tmp_path, given, reason):
    path = tmp_path / "hostile.tflite"
    path.write_bytes(given)
    for read in (inspect_tflite, lambda path: run_artifact(path, {})):
        with pytest.raises(ArtifactError, match=reason) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_missing_and_folder(tmp_path):
    with pytest.raises(ArtifactError, match="no such file"):
        inspect_tflite(tmp_path / "missing.tflite")
    with pytest.raises(ArtifactError, match="is a folder"):
        inspect_tflite(tmp_path)


def test_every_truncation_is_found(tmp_path, content, bare):
    path = tmp_path / "short.tflite"
    cuts = [*range(1, 64), *range(64, len(bare) - 1, 997)]
    for size in cuts:
        path.write_bytes(content[:size])
        with pytest.raises(ArtifactError):
            inspect_tflite(path)
    for size in range(len(bare) + 60, len(content), 10):  # its metadata is cut, the model whole
        path.write_bytes(content[:size])
        with pytest.raises(ArtifactError):
            inspect_tflite(path)


CHILD = """
import sys
from pathlib import Path
from keras_attention.export.parity import load_tflite
bare, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
refused = 0
for position in range(0, 400, 7):
    changed = bytearray(bare)
    changed[position] ^= 1 << position % 8
    path.write_bytes(changed)
    try:
        load_tflite(path)
    except ValueError:
        refused += 1
print("refused", refused)
"""


def test_changed_bits_of_a_foreign_file_never_crash_the_interpreter(tmp_path, bare):
    (tmp_path / "bare").write_bytes(bare)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "bare"), str(tmp_path / "changed")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert int(child.stdout.split()[-1]) > 0


def test_reading_needs_no_tensorflow(path):
    code = (
        "import sys\n"
        "from keras_attention.export.parity import run_artifact\n"
        "from keras_attention.export.inspect import inspect_tflite\n"
        "import keras_attention.export.inspect_onnx, keras_attention.export.inspect_saved_model\n"
        "print(sorted(inspect_tflite(sys.argv[1]).signatures))\n"
        "print(run_artifact(sys.argv[1], {'ids': [[1, 2, 3]]})['gru'].shape)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        cwd=Path(path).parent,
        check=True,
    )
    assert child.stdout.split("\n")[:3] == ["['serving_default']", "(1, 3)", "False"]
