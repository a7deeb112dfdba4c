"""TFLite files that read text: TensorFlow Text's operators beside the built-in ones.

Such a file runs where these operators are linked: in Python by `load_text_tflite`, in C++, and in
an app that builds its runtime with them. The file that every runtime takes is that of
`export_tflite`, of ids.
"""

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import keras_attention

from . import inspect
from .conversion import convert
from .errors import ArtifactError, ExportError, ParityError
from .parity import TOLERANCES, TFLiteRunner, arrays_of
from .places import replacing
from .quiet import quiet
from .signatures import described, signatures_of, trace

QUANTIZATIONS = (None, "float16", "dynamic")
# Those of TensorFlow Text, and one that it brings along, which run in TFLite. Others convert as
# well, and are missed only when the file runs.
WITH_KERNEL = {
    "FastWordpieceTokenizeWithOffsets",
    "RaggedTensorToTensor",
    "TFText>ByteSplitByOffsets",
    "TFText>ByteSplitWithOffsets",
    "TFText>WhitespaceTokenizeWithOffsetsV2",
}


def export_text_tflite(
    functions: Mapping,
    path: str | os.PathLike,
    *,
    quantization: str | None = None,
    metadata: Mapping[str, str] | None = None,
    verify: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """Write a `.tflite` whose functions may use TensorFlow Text.

    Those of its operators that have a kernel in TFLite, `ByteSplitter` and
    `FastWordpieceTokenizer` among them, are taken; any other operator that is not built in is
    refused by its name: regular expressions and Unicode normalisation have no kernel.

    Args:
        functions: named functions, as `export_tflite` takes them.
        path: the file to write; beside its place first, then renamed.
        quantization: None, `"float16"` or `"dynamic"`.
        metadata: texts that travel inside, `{name: content}`.
        verify: `{signature: [inputs]}`. The file is run on these and compared with its functions
            before it gets its name: integers and strings equal, floats within `TOLERANCES`.

    Returns:
        The path.

    Raises:
        ExportError: when a function does not convert, needs an operator without a kernel, or
            (`ParityError`) the file is not equal.
        ValueError: for another kind of quantization.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"quantization must be one of {', '.join(map(repr, QUANTIZATIONS))} in a file that "
            f"reads text. Received: quantization={quantization!r}"
        )
    path = Path(path)
    found = signatures_of(functions)
    traced = trace(found, "tflite")
    content = convert(traced, quantization, custom_operators=True)
    report = inspect.inspect_bytes(content, path.name)
    lacking = sorted({*report.flex, *report.custom} - WITH_KERNEL)
    if lacking:
        raise ExportError(f"{path}: operators without a kernel in TFLite: {', '.join(lacking)}")
    about = {
        "library_version": keras_attention.__version__,
        "quantization": quantization,
        "signatures": described(traced),
    }
    files = {inspect.METADATA_NAME: json.dumps(about, indent=1), **(metadata or {})}
    files = {name: text.encode() for name, text in files.items()}
    with replacing(path) as beside:
        beside.write_bytes(inspect.with_metadata(content, files))
        for name, calls in (verify or {}).items():
            function, run = found[name].concrete(), load_text_tflite(beside, name)
            for inputs in calls:
                _require_equal(function, run, inputs, TOLERANCES[quantization])
    return path


def load_text_tflite(path: str | os.PathLike, signature: str) -> TFLiteRunner:
    """Load one signature of a `.tflite` that reads text, to be run on many inputs.

    Args:
        path: the file.
        signature: its name.

    Returns:
        A `TFLiteRunner`: `runner({name: array}) -> {name: array}`; strings are bytes.

    Raises:
        ArtifactError: for a file that is not sound, or cannot be loaded.
        ValueError: for an unknown signature.
        ImportError: without tensorflow-text and ai-edge-litert.
    """
    content, _ = inspect.read_tflite(path)
    report = inspect.inspect_bytes(content, path)
    if signature not in report.signatures:
        raise ValueError(
            f"{path}: has the signatures {', '.join(sorted(report.signatures))}. "
            f"Received: signature={signature!r}"
        )
    try:
        runtime = importlib.import_module("ai_edge_litert.interpreter")
        text = importlib.import_module("tensorflow_text")
    except ImportError as error:
        raise ImportError(
            "a file that reads text runs with tensorflow-text and ai-edge-litert: "
            "pip install 'keras-attention-layers[text,litert]'"
        ) from error
    try:
        with quiet():
            interpreter = runtime.InterpreterWithCustomOps(
                model_content=content,
                custom_op_registerers=text.tflite_registrar.SELECT_TFTEXT_OPS,
            )
            return TFLiteRunner(interpreter, signature, report, path)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ArtifactError(f"{path}: cannot be loaded ({reason})") from error


def _require_equal(function, run, inputs, tolerance):
    import tensorflow as tf

    arrays = arrays_of(inputs, run.inputs, run.signature)
    wanted = function(**{name: tf.constant(value) for name, value in arrays.items()})
    found = run(inputs)
    for name, value in wanted.items():
        value, other = value.numpy(), found[name]
        if value.shape == other.shape and value.dtype.kind == "f":
            bound = tolerance * np.abs(value).max(initial=0.0)
            equal = bool(np.all(np.abs(value - other) <= bound))
        else:
            equal = np.array_equal(value, other)
        if not equal:
            raise ParityError(f"signature {run.signature!r}: {name} does not equal the function's")
