"""Models and batches, the same on every backend and in every process."""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

import keras_attention as ka

VOCABULARY, CLASSES = 20, 3
SOURCE, TARGET = 7, 6  # lengths
ROWS = 8  # of a batch
STEPS = 6  # of an epoch
EPOCHS = 2


class Case(NamedTuple):
    """How a model is trained.

    clip: largest norm of the gradients.
    last: rows of the last batch of each epoch.
    rows: rows of the others.
    weighted: whether rows have weights of their own, one of them 0.
    accumulate: parts of a batch.
    """

    clip: float | None = None
    last: tuple[int, ...] = (ROWS, ROWS)
    rows: int = ROWS
    weighted: bool = False
    accumulate: int = 1

    def sizes(self, epoch: int) -> list[int]:
        return [self.rows] * (STEPS - 1) + [self.last[epoch]]


# Rows are of unequal length in all of them, so that no two devices hold as many labels.
CASES = {
    "masked": Case(),
    "clipped": Case(clip=0.2),
    "odd": Case(last=(3, 1)),
    "weighted": Case(weighted=True, last=(5, 7)),
    "accumulated": Case(accumulate=2),
    "single": Case(rows=1, last=(1, 1)),
}


def translation():
    from keras_attention.recipes.translation import build_model

    return build_model(VOCABULARY, VOCABULARY, embedding=8, encoder_units=6, units=10, dropout=0.0)


def transformer():
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    x = keras.layers.Embedding(VOCABULARY, 8, mask_zero=True)(source)
    x = ka.SinusoidalPositions()(x)
    memory = ka.TransformerEncoderBlock(12, num_heads=2)(x)
    x = keras.layers.Embedding(VOCABULARY, 8, mask_zero=True)(target)
    x = ka.LearnedPositions(TARGET)(x)
    x = ka.TransformerDecoderBlock(12, num_heads=2)(x, memory)
    return keras.Model([source, target], keras.layers.Dense(VOCABULARY)(x))


def classifier(regularizer=None):
    source = keras.Input((None,), dtype="int32", name="source")
    x = keras.layers.Embedding(VOCABULARY, 8, mask_zero=True)(source)
    # With what was read beside it: steps that are all alike would leave the pooling no gradient.
    x = keras.layers.Add()([x, ka.SelfAttention(2)(x)])
    x = ka.AttentionPooling()(x)
    return keras.Model(source, keras.layers.Dense(CLASSES, kernel_regularizer=regularizer)(x))


def regularised():
    return classifier(keras.regularizers.L2(0.1))


MODELS = {
    "translation": translation,
    "transformer": transformer,
    "classifier": classifier,
    "regularised": regularised,
}
SEQUENCES = ("translation", "transformer")  # with a label for each position, of which 0 is padding


def optimizer(**arguments) -> keras.optimizers.Optimizer:
    """Adam, with an epsilon above rounding.

    A gradient that is truly 0 is computed as rounding, 1e-9 and below: that of a key's bias is,
    which softmax does not see. With Keras's epsilon of 1e-7, Adam divides such a gradient by
    itself, and its steps are noise, on one device too. A larger epsilon also shows what a small one
    hides: gradients that are all too large or too small by the same factor.
    """
    return keras.optimizers.Adam(1e-2, epsilon=1e-3, **arguments)


def pad_id(model: str) -> int | None:
    return 0 if model in SEQUENCES else None


def made(model: str) -> keras.Model:
    """A model with weights that do not depend on the backend."""
    built = MODELS[model]()
    rng = np.random.default_rng(9)
    for weight in built.weights:
        noise = rng.normal(0, 0.5, weight.shape).astype("float32")
        # Vectors begin at 0 or, scales, at 1; what matrices begin at depends on the backend.
        weight.assign(noise if len(weight.shape) > 1 else weight + 0.4 * noise)
    return built


def ids(rng, rows: int, length: int) -> np.ndarray:
    """Rows of unequal length; those of the second half of a batch are short."""
    x = rng.integers(4, VOCABULARY, (rows, length)).astype("int32")
    for i in range(rows):
        x[i, rng.integers(1, 3 if i >= ROWS // 2 else length + 1) :] = 0
    return x


def batches(model: str, case: Case, epoch: int) -> Iterator[tuple]:
    """What an epoch trains on: (inputs, labels), and weights of rows where there are some."""
    rng = np.random.default_rng([5, epoch])
    for rows in case.sizes(epoch):
        inputs = {"source": ids(rng, rows, SOURCE)}
        if model in SEQUENCES:
            labels = ids(rng, rows, TARGET)
            # What the decoder is fed: the start token 2, and all labels but the last.
            inputs["target"] = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=2)
        else:
            labels = inputs["source"].sum(-1) % CLASSES
        weights = [np.arange(rows) / 2] if case.weighted else []
        yield inputs, labels, *weights


def labels_in(model: str, batch: tuple) -> float:
    """The weight of a batch, counted without the library."""
    _, labels, *weights = batch
    real = np.ones_like(labels) if pad_id(model) is None else labels != 0
    per_row = real.reshape(len(labels), -1).sum(-1)
    return float(np.sum(per_row * weights[0]) if weights else per_row.sum())
