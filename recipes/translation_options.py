"""What a run of the translation recipe is made of; light, so that `--help` is quick."""

import dataclasses
from collections.abc import Sequence

from . import data
from .schedules import SCHEDULES

ATTENTIONS = ("additive", "bilinear", "general", "dot", "scaled_dot", "cosine", "mlp", "none")


FREE_WHEN_RESUMED = ("epochs", "minutes", "checkpoint_steps", "patience")


def _option(default, group: str, help: str, choices: Sequence[str] | None = None):
    """A field of `Config` with what the command line says of it."""
    about = {"group": group, "help": help, "choices": choices}
    return dataclasses.field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True)
class Config:
    """What a run is made of; `config.json` of its folder, and the options of `train`."""

    data: str = _option("phrasebook", "data", "a named data set", data.NAMES)
    pairs: Sequence[str] | None = _option(
        None,
        "data",
        "or: a tab-separated file, source TAB target; several, a folder, a pattern in quotes or "
        ".tfrecord files are streamed",
    )
    stream: bool = _option(
        False, "data", "whether one file of pairs is streamed, too: it may exceed the memory"
    )
    shard_policy: str = _option(
        "data",
        "data",
        "data: every worker reads all files; file: its share of them, streamed (TensorFlow only)",
        ("data", "file"),
    )
    source: str | None = _option(None, "data", "or: a file of sentences, with --target")
    target: str | None = _option(None, "data", "the line-aligned file of their translations")
    source_split: str | None = _option(
        None, "data", "how source text of your files is cut into words", ("spaces", "characters")
    )
    target_split: str | None = _option(
        None, "data", "how target text of your files is cut into words", ("spaces", "characters")
    )
    normalize: str | None = _option(
        None,
        "data",
        "how text of your files is normalised: none for tokenised files",
        ("none", "nfkc", "nfkc_lower"),
    )
    limit: int | None = _option(None, "data", "number of training rows to use")
    source_vocabulary_size: int = _option(6000, "data", "most pieces of the source vocabulary")
    target_vocabulary_size: int = _option(5000, "data", "most pieces of the target vocabulary")
    max_length: int = _option(64, "data", "most pieces of a sentence, with its end")
    attention: str = _option("additive", "model", "the score; none for no attention", ATTENTIONS)
    query: str = _option(
        "previous",
        "model",
        "which state asks: the previous (Bahdanau) or the current (Luong)",
        ("previous", "current"),
    )
    input_feeding: bool = _option(True, "model", "whether the last output is fed to the next step")
    cell: str = _option("gru", "model", "the recurrent cell", ("gru", "lstm"))
    layers: int = _option(1, "model", "recurrent layers of encoder and decoder")
    embedding: int = _option(256, "model", "width of the embeddings")
    encoder_units: int = _option(128, "model", "width of the encoder in each direction")
    source_in_memory: bool = _option(
        False, "model", "whether the memory holds the source embeddings beside the encoder's states"
    )
    units: int = _option(256, "model", "width of the decoder")
    precision: str = _option(
        "float32",
        "training",
        "of the computations; weights stay in float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
    )
    dropout: float = _option(0.3, "training", "fraction dropped")
    label_smoothing: float = _option(0.1, "training", "share of the loss spread over all words")
    learning_rate: float = _option(1e-3, "training", "highest learning rate")
    warmup_steps: int = _option(200, "training", "steps over which the learning rate rises")
    schedule: str = _option(
        "cosine", "training", "how the learning rate falls after it has risen", tuple(SCHEDULES)
    )
    batch_size: int = _option(64, "training", "sentences a step, of all devices together")
    accumulate: int = _option(
        1, "training", "parts that a device cuts its sentences into, to need less memory"
    )
    epochs: int = _option(20, "training", "passes over the data")
    minutes: float | None = _option(
        None, "training", "most minutes, of CPU time over the cores at hand (GPU: of wall time)"
    )
    checkpoint_steps: int = _option(
        1000, "training", "steps between checkpoints; there is one after each epoch, too"
    )
    patience: int | None = _option(
        None, "training", "epochs without a better one that end training (default: none do)"
    )
    beam_width: int = _option(5, "search", "hypotheses of the beam search")
    length_penalty_weight: float = _option(1.0, "search", "0 favours short translations")
    seed: int = _option(0, "training", "of weights, order of the data and dropout")

    def decided(self) -> dict:
        """What a resumed run cannot have otherwise: all that decides what is learned."""
        values = dataclasses.asdict(self)
        return {name: x for name, x in values.items() if name not in FREE_WHEN_RESUMED}


# What the embedded data needs to be learned in about a minute.
PHRASEBOOK = {
    "source_in_memory": True,
    "input_feeding": False,
    "embedding": 64,
    "encoder_units": 48,
    "units": 96,
    "dropout": 0.1,
    "label_smoothing": 0.0,
    "learning_rate": 4e-3,
    "epochs": 10,
    "max_length": 32,
}
