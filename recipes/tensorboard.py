"""Curves of a training, for TensorBoard."""

from pathlib import Path

import tensorflow as tf

from .errors import UsageError


class TensorBoard:
    """Writes the figures of steps and of epochs as scalars by the number of the step.

    A run that goes on writes to the same folder: TensorBoard shows the newest of what was written
    twice.

    Args:
        folder: where to.
        every: steps from one point of a curve to the next.

    Raises:
        UsageError: when TensorBoard is not installed, which TensorFlow writes scalars with.
    """

    def __init__(self, folder: Path, every: int = 10):
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise UsageError(
                "--tensorboard needs a package: pip install keras-attention-layers[tensorboard]"
            ) from None
        self._folder = str(folder)
        self._writer = None  # made by the first point: what is refused leaves no folder
        self._every = every
        self._step = 0

    def on_step(self, step: int, figures: dict[str, float]) -> None:
        self._step = step
        if step % self._every == 0:
            self._write("step", figures)

    def on_epoch(self, figures: dict[str, float]) -> None:
        self._write("epoch", figures)
        self._writer.flush()

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer:
            self._writer.close()

    def _write(self, group, figures):
        self._writer = self._writer or tf.summary.create_file_writer(self._folder)
        with self._writer.as_default():
            for name, value in figures.items():
                if not isinstance(value, bool):
                    tf.summary.scalar(f"{group}/{name}", value, step=self._step)
