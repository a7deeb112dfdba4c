"""What a run of any recipe that translates is made of; light, so that `--help` is quick."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from . import data
from .schedules import SCHEDULES

FREE_WHEN_RESUMED = ("epochs", "minutes", "checkpoint_steps", "patience")


def option(default, group: str, help: str, choices: Sequence[str] | None = None):
    """A field of a config with what the command line says of it."""
    about = {"group": group, "help": help, "choices": choices}
    return dataclasses.field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Data, training and search: `config.json` of a run's folder, and the options of `train`.

    A recipe adds the fields of its model, and says:

    recipe: its name.
    small: what the embedded data needs to be learned in about a minute.
    aligns: whether its attention is an alignment.
    """

    recipe: ClassVar[str]
    small: ClassVar[dict]

    data: str = option("phrasebook", "data", "a named data set", data.NAMES)
    pairs: Sequence[str] | None = option(
        None,
        "data",
        "or: a tab-separated file, source TAB target; several, a folder, a pattern in quotes or "
        ".tfrecord files are streamed",
    )
    stream: bool = option(
        False, "data", "whether one file of pairs is streamed, too: it may exceed the memory"
    )
    shard_policy: str = option(
        "data",
        "data",
        "data: every worker reads all files; file: its share of them, streamed (TensorFlow only)",
        ("data", "file"),
    )
    source: str | None = option(None, "data", "or: a file of sentences, with --target")
    target: str | None = option(None, "data", "the line-aligned file of their translations")
    source_split: str | None = option(
        None, "data", "how source text of your files is cut into words", ("spaces", "characters")
    )
    target_split: str | None = option(
        None, "data", "how target text of your files is cut into words", ("spaces", "characters")
    )
    normalize: str | None = option(
        None,
        "data",
        "how text of your files is normalised: none for tokenised files",
        ("none", "nfkc", "nfkc_lower"),
    )
    limit: int | None = option(None, "data", "number of training rows to use")
    source_vocabulary_size: int = option(6000, "data", "most pieces of the source vocabulary")
    target_vocabulary_size: int = option(5000, "data", "most pieces of the target vocabulary")
    max_length: int = option(64, "data", "most pieces of a sentence, with its end")
    precision: str = option(
        "float32",
        "training",
        "of the computations; weights stay in float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    dropout: float = option(0.3, "training", "fraction dropped")
    label_smoothing: float = option(0.1, "training", "share of the loss spread over all words")
    learning_rate: float = option(1e-3, "training", "highest learning rate")
    warmup_steps: int = option(200, "training", "steps over which the learning rate rises")
    schedule: str = option(
        "cosine", "training", "how the learning rate falls after it has risen", tuple(SCHEDULES)
    )
    batch_size: int = option(64, "training", "sentences a step, of all devices together")
    accumulate: int = option(
        1, "training", "parts that a device cuts its sentences into, to need less memory"
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
    beam_width: int = option(5, "search", "hypotheses of the beam search")
    length_penalty_weight: float = option(1.0, "search", "0 favours short translations")
    seed: int = option(0, "training", "of weights, order of the data and dropout")

    @property
    def aligns(self) -> bool:
        return True

    def decided(self) -> dict:
        """What a resumed run cannot have otherwise: all that decides what is learned."""
        values = dataclasses.asdict(self)
        return {name: x for name, x in values.items() if name not in FREE_WHEN_RESUMED}
