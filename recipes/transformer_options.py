"""What a run of the transformer recipe is made of."""

import dataclasses
from typing import ClassVar

from .pairs_options import PairsConfig
from .training_options import option


@dataclasses.dataclass(frozen=True)
class Config(PairsConfig):
    """A Transformer, its data, training and search."""

    recipe = "transformer"
    small: ClassVar[dict] = {
        "layers": 2,
        "width": 64,
        "hidden": 128,
        "dropout": 0.1,
        "label_smoothing": 0.0,
        "learning_rate": 3e-3,
        "batch_size": 64,
        "epochs": 20,
        "average": 3,
        "max_length": 32,
    }

    layers: int = option(3, "model", "blocks of encoder and decoder")
    heads: int = option(4, "model", "heads of each attention")
    width: int = option(128, "model", "width of embeddings and blocks, shared by the heads")
    hidden: int = option(512, "model", "width inside the feed-forward networks")
    learning_rate: float = option(2e-3, "training", "highest learning rate")
    warmup_steps: int = option(1000, "training", "steps over which the learning rate rises")
    batch_size: int = option(128, "training", "sentences a step, of all devices together")
    epochs: int = option(60, "training", "passes over the data")
    average: int = option(
        10, "training", "last epochs whose weights are averaged in the model that is kept"
    )
