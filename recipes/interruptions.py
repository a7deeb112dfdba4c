"""What stops a training from outside: signals, and workers that are gone."""

import contextlib
import re
import signal
from collections.abc import Iterator

from .errors import PeerLost

# Errors of TensorFlow which say by their kind that a process which was waited for is gone. By
# name, because which of TensorFlow and JAX is imported is not known here.
_OF_A_LOST_PEER = {"UnavailableError", "DeadlineExceededError", "AbortedError", "CancelledError"}
# The kinds that hold anything, a lost peer among it, and how their text tells it: by the code of
# the status, or by what a connection of Gloo, NCCL or gRPC says when its other end has gone.
_OF_ANY_KIND = {"JaxRuntimeError", "XlaRuntimeError", "InternalError", "UnknownError"}
_CODE = re.compile(r"(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED)\b")
_CONNECTION = re.compile(
    r"(gloo|nccl|grpc|coordination).*"
    r"(connection (reset|closed|refused)|socket closed|broken pipe|tim(ed |e)out|"
    r"remote ?(error|process)|another task died|heartbeat)",
    re.IGNORECASE | re.DOTALL,
)
# What all workers run into, however often they are started again.
_MISTAKE = re.compile(r"RESOURCE_EXHAUSTED|INVALID_ARGUMENT|out of memory", re.IGNORECASE)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that the step that runs can end and be saved."""
    received: list[int] = []

    def receive(number, frame):
        received.append(number)
        # Ctrl-C twice: do not wait for the step. SIGTERM comes twice by itself, from an engine
        # and from the supervisor whose other worker has ended, and must not break off the saving.
        if received.count(signal.SIGINT) > 1:
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
        if workers > 1 and _tells_of_a_lost_peer(error):
            raise PeerLost(f"another worker is gone ({_reason(error)}): start all again") from error
        raise


def _tells_of_a_lost_peer(error: Exception) -> bool:
    kind, text = type(error).__name__, str(error)
    if kind in _OF_A_LOST_PEER:
        return True
    if kind not in _OF_ANY_KIND or _MISTAKE.search(text):
        return False
    return bool(_CODE.match(text) or _CONNECTION.search(text))


def _reason(error: Exception) -> str:
    """The line of the error that says most: TensorFlow begins with where, in many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "aborted by" in line or _CONNECTION.search(line)]
    return (telling or lines or [type(error).__name__])[0][:200]
