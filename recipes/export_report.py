"""What an exported `.tflite` is worth beside its model: size, numbers, task, time and memory."""

import html
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_attention.export import timing
from keras_attention.export.inspect import described_by, inspect_tflite
from keras_attention.export.parity import check_parity
from keras_attention.export.places import replacing

from .errors import RunError
from .tflite_places import length_files

THREADS = (1, 2)


def measured(
    path: Path, functions: Mapping, calls: Mapping, task: Mapping, *, seconds: float = 2.0
) -> dict:
    """Measure a file, or a folder of length buckets.

    Args:
        path: the file or folder.
        functions: what was exported, as `export_tflite` takes it.
        calls: by the signature that is measured, what it is called with.
        task: figures of what the file is for, beside the model's.
        seconds: how long each signature is timed.

    Returns:
        `bytes`, `quantization`, `operators`, `parity` (for each runtime, signature and output),
        `task`, `time` (for each signature and number of threads: `p50_ms`, `p95_ms`, `peak_bytes`
        above the empty runtime's).
    """
    files = length_files(path)
    biggest = files[-1]
    report = inspect_tflite(biggest)
    parity = check_parity(functions, biggest, calls)
    return {
        "path": str(path),
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "weights_bytes": report.weights_bytes,
        "quantization": described_by(report).get("quantization"),
        "operators": dict(report.totals),
        "parity": [difference._asdict() for difference in parity.differences],
        "task": dict(task),
        "time": _times(biggest, calls, seconds),
    }


def _times(path, calls, seconds):
    found = []
    for signature, inputs in calls.items():
        with tempfile.TemporaryDirectory() as folder:
            for i, call in enumerate(inputs):
                np.savez(Path(folder, f"{i:06d}.npz"), **call)
            for threads in THREADS:
                taken = timed(path, signature, folder, threads, seconds)
                found.append({"signature": signature, **taken})
    return found


def timed(path: Path, signature: str, folder: str, threads: int, seconds: float) -> dict:
    """`timing.py` over the calls in a folder."""
    command = [sys.executable, "-P", timing.__file__, path, signature, folder, threads, seconds]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if ended.returncode:
        raise RunError(f"{path} does not run by itself: {ended.stderr.strip().splitlines()[-1:]}")
    return json.loads(ended.stdout)


def write(report: dict, path: Path) -> None:
    """Write a report as `.json`, or as `.html` that needs nothing beside it."""
    text = json.dumps(report, indent=1) if path.suffix == ".json" else _page(report)
    with replacing(path) as beside:
        beside.write_text(text, "utf-8")


def _page(report):
    facts = {
        "bytes": f"{report['bytes']:,} in {report['files']} file(s)",
        "of these weights": f"{report['weights_bytes']:,}",
        "quantization": report["quantization"] or "none",
        **report["task"],
    }
    parts = [
        _table("What it is", [{"": name, "value": value} for name, value in facts.items()]),
        _table("Numbers beside the model's", report["parity"]),
        _table("Time and memory, one text", report["time"]),
        _table("Operators", [{"name": k, "count": n} for k, n in report["operators"].items()]),
    ]
    title = html.escape(report["path"])
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
        "td,th{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:left}</style>"
        f"<h1>{title}</h1>{''.join(parts)}\n"
    )


def _table(title: str, rows: Sequence[Mapping]) -> str:
    def cell(value):
        value = f"{value:.4g}" if isinstance(value, float) else "" if value is None else value
        return f"<td>{html.escape(str(value))}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(map(cell, row.values()))}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"
