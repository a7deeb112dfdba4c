"""The harness that breaks the code on purpose, over a tiny project; and its table."""

import ast
import shlex

import pytest
from mutants import ROOT, Mutant, table
from mutants.__main__ import main, noticed, passed, summary
from mutants.runner import run

MUTANTS = table()
FILE = "keras_attention/arithmetic.py"
TEST = "tests/test_arithmetic.py"


@pytest.fixture
def project(tmp_path):
    """A package of that name, beside tests that know half of it."""
    files = {
        "keras_attention/__init__.py": "",
        FILE: "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n",
        TEST: (
            "from keras_attention.arithmetic import double\n\n\n"
            "def test_double():\n    assert double(3) == 6\n\n\n"
            "def test_wrong():\n    assert double(3) == 7\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def judged(project, *mutants, **kwargs):
    told = []
    outcomes = run(mutants, tell=told.append, root=project, preload=(), **kwargs)
    selections = {mutant.tests for mutant in mutants}
    assert len(told) == len(selections) + len(mutants)
    order = {outcome.mutant: outcome for outcome in outcomes}
    return [order[mutant] for mutant in mutants]


def test_verdicts(project):
    tests = f"{TEST} -k double"
    outcomes = judged(
        project,
        Mutant(FILE, "2 * x", "3 * x", tests),
        Mutant(FILE, "x / 2", "x / 3", tests),
        Mutant(FILE, "x / 2", "x // 2", tests, reason="nobody halves"),
        Mutant(FILE, "2 * x", "2 * x + 1", tests, reason="not true"),
        Mutant(FILE, "    return 2 * x", "    while True: pass", tests),
        Mutant(FILE, "def", "class", tests),
        Mutant(FILE, "4 * x", "3 * x", tests),
        Mutant(FILE, "2 * x", "4 * x", f"{TEST} -k wrong"),
        patience=5,
    )
    assert [x.verdict for x in outcomes] == [
        "killed",
        "survived",
        "accepted",
        "killed, but accepted",
        "timeout",
        "does not apply",
        "does not apply",
        "untestable",
    ]
    assert outcomes[0].detail == outcomes[3].detail == "test_double"
    assert outcomes[7].detail == "test_wrong"
    assert noticed(outcomes) == 2 / 3
    assert not passed(outcomes)
    told = summary([x.mutant for x in outcomes], outcomes)
    assert "66.7% of the mutants were noticed (1 killed, 1 survived, 1 accepted" in told
    assert "nobody halves" in told
    # 95 % will do, but not with a table that is wrong.
    assert passed([outcomes[0]] * 19 + outcomes[1:3])
    assert not passed([outcomes[0]] * 18 + outcomes[1:3])
    assert not passed([outcomes[0]] * 99 + outcomes[3:4])
    # The repository itself is never touched.
    assert (project / FILE).read_text().count("2 * x") == 1


def test_an_interrupt_ends_what_runs(project):
    """What is known until then is kept, and no copy stays behind."""
    waiting = Mutant(FILE, "return 2 * x", "while True: pass", f"{TEST} -k double")
    killed = Mutant(FILE, "2 * x", "3 * x", f"{TEST} -k double")
    told = []

    def interrupt(line):
        told.append(line)
        if "killed" in line:
            raise KeyboardInterrupt

    outcomes = run([killed, waiting], tell=interrupt, root=project, preload=())
    assert [x.verdict for x in outcomes] == ["killed"]
    assert told[-1] == "interrupted"
    assert "1 not run" in summary([killed, waiting], outcomes)


def test_another_package_is_not_taken_for_the_copy(project):
    """Tests that would run over what is installed say nothing of a mutant."""
    conftest = "import sys, types\nmodule = types.ModuleType('keras_attention')\n"
    conftest += "module.__file__ = '/elsewhere.py'\nsys.modules['keras_attention'] = module\n"
    (project / "tests" / "conftest.py").write_text(conftest)
    (project / TEST).write_text("def test_nothing():\n    pass\n")
    (outcome,) = judged(project, Mutant(FILE, "2 * x", "3 * x", TEST))
    assert outcome.verdict == "untestable"
    assert "is not the copy" in outcome.detail


def test_the_command(capsys):
    assert main(["--list", "--only", "masking.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith("keras_attention/masking.py:") for line in lines)
    assert main(["--only", "no such text"]) == 2
    assert "no such text" in capsys.readouterr().err


def test_table_is_large():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS) >= 60
    # What no test can notice is the exception.
    assert sum(bool(mutant.reason) for mutant in MUTANTS) <= len(MUTANTS) // 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}-{mutant}"[:100])
def test_mutant_applies(mutant):
    """Once, to code that is code afterwards, before tests that exist."""
    assert mutant.line(), "its text must stand there once"
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.old != mutant.new
    ast.parse(text.replace(mutant.old, mutant.new))
    assert (ROOT / shlex.split(mutant.tests)[0]).exists()
