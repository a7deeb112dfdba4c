"""The mean of a model's weights after each of its last epochs, which is better than the last."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

from keras_attention.export.places import replacing

from .errors import RunError


class Averaging:
    """Keeps the weights of the last epochs, in memory and in files that a resumed run reads.

    Args:
        model: whose weights.
        count: over how many epochs; 1 keeps nothing and averages nothing.
        folder: of the files `epoch-N.npz`; None: there are none.
        writes: whether this process writes them.

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 6.1 ("averaging the last
        5 checkpoints").
    """

    def __init__(self, model: keras.Model, count: int, folder: Path | None, writes: bool):
        if type(count) is not int or count < 1:
            raise ValueError(f"average must be a positive int. Received: average={count!r}")
        self._model = model
        self._count = count
        self._folder = folder
        self._writes = writes
        self._past = {}  # by epoch, a list of arrays

    def add(self, epoch: int) -> None:
        """Keep the weights as they are after an epoch, and forget those of too old ones."""
        if self._count == 1:
            return
        self._past[epoch] = [np.array(w) for w in self._model.weights]
        self._past = {n: x for n, x in self._past.items() if epoch - self._count < n <= epoch}
        if self._folder and self._writes:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path(epoch)) as beside, beside.open("wb") as file:
                np.savez(file, *self._past[epoch])
            for path in self._folder.glob("epoch-*.npz"):
                if path not in map(self._path, self._past):
                    path.unlink(missing_ok=True)

    def restore(self, epochs: int) -> None:
        """Read what was kept of a training of which so many epochs are done.

        Raises:
            RunError: when a file is missing or broken.
        """
        if self._count == 1:
            return
        for epoch in range(max(epochs - self._count + 1, 0), epochs):
            path = self._path(epoch)
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                    self._past[epoch] = [archive[name] for name in archive.files]
            except Exception as error:  # of the archive, of what is in it or of the disk
                raise RunError(
                    f"{path} is missing or broken ({type(error).__name__}), so the mean of the "
                    "last epochs cannot be taken: train into another folder"
                ) from None

    @contextlib.contextmanager
    def mean(self) -> Iterator[None]:
        """The model has the mean of what is kept; afterwards its own weights again."""
        if len(self._past) < 2:
            yield
            return
        own = self._past[max(self._past)]
        for weight, *past in zip(self._model.weights, *self._past.values(), strict=True):
            weight.assign(np.mean(past, axis=0, dtype="float64").astype(past[0].dtype))
        try:
            yield
        finally:
            for weight, array in zip(self._model.weights, own, strict=True):
                weight.assign(array)

    def _path(self, epoch):
        return self._folder / f"epoch-{epoch:05d}.npz"
