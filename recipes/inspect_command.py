"""`keras-attention inspect`: what an artifact of any kind holds, and whether it is undamaged."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import RunError


def inspect(path: Path, as_json: bool) -> None:
    """Print what a `.tflite`, a SavedModel, an `.onnx` file or a folder of those holds."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_attention.export.quiet import quiet

    with quiet():  # A SavedModel is read by TensorFlow, which announces itself.
        found = _found(path)
    if as_json:
        print(json.dumps(found, default=str))
    else:
        _print(path, found)


def _found(path: Path) -> dict[str, Any]:
    if path.suffix == ".onnx" or any(path.glob("*.onnx")):
        return _of_onnx(path)
    if not path.is_dir():
        return _of_tflite(path)
    if any(path.glob("saved_model.pb")) or any(path.glob("*/saved_model.pb")):
        return _of_saved_model(path)
    raise RunError(f"{path} is a folder with neither a SavedModel nor .onnx files")


def _of_tflite(path):
    from keras_attention.export.inspect import inspect_tflite

    report = inspect_tflite(path)
    return {
        "format": "tflite",
        "bytes": report.bytes,
        "weights_bytes": report.weights_bytes,
        "sealed": report.sealed,
        "flex": report.flex,
        "custom": report.custom,
        "operators": {name: dict(counts) for name, counts in report.operators.items()},
        "signatures": report.signatures,
        "files": {name: len(content) for name, content in report.metadata.items()},
    }


def _of_onnx(path):
    from keras_attention.export.inspect_onnx import inspect_onnx, onnx_files

    reports = {name: inspect_onnx(file) for name, file in onnx_files(path).items()}
    if path.is_file():
        reports = {report.signature: report for report in reports.values()}
    return {
        "format": "onnx",
        "bytes": sum(report.bytes for report in reports.values()),
        "weights_bytes": sum(report.weights_bytes for report in reports.values()),
        "sealed": all(report.sealed for report in reports.values()),
        "opset": {k: v for report in reports.values() for k, v in report.opset.items()},
        "operators": {name: dict(report.operators) for name, report in reports.items()},
        "signatures": {
            name: {"inputs": report.inputs, "outputs": report.outputs}
            for name, report in reports.items()
        },
        # Each file of an export carries the same ones.
        "files": {
            name: len(text.encode())
            for report in reports.values()
            for name, text in report.metadata.items()
        },
    }


def _of_saved_model(path):
    from keras_attention.export.inspect_saved_model import inspect_saved_model

    report = inspect_saved_model(path)
    return {
        "format": "saved_model",
        "version": str(report.version),
        "bytes": report.bytes,
        "weights_bytes": report.weights_bytes,
        "sealed": report.sealed,
        "operators": {"saved_model": dict(report.operators)},
        "signatures": report.signatures,
        "assets": report.assets,
        "files": report.files,
    }


def _print(path: Path, found: Mapping[str, Any]) -> None:
    counts = found["operators"].values()
    graphs = "1 graph" if len(counts) == 1 else f"{len(counts)} graphs"
    print(
        f"{found.get('version', path)}: {found['bytes']:,} bytes, {found['weights_bytes']:,} of "
        f"them weights; {sum(sum(c.values()) for c in counts)} operators in {graphs}"
    )
    right = "right, this is what was exported" if found["sealed"] else "none, this is foreign"
    print(f"checksum: {right}")
    for name, counts in found["operators"].items():
        listed = ", ".join(f"{op} {n}" for op, n in sorted(counts.items()))
        print(f"  {name}: {listed}")
    for kind in ("flex", "custom"):
        if kind in found:
            print(f"{kind} operators: {', '.join(found[kind]) or 'none'}")
    if "opset" in found:
        versions = (f"{domain or 'ai.onnx'} {v}" for domain, v in sorted(found["opset"].items()))
        print(f"operator sets: {', '.join(versions)}")
    for name, signature in found["signatures"].items():
        print(f"signature {name}")
        for side in ("inputs", "outputs"):
            for tensor, (shape, dtype) in signature[side].items():
                sizes = "of any shape" if shape is None else list(shape)
                print(f"  {side[:-1]:<6} {tensor}: {dtype} {sizes}")
    if "assets" in found:
        print(f"assets: {', '.join(found['assets']) or 'none'}")
    for name, size in found["files"].items():
        print(f"file {name}: {size:,} bytes")
