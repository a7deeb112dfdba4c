"""Folders that one process at a time writes to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .errors import RunError


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, which must exist, as the only process that writes there.

    The system lets go of it when the process ends, however it ends. On Windows nothing is held.

    Raises:
        RunError: when another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (Path(folder) / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another process trains in {folder}: wait for it, or choose another --out"
            ) from None
        yield
