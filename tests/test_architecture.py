"""The rooms and the one direction of imports, read from the source."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import keras_attention

ROOT = Path(__file__).parents[1]
ROOMS = {  # folder: installed name
    "keras_attention": "keras_attention",
    "export": "keras_attention.export",
    "recipes": "keras_attention.recipes",
}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# Written beside an exported model and run without this library: not a module of the room.
STAND_ALONE = {"export/run_template.py"}
LONGEST = 400  # lines of code

# What may be imported when a module is, and what only inside a function that needs it.
EAGER = {
    "keras_attention": {"keras"},
    "export": {"keras", "keras_attention", "numpy", "tensorflow"},
    "recipes": None,  # any third party
}
LAZY = {
    "keras_attention": set(),
    "export": {
        "ai_edge_litert",
        "ai_edge_quantizer",
        "flatbuffers",
        "onnx",
        "onnxruntime",
        "tensorflow_serving",
        "tensorflow_text",
        "tf2onnx",
    },
    "recipes": None,
}
LAZY_OF_MODULE = {"keras_attention/visualization.py": {"numpy", "matplotlib"}}
NEVER = ("keras.src", "tensorflow.python", "pickle", "cPickle", "dill", "shelve", "marshal")
# The schema of a .tflite file is read in one place.
SCHEMA = ("tensorflow.lite", "ai_edge_litert.schema", "flatbuffers")


class Import(NamedTuple):
    module: str  # dotted; of `from a import b` it is `a.b`, b perhaps no module
    level: int  # dots of a relative import
    lazy: bool  # inside a function, or for type checkers alone
    line: int


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[Import]:
    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, 0, lazy, child.lineno)
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    module = f"{child.module}.{alias.name}" if child.module else alias.name
                    yield Import(module, child.level, lazy, child.lineno)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, lazy or typing_only or function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


def begins(module: str, *prefixes: str) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def complaints(path: Path) -> Iterator[str]:
    """What is wrong with the imports of one module."""
    name = name_of(path)
    room = name.split("/")[0]
    own = ROOMS[room]
    for found in imports(path):
        top = found.module.split(".")[0]
        where = f"{name}:{found.line} imports {found.module}"
        if found.level > 1:
            yield f"{where}: a relative import stays inside its room"
        if found.level:
            continue
        if begins(found.module, *NEVER):
            yield f"{where}: never"
        if begins(found.module, *SCHEMA) and name != "export/inspect.py" and room == "export":
            yield f"{where}: only export/inspect.py reads the schema"
        if top in {"export", "recipes", "tests", "benchmarks"}:
            yield f"{where}: across rooms by the installed name, keras_attention.{top}"
        if begins(found.module, own) and (room == "keras_attention" or own != "keras_attention"):
            yield f"{where}: inside a room imports are relative"
        if room == "export" and begins(found.module, ROOMS["recipes"]):
            yield f"{where}: export does not know the recipes"
        if top in sys.stdlib_module_names or EAGER[room] is None or top in EAGER[room]:
            continue
        if not found.lazy:
            yield f"{where} when it is imported itself"
        elif top not in LAZY[room] | LAZY_OF_MODULE.get(name, set()):
            yield f"{where}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path) not in STAND_ALONE], ids=name_of
)
def test_imports_run_one_way(path):
    assert not list(complaints(path))


@pytest.mark.parametrize(
    "name, source, complaint",
    [
        ("keras_attention/x.py", "import tensorflow as tf", "when it is imported"),
        ("keras_attention/x.py", "def f():\n    import tensorflow", "imports tensorflow"),
        ("keras_attention/x.py", "import numpy", "when it is imported"),
        ("keras_attention/visualization.py", "import numpy", "when it is imported"),
        ("keras_attention/x.py", "from keras.src import ops", "never"),
        ("keras_attention/x.py", "import pickle", "never"),
        ("keras_attention/x.py", "from keras_attention import scores", "relative"),
        ("keras_attention/x.py", "from ..export import tflite", "stays inside"),
        ("export/x.py", "from keras_attention.recipes import data", "does not know"),
        ("export/x.py", "import tf2onnx", "when it is imported"),
        ("export/x.py", "from keras_attention.export import parity", "relative"),
        ("export/x.py", "from tensorflow.lite.python import schema_py_generated", "schema"),
        ("recipes/x.py", "from export import tflite", "installed name"),
        ("recipes/x.py", "from tensorflow.python import ops", "never"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, monkeypatch, name, source, complaint):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(source, encoding="utf-8")
    assert complaint in " ".join(complaints(tmp_path / name))


@pytest.mark.parametrize("name", sorted(STAND_ALONE))
def test_stand_alone_programs_need_neither_tensorflow_nor_keras(name):
    """TensorFlow's interpreter may serve where no other is installed, but nothing else of it."""
    if not (ROOT / name).exists():
        pytest.skip("not in this tree")
    modules = {found.module for found in imports(ROOT / name)} - {"tensorflow.lite.Interpreter"}
    assert not [m for m in modules if begins(m, "keras", "keras_attention", "tensorflow")]


@pytest.mark.parametrize("room", ["export", "recipes"])
def test_outer_rooms_import_nothing_by_themselves(room):
    body = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")).body
    assert len(body) == 1 and isinstance(body[0], ast.Expr), "a docstring only"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.py")), ids=name_of)
def test_recipes_define_no_layer_and_register_nothing(path):
    source = path.read_text(encoding="utf-8")
    bases = [
        ast.unparse(base)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ]
    of_keras = r"(^|\.)(Layer|Model|Sequential|Functional)$|(^|\.)layers\.|^Score$|\.Score$"
    assert not [base for base in bases if re.search(of_keras, base)]
    assert "register_keras_serializable" not in source


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_are_short(path):
    assert code_lines(path.read_text(encoding="utf-8")) <= LONGEST


def code_lines(source: str) -> int:
    """Lines of functions and classes, without blanks, comments and docstrings.

    Nobody should document less, and a module's tables of words are data.
    """
    lines = source.splitlines()
    code = {i for i, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            code -= set(range(node.lineno, node.end_lineno + 1))
    for node in ast.walk(tree):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            code -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(code)


def sources() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".txt", ".in", ".json", ".ipynb"}
    folders = [*ROOMS, "tests", "benchmarks", "docs", "results"]
    found = [path for path in ROOT.iterdir() if path.suffix in suffixes]
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return [*sorted(found), ROOT / "Makefile", ROOT / ".ci" / "run"]


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b", id="unfinished"),
        pytest.param(r"(?<![\w.])/(?:home|root|work|Users)/\w|\bC:\\\w", id="machine path"),
    ],
)
def test_no_file_holds(pattern):
    hits = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not hits


def test_all_is_sorted_and_complete():
    names = keras_attention.__all__
    assert list(names) == sorted(names)
    assert all(hasattr(keras_attention, name) for name in names)


@pytest.mark.parametrize("name", keras_attention.__all__)
def test_public_name_is_documented_and_tested(name):
    assert getattr(keras_attention, name).__doc__
    word = re.compile(rf"\b{name}\b")
    assert word.search((ROOT / "README.md").read_text(encoding="utf-8")), "not in README.md"
    tests = set((ROOT / "tests").glob("*.py")) - {Path(__file__)}
    assert any(word.search(path.read_text(encoding="utf-8")) for path in tests), "not in a test"


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="the jax extra is not installed")
def test_importing_the_library_brings_in_nothing_but_keras():
    code = (
        "import sys, keras\n"
        "before = set(sys.modules)\n"
        "import keras_attention\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert set(output.split()) - set(sys.stdlib_module_names) == {"keras_attention"}
