"""Export to ONNX, which onnxruntime and others run on servers, in browsers and on phones."""

import contextlib
import importlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_attention

from .checksums import UNSEALED, sealed
from .errors import OF_ANY_TARGET, ArtifactError, ExportError, ParityError
from .inspect import METADATA_NAME
from .parity import compare, load_onnx
from .places import replacing
from .quiet import quiet
from .signatures import described, signatures_of, trace

__all__ = ["ExportError", "ParityError", "export_onnx"]

# Those that tf2onnx writes; 17 is the first with LayerNormalization.
OPSETS = range(13, 19)

# In tf2onnx's order. Left out is BackToBackOptimizer, which makes one Reshape of two and takes the
# size that the second one copies (0) from the wrong tensor; and those for quantised models.
PASSES = (
    "TransposeOptimizer",
    "ConstFoldOptimizer",
    "LoopOptimizer",
    "MergeDuplicatedNodesOptimizer",
    "ReshapeOptimizer",
    "GlobalPoolOptimizer",
    "IdentityOptimizer",
    "EinsumOptimizer",
)
NO_TEXT = "strings are not for ONNX, which lacks operators for them: take and give ids"

ADVICE = {
    **OF_ANY_TARGET,
    "TensorList": "tf.scan, tf.map_fn or a TensorArray: use keras_attention's loops",
}


def export_onnx(
    model: keras.Model | Mapping,
    path: str | os.PathLike,
    *,
    signatures: Mapping | None = None,
    opset: int = 17,
    metadata: Mapping[str, str] | None = None,
    verify=None,
) -> Path:
    """Write ONNX files, one for each function.

    Inputs and outputs keep their names, and sizes that a spec leaves open stay open. Keras's
    recurrent layers inside a functional or Sequential model convert at any batch size and length
    (see `portable`). What is written is loaded once and gets its name only when it is whole, so
    that a failure leaves what was there as it was.

    What does not convert: strings, `keras.ops.argmax` of floats, random numbers, and whatever
    TensorFlow operator tf2onnx does not know; the error names it.

    Args:
        model: a built `keras.Model`, which becomes the function `serving_default`, or named
            functions: `{name: tf.function with input_signature | (callable, {argument:
            keras.InputSpec or tf.TensorSpec})}`, each of tensors by name to a dict of tensors. A
            result may not have the name of an argument: ONNX has one space of names for both.
        path: a file `*.onnx` for one function, or a folder, which gets a file `<name>.onnx` for
            each of any number and in it the weights that this one reads. A folder that is there
            may hold ONNX files alone: it is replaced.
        signatures: functions to add to those of `model`, in the second form.
        opset: the version of ONNX's operators, 13 to 18.
        metadata: texts that travel inside each file, `{name: text}`: the model's metadata, in
            onnxruntime `session.get_modelmeta().custom_metadata_map`. Always there is
            `keras_attention.json` with version, name of the function, arguments and results, and
            a checksum of the file, by which `load_onnx` finds damage.
        verify: inputs as `check_parity` takes them. The files are then run in onnxruntime and
            compared: those that are not equal are not left behind.

    Returns:
        The path.

    Raises:
        ExportError: when a function does not convert, or (`ParityError`) is not equal on the
            inputs of `verify`.
        ValueError: for an argument that is not one of those above.
        ImportError: when tf2onnx or onnxruntime is not installed
            (`pip install 'keras-attention-layers[onnx]'`).

    Example:

    >>> import tempfile, keras
    >>> from keras_attention.export.onnx import export_onnx
    >>> model = keras.Sequential([keras.Input((None, 4)), keras.layers.GRU(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_onnx(model, folder + "/gru.onnx").name
    'gru.onnx'
    """
    if opset not in OPSETS:
        raise ValueError(
            f"opset must be from {OPSETS[0]} to {OPSETS[-1]}. Received: opset={opset!r}"
        )
    _require_packages()
    texts = _texts(metadata)
    path = Path(path)
    found = signatures_of(model, signatures, strict=False)
    _check_place(path, list(found))
    _check_arguments(found)
    functions = trace(found, "onnx")
    about = described(functions)
    _check_results(about)

    with replacing(path) as beside:
        one = path.suffix == ".onnx"
        if not one:
            beside.mkdir()
        for name, function in functions.items():
            facts = {
                "seal": UNSEALED,
                "library_version": keras_attention.__version__,
                "signature": name,
                **about[name],
            }
            facts = json.dumps(facts, indent=1, ensure_ascii=False)
            file = beside if one else beside / f"{name}.onnx"
            file.write_bytes(_converted(name, function, opset, {METADATA_NAME: facts, **texts}))
            _require_loads(name, file)
        if verify is not None:
            report = compare(signatures_of(model, signatures, copy=False), beside, verify)
            report.require_equal(path)
    return path


