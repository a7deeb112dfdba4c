"""What an ONNX file holds, read without running it."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .checksums import MARK, is_sealed
from .errors import ArtifactError
from .inspect import METADATA_NAME, read_file

# A file of this library says so in its first bytes, in several words: damage leaves one of them.
# What another tool has written anew begins otherwise, whatever it kept, and is foreign.
_HEAD = 300
_WORDS = (METADATA_NAME.encode(), MARK.encode(), b'"library_version"')
_SHORTEST = 32  # bytes; a model needs more, and one of ours that is cut here says nothing yet
# ONNX's names of types, where they are not NumPy's.
TYPES = {"float": "float32", "double": "float64"}


class OnnxReport(NamedTuple):
    """What `inspect_onnx` found.

    Attributes:
        signature: the name of the function.
        inputs: `{name: (shape, dtype)}`, with None in a shape where the size is free.
        outputs: the same of the outputs.
        operators: how often each operator is there, in the bodies of loops too.
        opset: the version of the operators by their domain; ONNX's own is `""`.
        bytes: size of the file.
        weights_bytes: size of the constants in it.
        metadata: `{name: text}` of the texts that travel inside it.
        sealed: whether it carries the checksum of this library; a wrong one is an error.
    """

    signature: str
    inputs: dict[str, tuple[tuple[int | None, ...], str]]
    outputs: dict[str, tuple[tuple[int | None, ...], str]]
    operators: Counter
    opset: dict[str, int]
    bytes: int
    weights_bytes: int
    metadata: dict[str, str]
    sealed: bool


def inspect_onnx(path: str | os.PathLike) -> OnnxReport:
    """Read the function, operators, sizes and metadata of an ONNX file.

    Args:
        path: the file.

    Raises:
        ArtifactError: for a file that is missing, damaged, or not an ONNX model.
        ImportError: when onnx is not installed.
    """
    content, sealed = read_onnx(path)
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "reading ONNX needs onnx: pip install 'keras-attention-layers[onnx]'"
        ) from error
    try:
        model = onnx.ModelProto.FromString(content)
        if not model.graph.output:
            raise ValueError("it has no outputs")
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        graphs = [*_graphs(model.graph), *model.functions]
        constants = [tensor for graph in graphs for tensor in _constants(graph)]
        known = {tensor.name for tensor in model.graph.initializer}
        return OnnxReport(
            signature=signature_in(metadata),
            inputs=_specs(onnx, (e for e in model.graph.input if e.name not in known)),
            outputs=_specs(onnx, model.graph.output),
            operators=Counter(node.op_type for graph in graphs for node in graph.node),
            opset={entry.domain: entry.version for entry in model.opset_import},
            bytes=len(content),
            weights_bytes=sum(tensor.ByteSize() for tensor in constants),
            metadata=metadata,
            sealed=sealed,
        )
    except Exception as error:
        # Damage shows in many ways: protobuf's own errors, text that is none, unknown numbers.
        reason = str(error).splitlines()[0][:80] if str(error) else type(error).__name__
        raise ArtifactError(f"{path}: is not a sound ONNX file ({reason})") from None


def read_onnx(path: str | os.PathLike) -> tuple[bytes, bool]:
    """The content of an ONNX file, and whether it carries the checksum of this library.

    Raises:
        ArtifactError: for a file that is missing or empty, or that is not what was exported.
    """
    content = read_file(path)
    if len(content) < _SHORTEST:
        raise ArtifactError(f"{path}: is truncated, or not an ONNX file")
    ours = any(word in content[:_HEAD] for word in _WORDS)
    if ours and not is_sealed(content):
        raise ArtifactError(f"{path}: is damaged (it is not what was exported)")
    return content, ours


def onnx_files(path: str | os.PathLike) -> dict[str, Path]:
    """The files of an export by the names of their functions: those of a folder, or one."""
    path = Path(path)
    if path.is_dir():
        return {file.stem: file for file in sorted(path.glob("*.onnx"))}
    return {path.stem: path}


def signature_in(metadata: dict[str, str]) -> str:
    """The name of the function, by the texts that travel inside its file."""
    return json.loads(metadata.get(METADATA_NAME, "{}")).get("signature", "serving_default")


def _graphs(graph) -> Iterator:
    """The graph and, inside its operators, those of loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    yield from _graphs(inner)


def _constants(graph) -> Iterator:
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (attribute.t for attribute in node.attribute)


def _specs(onnx, entries):
    def size(dimension):
        return dimension.dim_value if dimension.HasField("dim_value") else None

    def spec(tensor):
        name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        return tuple(map(size, tensor.shape.dim)), TYPES.get(name, name)

    return {entry.name: spec(entry.type.tensor_type) for entry in entries}
