"""Export to TFLite with built-in operators only, which every TFLite and LiteRT runtime has."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

import keras_attention

from . import inspect
from .apart import run_apart
from .conversion import CALIBRATED, QUANTIZATIONS, convert, not_builtin
from .errors import ArtifactError, ExportError, ParityError
from .parity import arrays_of, calls_of, compare
from .places import replacing
from .signatures import described, signatures_of, trace

__all__ = ["ExportError", "ParityError", "export_tflite"]

SHAPES = ("dynamic", "static")


def export_tflite(
    model: keras.Model | Mapping,
    path: str | os.PathLike,
    *,
    signatures: Mapping | None = None,
    quantization: str | None = None,
    shapes: str | Sequence[int] = "dynamic",
    representative_data=None,
    metadata: Mapping[str, bytes | str] | None = None,
    verify=None,
) -> Path:
    """Write a `.tflite` file that holds built-in operators only.

    Keras's recurrent layers inside a functional or Sequential model convert at any batch size and
    length (see `portable`). The file is written beside its place and renamed, so that a failure
    leaves an older file as it was.

    | `quantization` | weights | computes in | size | needs |
    |---|---|---|---|---|
    | None | float32 | float32 | 1 | |
    | `"float16"` | float16 | float32 | 1/2 | |
    | `"dynamic"` | int8, the large ones | int8 and float32 | 1/4 | |
    | `"int8"` | int8 | int8 | 1/4 | examples |
    | `"int16x8"` | int8 | int16 | 1/4 | examples, floats as inputs |
    | `"weight_only_int8"` | int8, embeddings float32 | float32 | 1/4 and more | ai-edge-quantizer |
    | `"weight_only_int4"` | int4, embeddings float32 | float32 | 1/8 and more | ai-edge-quantizer |

    Inputs and outputs stay what they are in the model: ids are int32, values float32.

    Args:
        model: a built `keras.Model`, which becomes the signature `serving_default`, or named
            functions: `{name: tf.function with input_signature | (callable, {argument:
            keras.InputSpec or tf.TensorSpec})}`, each of tensors by name to a dict of tensors.
            Weights that several of them read are stored once.
        path: the file to write; with length buckets a folder of files, `{length}.tflite`.
        signatures: functions to add to those of `model`, in the second form.
        quantization: as in the table.
        shapes: `"dynamic"` keeps sizes free where a spec says None; `"static"` wants every size
            to be given; a list of lengths makes one file for each, in which a free first size is
            1 and every other free one is the length: what browsers and some delegates need.
        representative_data: examples that ranges of integers are fitted to, a hundred or so, in
            the form of `verify`: of every signature, of the sizes that will be used.
        metadata: files that travel inside, `{name: content}`: a ZIP archive behind the model,
            TFLite's associated files, which `zipfile.ZipFile(path)` reads. Always there is
            `keras_attention.json` with version, signatures and quantization.
        verify: inputs as `check_parity` takes them. The file is then run and compared before it
            gets its name: one that is not equal is not left behind. Of length buckets each is
            run on the inputs that have its sizes. In int8 and weight_only_int4 any error is
            allowed, and a large one is a warning.

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
    lengths = _lengths(shapes)
    files = _files(metadata)
    path = _place(path, folder=lengths is not None)
    # A bucket has a batch size, with which loops convert that cannot be replaced.
    found = signatures_of(model, signatures, strict=None if lengths is None else False)
    examples = _examples(representative_data, found, quantization)
    original = signatures_of(model, signatures, copy=False)
    verify = None if verify is None else calls_of(verify, original)
    if shapes == "static":
        _require_sizes(found)

    def write(place, found):
        functions = trace(found, "tflite", calibrated=quantization in CALIBRATED)
        fit = _of_these_sizes(examples, found, "examples")
        content = convert(functions, quantization, fit)
        _require_builtin(inspect.inspect_bytes(content, path.name))
        about = {
            "library_version": keras_attention.__version__,
            "quantization": quantization,
            "signatures": described(functions),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        # First, so that a file cut anywhere behind the model still says that more belongs to it.
        about = json.dumps(about, indent=1, ensure_ascii=False).encode()
        place.write_bytes(inspect.with_metadata(content, {inspect.METADATA_NAME: about, **files}))
        for name, [call, *_] in fit.items():
            try:
                # Apart: some kernels of integers end the process where they should say no.
                run_apart(place, call, name)
            except (ArtifactError, ValueError) as error:
                reason = str(error).removeprefix(f"{place}: ")
                raise ExportError(
                    f"signature {name!r} cannot run in these integers: {reason}; "
                    'use quantization="dynamic"'
                ) from None
        if verify is not None:
            report = compare(original, place, _of_these_sizes(verify, found, "inputs of verify"))
            report.require_equal(path)
            report.warn_of_far(path)

    with replacing(path) as beside:
        if lengths is None:
            write(beside, found)
        else:
            beside.mkdir()
            for length in lengths:
                sized = {name: of.with_length(length) for name, of in found.items()}
                write(beside / f"{length}.tflite", sized)
    return path


def _lengths(shapes):
    """Those of the buckets; None where there is one file."""
    if shapes in SHAPES:
        return None
    if not isinstance(shapes, str) and shapes and all(type(n) is int and n > 0 for n in shapes):
        return sorted(set(shapes))
    raise ValueError(
        f"shapes must be one of {', '.join(map(repr, SHAPES))} or a list of lengths. "
        f"Received: shapes={shapes!r}"
    )


def _examples(given, signatures, quantization):
    """`{signature: examples}`, empty where no ranges are fitted."""
    if quantization not in CALIBRATED:
        if given is not None:
            raise ValueError(
                f"representative_data is for quantization in {CALIBRATED}. Received: "
                f"quantization={quantization!r}"
            )
        return {}
    if given is None:
        raise ValueError(
            f"quantization={quantization!r} needs representative_data, a hundred examples or so of "
            "the inputs, which the ranges of integers are fitted to"
        )
    examples = calls_of(given, signatures)
    lacking = sorted(set(signatures) - set(examples))
    if lacking:
        raise ValueError(f"representative_data lacks examples of {', '.join(map(repr, lacking))}")
    return {
        name: [arrays_of(call, signatures[name].sizes, name) for call in calls]
        for name, calls in examples.items()
    }


def _of_these_sizes(calls, signatures, what):
    """The calls, by signature, whose arrays are of sizes that the arguments take."""
    fit = {name: [call for call in calls[name] if signatures[name].takes(call)] for name in calls}
    for name, found in fit.items():
        if not found:
            raise ValueError(f"signature {name!r}: no {what} of {signatures[name].sizes}")
    return fit


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


def _place(path, folder):
    path = Path(path)
    if path.is_dir() and not folder:
        raise ValueError(f"path must be a file, and a folder is there. Received: path={path}")
    if path.is_file() and folder:
        raise ValueError(f"path must be a folder, and a file is there. Received: path={path}")
    if folder and path.is_dir() and any(p.suffix != ".tflite" for p in path.iterdir()):
        raise ValueError(f"path must be a folder of .tflite files alone. Received: path={path}")
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
        raise ExportError(not_builtin(others))
