"""What a run of the translation recipe is made of."""

import dataclasses
from typing import ClassVar

from .pairs_options import PairsConfig
from .training_options import option

ATTENTIONS = ("additive", "bilinear", "general", "dot", "scaled_dot", "cosine", "mlp", "none")


@dataclasses.dataclass(frozen=True)
class Config(PairsConfig):
    """A recurrent model, its data, training and search."""

    recipe = "translation"
    small: ClassVar[dict] = {
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

    attention: str = option("additive", "model", "the score; none for no attention", ATTENTIONS)
    query: str = option(
        "previous",
        "model",
        "which state asks: the previous (Bahdanau) or the current (Luong)",
        ("previous", "current"),
    )
    input_feeding: bool = option(True, "model", "whether the last output is fed to the next step")
    cell: str = option("gru", "model", "the recurrent cell", ("gru", "lstm"))
    layers: int = option(1, "model", "recurrent layers of encoder and decoder")
    embedding: int = option(256, "model", "width of the embeddings")
    encoder_units: int = option(128, "model", "width of the encoder in each direction")
    source_in_memory: bool = option(
        False, "model", "whether the memory holds the source embeddings beside the encoder's states"
    )
    units: int = option(256, "model", "width of the decoder")

    @property
    def aligns(self) -> bool:
        return self.attention != "none"
