"""Faults on purpose, which the tests must notice: `make mutants`.

A mutant is one change of the text of a module. The runner makes it in a copy of the tree, runs the
tests that should notice, and complains of every mutant that they let live.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change.

    file: the module, from the root of the repository.
    old: text that stands there once.
    new: what stands there instead.
    tests: arguments of pytest that select the tests which should notice.
    reason: why no test can notice, "" where one must.
    """

    file: str
    old: str
    new: str
    tests: str
    reason: str = ""

    def line(self, root=ROOT) -> int:
        """The line that the change begins in, 0 where the text does not stand there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        before, *after = text.split(self.old)
        return before.count("\n") + 1 if len(after) == 1 else 0

    def __str__(self):
        changed = [" ".join(text.split()) for text in (self.old, self.new)]
        return f"{changed[0]!r} -> {changed[1]!r}"


def contracts(expression: str) -> str:
    """The tests of the contracts, of which `expression` tells the names, as pytest's `-k`."""
    return f"tests/test_contracts.py -k '{expression}'"


def tests_of(module: str, expression: str) -> str:
    """The tests of a module of their own, and those contracts."""
    own = f"test_{module}"
    return f"tests/{own}.py tests/test_contracts.py -k '{own} or ({expression})'"


def table() -> list[Mutant]:
    """All mutants, module by module."""
    from . import tables

    return [
        mutant
        for module in pkgutil.iter_modules(tables.__path__)
        for mutant in importlib.import_module(f"{tables.__name__}.{module.name}").MUTANTS
    ]
