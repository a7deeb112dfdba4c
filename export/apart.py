"""Run a foreign artifact in a process of its own, in which a crash is an error message.

Runtimes trust what they are given: a file whose structure looks sound may still make them crash,
take all memory or never end. This keeps such a file from the caller's process. It is no sandbox:
a SavedModel may read and write files.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ArtifactError, telling_line

# What a run may take: bytes of memory with the runtime's own, bytes of outputs, and seconds.
MEMORY = 8 * 2**30
LARGEST_OUTPUT = 2 * 2**30
SECONDS = 600
_KINDS = {kind.__name__: kind for kind in (ArtifactError, ValueError, ImportError)}
# What the process runs: this folder without the package around it, since that imports Keras, and
# Keras a backend; neither is needed, and not every backend that is there can be imported.
_PROCESS = """
import sys, types
folder, place = sys.argv[1:]
for name, path in (("keras_attention", []), ("keras_attention.export", [folder])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from keras_attention.export import apart
apart._main(place)
"""
_END = "."  # of each string: NumPy drops zeros at the end of those that it stores


def run_apart(
    path: str | os.PathLike,
    inputs: Mapping[str, Any],
    signature: str | None = None,
    *,
    runtime: str | None = None,
) -> dict[str, np.ndarray]:
    """`run_artifact` in another process, with limits of memory and time where the system has them.

    Raises:
        ArtifactError: also when the runtime crashes, needs too much memory or does not end.
        ValueError: as `run_artifact`.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        request = {
            "path": os.fspath(path),
            "signature": signature,
            "runtime": runtime,
            "memory": MEMORY,
            "seconds": SECONDS,
            "inputs": _write(place / "inputs.npz", inputs),
        }
        (place / "request.json").write_text(json.dumps(request), "utf-8")
        with (place / "errors.txt").open("wb") as errors:
            own = str(Path(__file__).parent)
            ended = _ended([sys.executable, "-P", "-c", _PROCESS, own, folder], errors, path)
        if not (place / "answer.json").exists():
            raise ArtifactError(f"{path}: cannot be run: {_reason(ended, place / 'errors.txt')}")
        answer = json.loads((place / "answer.json").read_text("utf-8"))
        if "error" in answer:
            raise _KINDS[answer["error"]](answer["message"])
        return _read(place / "outputs.npz", answer["outputs"])


def _ended(command, errors, path):
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",  # whose memory has no limit
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            timeout=SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise ArtifactError(f"{path}: does not end (stopped after {SECONDS} s)") from None


def _reason(code, errors):
    if code < 0:
        name = signal.Signals(-code).name
        return f"its runtime crashed ({name}; it had {MEMORY / 2**30:.0f} GiB of memory)"
    lines = errors.read_text("utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process ended with code {code} ({last[:200]})"


def _write(file, arrays) -> list[list[str]]:
    """Write arrays without pickling; gives what is needed to read them: names and dtypes."""
    arrays = {name: _storable(name, np.asarray(value)) for name, value in arrays.items()}
    np.savez(file, *arrays.values())
    return [[name, array.dtype.name] for name, array in arrays.items()]


def _read(file, listed) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as stored:
        return {
            name: _restored(stored[f"arr_{i}"], dtype) for i, (name, dtype) in enumerate(listed)
        }


def _storable(name, array):
    if array.dtype.kind not in "OSU":
        return array
    texts = [
        text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
        for text in array.ravel().tolist()
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name!r} must hold numbers or strings. Received: {array.dtype}")
    return np.array([text + _END for text in texts], str).reshape(array.shape)


def _restored(array, dtype):
    if array.dtype.kind == "U":
        texts = [t[: -len(_END)].encode("utf-8", "surrogateescape") for t in array.ravel().tolist()]
        return np.array(texts, object).reshape(array.shape)
    # bfloat16 and the like are stored as bytes alone.
    return array.view(dtype) if array.dtype.kind == "V" else array


def _limit(memory, seconds):
    """Bound what this process can take. Not every system can."""
    with contextlib.suppress(ImportError):
        import resource

        processor = seconds * (os.cpu_count() or 1)  # Also when nobody waits for it any more.
        for kind, most in (
            # Not addresses: threads and GPUs reserve many more of those than they use.
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_FSIZE, LARGEST_OUTPUT),
            (resource.RLIMIT_CPU, processor),
            (resource.RLIMIT_CORE, 0),
        ):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, most))


def _answer(place) -> dict:
    request = json.loads((place / "request.json").read_text("utf-8"))
    _limit(request["memory"], request["seconds"])
    path = request["path"]
    from .parity import load

    try:
        run = load(path, request["signature"], request["runtime"])
        found = run(_read(place / "inputs.npz", request["inputs"]))
        size = sum(np.asarray(array).nbytes for array in found.values())
        if size > LARGEST_OUTPUT:
            raise ArtifactError(f"{path}: gives {size:,} bytes, more than {LARGEST_OUTPUT:,}")
        return {"outputs": _write(place / "outputs.npz", found)}
    except ArtifactError as error:
        return {"error": "ArtifactError", "message": str(error)}
    except (ValueError, ImportError) as error:
        kind = "ValueError" if isinstance(error, ValueError) else "ImportError"
        return {"error": kind, "message": telling_line(error)}
    except MemoryError:
        reason = f"needs more than {request['memory'] / 2**30:.0f} GiB"
    except Exception as error:  # whatever a runtime makes of a file that it cannot run
        reason = f"cannot be run: {telling_line(error)}"
    return {"error": "ArtifactError", "message": f"{path}: {reason}"}


def _main(folder):
    place = Path(folder)
    answer = json.dumps(_answer(place))
    (place / "answer.tmp").write_text(answer, "utf-8")
    (place / "answer.tmp").rename(place / "answer.json")
