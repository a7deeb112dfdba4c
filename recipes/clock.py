"""How long a training has worked, over all of its starts."""

import os
import time


class Clock:
    """Minutes of work: CPU time over the cores at hand, or wall time beside an accelerator.

    Args:
        minutes: of work that was done before.
        seconds: of wall time that went by before.
        accelerated: whether a GPU or a TPU does the work.
    """

    def __init__(self, minutes: float = 0.0, seconds: float = 0.0, accelerated: bool = False):
        self._cores = 1 if accelerated else _cores()
        self._time = time.perf_counter if accelerated else time.process_time
        self._before = minutes * 60 * self._cores
        self._start = self._time()
        self._wall_before = seconds
        self._wall_start = time.perf_counter()

    @property
    def minutes(self) -> float:
        return (self._before + self._time() - self._start) / self._cores / 60

    @property
    def seconds(self) -> float:
        return self._wall_before + time.perf_counter() - self._wall_start


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
