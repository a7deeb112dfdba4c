"""What a run of the stories recipe is made of."""

import dataclasses
from typing import ClassVar

from . import labelled
from .texts_options import TextsConfig
from .training_options import option

MODELS = ("memn2n", "key-value")


@dataclasses.dataclass(frozen=True)
class Config(TextsConfig):
    """Questions about stories, its data and training."""

    recipe = "stories"
    embedded = "errands"
    small: ClassVar[dict] = {"units": 32, "epochs": 30, "linear_start": 10, "lines": 12, "words": 8}

    data: str = option("errands", "data", "a named data set", labelled.STORIES)
    tasks: str | None = option(
        None, "data", "of a named data set: some of its tasks alone, with commas between"
    )
    lines: int = option(50, "data", "most sentences of a story; of more the last count")
    words: int = option(16, "data", "most pieces of a sentence; of more the first count")
    model: str = option(
        "memn2n",
        "model",
        "what is a slot of the memory: a sentence (end-to-end memory network), or a word, with its "
        "sentence as the key (key-value memory network)",
        MODELS,
    )
    hops: int = option(3, "model", "how often the story is read for a question")
    units: int = option(50, "model", "width of what is read")
    linear_start: int = option(
        20, "training", "first epochs without softmax, until what is to be read is found; 0: none"
    )
    noise: float = option(
        0.1, "training", "share of empty sentences that are put between those of a story"
    )
    dropout: float = option(0.0, "training", "fraction dropped")
    learning_rate: float = option(5e-3, "training", "highest learning rate")
    batch_size: int = option(128, "training", "rows a step, of all devices together")
    epochs: int = option(60, "training", "passes over the data")

    @property
    def longest(self) -> int:
        return self.lines + 1
