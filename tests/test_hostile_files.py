"""Damaged and foreign artifacts: named in one line, and never the end of the process."""

import importlib.util
import json
import shutil
import zipfile

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow("artifacts are made on TensorFlow"),
    pytest.mark.xdist_group("hostile"),  # one worker makes the files, not each
]
tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from keras import layers  # noqa: E402

from keras_attention.export import apart, parity  # noqa: E402
from keras_attention.export.inspect import METADATA_NAME, inspect_tflite  # noqa: E402
from keras_attention.export.inspect_saved_model import ABOUT  # noqa: E402
from keras_attention.export.parity import ArtifactError, run_artifact  # noqa: E402
from keras_attention.export.saved_model import WARMUP_FILE, export_saved_model  # noqa: E402
from keras_attention.export.tflite import export_tflite  # noqa: E402

KINDS = ["tflite", "saved_model", "onnx"]
INPUTS = {"ids": np.array([[1, 2, 3]], "int32")}
SERVED = importlib.util.find_spec("tensorflow_serving") is not None


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A function: `make(kind)` is an artifact of that kind, the same one each time."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, layers.Dense(3, name="out")(layers.Embedding(9, 4)(ids)))
    folder = tmp_path_factory.mktemp("hostile")
    words = folder / "words.txt"
    words.write_text("a\nb\n", "utf-8")
    made = {}

    def export(kind):
        if kind == "tflite":
            metadata = {"words.txt": words.read_bytes()}
            return export_tflite(model, folder / "m.tflite", metadata=metadata)
        if kind == "saved_model":
            warmup = {"serving_default": [INPUTS]} if SERVED else None
            assets = {"words.txt": words}
            return export_saved_model(model, folder / "m", assets=assets, warmup=warmup)
        onnx = pytest.importorskip("keras_attention.export.onnx")
        pytest.importorskip("tf2onnx")
        texts = {"words.txt": words.read_text("utf-8")}
        return onnx.export_onnx(model, folder / "m.onnx", metadata=texts)

    def make(kind):
        if kind not in made:
            made[kind] = export(kind)
        return made[kind]

    return make


@pytest.fixture
def artifact(make, tmp_path):
    """A function: `artifact(kind)` is a copy of an artifact, to be damaged."""

    def copied(kind):
        source = make(kind)
        copy = tmp_path / source.name
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        return copy

    return copied


@pytest.fixture
def foreign(artifact):
    """A function: `foreign(kind)` is a sound artifact of another origin."""

    def strip(kind):
        path = artifact(kind)
        if kind == "tflite":
            path.write_bytes(path.read_bytes()[: start_of_archive(path)])
        elif kind == "saved_model":
            (path / ABOUT).unlink()
        else:
            onnx = pytest.importorskip("onnx")
            model = onnx.load(path)
            del model.metadata_props[:]
            onnx.save(model, path)
        return path

    return strip


def start_of_archive(path):
    with zipfile.ZipFile(path) as files:
        return min(entry.header_offset for entry in files.infolist())