def _require_packages():
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        try:
            package = importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"export to ONNX needs {name}: pip install 'keras-attention-layers[onnx]'"
            ) from error
    version = package.__version__
    if tuple(map(int, version.split(".")[:2])) < (1, 17):
        # Older ones fail on NumPy 2, with an error that names neither (keras#21346).
        raise ImportError(f"export to ONNX needs tf2onnx 1.17 or newer, {version} is installed")


def _texts(metadata):
    texts = dict(metadata or {})
    for name, text in texts.items():
        if not isinstance(name, str) or not name or name == METADATA_NAME:
            raise ValueError(f"metadata cannot have a text of this name. Received: {name!r}")
        if not isinstance(text, str):
            raise ValueError(f"metadata[{name!r}] must be str. Received: {type(text).__name__}")
    return texts


def _check_place(path, names):
    if path.suffix == ".onnx":
        if path.is_dir():
            raise ValueError(f"path must be a file, and a folder is there. Received: path={path}")
        if len(names) > 1:
            raise ValueError(
                f"path must be a folder, for there is one file for each of {', '.join(names)}. "
                f"Received: path={path}"
            )
        return
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"path must end in .onnx or be a folder, and a file is there. Received: path={path}"
        )
    others = sorted(p.name for p in path.glob("*") if p.suffix != ".onnx" or p.is_dir())
    if others:
        raise ValueError(
            f"path must be a folder for ONNX files alone, and it holds {', '.join(others[:3])}. "
            f"Received: path={path}"
        )
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"signature {name!r} cannot be the name of a file")


def _check_arguments(signatures):
    for name, signature in signatures.items():
        for argument, spec in signature.arguments.items():
            where = f"signature {name!r}, argument {argument!r}"
            if spec.dtype == tf.string:
                raise ExportError(f"{where}: {NO_TEXT}")
            if spec.shape.rank is None:
                # tf2onnx would take it for a number.
                raise ExportError(f"{where}: the number of axes must be known")


def _check_results(about):
    for name, parts in about.items():
        both = sorted(parts["inputs"].keys() & parts["outputs"].keys())
        if both:
            raise ExportError(
                f"signature {name!r}: result {both[0]!r} has the name of an argument, and ONNX has "
                f"one space of names for both: call it 'next_{both[0]}'"
            )
        for result, spec in parts["outputs"].items():
            if spec["dtype"] == "string":
                raise ExportError(f"signature {name!r}, result {result!r}: {NO_TEXT}")


