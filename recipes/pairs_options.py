"""What a run of any recipe that translates is made of."""

import dataclasses
from collections.abc import Sequence

from . import data
from .training_options import TrainingConfig, option


@dataclasses.dataclass(frozen=True)
class PairsConfig(TrainingConfig):
    """Data and search of a recipe that translates."""

    commands = "translation_commands"
    embedded = "phrasebook"
    own_files = ("pairs", "source", "target")

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
    beam_width: int = option(5, "search", "hypotheses of the beam search")
    length_penalty_weight: float = option(1.0, "search", "0 favours short translations")

    @property
    def aligns(self) -> bool:
        """Whether the model's attention is an alignment."""
        return True
