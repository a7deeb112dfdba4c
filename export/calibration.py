"""Conversion to integers whose ranges are fitted to examples, in a process of its own.

TensorFlow's calibration crashes on some models, loops of fixed sizes among them
(tensorflow#62281). A crash in here is an error message there.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .errors import ExportError

Calls = Mapping[str, Sequence[Mapping[str, np.ndarray]]]


def calibrated(folder: str, quantization: str, calls: Calls) -> bytes:
    """The bytes of a TFLite model made from the SavedModel in `folder`.

    Args:
        folder: of a SavedModel; files of this exchange are put beside it.
        quantization: `"int8"` or `"int16x8"`.
        calls: for each signature, examples of its arguments.

    Raises:
        ExportError: when the converter crashes.
        RuntimeError: when it fails, with its own words.
    """
    place = Path(folder, "calibration")
    place.mkdir()
    for name, examples in calls.items():
        for i, example in enumerate(examples):
            np.savez(place / f"{name}.{i:06d}.npz", **example)
    request = {"quantization": quantization, "calls": {k: len(v) for k, v in calls.items()}}
    (place / "request.json").write_text(json.dumps(request), "utf-8")
    command = [sys.executable, "-m", __name__, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if ended.returncode < 0:
        raise ExportError(
            f"TensorFlow's converter crashed while it calibrated "
            f"({signal.Signals(-ended.returncode).name}), as it is known to on loops of fixed "
            'sizes: leave the sizes free, or use quantization="dynamic"'
        )
    if ended.returncode:
        failed = place / "error.txt"
        raise RuntimeError(failed.read_text("utf-8") if failed.exists() else ended.stderr[-2000:])
    return (place / "model.tflite").read_bytes()


def _convert(folder):
    import tensorflow as tf

    place = Path(folder, "calibration")
    request = json.loads((place / "request.json").read_text("utf-8"))

    def examples():
        for name, count in request["calls"].items():
            for i in range(count):
                with np.load(place / f"{name}.{i:06d}.npz") as example:
                    yield name, dict(example)

    integers = {
        "int8": tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
        "int16x8": tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
    }
    converter = tf.lite.TFLiteConverter.from_saved_model(
        folder, signature_keys=list(request["calls"])
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = examples
    # What has no form in integers stays in floats.
    converter.target_spec.supported_ops = [
        integers[request["quantization"]],
        tf.lite.OpsSet.TFLITE_BUILTINS,
    ]
    try:
        content = converter.convert()
    except Exception as error:
        (place / "error.txt").write_text(str(error), "utf-8")
        sys.exit(1)
    (place / "model.tflite").write_bytes(content)


if __name__ == "__main__":
    _convert(sys.argv[1])
