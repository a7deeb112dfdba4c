"""Starts the processes of a training, and reads what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_attention.recipes.launch import launch

TESTS = Path(__file__).parents[1]


class Configuration(NamedTuple):
    """Where a training runs."""

    backend: str
    strategy: str = "one"
    replicas: int | None = None
    workers: int = 1

    def __str__(self):
        if self.workers > 1:
            return f"{self.backend}, {self.workers} processes"
        return f"{self.backend} x{self.replicas or 1}"


REFERENCE = Configuration("tensorflow")
CONFIGURATIONS = {
    str(configuration): configuration
    for configuration in (
        Configuration("tensorflow", "mirrored", 2),
        Configuration("tensorflow", "multiworker", workers=2),
        Configuration("jax"),
        Configuration("jax", "mirrored", 2),
        Configuration("jax", "mirrored", 8),
        Configuration("jax", "multiworker", workers=2),
    )
}


class Outcome(NamedTuple):
    """Of one training in one process."""

    arrays: dict[str, np.ndarray]
    figures: dict


def run_workers(command: list[str], workers: int, environment: dict[str, str]) -> None:
    """Run a command as so many workers of one training, to its end."""
    given = [f"{name}={value}" for name, value in environment.items()]
    code = launch(["env", *given, *command], workers, restarts=0)
    assert code == 0, f"exit code {code}"


def run(configuration: Configuration, names: list[str], folder: Path) -> list[dict[str, Outcome]]:
    """Train all that is named; what each worker has of each."""
    environment = {
        "KERAS_BACKEND": configuration.backend,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(TESTS),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "",
    }
    command = [sys.executable, "-m", "strategies", str(folder), *names]
    command += ["--strategy", configuration.strategy]
    if configuration.replicas:
        command += ["--replicas", str(configuration.replicas)]
    if configuration.workers > 1:
        run_workers(command, configuration.workers, environment)
    else:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{configuration}: {done.stderr[-3000:]}"
    return [_read(folder / f"worker-{i}") for i in range(configuration.workers)]


def _read(folder: Path) -> dict[str, Outcome]:
    figures = json.loads((folder / "figures.json").read_text("utf-8"))
    outcomes = {}
    for name, values in figures.items():
        with np.load(folder / f"{name.replace('/', '-')}.npz") as arrays:
            outcomes[name] = Outcome(dict(arrays), values)
    return outcomes