def files_of(path):
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def damaged(content, seed):
    """The content cut short, for even seeds, or with one to eight of its bits changed."""
    random = np.random.default_rng(seed)
    if seed % 2 == 0:
        return content[: random.integers(len(content))]
    changed = bytearray(content)
    for bit in random.choice(8 * len(content), random.integers(1, 9), replace=False):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def refused(path):
    """The reason for which an artifact is refused, in one line that begins with its name."""
    with pytest.raises(ArtifactError) as caught:
        run_artifact(path, INPUTS)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# Damage to what was exported here.


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_corruptions_are_named(artifact, kind, monkeypatch):
    path = artifact(kind)
    expected = run_artifact(path, INPUTS)["out"]
    monkeypatch.setattr(parity, "load", None)  # None of them may reach a runtime,
    monkeypatch.setattr(parity, "run_apart", None)  # here or elsewhere.
    files = files_of(path)
    # A cut just behind the model leaves a whole one: see the next test.
    whole = {start_of_archive(path) + n for n in range(4)} if kind == "tflite" else ()
    assert len(files) == (1 if path.is_file() else 6 + SERVED)
    for seed in range(100):
        file = files[seed // 2 % len(files)]
        content = file.read_bytes()
        given = damaged(content, seed)
        if len(given) in whole:
            continue
        file.write_bytes(given)
        reason = refused(path)
        if path.is_dir():
            name = file.relative_to(path).as_posix()
            assert reason == f"is damaged ({name} is not what was exported)"
        else:
            assert reason.split(" ")[0] == "is"
        file.write_bytes(content)
    monkeypatch.undo()
    np.testing.assert_array_equal(run_artifact(path, INPUTS)["out"], expected)


def test_a_tflite_cut_behind_its_model_is_whole_and_foreign(artifact):
    path = artifact("tflite")
    content, start = path.read_bytes(), start_of_archive(path)
    path.write_bytes(content[:start])
    assert not inspect_tflite(path).sealed and not inspect_tflite(path).metadata
    for size in (start - 4, *range(start + 4, len(content))):
        path.write_bytes(content[:size])
        with pytest.raises(ArtifactError):
            inspect_tflite(path)


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_every_bit_around_the_model_counts(artifact, kind, monkeypatch):
    """Names, sizes and dates of what travels inside the file, and the checksum itself."""
    path = artifact(kind)
    monkeypatch.setattr(parity, "load", None)
    monkeypatch.setattr(parity, "run_apart", None)
    content = path.read_bytes()
    around = range(start_of_archive(path), len(content)) if kind == "tflite" else range(400)
    for position in around:
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        assert refused(path) == "is damaged (it is not what was exported)"
    for more in (b"\0", b"garbage", content):
        path.write_bytes(content + more)
        assert refused(path) == "is damaged (it is not what was exported)"


def test_files_that_lack_or_were_added_are_named(artifact):
    path = artifact("saved_model")
    (path / "variables" / "other").write_text("")
    assert refused(path) == "is damaged (variables/other was not exported)"
    (path / "variables" / "other").rename(path / "a\nb")
    assert refused(path) == r"is damaged ('a\nb' was not exported)"
    (path / "a\nb").unlink()
    (path / "assets" / "words.txt").unlink()
    assert refused(path) == "is damaged (assets/words.txt is missing)"
    with pytest.raises(ArtifactError, match=r"words.txt is missing"):
        parity.load_saved_model(path)


def test_the_checksums_of_a_folder_cover_everything(make):
    path = make("saved_model")
    about = json.loads((path / ABOUT).read_text("utf-8"))
    names = {file.relative_to(path).as_posix() for file in files_of(path)}
    assert set(about["files"]) == names - {ABOUT.as_posix()}
    assert not SERVED or WARMUP_FILE.as_posix() in about["files"]
    assert about["library_version"]
    given = about["signatures"]["serving_default"]["inputs"]
    assert given == {"ids": {"shape": [None, None], "dtype": "int32"}}


# Files of other origin.


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("tflite", 1), ("tflite", 3), ("onnx", 1), ("onnx", 3), ("onnx", 4), ("saved_model", 1)],
)
def test_a_damaged_foreign_artifact_is_an_error_or_an_output(foreign, kind, seed):
    path = foreign(kind)
    file = path / "saved_model.pb" if path.is_dir() else path
    file.write_bytes(damaged(file.read_bytes(), seed))
    try:
        outputs = run_artifact(path, INPUTS)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(output, np.ndarray) for output in outputs.values())


def test_a_sound_foreign_artifact_runs(make, foreign):
    expected = run_artifact(make("tflite"), INPUTS)
    path = foreign("tflite")
    found = run_artifact(path, INPUTS)
    np.testing.assert_array_equal(found["out"], expected["out"])
    with pytest.raises(ValueError, match=r"takes \['ids'\]. Received: \['x'\]") as caught:
        run_artifact(path, {"x": 1})
    assert not isinstance(caught.value, ArtifactError)


def test_an_onnx_file_that_another_tool_has_written_anew_is_foreign(artifact):
    onnx = pytest.importorskip("onnx")
    path = artifact("onnx")
    model = onnx.load(path)
    assert METADATA_NAME in {entry.key for entry in model.metadata_props}
    model.producer_name = "another tool"
    onnx.save(model, path)
    assert run_artifact(path, INPUTS)["out"].shape == (1, 3, 3)


@pytest.fixture(scope="module")
def unruly(tmp_path_factory):
    """A foreign `.tflite`: it fills as much as it is told, never ends, or takes a part."""
    specs = [tf.TensorSpec([], tf.int32, name="n")]
    module = tf.Module()
    module.fill = tf.function(lambda n: {"y": tf.fill([n, 4096], 1.0)}, input_signature=specs)
    module.loop = tf.function(
        lambda n: {"y": tf.while_loop(lambda i: i >= 0, lambda i: (i * 0 + n,), (n,))[0]},
        input_signature=specs,
    )
    module.part = tf.function(lambda n: {"y": tf.range(9)[n:]}, input_signature=specs)
    folder = tmp_path_factory.mktemp("foreign")
    signatures = {"fill": module.fill, "loop": module.loop, "part": module.part}
    tf.saved_model.save(module, str(folder / "m"), signatures=signatures)
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(folder / "m"), signature_keys=list(signatures)
    )
    path = folder / "m.tflite"
    path.write_bytes(converter.convert())
    return path


