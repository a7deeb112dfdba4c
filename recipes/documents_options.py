"""What a run of the documents recipe is made of."""

import dataclasses
from typing import ClassVar

from . import labelled
from .texts_options import TextsConfig
from .training_options import option

LEVELS = ("both", "words", "sentences", "none")


@dataclasses.dataclass(frozen=True)
class Config(TextsConfig):
    """A classifier of documents, its data and training."""

    recipe = "documents"
    embedded = "reviews"
    small: ClassVar[dict] = {
        "embedding": 24,
        "units": 16,
        "dropout": 0.1,
        "learning_rate": 5e-3,
        "epochs": 6,
        "words": 16,
    }

    data: str = option("reviews", "data", "a named data set", labelled.NAMES)
    sentences: int = option(24, "data", "most sentences of a text; of more the first count")
    words: int = option(30, "data", "most pieces of a sentence; of more the first count")
    attention: str = option(
        "both", "model", "the levels that are read by attention; others take the mean", LEVELS
    )
    embedding: int = option(100, "model", "width of the embeddings")
    units: int = option(50, "model", "width of the GRU of each level in each direction")
    dropout: float = option(0.5, "training", "fraction dropped")
    epochs: int = option(5, "training", "passes over the data")

    @property
    def longest(self) -> int:
        return self.sentences
