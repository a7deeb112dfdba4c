"""Figures of real runs, `results/*.json`: reading them, and running their commands again."""

import json
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import RunError
from .runs import write_json

QUICK_MINUTES = 5.0
# What is shown of figures: by name, the key and the format.
TRANSLATED = {
    "BLEU greedy": ("bleu_greedy", ".2f"),
    "BLEU beam": ("bleu_beam", ".2f"),
    "exact match": ("exact_match", ".3f"),
    "AER": ("aer", ".3f"),
}
CLASSIFIED = {
    "accuracy": ("accuracy", ".2f"),
    "of the worst seed": ("accuracy_worst", ".2f"),
    "macro F1": ("macro_f1", ".2f"),
    "redundancy of hops": ("redundancy", ".3f"),
}


class Result(NamedTuple):
    """A file of results: its name, and what is in it."""

    name: str
    values: dict

    @property
    def seeds(self) -> list[int]:
        seed = self.values["seed"]
        return seed if isinstance(seed, list) else [seed]

    @property
    def quick(self) -> bool:
        """Whether one run of it is a matter of minutes, by a command of this library."""
        minutes, command = self.values["training"]["minutes"], self.values["command"]
        return minutes <= QUICK_MINUTES and command.startswith("keras-attention ")

    @property
    def columns(self) -> dict:
        """Those of the table that it stands in."""
        return CLASSIFIED if "accuracy" in self.values["figures"] else TRANSLATED

    def shown(self, figures: dict) -> dict[str, str]:
        """Those of the figures that a table has, formatted."""
        return {
            name: format(figures[key], form)
            for name, (key, form) in self.columns.items()
            if key in figures
        }


def read(folder: Path) -> list[Result]:
    """The results in a folder, by name.

    Raises:
        RunError: for a folder without any, or a file that is broken.
    """
    found = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            values = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is broken: {error}") from None
        if "title" in values:
            found.append(Result(path.stem, values))
    if not found:
        raise RunError(f"{folder} holds no results: --folder names that of a source tree")
    return found


def in_a_process(arguments: Sequence[str]) -> str:
    """Run a command of `keras-attention` and return what it printed; its news are seen as usual.

    Raises:
        RunError: when it fails.
    """
    command = [sys.executable, "-m", "keras_attention.recipes.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunError(f"{shlex.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout


def again(
    result: Result,
    out: Path,
    data_dir: Path | None = None,
    run: Callable[[Sequence[str]], str] = in_a_process,
) -> dict:
    """Run a result's command again, for each of its seeds, and measure what comes of it.

    Args:
        result: what to repeat.
        out: the folder of the runs; those that are done are not run again, one that was
            interrupted goes on.
        data_dir: where named data sets lie.
        run: runs a command, see `in_a_process`.

    Returns:
        The figures; of several seeds their means, and `accuracy_worst`.
    """
    data = ["--data-dir", str(data_dir)] if data_dir else []
    rows = []
    for seed in result.seeds:
        folder = out / (f"{result.name}-{seed}" if len(result.seeds) > 1 else result.name)
        if not (folder / "evaluation.json").exists():
            _run(result.values["command"], seed, folder, data, run)
        rows.append(json.loads((folder / "evaluation.json").read_text("utf-8")))
    return together(rows)


def together(rows: Sequence[dict]) -> dict:
    """Figures of runs that differ in their seed alone: their means, and the worst accuracy."""
    keys = sorted(key for key, value in rows[0].items() if isinstance(value, int | float))
    found = {key: statistics.mean(row[key] for row in rows) for key in keys}
    if len(rows) > 1 and "accuracy" in found:
        found["accuracy_worst"] = min(row["accuracy"] for row in rows)
    return found


def _run(command, seed, folder, data, run):
    words = shlex.split(command)[1:]
    words = [{"SEED": str(seed), "RUN": str(folder)}.get(word, word) for word in words]
    if words[0] == "demo":
        if folder.exists():  # an interrupted one, which cannot go on
            shutil.rmtree(folder)
        figures = json.loads(run([*words, "--out", str(folder)]).splitlines()[-1])
        write_json(folder / "evaluation.json", figures_of_demo(figures))
        return
    run([*words, "--resume", "auto", *data])
    run(["evaluate", str(folder), *data])


def figures_of_demo(printed: dict) -> dict:
    """The figures that `demo --json` prints, by the names they have elsewhere."""
    names = {"bleu_beam": "bleu", "exact_match": "exact_match", "aer": "aer"}
    return {name: printed[key] for name, key in names.items()}