def test_a_foreign_file_runs_where_no_backend_of_keras_can_be_imported(unruly, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "none of them")
    assert run_artifact(unruly, {"n": 1}, "fill")["y"].shape == (1, 4096)


def test_a_model_that_takes_too_much_memory_is_one_line(unruly, monkeypatch):
    pytest.importorskip("resource", reason="this system cannot limit memory")
    monkeypatch.setattr(apart, "MEMORY", 2**30)
    assert run_artifact(unruly, {"n": 1}, "fill")["y"].shape == (1, 4096)
    with pytest.raises(ValueError, match="'fill' does not run on inputs of shapes") as caught:
        run_artifact(unruly, {"n": 2**17}, "fill")  # 2 GiB
    assert "\n" not in str(caught.value)


def test_a_model_that_makes_its_runtime_crash_is_one_line(unruly, tmp_path):
    """Its structure is sound, but an operator lacks the inputs that its kernel reads."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")
    assert run_artifact(unruly, {"n": 7}, "part")["y"].tolist() == [7, 8]
    model = schema.ModelT.InitFromPackedBuf(unruly.read_bytes(), 0)
    for operator in (op for graph in model.subgraphs for op in graph.operators):
        if isinstance(operator.builtinOptions, schema.StridedSliceOptionsT):
            operator.inputs = operator.inputs[:1]
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    path = tmp_path / "crashing.tflite"
    path.write_bytes(builder.Output())
    assert "part" in inspect_tflite(path).signatures
    # What a kernel makes of memory that is not its own differs from run to run.
    with pytest.raises((ArtifactError, ValueError), match=r"^[^\n]*crashing.tflite: [^\n]*$"):
        run_artifact(path, {"n": 7}, "part")


def test_a_runtime_that_crashes_is_one_line(unruly, tmp_path, monkeypatch):
    crash = tmp_path / "python"
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr(apart.sys, "executable", str(crash))
    with pytest.raises(ArtifactError, match=r"m.tflite: cannot be run: its runtime crashed \(SIGS"):
        run_artifact(unruly, {"n": 7}, "part")


def test_a_model_that_does_not_end_is_one_line(unruly, monkeypatch):
    monkeypatch.setattr(apart, "SECONDS", 6)
    with pytest.raises(ArtifactError, match=r"m.tflite: does not end \(stopped after 6 s\)$"):
        run_artifact(unruly, {"n": 1}, "loop")


def test_arrays_of_every_kind_travel_without_pickle(tmp_path):
    given = {
        "file": np.array(["é", "", "a\0"], object),  # NumPy's own argument has this name
        "bytes": np.array([[b"\xff\0"], ["早".encode()]], object),
        "one": np.asarray("text"),
        "half": np.arange(3).astype("bfloat16"),
        "bits": np.zeros((0, 2), bool),
    }
    listed = apart._write(tmp_path / "x.npz", given)
    found = apart._read(tmp_path / "x.npz", json.loads(json.dumps(listed)))
    assert found["file"].tolist() == ["é".encode(), b"", b"a\0"]
    assert found["bytes"].tolist() == [[b"\xff\0"], ["早".encode()]]
    assert found["one"].shape == () and found["one"].item() == b"text"
    assert found["half"].dtype == "bfloat16" and found["half"].tolist() == [0, 1, 2]
    assert found["bits"].dtype == bool and found["bits"].shape == (0, 2)
    with pytest.raises(ValueError, match="'x' must hold numbers or strings"):
        apart._write(tmp_path / "x.npz", {"x": [None]})


def test_an_archive_that_claims_to_be_huge_is_not_unpacked(foreign, tmp_path, monkeypatch):
    path = foreign("tflite")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as files:
        files.writestr("zeros", bytes(2**20))
    assert len(inspect_tflite(path).metadata["zeros"]) == 2**20
    monkeypatch.setattr("keras_attention.export.inspect._MOST_METADATA", 2**19)
    with pytest.raises(ArtifactError, match=r"the files inside it are damaged .*larger than"):
        inspect_tflite(path)
