"""What stops a training from outside: signals, and workers that are gone."""

import contextlib
import signal
from collections.abc import Iterator

from .errors import PeerLost

# What TensorFlow and JAX say when a process that they wait for is gone. By name, because which of
# them is imported is not known here.
_OF_A_LOST_PEER = {
    "UnavailableError",
    "DeadlineExceededError",
    "AbortedError",
    "CancelledError",
    "XlaRuntimeError",
    "JaxRuntimeError",
}


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that the step that runs can end and be saved."""
    received: list[int] = []

    def receive(number, frame):
        received.append(number)
        if len(received) > 1:  # asked twice: do not wait for the step
            raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, receive) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals belong to the main thread
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def lost_peers(workers: int) -> Iterator[None]:
    """Within it, errors which tell that another of several workers is gone become `PeerLost`."""
    try:
        yield
    except Exception as error:
        if workers > 1 and type(error).__name__ in _OF_A_LOST_PEER:
            reason = str(error).strip().split("\n")[0][:200]
            raise PeerLost(f"another worker is gone ({reason}): start all again") from error
        raise
