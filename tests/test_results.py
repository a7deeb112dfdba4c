"""README's table of results is what `results/*.json` say, and their commands can be run again."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from keras_attention.recipes import results
from keras_attention.recipes.errors import RunError

ROOT = Path(__file__).parents[1]
RUNS = [
    p for p in sorted((ROOT / "results").glob("*.json")) if "title" in json.loads(p.read_text())
]


def test_readme_shows_the_results_as_they_stand():
    check = [sys.executable, ROOT / "benchmarks" / "record.py", "readme", "--check"]
    assert subprocess.run(check).returncode == 0, "run: python benchmarks/record.py readme"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_result_says_how_to_repeat_it(path):
    values = json.loads(path.read_text("utf-8"))
    assert {"command", "figures", "training", "seed", "versions", "date", "hardware"} <= set(values)
    assert values["command"].startswith(
        ("keras-attention train ", "keras-attention demo", "python benchmarks/")
    )


# Running them again.


def result(
    name="tiny", seed=0, minutes=1.0, command="train sentences --epochs 1 --seed SEED --out RUN"
):
    figures = {"accuracy": 90.0, "macro_f1": 80.0, "texts": 10}
    return results.Result(
        name,
        {
            "title": f"A {name} one",
            "command": f"keras-attention {command}",
            "figures": figures,
            "training": {"minutes": minutes, "parameters": 1},
            "seed": seed,
        },
    )


class Commands:
    """In place of real ones: they write the accuracy that their seed is told to have."""

    def __init__(self, accuracy, fails=()):
        self.accuracy, self.fails, self.calls = accuracy, fails, []

    def __call__(self, arguments):
        arguments = list(arguments)
        self.calls.append(arguments)
        if len(self.calls) in self.fails:
            raise RunError("it ended with exit code 1")
        if arguments[0] == "train":
            folder = Path(arguments[arguments.index("--out") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(arguments[arguments.index("--seed") + 1])
        if arguments[0] == "evaluate":
            folder = Path(arguments[1])
            accuracy = self.accuracy[int((folder / "config.json").read_text())]
            figures = {"accuracy": accuracy, "macro_f1": 1.0, "signature": "text"}
            (folder / "evaluation.json").write_text(json.dumps(figures))
        return json.dumps({"bleu": 50.0, "exact_match": 0.5, "aer": 0.25, "seed": 1})


def test_every_seed_is_run_and_their_mean_and_worst_are_found(tmp_path):
    commands = Commands({3: 80.0, 4: 90.0})
    found = results.again(result(seed=[3, 4]), tmp_path, Path("data"), commands)
    assert found == {"accuracy": 85.0, "macro_f1": 1.0, "accuracy_worst": 80.0}
    folder, data = str(tmp_path / "tiny-3"), ["--data-dir", "data"]
    train = ["train", "sentences", "--epochs", "1", "--seed", "3", "--out", folder]
    assert commands.calls[0] == [*train, "--resume", "auto", *data]
    assert commands.calls[1] == ["evaluate", folder, *data]


def test_what_is_done_is_not_run_again(tmp_path):
    accuracy = {3: 80.0, 4: 90.0}
    with pytest.raises(RunError):
        results.again(result(seed=[3, 4]), tmp_path, run=Commands(accuracy, fails=[3]))
    commands = Commands(accuracy)
    assert results.again(result(seed=[3, 4]), tmp_path, run=commands)["accuracy"] == 85.0
    assert [call[0] for call in commands.calls] == ["train", "evaluate"]


def test_a_demo_begins_anew_and_its_figures_have_their_names(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("of an interrupted one")
    commands = Commands({})

    def run(arguments):
        printed = commands(arguments)
        assert not (tmp_path / "tiny").exists()
        (tmp_path / "tiny").mkdir()
        return f"{printed}\n"

    found = results.again(result(seed=1, command="demo --json --seed SEED"), tmp_path, run=run)
    assert found == {"bleu_beam": 50.0, "exact_match": 0.5, "aer": 0.25}
    assert commands.calls == [["demo", "--json", "--seed", "1", "--out", str(tmp_path / "tiny")]]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "results"
    place.mkdir()
    for row in (result("long", minutes=20.0), result("short", seed=[1, 2])):
        (place / f"{row.name}.json").write_text(json.dumps(row.values))
    (place / "bench.json").write_text('{"speed": {}}')
    return place


def test_the_command_lists_and_runs_the_quick_ones(folder, command_line, capsys, monkeypatch):
    said = command_line(capsys)
    code, out, _ = said("results", "--folder", folder, "--json")
    rows = [json.loads(line) for line in out]
    assert code == 0 and [row["name"] for row in rows] == ["long", "short"]
    assert rows[0]["recorded"] == {"accuracy": "90.00", "macro F1": "80.00"}

    commands = Commands({1: 91.0, 2: 70.0})
    again = functools.partial(results.again, run=commands)
    monkeypatch.setattr(results, "again", again)
    arguments = ["results", "--quick", "--folder", folder, "--out", folder / "runs"]
    code, out, err = said(*arguments)
    assert code == 0 and err[0].startswith("short: keras-attention train")
    assert out[0] == "A short one"
    assert [line.split() for line in out[2:]] == [
        ["accuracy", "90.00,", "now", "80.50"],
        ["macro", "F1", "80.00,", "now", "1.00"],
    ]
    commands.fails = [len(commands.calls) + 1]
    code, out, _ = said(*arguments[:-1], folder / "others")
    assert code == 1 and out[-1].strip().startswith("not run: it ended with")


def test_results_that_cannot_be_read_are_named(folder, command_line, capsys):
    said = command_line(capsys)
    code, _, err = said("results", "--folder", folder / "nothing")
    assert code == 1 and "nothing holds no results: --folder names" in err[-1]
    (folder / "short.json").write_text("{")
    code, _, err = said("results", "--folder", folder)
    assert code == 1 and "short.json is broken" in err[-1]


@pytest.mark.slow
def test_a_command_runs_in_a_process(tmp_path):
    options = "--epochs 1 --embedding 4 --units 3 --hidden 4 --hops 2"
    one = result(command=f"train sentences {options} --seed SEED --out RUN")
    found = results.again(one, tmp_path)
    assert 0 <= found["accuracy"] <= 100
    with pytest.raises(RunError, match="ended with exit code 2"):
        results.again(result(name="b", command="train sentences --wings 2 --out RUN"), tmp_path)
