"""The notebook is that of its script, and runs from the first cell to the last."""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebook"
NOTEBOOK = FOLDER / "translation.ipynb"
NEEDED = ("ipykernel", "jupytext", "nbclient", "nbformat")
MISSING = [name for name in NEEDED if not importlib.util.find_spec(name)]

pytestmark = [
    pytest.mark.skipif(not NOTEBOOK.exists(), reason="not in this tree"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def build(folder, *options):
    return subprocess.run(
        [sys.executable, folder / "build.py", *options], capture_output=True, text=True
    )


def test_the_notebook_is_that_of_the_script():
    checked = build(FOLDER, "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_notebook_of_another_script_is_noticed(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "notebook")
    script = folder / "translation.py"
    script.write_text(script.read_text("utf-8") + "print()\n", "utf-8")
    before = (folder / NOTEBOOK.name).read_bytes()
    checked = build(folder, "--check")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "translation.ipynb is not that of translation.py" in checked.stdout
    assert (folder / NOTEBOOK.name).read_bytes() == before
    assert build(folder).returncode == 0
    assert build(folder, "--check").returncode == 0


def test_it_holds_no_outputs_and_no_place_of_one_machine():
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    text = NOTEBOOK.read_text("utf-8")
    assert str(FOLDER.parents[1]) not in text and str(Path.home()) not in text
    # The two that are meant are the same for everyone.
    absolute = re.findall(r"(?<![\w.:/)>}])/\w+/\w+", text)
    assert set(absolute) == {"/content/drive", "/kaggle/working", "/kaggle/input"}


def printed(cell):
    text = "".join(o["text"] for o in cell["outputs"] if o["output_type"] == "stream")
    return text.replace("\r", "\n")  # which lets progress be written over


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, chosen",
    [pytest.param("auto", "tensorflow", id="auto"), pytest.param("jax", "jax", id="jax")],
)
def test_it_runs(tmp_path, monkeypatch, backend, chosen):
    import nbformat
    from nbclient import NotebookClient

    if chosen == "jax":
        pytest.importorskip("jax")
    for name in ("KERAS_BACKEND", "TF_CONFIG", "PAIRS", "OUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "BACKEND": backend,
        "EPOCHS": "1",
        "MEASURED": "100",
        "CUDA_VISIBLE_DEVICES": "-1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
    }.items():
        monkeypatch.setenv(name, value)

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    [choose] = [cell for cell in code if cell.source.startswith("import os")]
    [train] = [cell for cell in code if "translation_training.train(" in cell.source]
    # What somebody does who comes back and wants more: another number, and the cell again.
    more = nbformat.v4.new_code_cell("EPOCHS = 2")
    again = nbformat.v4.new_code_cell(train.source)
    notebook.cells += [more, again]
    client = NotebookClient(
        notebook,
        timeout=1200,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()

    [skipped] = [cell for cell in code if cell.execution_count is None]
    assert "%pip install" in skipped.source
    assert code.index(skipped) < code.index(choose)
    said = [printed(cell) for cell in code]
    assert any(f"strategy one on {chosen}, 1 replica" in text for text in said)
    assert re.search(r"^epoch 1: loss .* \*$", printed(train), re.MULTILINE)
    [measured] = [text for text in said if "bleu_beam" in text]
    assert re.search(r"^sentences +100$", measured, re.MULTILINE)

    arrow = re.compile(r"^.+  ->  .+$", re.MULTILINE)
    by_model, by_file = filter(None, map(arrow.findall, said))
    assert len(by_model) == 5 and by_file == by_model
    [picture] = [
        output["data"]["image/png"]
        for cell in code
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert (tmp_path / "runs/notebook/export/tflite/run.py").exists()

    assert "epoch 2: loss" in printed(again) and "epoch 1: loss" not in printed(again)
    figures = json.loads((tmp_path / "runs/notebook/metrics.json").read_text("utf-8"))
    assert [epoch["epoch"] for epoch in figures["history"]] == [1, 2]
