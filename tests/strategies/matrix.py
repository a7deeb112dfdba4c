"""Compares trainings, and tells of it in a table."""

import runpy
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_attention.recipes.runs import versions

from . import models
from .processes import Outcome

ROOT = Path(__file__).parents[2]
COMMAND = "WRITE_PARITY=1 KERAS_BACKEND=tensorflow pytest --matrix tests/test_same_everywhere.py"


class Row(NamedTuple):
    """How far a training is from the same one on one device.

    weights: largest difference of a weight.
    loss: relative difference of the loss that `Trainer.evaluate` gives.
    accuracy: and of its accuracy.
    counts: whether every step counted the same labels.
    """

    model: str
    case: str
    where: str
    weights: float
    loss: float
    accuracy: float
    counts: bool


def row(name: str, where: str, found: Outcome, wanted: Outcome) -> Row:
    relative = {
        key: abs(found.figures[key] - wanted.figures[key]) / abs(wanted.figures[key] or 1.0)
        for key in ("loss", "accuracy")
    }
    counts = all(
        found.figures[key] == wanted.figures[key] for key in ("trained_labels", "measured_labels")
    )
    return Row(
        *name.split("/"),
        where,
        difference(found, wanted),
        **relative,
        counts=counts,
    )


def difference(found: Outcome, wanted: Outcome) -> float:
    """The largest one of a weight."""
    pairs = ((found.arrays[key], wanted.arrays[key]) for key in wanted.arrays)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def table(rows: list[NamedTuple]) -> str:
    """Named tuples of one kind as lines of equal columns."""

    def text(value):
        if isinstance(value, float):
            return f"{value:.1e}" if value else "0"
        return "-" if value is None else str(value)

    lines = [rows[0]._fields, *(tuple(text(value) for value in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def write(rows: list[Row], plain: list[NamedTuple], error: str) -> None:
    """Write `results/parity.json`."""
    record = runpy.run_path(str(ROOT / "benchmarks" / "record.py"))
    record["write"](
        "parity",
        {
            "what": "largest difference from one TensorFlow device after "
            f"{models.EPOCHS * models.STEPS} steps of Adam (epsilon {models.optimizer().epsilon}), "
            "dropout off",
            "command": COMMAND,
            "rows": [row._asdict() for row in rows],
            "plain_keras_fit_mirrored_x2": [row._asdict() for row in plain],
            "plain_keras_fit_2_processes": error,
            "versions": {**versions(), "jax": metadata.version("jax")},
            "date": time.strftime("%Y-%m-%d"),
            "hardware": record["hardware"](),
        },
    )
