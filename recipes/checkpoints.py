"""States of a training that a killed run goes on from: the newest few, each whole or not there."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_attention.export.places import replacing

from .errors import RunError


class Checkpoint(NamedTuple):
    """What was saved: arrays by name, and what JSON can hold of where the training stood."""

    arrays: dict[str, np.ndarray]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder, each an `.npz` file named after the steps that it has seen.

    A file is written beside its place and renamed, and older ones are removed only then, so
    whatever stops a training leaves the newest whole one. Loading reads all of it, under the
    checksums that the archive has of each array; where the newest is broken the one before is
    taken, and that is reported.

    Args:
        folder: where the files are; made by the first save.
        made_by: what a state depends on, as options and sizes of batches: a state that was made by
            something else is refused. Only its hash is kept.
        keep: how many to keep, at least 2.
        report: receives a line for a broken file.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from keras_attention.recipes.checkpoints import Checkpoints
    >>> checkpoints = Checkpoints(tempfile.mkdtemp(), made_by={"batch_size": 64})
    >>> path = checkpoints.save(7, {"kernel": np.ones(3)}, {"epoch": 0, "step": 7})
    >>> path.name, checkpoints.load().state
    ('step-00000007.npz', {'epoch': 0, 'step': 7})
    """

    def __init__(
        self,
        folder: Path,
        *,
        made_by: Mapping[str, Any] | None = None,
        keep: int = 2,
        report: Callable[[str], None] = print,
    ):
        if keep < 2:
            raise ValueError(f"keep must be at least 2, for one may break. Received: keep={keep}")
        self.folder = Path(folder)
        self.keep = keep
        self._report = report
        text = json.dumps(made_by or {}, sort_keys=True, default=str)
        self._made_by = hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> list[Path]:
        """The files that there are, the newest first."""
        return sorted(self.folder.glob("step-*.npz"), reverse=True)

    def save(self, steps: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> Path:
        """Write the state after so many steps, and remove what is too old by now.

        Raises:
            OSError: when it cannot be written; what was there stays.
        """
        path = self.folder / f"step-{steps:08d}.npz"
        about = np.array(json.dumps({"made_by": self._made_by, "state": dict(state)}))
        with replacing(path) as beside, beside.open("wb") as file:
            np.savez(file, about=about, **{f"array_{name}": x for name, x in arrays.items()})
            file.flush()
            os.fsync(file.fileno())
        # Files too old by now, and what a killed process had begun to write.
        for old in [*self.paths()[self.keep :], *self.folder.glob(".*.step-*.npz")]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> Checkpoint:
        """The newest state that is whole.

        Raises:
            RunError: when there is none, when all are broken, or when it was made by something
                else.
        """
        paths = self.paths()
        if not paths:
            raise RunError(
                f"{self.folder.parent} holds no checkpoint to resume from: begin with --resume auto"
            )
        for i, path in enumerate(paths):
            try:
                about, arrays = _read(path)
            except Exception as error:  # of the archive, of what is in it or of the disk
                last = i == len(paths) - 1
                then = "and none is left" if last else f"going on from {paths[i + 1].name}"
                self._report(f"{path} is broken ({type(error).__name__}), {then}")
                continue
            if about["made_by"] != self._made_by:
                raise RunError(
                    f"{path} was made with other options or another batch size: resume with those "
                    "of the run, or train into another folder"
                )
            return Checkpoint(arrays, about["state"])
        kept = (self.folder.parent / "model.keras").exists()
        best = " (the best model so far is not touched)" if kept else ""
        raise RunError(
            f"{paths[0]} is broken, as all checkpoints are, so the run cannot go on: train into "
            f"another folder{best}"
        )


def _read(path):
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    about = json.loads(str(arrays.pop("about")))
    return about, {name.removeprefix("array_"): x for name, x in arrays.items()}
