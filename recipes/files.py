"""Files that are whole or not there, and folders that one process at a time writes to."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import RunError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; it takes the place of `path` when that succeeded.

    A file or a folder. What stood at `path` stays until the new one is complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays, because some writers choose their format by it.
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield beside
        if path.is_dir() and not path.is_symlink():
            old = path.with_name(f".{os.getpid()}.old.{path.name}")
            path.rename(old)
            beside.rename(path)
            shutil.rmtree(old)
        else:
            beside.replace(path)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            beside.unlink(missing_ok=True)


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
