"""Files and folders that are whole or not there."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; it takes the place of `path` when that succeeded.

    A file or a folder. What stood at `path` stays until the new one is complete. Folders that
    lead to it are made, and are gone again if nothing came to be in them.
    """
    path = Path(path)
    made = [folder for folder in path.parents if not folder.exists()]
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
        with contextlib.suppress(OSError):  # of the first that is not empty
            for folder in made:
                folder.rmdir()
