"""What a run of the sentences recipe is made of."""

import dataclasses
from typing import ClassVar

from .texts_options import TextsConfig
from .training_options import option

MODELS = ("self-attentive", "disan")
ENCODERS = ("lstm", "ngrams")


@dataclasses.dataclass(frozen=True)
class Config(TextsConfig):
    """A sentence classifier, its data and training."""

    recipe = "sentences"
    small: ClassVar[dict] = {
        "embedding": 32,
        "units": 24,
        "hidden": 24,
        "hops": 3,
        "dropout": 0.1,
        "learning_rate": 4e-3,
        "epochs": 6,
    }

    max_length: int = option(64, "data", "most pieces of a text; of a longer one the first count")
    model: str = option(
        "self-attentive",
        "model",
        "a structured self-attentive embedding, or directional self-attention (DiSAN)",
        MODELS,
    )
    encoder: str = option(
        "lstm",
        "model",
        "what a self-attentive embedding reads: a bidirectional LSTM, or words and convolutions "
        "of two and of three",
        ENCODERS,
    )
    embedding: int = option(200, "model", "width of the embeddings")
    units: int = option(
        100,
        "model",
        "width of the LSTM in each direction, of each convolution or of the directional attention",
    )
    hidden: int = option(100, "model", "width of the hidden layers of attention and classifier")
    hops: int = option(8, "model", "how often a self-attentive embedding reads the sentence")
    penalty: float = option(
        0.03, "model", "weight of the penalty that keeps hops apart; 0: there is none"
    )
    dropout: float = option(0.5, "training", "fraction dropped")
    epochs: int = option(8, "training", "passes over the data")
    batch_size: int = option(32, "training", "rows a step, of all devices together")

    @property
    def longest(self) -> int:
        return self.max_length
