"""Export to a SavedModel that TensorFlow Serving, `tf.saved_model.load` and others load."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from .errors import ExportError, ParityError
from .parity import compare
from .quiet import quiet
from .signatures import DEFAULT, module_of, signatures_of, trace

__all__ = ["ExportError", "ParityError", "export_saved_model"]


def export_saved_model(
    model: keras.Model | Mapping,
    path: str | os.PathLike,
    *,
    signatures: Mapping | None = None,
    assets: Mapping[str, str | os.PathLike] | None = None,
    resources: Sequence[Any] = (),
    verify=None,
) -> Path:
    """Write the next numbered version of a SavedModel, as TensorFlow Serving expects it.

    The version is written beside its place and renamed: a server that watches the folder never
    sees half of one, and older versions stay.

    Args:
        model: a built `keras.Model`, which becomes the signature `serving_default`, or named
            functions: `{name: tf.function with input_signature | (callable, {argument:
            keras.InputSpec or tf.TensorSpec})}`, each of tensors by name to a dict of tensors.
            They may take and give strings, with the text operators in the graph. Where none is
            called `serving_default`, the first one gets that name too.
        path: the folder of the versions.
        signatures: functions to add to those of `model`, in the second form.
        assets: files that travel along, `{name: path}`, into the version's `assets/`.
        resources: objects which the functions read and which are neither layers nor variables:
            lookup tables and tokenizers that hold some.
        verify: inputs as `check_parity` takes them. The version is then loaded and compared
            before it gets its number: one that is not equal is not left behind.

    Returns:
        The folder of the version.

    Raises:
        ExportError: when the functions cannot be saved, or (`ParityError`) are not equal on the
            inputs of `verify`.
        ValueError: for an argument that is not one of those above.

    Example:

    >>> import tempfile, keras
    >>> from keras_attention.export.saved_model import export_saved_model
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_saved_model(model, folder + "/dense").name
    '1'
    """
    path = Path(path)
    if path.is_file() or (path / "saved_model.pb").exists():
        raise ValueError(f"path must be a folder for numbered versions. Received: path={path}")
    assets = _assets(assets)
    found = signatures_of(model, signatures)
    functions = trace(found, "saved_model")
    functions.setdefault(DEFAULT, next(iter(functions.values())))
    resources = [*resources, model] if isinstance(model, keras.Model) else resources
    module = module_of(functions, resources)

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _save(module, functions, assets, temporary)
        if verify is not None:
            report = compare(signatures_of(model, signatures, copy=False), temporary, verify)
            report.require_equal(path)
        return _numbered(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _assets(assets):
    found = {}
    for name, source in (assets or {}).items():
        source = Path(source)
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"the name of an asset must be a file name. Received: {name!r}")
        if not source.is_file():
            raise ValueError(f"assets[{name!r}] is not a file. Received: {source}")
        found[name] = source
    return found


def _save(module, functions, assets, folder):
    with tempfile.TemporaryDirectory() as named:
        # An asset keeps the name of the file that it is read from.
        module.assets = {}
        for index, (name, source) in enumerate(assets.items()):
            copy = Path(named, str(index), name)
            copy.parent.mkdir()
            shutil.copyfile(source, copy)
            module.assets[name] = tf.saved_model.Asset(str(copy))
        try:
            with quiet():
                tf.saved_model.save(module, str(folder), signatures=functions)
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            hint = ""
            if "untracked" in str(error):
                hint = "\n  give lookup tables and tokenizers as resources=[...]"
            raise ExportError(f"cannot be saved: {reason[:300]}{hint}") from error


def _numbered(temporary, path):
    path.mkdir(exist_ok=True)
    while True:
        versions = [int(p.name) for p in path.iterdir() if p.name.isdigit()]
        version = path / str(max(versions, default=0) + 1)
        try:
            return temporary.rename(version)
        except OSError:
            # Another export took the number in between.
            if not version.exists():
                raise
