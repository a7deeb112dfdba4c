"""Where the `.tflite` files of a run lie, and for texts of which lengths each is."""

from collections.abc import Sequence
from pathlib import Path

from .data import DataError
from .errors import RunError

Shapes = str | Sequence[int]


def lengths_of(folder: Path, shapes: Shapes, longest: int) -> list[int | None]:
    """The lengths that a run's files are for, shortest first; None of a file for all lengths.

    Raises:
        RunError: for a length that is more than the run's `longest`.
    """
    if shapes == "dynamic":
        return [None]
    lengths = [longest] if shapes == "static" else sorted(set(shapes))
    if lengths[-1] > longest:
        raise RunError(
            f"{folder} takes texts of {longest} pieces at most. Received: shapes={list(shapes)}"
        )
    return lengths


def default_place(folder: Path, name: str, quantize: str | None, shapes: Shapes) -> Path:
    """Where in a run's folder an export goes: a file, or a folder of length buckets."""
    one = isinstance(shapes, str)
    kinds = [quantize, None if shapes == "dynamic" else "static" if one else "buckets"]
    place = folder / "export" / "-".join(["tflite", *filter(None, kinds)])
    return place / (f"{name}.tflite" if one else name)


def length_files(path: Path) -> list[Path]:
    """The files of a folder of length buckets, the longest last; or the one file itself.

    Raises:
        DataError: for a folder that holds none.
    """
    if not path.is_dir():
        return [path]
    files = [file for file in path.glob("*.tflite") if file.stem.isdecimal()]
    if not files:
        raise DataError(f"{path} holds no files of lengths, 16.tflite and the like")
    return sorted(files, key=lambda file: int(file.stem))
