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

import keras_attention

from .errors import ExportError, ParityError, telling_line
from .inspect_saved_model import seal_saved_model
from .parity import compare
from .quiet import quiet
from .signatures import DEFAULT, described, module_of, signatures_of, trace

__all__ = ["ExportError", "ParityError", "export_saved_model"]

# Where TensorFlow Serving looks for them, and how many of them it reads.
WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")
MOST_WARMUPS = 1000


def export_saved_model(
    model: keras.Model | Mapping,
    path: str | os.PathLike,
    *,
    signatures: Mapping | None = None,
    assets: Mapping[str, str | os.PathLike] | None = None,
    resources: Sequence[Any] = (),
    warmup: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    verify=None,
) -> Path:
    """Write the next numbered version of a SavedModel, as TensorFlow Serving expects it.

    The version is written beside its place and renamed: a server that watches the folder never
    sees half of one, and older versions stay. Its `assets.extra/keras_attention.json` tells the
    library's version, the signatures, and a checksum of every other file, by which
    `load_saved_model` finds damage.

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
        warmup: requests that TensorFlow Serving runs once before it answers others, so that the
            first user does not wait: `{signature: [{argument: array}, ...]}`. Each is run here
            too, because a server does not load a version of which one fails. Needs
            tensorflow-serving-api.
        verify: inputs as `check_parity` takes them. The version is then loaded and compared
            before it gets its number: one that is not equal is not left behind.

    Returns:
        The folder of the version.

    Raises:
        ExportError: when the functions cannot be saved, or (`ParityError`) are not equal on the
            inputs of `verify`.
        ImportError: for `warmup` without tensorflow-serving-api.
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
    apis = _serving_apis() if warmup else None
    found = signatures_of(model, signatures, strict=False)
    functions = trace(found, "saved_model")
    functions.setdefault(DEFAULT, next(iter(functions.values())))
    resources = [*resources, model] if isinstance(model, keras.Model) else resources
    module = module_of(functions, resources)
    requests = [_request(functions, *given) for given in _each(warmup or {})]

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _save(module, functions, assets, temporary)
        if requests:
            _write_warmup(apis, requests, temporary / WARMUP_FILE)
        about = {"library_version": keras_attention.__version__}
        seal_saved_model(temporary, {**about, "signatures": described(functions)})
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


def _serving_apis():
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError as error:
        raise ImportError(
            "warmup needs tensorflow-serving-api: pip install 'keras-attention-layers[serving]'"
        ) from error
    return predict_pb2, prediction_log_pb2


def _each(warmup):
    """Signature, number and inputs of every request."""
    given = [(name, i, inputs) for name in warmup for i, inputs in enumerate(warmup[name])]
    if len(given) > MOST_WARMUPS:
        raise ValueError(
            f"warmup holds {len(given)} requests, TensorFlow Serving reads {MOST_WARMUPS} at most"
        )
    return given


def _request(functions, name, number, inputs):
    """A request that has been answered: its signature, and tensors by name."""
    if name not in functions:
        raise ValueError(f"warmup has no signature {name!r}: there are {', '.join(functions)}")
    specs = functions[name].structured_input_signature[1]
    where = f"warmup[{name!r}][{number}]"
    if set(inputs) != set(specs):
        raise ValueError(f"{where} must give {sorted(specs)}. Received: {sorted(inputs)}")
    try:
        tensors = {key: tf.constant(inputs[key], specs[key].dtype) for key in specs}
        functions[name](**tensors)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise ValueError(f"{where} does not run: {telling_line(error)}") from error
    return name, tensors


def _write_warmup(apis, requests, path):
    predict, log = apis
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as file:
        for name, tensors in requests:
            request = predict.PredictRequest(
                inputs={key: tf.make_tensor_proto(value) for key, value in tensors.items()}
            )
            # Which model it is for says the folder.
            request.model_spec.signature_name = name
            record = log.PredictionLog(predict_log=log.PredictLog(request=request))
            file.write(record.SerializeToString())


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
