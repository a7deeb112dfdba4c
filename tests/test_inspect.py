"""Reading TFLite files: what they hold, and files that only claim to be one."""

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
from keras_attention.export.parity import run_artifact
from keras_attention.export.tflite import export_tflite


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedded = layers.Embedding(20, 4, mask_zero=True)(ids)
    model = keras.Model(ids, layers.GRU(3, name="gru")(embedded))
    folder = tmp_path_factory.mktemp("inspect")
    return export_tflite(model, folder / "gru.tflite", metadata={"words.txt": "a\nb"})


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
    assert report.signatures == {
        "serving_default": {
            "inputs": {"ids": ((None, None), "int32")},
            "outputs": {"gru": ((None, 3), "float32")},
        }
    }
    assert report.totals["WHILE"] == 1
    assert len(report.operators) == 3  # the model, and condition and body of its loop
    assert sum(c["DYNAMIC_UPDATE_SLICE"] for c in report.operators.values()) == 1
    assert report.flex == report.custom == []
    assert report.bytes == len(content)
    assert 4 * (20 * 4 + 4 * 9 + 3 * 9) <= report.weights_bytes < report.bytes
    assert report.metadata["words.txt"] == b"a\nb"
    assert set(report.metadata) == {"words.txt", "keras_attention.json"}


def test_a_file_without_metadata(bare, tmp_path):
    path = tmp_path / "bare.tflite"
    path.write_bytes(bare)
    assert inspect_tflite(path).metadata == {}
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


def test_every_changed_bit_is_found_in_a_file_of_ours(tmp_path, content, bare):
    path = tmp_path / "changed.tflite"
    for position in (*range(40), *range(40, len(bare), 1009)):
        for bit in (0, 7):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            path.write_bytes(changed)
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
