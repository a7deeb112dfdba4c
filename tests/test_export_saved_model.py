"""Export to SavedModel: numbered versions, every loader, assets, and nothing half-written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_attention.export.parity import (
    ArtifactError,
    ParityError,
    check_parity,
    load_saved_model,
    run_artifact,
)
from keras_attention.export.saved_model import ExportError, export_saved_model
from keras_attention.targets import export_target

CALLS = [{"ids": np.array([[1, 2, 3, 0], [0, 0, 0, 0]])}, {"ids": np.array([[5]])}]


@pytest.fixture(scope="module")
def model():
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedded = layers.Embedding(9, 4, mask_zero=True)(ids)
    model = keras.Model(ids, layers.Bidirectional(layers.GRU(3), name="both")(embedded))
    model.compile("sgd", "mse")
    model.fit(CALLS[0]["ids"], np.ones((2, 6)), verbose=0)
    return model


@pytest.fixture(scope="module")
def version(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    (folder / "words").write_text("a\nb\n")
    assets = {"source.txt": folder / "words", "target.txt": str(folder / "words")}
    return export_saved_model(model, folder / "model", assets=assets, verify=CALLS)


def test_the_version_is_numbered_and_equal(model, version):
    assert version.name == "1"
    assert sorted(p.name for p in version.parent.iterdir()) == ["1"]
    for path in (version, version.parent):
        report = check_parity(model, path, CALLS)
        assert report.equal, str(report)
        assert {d.runtime for d in report.differences} == {"saved_model"}


def test_assets_travel_along(version):
    assert sorted(p.name for p in (version / "assets").iterdir()) == ["source.txt", "target.txt"]
    loaded = tf.saved_model.load(str(version))
    path = loaded.assets["source.txt"].asset_path.numpy().decode()
    assert tf.io.read_file(path).numpy() == b"a\nb\n"


@pytest.mark.filterwarnings("ignore")
def test_the_loader_of_the_server_runs_it(model, version):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(version))
        signature = graph.signature_def["serving_default"]
        found = session.run(
            signature.outputs["both"].name, {signature.inputs["ids"].name: CALLS[0]["ids"]}
        )
    np.testing.assert_allclose(found, model(CALLS[0]["ids"]), atol=1e-6)


def test_strings_in_and_out_with_a_table_that_is_given(tmp_path):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "é"], [1, 2]), 3)

    def look(text):
        return {"id": table.lookup(text), "upper": tf.strings.upper(text, encoding="utf-8")}

    functions = {
        "look": (look, {"text": tf.TensorSpec([None], tf.string)}),
        "double": (lambda x: {"y": x + x}, {"x": tf.TensorSpec([None], tf.float32)}),
    }
    with pytest.raises(ExportError, match=r"untracked(?s:.)*resources="):
        export_saved_model(functions, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    calls = {"look": {"text": ["a", "é", "b"]}, "double": {"x": [2.0]}}
    path = export_saved_model(functions, tmp_path / "m", resources=[table], verify=calls)
    found = run_artifact(path, calls["look"])  # the first one is serving_default too
    assert found["id"].tolist() == [1, 2, 3]
    assert [text.decode() for text in found["upper"]] == ["A", "É", "B"]
    assert run_artifact(path, {"x": [2.0]}, "double")["y"].tolist() == [4.0]


def test_text_operators_load_without_their_import_by_the_user(tmp_path):
    text = pytest.importorskip("tensorflow_text")

    def normalize(text_in):
        return {"text": text.normalize_utf8(text_in, "NFKC")}

    functions = {"n": (normalize, {"text_in": tf.TensorSpec([None], tf.string)})}
    path = export_saved_model(functions, tmp_path / "m", verify={"text_in": ["ﬁ"]})
    assert run_artifact(path, {"text_in": ["Ａ"]})["text"].tolist() == [b"A"]


def test_versions_count_on_and_failures_leave_nothing(tmp_path):
    def lying(x):
        return {"y": x + (export_target() is not None)}

    functions = {"f": (lying, {"x": tf.TensorSpec([None], tf.float32)})}
    path = tmp_path / "deep" / "m"
    for number in ("1", "2"):
        assert export_saved_model(functions, path).name == number
    (path / "10").mkdir()
    assert export_saved_model(functions, path).name == "11"
    with pytest.raises(ParityError, match="does not equal"):
        export_saved_model(functions, path, verify={"x": [1.0]})
    assert sorted(p.name for p in path.iterdir()) == ["1", "10", "11", "2"]
    assert list(path.parent.iterdir()) == [path]


def test_nothing_is_printed(model, tmp_path, capfd):
    export_saved_model(model, tmp_path / "m")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_wrong_arguments(model, version, tmp_path):
    with pytest.raises(ValueError, match="folder for numbered versions"):
        export_saved_model(model, version)
    with pytest.raises(ValueError, match="is not a file"):
        export_saved_model(model, tmp_path / "m", assets={"a": tmp_path / "missing"})
    with pytest.raises(ValueError, match="must be a file name"):
        export_saved_model(model, tmp_path / "m", assets={"../a": __file__})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_one(version, tmp_path):
    with pytest.raises(ArtifactError, match=r"no saved_model.pb"):
        load_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\x00garbage")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        run_artifact(tmp_path, {})
    with pytest.raises(ValueError, match=r"has the signatures serving_default. Received: .*'x'"):
        run_artifact(version, {}, "x")
    with pytest.raises(ValueError, match=r"runtime is for .tflite files"):
        run_artifact(version, {}, runtime="litert")
