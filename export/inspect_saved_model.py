"""What a SavedModel holds, read without loading it, and whether it is what was exported."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .checksums import UNSEALED, is_sealed, sealed
from .errors import ArtifactError
from .inspect import METADATA_NAME, read_file

# Servers leave this folder alone. The file says of every other one what it must be.
ABOUT = Path("assets.extra", METADATA_NAME)


class SavedModelReport(NamedTuple):
    """What `inspect_saved_model` found.

    Attributes:
        version: the folder that was read.
        signatures: `{name: {"inputs": {name: (shape, dtype)}, "outputs": the same}}`, with None in
            a shape where the size is free, and for a shape of which nothing is known.
        operators: how often each operator is there, in functions too.
        assets: the names of its assets.
        files: `{path below the folder: bytes}`.
        bytes: of all files.
        weights_bytes: of its variables.
        about: what the exporter wrote about it; {} for a foreign one.
        sealed: whether it carries checksums of this library; a wrong one is an error.
    """

    version: Path
    signatures: dict[str, dict[str, dict[str, tuple[tuple[int | None, ...] | None, str]]]]
    operators: Counter
    assets: list[str]
    files: dict[str, int]
    bytes: int
    weights_bytes: int
    about: dict[str, Any]
    sealed: bool


def inspect_saved_model(path: str | os.PathLike) -> SavedModelReport:
    """Read signatures, operators, assets and sizes of a SavedModel. Needs TensorFlow.

    Args:
        path: the folder, with or without its version number: the highest one is taken.

    Raises:
        ArtifactError: for a folder that is not a SavedModel, or that is damaged.
    """
    folder = version_of(path)
    about = check_saved_model(folder)
    from tensorflow.core.protobuf import saved_model_pb2

    content = read_file(folder / "saved_model.pb")
    try:
        graphs = saved_model_pb2.SavedModel.FromString(content).meta_graphs
        graph = next(graph for graph in graphs if "serve" in graph.meta_info_def.tags)
        functions = graph.graph_def.library.function
        nodes = [graph.graph_def.node, *(function.node_def for function in functions)]
        names = [*_names(folder), *([ABOUT.as_posix()] if about else [])]
        files = {name: (folder / name).stat().st_size for name in names}
        return SavedModelReport(
            version=folder,
            signatures={
                name: {
                    "inputs": _specs(signature.inputs),
                    "outputs": _specs(signature.outputs),
                }
                for name, signature in sorted(graph.signature_def.items())
                if not name.startswith("__")  # TensorFlow's own
            },
            operators=Counter(node.op for part in nodes for node in part),
            assets=sorted(asset.filename for asset in graph.asset_file_def),
            files=files,
            bytes=sum(files.values()),
            weights_bytes=sum(n for name, n in files.items() if name.startswith("variables/")),
            about=about,
            sealed=bool(about),
        )
    except Exception as error:
        # Protobuf's own errors, text that is none, unknown numbers.
        reason = str(error).splitlines()[0][:80] if str(error) else type(error).__name__
        raise ArtifactError(f"{path}: saved_model.pb is damaged ({reason})") from None


def version_of(path: str | os.PathLike) -> Path:
    """The folder of a SavedModel: `path` itself, or the highest version in it.

    Raises:
        ArtifactError: when there is none.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    files = path.glob("*/saved_model.pb")
    versions = [file.parent for file in files if file.parent.name.isdigit() and file.is_file()]
    if not versions:
        raise ArtifactError(f"{path}: is not a SavedModel (no saved_model.pb)")
    return max(versions, key=lambda version: int(version.name))


def seal_saved_model(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what the exporter knows of a version, with a checksum of every file that is there."""
    files = {name: _digest(folder / name) for name in _names(folder)}
    text = json.dumps({"seal": UNSEALED, **about, "files": files}, indent=1, ensure_ascii=False)
    (folder / ABOUT).parent.mkdir(exist_ok=True)
    (folder / ABOUT).write_bytes(sealed(text.encode()))


def check_saved_model(folder: Path) -> dict[str, Any]:
    """What the exporter wrote about a version; {} for a foreign one, which nothing is known of.

    Raises:
        ArtifactError: when a file is not what was exported, lacks or was added.
    """
    if not (folder / ABOUT).exists():
        return {}
    content = (folder / ABOUT).read_bytes()
    if not is_sealed(content):
        raise _damaged(folder, ABOUT.as_posix(), "is not what was exported")
    about = json.loads(content)
    found = _names(folder)
    for name, digest in about["files"].items():
        if name not in found:
            raise _damaged(folder, name, "is missing")
        if _digest(folder / name) != digest:
            raise _damaged(folder, name, "is not what was exported")
    for name in found:
        if name not in about["files"]:
            raise _damaged(folder, name, "was not exported")
    return about


def _names(folder):
    """The files of a version but the one that tells of the others."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in files if path != ABOUT)


def _digest(path):
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None


def _damaged(folder, name, what):
    # A file that was added may have any name.
    name = name if name.isprintable() else ascii(name)
    return ArtifactError(f"{folder}: is damaged ({name} {what})")


def _specs(entries):
    import tensorflow as tf

    def shape(given):
        if given.unknown_rank:
            return None
        return tuple(None if axis.size < 0 else axis.size for axis in given.dim)

    return {
        name: (shape(info.tensor_shape), tf.as_dtype(info.dtype).name)
        for name, info in sorted(entries.items())
    }
