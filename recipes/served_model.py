"""A SavedModel as a server holds it: its signatures by name, and what a request is refused for."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from keras_attention.export.errors import telling_line
from keras_attention.export.parity import SavedModelRunner, load_saved_model

from .errors import RunError

DEFAULT_SIGNATURE = "serving_default"
LARGEST_REQUEST = 16 * 2**20  # bytes, and elements of a tensor


class Refused(Exception):
    """A request that gets no answer, with the reason in one line.

    Attributes:
        code: gRPC's name for the kind of reason.
    """

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT"):
        super().__init__(message)
        self.code = code


def version_of(place: Path) -> Path:
    """The newest version of the SavedModel that a run or a folder holds."""
    is_run = (place / "config.json").is_file()
    folder = place / "export" / "saved_model" if is_run else place
    if (folder / "saved_model.pb").is_file():
        return folder
    versions = [path.parent for path in folder.glob("*/saved_model.pb")]
    versions = [path for path in versions if path.name.isdigit()]
    if versions:
        return max(versions, key=lambda path: int(path.name))
    if is_run:
        raise RunError(
            f"{place} holds no SavedModel: keras-attention export {place} --to saved_model"
        )
    raise RunError(f"{place} is neither a run nor a SavedModel")


class ServedModel:
    """A version of a SavedModel, loaded.

    Attributes:
        name: what it is called in requests.
        version: its number; 1 for a folder without one.
        definitions: the `SignatureDef` of each signature, as the file has it.
        runners: a `SavedModelRunner` for each signature that can be asked for.
    """

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.version = folder.name if folder.name.isdigit() else "1"
        try:
            file = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        except DecodeError:
            raise RunError(f"{folder}: saved_model.pb is damaged") from None
        graphs = [graph for graph in file.meta_graphs if "serve" in graph.meta_info_def.tags]
        self.definitions = dict(graphs[0].signature_def) if graphs else {}
        names = sorted(name for name in self.definitions if not name.startswith("__"))
        if not names:
            raise RunError(f"{folder} has no signatures to serve")
        # Once for all of them: a load for each would hold the weights as many times.
        loaded = load_saved_model(folder, names[0]).loaded
        self.runners = {name: SavedModelRunner(loaded, name) for name in names}

    def require(self, name: str, version: str | None) -> None:
        """Refuse a request for another model or version."""
        if name != self.name or version not in (None, self.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise Refused(f"Servable not found for request: {wanted}", "NOT_FOUND")

    def runner(self, signature: str) -> SavedModelRunner:
        """The runner of a signature; of `serving_default` where the name is empty."""
        signature = signature or DEFAULT_SIGNATURE
        if signature not in self.runners:
            raise Refused(
                f"Serving signature key {signature!r} not found: there are "
                f"{', '.join(self.runners)}",
                "FAILED_PRECONDITION",
            )
        return self.runners[signature]


def answer(runner: SavedModelRunner, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a signature makes of inputs; refuses those that do not fit it."""
    try:
        return runner(inputs)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise Refused(telling_line(error)) from error


def require_inputs(runner: SavedModelRunner, given: Collection[str]) -> None:
    """Refuse a request whose inputs have not the names of the signature's."""
    if set(given) != set(runner.inputs):
        raise Refused(
            f"signature {runner.signature!r} takes {sorted(runner.inputs)}. "
            f"Received: {sorted(given)}"
        )