def _converted(name, function, opset, texts) -> bytes:
    """The content of the file of one function."""
    import onnx
    from tf2onnx import optimizer, tf_loader, tfonnx

    arguments = sorted(function.structured_input_signature[1])
    results = function.structured_outputs
    # The traced function takes its arguments in the order of their names, then what it captured.
    inputs = dict(zip((tensor.name for tensor in function.inputs), arguments, strict=False))
    outputs = {tensor.name: result for result, tensor in results.items()}
    captured = {
        tensor.name: value
        for tensor, value in zip(
            function.inputs[len(arguments) :], function.captured_inputs, strict=True
        )
        if tensor.dtype != tf.resource
    }
    with quiet(), _errors_of_tf2onnx() as errors:
        try:
            graph_def = tf_loader.from_function(function, [*inputs, *captured], list(outputs))
            with tf.device("/cpu:0"), tf.Graph().as_default() as graph:
                tf.import_graph_def(graph_def, name="")
                converted = tfonnx.process_tf_graph(
                    graph,
                    opset=opset,
                    input_names=[*inputs, *captured],
                    output_names=list(outputs),
                    tensors_to_rename={**inputs, **outputs},
                    custom_op_handlers={"Erfc": (_erfc, []), "SelectV2": (_where, [])},
                )
                passes = {kind: getattr(optimizer, kind) for kind in PASSES}
                converted = optimizer.optimize_graph(converted, optimizers=passes)
                proto = converted.make_model(name)
            for captured_name, value in captured.items():
                _freeze(proto.graph, captured_name, value)
            _name_sizes(proto.graph)
            del proto.metadata_props[:]
            onnx.checker.check_model(proto)
            # Messages of protobuf may stand one after the other. With the texts in front, a file
            # that is cut still says in its first bytes that more belongs to it.
            head = onnx.ModelProto()
            onnx.helper.set_model_props(head, texts)
            content = sealed(head.SerializeToString() + proto.SerializeToString())
        except Exception as error:
            errors = errors or [str(error) or type(error).__name__]
    if errors:
        raise ExportError(_reason(name, errors))
    return content


@contextlib.contextmanager
def _errors_of_tf2onnx() -> Iterator[list[str]]:
    """What tf2onnx logs as errors: it goes on after them, and what it then gives cannot run."""
    errors: list[str] = []
    logger, handler = logging.getLogger("tf2onnx"), logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(_told(record))
    kept = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.setLevel(kept[0])
        logger.propagate = kept[1]


def _told(record):
    """The message of a log record without the Python function in it, but with its exception."""
    text = record.getMessage().splitlines()[0].split(" (fct=")[0]
    return f"{text}: {record.exc_info[1]}" if record.exc_info else text


def _erfc(graph, node, name, args):
    """erfc(x) as 1 - erf(x), for ONNX has erf alone; Keras's exact gelu reads it."""
    import onnx
    from tf2onnx import utils

    (x,), (result,) = node.input, node.output
    dtype, shape = graph.get_dtype(result), graph.get_shape(result)
    graph.remove_node(name)
    erf = graph.make_node("Erf", [x], dtypes=[dtype], shapes=[shape])
    one = np.ones((), onnx.helper.tensor_dtype_to_np_dtype(dtype))
    one = graph.make_const(utils.make_name(name), one)
    graph.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        outputs=[result],
        name=name,
        dtypes=[dtype],
        shapes=[shape],
    )


def _where(graph, node, name, args):
    """A choice as Where, so that what is not chosen is not read.

    tf2onnx makes products and a sum of it, in which NaN in padding goes on (tensorflow-onnx#1988).
    """
    import onnx
    from tf2onnx.onnx_opset.controlflow import Select

    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    if graph.get_dtype(node.output[0]) in floats:
        node.type = "Where"
    else:  # onnxruntime has no Where of booleans.
        Select.version_9(graph, node)


def _freeze(graph, name, value):
    """Turn an input into a constant: a tensor that the function closed over."""
    import onnx

    (given,) = [entry for entry in graph.input if entry.name == name]
    graph.input.remove(given)
    graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), name))


def _name_sizes(graph):
    """Names for open sizes, by which runtimes fix them; tf2onnx counts them through the process."""
    for entry in (*graph.input, *graph.output):
        for axis, size in enumerate(entry.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.dim_param = f"{entry.name}_{axis}"


def _require_loads(name, file):
    try:
        load_onnx(file)
    except ArtifactError as error:
        reason = str(error).removeprefix(f"{file}: ").replace(str(file), "the file")
        raise ExportError(f"signature {name!r}: {reason}") from None


def _reason(name, errors):
    unknown = {op for e in errors for op in re.findall(r"op \[.*: (\w+)\] is not supported", e)}
    if unknown:
        operators = ", ".join(sorted(unknown))
        advice = [advice for word, advice in ADVICE.items() if word in operators]
        return "\n  ".join(
            [f"signature {name!r}: needs operators that ONNX does not have: {operators}", *advice]
        )
    return f"signature {name!r} does not convert: {errors[0].splitlines()[0][:300]}"
