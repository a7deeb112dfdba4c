"""A profile of some steps of a training."""

from collections.abc import Callable
from pathlib import Path

import keras


class Profile:
    """Traces a few steps of this process with the profiler of the backend.

    Args:
        folder: where the trace is written, in a form that TensorBoard and xprof read.
        skip: steps before the trace begins, of which the first are compiled.
        steps: steps that are traced; fewer where the training ends before.
        report: receives a line where it ends before any.
    """

    def __init__(
        self,
        folder: Path,
        skip: int = 10,
        steps: int = 10,
        report: Callable[[str], None] = print,
    ):
        self._folder = str(folder)
        self._begin, self._end = skip, skip + steps
        self._done = 0
        self._runs = False
        self._report = report

    def on_step(self, step: int, figures: dict[str, float]) -> None:
        self._done += 1
        if self._done == self._begin:
            _start(self._folder)
            self._runs = True
        elif self._done == self._end:
            self.close()

    def on_epoch(self, figures: dict[str, float]) -> None:
        """Nothing: it is steps that are traced."""

    def close(self) -> None:
        """Write what was traced, if that has not been done."""
        if self._done < self._begin:
            self._report(f"no profile: it begins after {self._begin} steps, {self._done} were done")
        if self._runs:
            self._runs = False
            _stop()


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
