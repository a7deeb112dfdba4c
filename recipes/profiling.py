"""A profile of some steps of a training."""

from pathlib import Path

import keras


class Profile:
    """Traces a few steps of this process with the profiler of the backend.

    Args:
        folder: where the trace is written, in a form that TensorBoard and xprof read.
        skip: steps before the trace begins, of which the first are compiled.
        steps: steps that are traced; a training of fewer leaves no trace.
    """

    def __init__(self, folder: Path, skip: int = 10, steps: int = 10):
        self._folder = str(folder)
        self._left = skip + steps
        self._steps = steps

    def on_step(self, step: int, figures: dict[str, float]) -> None:
        self._left -= 1
        if self._left == self._steps:
            _start(self._folder)
        elif self._left == 0:
            _stop()

    def on_epoch(self, figures: dict[str, float]) -> None:
        """Nothing: it is steps that are traced."""


def _start(folder):
    if keras.backend.backend() == "jax":
        import jax

        jax.profiler.start_trace(folder)
    else:
        import tensorflow as tf

        tf.profiler.experimental.start(folder)


def _stop():
    if keras.backend.backend() == "jax":
        import jax

        jax.profiler.stop_trace()
    else:
        import tensorflow as tf

        tf.profiler.experimental.stop()
