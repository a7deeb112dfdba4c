"""What a `.tflite` file holds, read without running it and without TensorFlow."""

import importlib
import io
import json
import os
import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from .checksums import MARK, UNSEALED, is_sealed, sealed
from .errors import ArtifactError

METADATA_NAME = "keras_attention.json"
IDENTIFIER = b"TFL3"
# What a file of this library holds besides the model: damage leaves one of them.
_WORDS = (METADATA_NAME.encode(), MARK.encode())
_CUT = 30 + len(METADATA_NAME)  # bytes of the archive at most, in a file that ends before its name
_MOST_METADATA = 2**28  # bytes; an archive may claim far more than it is large


class TFLiteReport(NamedTuple):
    """What `inspect_tflite` found.

    Attributes:
        signatures: `{name: {"inputs": {name: (shape, dtype)}, "outputs": the same}}`, with None in
            a shape where the size is free.
        operators: `{subgraph: Counter of operators}`: the bodies of loops are subgraphs too.
        totals: the operators of all subgraphs together.
        flex: names of TensorFlow operators ("Flex"), which need a runtime of their own.
        custom: names of the other operators that are not built in.
        bytes: size of the file.
        weights_bytes: size of the constants in it.
        metadata: `{name: content}` of the files that travel inside it.
        sealed: whether it carries the checksum of this library; a wrong one is an error.
    """

    signatures: dict[str, dict[str, dict[str, tuple[tuple[int | None, ...], str]]]]
    operators: dict[str, Counter]
    totals: Counter
    flex: list[str]
    custom: list[str]
    bytes: int
    weights_bytes: int
    metadata: dict[str, bytes]
    sealed: bool


def inspect_tflite(path: str | os.PathLike) -> TFLiteReport:
    """Read signatures, operators, sizes and metadata of a TFLite file.

    Args:
        path: the file. It is checked first, so that a damaged one gives an error here and never
            reaches an interpreter, which may crash on it.

    Returns:
        A `TFLiteReport`.

    Raises:
        ArtifactError: for a file that is missing, damaged, or not a TFLite model.

    Example:

    >>> from keras_attention.export.inspect import inspect_tflite
    >>> try:
    ...     inspect_tflite("missing.tflite")
    ... except ValueError as error:
    ...     print(error)
    missing.tflite: no such file
    """
    return inspect_bytes(read_tflite(path)[0], path)


def inspect_bytes(content: bytes, name: str | os.PathLike) -> TFLiteReport:
    """`inspect_tflite` of a file's content; `name` is what errors call it."""
    schema = _schema()
    model = _parsed(schema, content, name)
    operators: dict[str, Counter] = {}
    for index, graph in enumerate(model.subgraphs):
        label = _text(graph.name) or f"subgraph {index}"
        if label in operators:
            label = f"{label} ({index})"
        operators[label] = Counter(
            _operator(schema, model.operatorCodes[op.opcodeIndex]) for op in graph.operators or []
        )
    totals = sum(operators.values(), Counter())
    builtin = set(_constants(schema.BuiltinOperator).values())
    return TFLiteReport(
        signatures=_signatures(schema, model),
        operators=operators,
        totals=totals,
        flex=sorted(op for op in totals if op.startswith("Flex")),
        custom=sorted(op for op in totals if op not in builtin and not op.startswith("Flex")),
        bytes=len(content),
        weights_bytes=sum(_size(buffer) for buffer in model.buffers),
        metadata=_metadata(content, name),
        sealed=is_sealed(content),
    )


def read_tflite(path: str | os.PathLike) -> tuple[bytes, bool]:
    """The content of a TFLite file, and whether it carries the checksum of this library.

    Any change to such a file is found here. The structure of others is checked by
    `inspect_bytes`.

    Raises:
        ArtifactError: for a file that is missing, of another kind, or not what was exported.
    """
    path = Path(path)
    if path.is_dir():
        raise ArtifactError(f"{path}: is a folder, not a TFLite file")
    content = read_file(path)
    if content[:4] == b"PK\x03\x04":
        raise ArtifactError(f"{path}: is a ZIP archive, not a TFLite file")
    if content[4:8] != IDENTIFIER:
        raise ArtifactError(f"{path}: is not a TFLite file (no {IDENTIFIER.decode()} at byte 4)")
    ours = any(word in content for word in _WORDS)
    if ours and not is_sealed(content):
        raise ArtifactError(f"{path}: is damaged (it is not what was exported)")
    return content, ours


