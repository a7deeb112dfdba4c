"""Keep what native code prints away from the user's terminal."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Catch what is written to standard output and error, by native code too.

    TFLite's converter and interpreters print through the file descriptors, where Python's own
    redirection does not reach. Yields a function that gives the text caught so far.
    """
    with tempfile.TemporaryFile() as caught:

        def text() -> str:
            caught.seek(0)
            return caught.read().decode(errors="replace")

        _flush()
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(caught.fileno(), number)
            yield text
        finally:
            _flush()
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)


def _flush():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
