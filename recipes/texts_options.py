"""What a run of any recipe that classifies texts is made of."""

import dataclasses

from . import labelled
from .training_options import TrainingConfig, option


@dataclasses.dataclass(frozen=True)
class TextsConfig(TrainingConfig):
    """Data of a recipe that classifies texts.

    A recipe says how long a text may be, too: `longest`, its pieces or its sentences.
    """

    commands = "classification_commands"
    embedded = "questions"
    own_files = ("texts", "test")

    data: str = option("questions", "data", "a named data set", labelled.NAMES)
    texts: str | None = option(
        None, "data", "or: a file of label TAB text, or a .jsonl of label and text"
    )
    test: str | None = option(
        None, "data", "another to test on (default: a tenth of the texts is held out)"
    )
    split: str | None = option(
        None, "data", "how text of your files is cut into words", ("spaces", "characters")
    )
    normalize: str | None = option(
        None,
        "data",
        "how text of your files is normalised: none for tokenised files",
        ("none", "nfkc", "nfkc_lower"),
    )
    vectors: str | None = option(
        None, "model", "a file of word vectors to begin with: a word and its numbers a line"
    )
    word2vec: int = option(
        0, "model", "or: passes of word2vec over the training texts, whose vectors it begins with"
    )
    vocabulary_size: int = option(
        20_000, "data", "most words of the vocabulary; rarer ones are unknown"
    )
    label_smoothing: float = option(0.0, "training", "share of the loss spread over all classes")
