"""What every training is told; light, so that `--help` is quick."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from .schedules import SCHEDULES

FREE_WHEN_RESUMED = ("epochs", "minutes", "checkpoint_steps", "patience")


def option(default, group: str, help: str, choices: Sequence[str] | None = None):
    """A field of a config with what the command line says of it."""
    about = {"group": group, "help": help, "choices": choices}
    return dataclasses.field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a run is trained: of `config.json` in its folder, and of the options of `train`.

    A recipe adds fields of its data and its model, and says:

    recipe: its name.
    commands: the module that says what the commands do with it.
    embedded: the generated data set that it is tried on.
    small: what that needs to be learned in about a minute.
    own_files: the fields that name files of one's own, in place of a data set.
    """

    recipe: ClassVar[str]
    commands: ClassVar[str]
    embedded: ClassVar[str]
    small: ClassVar[dict]
    own_files: ClassVar[Sequence[str]]

    precision: str = option(
        "float32",
        "training",
        "of the computations; weights stay in float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    dropout: float = option(0.3, "training", "fraction dropped")
    label_smoothing: float = option(0.1, "training", "share of the loss spread over all classes")
    learning_rate: float = option(1e-3, "training", "highest learning rate")
    warmup_steps: int = option(200, "training", "steps over which the learning rate rises")
    schedule: str = option(
        "cosine", "training", "how the learning rate falls after it has risen", tuple(SCHEDULES)
    )
    batch_size: int = option(64, "training", "rows a step, of all devices together")
    accumulate: int = option(
        1, "training", "parts that a device cuts its rows into, to need less memory"
    )
    epochs: int = option(20, "training", "passes over the data")
    minutes: float | None = option(
        None, "training", "most minutes, of CPU time over the cores at hand (GPU: of wall time)"
    )
    average: int = option(
        1, "training", "last epochs whose weights are averaged in the model that is kept"
    )
    checkpoint_steps: int = option(
        1000, "training", "steps between checkpoints; there is one after each epoch, too"
    )
    patience: int | None = option(
        None, "training", "epochs without a better one that end training (default: none do)"
    )
    seed: int = option(0, "training", "of weights, order of the data and dropout")

    def decided(self) -> dict:
        """What a resumed run cannot have otherwise: all that decides what is learned."""
        values = dataclasses.asdict(self)
        return {name: x for name, x in values.items() if name not in FREE_WHEN_RESUMED}
