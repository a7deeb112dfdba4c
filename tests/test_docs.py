"""Every example in the documentation and in a docstring runs as it is written."""

import ast
import doctest
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ["keras_attention", "export", "recipes"]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    where: str
    language: str
    text: str
    line: int


def blocks(text: str, where: str, first_line: int = 1) -> Iterator[Block]:
    """The fenced blocks of a text."""
    for found in FENCE.finditer(text):
        line = first_line + text.count("\n", 0, found.start()) + 1
        yield Block(where, found[2], textwrap.dedent(found[3]), line)


def docstrings() -> Iterator[tuple[str, str, int]]:
    """Place, text and first line of every docstring, read from source so that nothing loads."""
    documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, *documented)) and ast.get_docstring(node):
                place = f"{path.relative_to(ROOT).as_posix()}:{getattr(node, 'name', 'module')}"
                yield place, ast.get_docstring(node), node.body[0].lineno


PAGE_BLOCKS = [
    block
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
]
PYTHON = [block for block in PAGE_BLOCKS if block.language in ("python", "py")]
PYTHON += [
    block
    for where, text, line in docstrings()
    for block in blocks(text, where, line)
    if block.language in ("python", "py")
]
COMMANDS = [
    (block, line.strip().removeprefix("$ "))
    for block in PAGE_BLOCKS
    if block.language in ("bash", "sh", "console", "shell")
    for line in block.text.splitlines()
]
SESSIONS = [
    test
    for where, text, line in docstrings()
    if (test := doctest.DocTestParser().get_doctest(text, {}, where, where, line)).examples
]


def block_id(block: Block) -> str:
    return f"{block.where}:{block.line}"


@pytest.mark.parametrize("block", PYTHON, ids=block_id)
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block_id(block), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_docstring_example_runs(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False
    )
    runner.run(session, out=report.append)
    assert not runner.failures, "".join(report)


def test_pages_have_examples():
    assert any(block.where == "README.md" for block in PYTHON)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for _, command in COMMANDS:
        if found := re.match(r"make ([a-z-]+)", command):
            assert re.search(rf"^{found[1]}:", makefile, re.MULTILINE), command


def test_sub_commands_exist():
    used = {
        found[1]
        for _, command in COMMANDS
        if (found := re.match(r"(?:\.venv/bin/)?keras-attention ([a-z]+)", command))
    }
    if not used:
        pytest.skip("no page shows a command")
    shown = subprocess.run(
        [sys.executable, "-m", "keras_attention.recipes.cli", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert not [name for name in used if not re.search(rf"\b{name}\b", shown)]


def test_linked_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