def read_file(path: str | os.PathLike) -> bytes:
    """The content of a file that has some.

    Raises:
        ArtifactError: when it is missing, empty or unreadable.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None
    if not content:
        raise ArtifactError(f"{path}: is empty")
    return content


def described_by(report: TFLiteReport) -> dict[str, Any]:
    """What the exporter wrote about the file (`keras_attention.json`); {} for a foreign file."""
    return json.loads(report.metadata.get(METADATA_NAME, b"{}"))


def with_metadata(model: bytes, metadata: dict[str, bytes]) -> bytes:
    """The flatbuffer with files behind it, as TFLite's associated files: an appended ZIP archive.

    Stored without compression, as TFLite's own readers want them, and without the time of
    writing, so that the same model gives the same file. The archive's comment, which ends the
    file, is a checksum of all that stands before.
    """
    archive = io.BytesIO(model)
    # Appended, so that offsets count from the begin of the file, as readers of TFLite's expect.
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as files:
        for name, content in metadata.items():
            files.writestr(zipfile.ZipInfo(name), content)
        files.comment = UNSEALED.encode()
    return sealed(archive.getvalue())


def _metadata(content, name):
    if content.rfind(b"PK\x05\x06", -(22 + 0xFFFF)) < 0:
        if b"PK\x03\x04" in content[-_CUT:]:
            raise ArtifactError(f"{name}: is truncated (the files inside it have no end)")
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as files:
            if sum(entry.file_size for entry in files.infolist()) > _MOST_METADATA:
                raise ValueError(f"they are larger than {_MOST_METADATA >> 20} MiB")
            return {entry: files.read(entry) for entry in files.namelist()}
    except Exception as error:
        # Damaged archives fail in many ways: zlib, struct, decoding and zipfile's own errors.
        raise ArtifactError(f"{name}: the files inside it are damaged ({error})") from None


def _schema():
    try:
        return importlib.import_module("ai_edge_litert.schema_py_generated")
    except ImportError:
        return importlib.import_module("tensorflow.lite.python.schema_py_generated")


def _parsed(schema, content, name):
    """The model as objects. Reading all of it is the check: every offset has to lead to data."""
    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        _check_references(schema, model, len(content))
    except (
        struct.error, IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError,
        MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise ArtifactError(
            f"{name}: is not a sound TFLite file, truncated or damaged ({_short(error)})"
        ) from None
    return model


def _check_references(schema, model, size):
    """What an interpreter follows without looking: numbers that name another part of the file."""
    if not model.subgraphs or not model.operatorCodes or not model.buffers:
        raise ValueError("it has no subgraph")

    def check(index, collection, what, least=0):
        if not least <= index < len(collection):
            raise ValueError(f"{what} {index} does not exist")

    for buffer in model.buffers:
        if buffer.offset > 1 and buffer.offset + buffer.size > size:
            raise ValueError("a weight lies beyond the end")
    for graph in model.subgraphs:
        tensors = graph.tensors if graph.tensors is not None else []
        for tensor in tensors:
            check(tensor.buffer, model.buffers, "buffer")
        for index in (*_list(graph.inputs), *_list(graph.outputs)):
            check(index, tensors, "tensor")
        for operator in _list(graph.operators):
            check(operator.opcodeIndex, model.operatorCodes, "operator")
            for index in (*_list(operator.inputs), *_list(operator.outputs)):
                check(index, tensors, "tensor", least=-1)  # -1: an optional input left out
            options = operator.builtinOptions
            for field in (
                "condSubgraphIndex", "bodySubgraphIndex", "thenSubgraphIndex",
                "elseSubgraphIndex", "initSubgraphIndex",
            ):  # fmt: skip
                if hasattr(options, field):
                    check(getattr(options, field), model.subgraphs, "subgraph")
    for signature in _list(model.signatureDefs):
        check(signature.subgraphIndex, model.subgraphs, "subgraph")
        tensors = _list(model.subgraphs[signature.subgraphIndex].tensors)
        for entry in (*_list(signature.inputs), *_list(signature.outputs)):
            check(entry.tensorIndex, tensors, "tensor")


def _list(values):
    return [] if values is None else values


def _short(error):
    return str(error).splitlines()[0][:80] if str(error) else type(error).__name__


def _signatures(schema, model):
    types = _constants(schema.TensorType)

    def of(entries, tensors):
        found = {}
        for entry in _list(entries):
            tensor = tensors[entry.tensorIndex]
            shape = tensor.shapeSignature if tensor.shapeSignature is not None else tensor.shape
            sizes = tuple(None if size < 0 else int(size) for size in _list(shape))
            found[_text(entry.name)] = (
                sizes,
                types.get(tensor.type, f"type {tensor.type}").lower(),
            )
        return found

    return {
        _text(signature.signatureKey): {
            "inputs": of(signature.inputs, model.subgraphs[signature.subgraphIndex].tensors),
            "outputs": of(signature.outputs, model.subgraphs[signature.subgraphIndex].tensors),
        }
        for signature in _list(model.signatureDefs)
    }


def _operator(schema, code):
    # Old files hold the number in a field of one byte, newer ones in another.
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    if number == schema.BuiltinOperator.CUSTOM:
        return _text(code.customCode) or "CUSTOM"
    return _constants(schema.BuiltinOperator).get(number, f"unknown operator {number}")


def _constants(enumeration):
    return {v: k for k, v in vars(enumeration).items() if isinstance(v, int)}


def _text(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else (value or "")


def _size(buffer):
    return buffer.size if buffer.data is None else len(buffer.data)
