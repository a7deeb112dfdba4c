"""Export to TFLite with built-in operators only, which every TFLite and LiteRT runtime has."""

import hashlib
import json
import os
import re
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

import keras_attention

from . import inspect
from .errors import OF_ANY_TARGET, ExportError, ParityError
from .parity import compare
from .quiet import quiet
from .signatures import described, module_of, signatures_of, trace

__all__ = ["ExportError", "ParityError", "export_tflite"]

QUANTIZATIONS = (None, "float16", "dynamic")
SHAPES = ("dynamic", "static")

ADVICE = {
    "TensorList": (
        "the loop of a Keras RNN layer, tf.scan, tf.map_fn or a TensorArray at an unknown batch "
        "size: use portable(model) for Keras layers, keras_attention's loops for others, or a "
        "fixed batch size in the InputSpec"
    ),
    "StridedSlice": "x[:, None] with two unknown sizes: use keras.ops.expand_dims",
    **OF_ANY_TARGET,
    "Cumprod": "use the exponential of a cumulative sum of logarithms",
    "Roll": "use a concatenation of two slices",
    "Regex": "strings are prepared outside: give ids to the model",
}


def export_tflite(
    model: keras.Model | Mapping,
    path: str | os.PathLike,
    *,
    signatures: Mapping | None = None,
    quantization: str | None = None,
    shapes: str = "dynamic",
    metadata: Mapping[str, bytes | str] | None = None,
    verify=None,
) -> Path:
    """Write a `.tflite` file that holds built-in operators only.

    Keras's recurrent layers inside a functional or Sequential model convert at any batch size and
    length (see `portable`). The file is written beside its place and renamed, so that a failure
    leaves an older file as it was.

    Args:
        model: a built `keras.Model`, which becomes the signature `serving_default`, or named
            functions: `{name: tf.function with input_signature | (callable, {argument:
            keras.InputSpec or tf.TensorSpec})}`, each of tensors by name to a dict of tensors.
            Weights that several of them read are stored once.
        path: the file to write.
        signatures: functions to add to those of `model`, in the second form.
        quantization: None for float32; `"float16"` stores weights in half the size; `"dynamic"`
            stores the large ones in 8 bits and computes with them.
        shapes: `"dynamic"` keeps sizes free where a spec says None; `"static"` wants every size
            to be given.
        metadata: files that travel inside, `{name: content}`: a ZIP archive behind the model,
            TFLite's associated files, which `zipfile.ZipFile(path)` reads. Always there is
            `keras_attention.json` with version, signatures and quantization.
        verify: inputs as `check_parity` takes them. The file is then run and compared before it
            gets its name: one that is not equal is not left behind.

    Returns:
        The path.

    Raises:
        ExportError: when the model does not convert, would need other than built-in operators,
            or (`ParityError`) is not equal on the inputs of `verify`.
        ValueError: for an argument that is not one of those above.

    Example:

    >>> import tempfile, keras
    >>> from keras_attention.export.tflite import export_tflite
    >>> model = keras.Sequential([keras.Input((None, 4)), keras.layers.GRU(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_tflite(model, folder + "/gru.tflite").name
    'gru.tflite'
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"quantization must be one of {', '.join(map(repr, QUANTIZATIONS))}. "
            f"Received: quantization={quantization!r}"
        )
    if shapes not in SHAPES:
        raise ValueError(
            f"shapes must be one of {', '.join(map(repr, SHAPES))}. Received: shapes={shapes!r}"
        )
    files = _files(metadata)
    path = _place(path)
    found = signatures_of(model, signatures)
    if shapes == "static":
        _require_sizes(found)
    functions = trace(found, "tflite")
    content = _convert(functions, quantization)
    _require_builtin(inspect.inspect_bytes(content, path.name))
    about = {
        "library_version": keras_attention.__version__,
        "quantization": quantization,
        "signatures": described(functions),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    # First, so that a file cut anywhere behind the model still says that more belongs to it.
    about = json.dumps(about, indent=1, ensure_ascii=False).encode()
    files = {inspect.METADATA_NAME: about, **files}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(inspect.with_metadata(content, files))
        if verify is not None:
            report = compare(signatures_of(model, signatures, copy=False), temporary, verify)
            report.require_equal(path)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _files(metadata):
    files = {}
    for name, content in (metadata or {}).items():
        if not isinstance(name, str) or not name or name == inspect.METADATA_NAME:
            raise ValueError(f"metadata cannot have a file of this name. Received: {name!r}")
        if not isinstance(content, bytes | str):
            raise ValueError(
                f"metadata[{name!r}] must be bytes or str. Received: {type(content).__name__}"
            )
        files[name] = content.encode() if isinstance(content, str) else content
    return files


def _place(path):
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path must be a file, and a folder is there. Received: path={path}")
    return path


def _require_sizes(signatures):
    for name, signature in signatures.items():
        for argument, spec in signature.arguments.items():
            if spec.shape.rank is None or None in spec.shape.as_list():
                raise ValueError(
                    f'shapes="static" needs every size: signature {name!r}, argument {argument!r} '
                    f"has shape {spec.shape}"
                )


def _require_builtin(report):
    others = report.flex + report.custom
    if others:
        raise ExportError(_not_builtin(others))


def _convert(functions, quantization):
    with tempfile.TemporaryDirectory() as folder:
        with quiet() as chatter:
            try:
                tf.saved_model.save(module_of(functions), folder, signatures=functions)
            except Exception as error:
                raise ExportError(_reason(functions, error, chatter())) from None
            try:
                return _converted(folder, list(functions), quantization)
            except Exception as error:
                reason = _reason(functions, error, chatter())
            # The converter does not say which of several functions it failed on.
            for name in functions if len(functions) > 1 else ():
                try:
                    _converted(folder, [name], quantization)
                except Exception as error:
                    reason = _reason([name], error, chatter())
                    break
        # The converter's own error holds the whole graph as text: hundreds of lines.
        raise ExportError(reason)


def _converted(folder, names, quantization):
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if quantization is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def _reason(names, error, chatter):
    """One line out of a converter's many: what it could not do, where, and what helps."""
    text = f"{error}\n{chatter}"
    where = "signature " + ", ".join(map(repr, names))
    listed = re.findall(r"^\s*(?:TF Select|Custom) ops: (.+)$", text, re.MULTILINE)
    operators = sorted({name.strip() for line in listed for name in line.split(",")})
    if operators:
        return f"{where}: {_not_builtin(operators)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line.split("error: ", 1)[1] for line in lines if "error: " in line]
    reason = (useful or lines or [type(error).__name__])[0][:300]
    return f"{where} does not convert: {reason}{_advice(text)}"


def _not_builtin(operators):
    return (
        f"needs operators that are not built into TFLite: {', '.join(operators)}"
        f"{_advice(' '.join(operators))}"
    )


def _advice(text):
    found = [advice for word, advice in ADVICE.items() if word in text]
    return "".join(f"\n  {advice}" for advice in found)
