"""How long an artifact takes and how much memory, measured in a process that holds nothing else.

Started by path, with NumPy and the runtime alone:

    python -P timing.py MODEL SIGNATURE CALLS THREADS SECONDS

CALLS is a folder of `.npz` files, one for each call. It prints one line of JSON.
"""

import importlib
import json
import re
import resource
import sys
import time
from pathlib import Path

import numpy as np

WARMUP = 3  # calls


def runtime(model):
    """A function that loads: (model, signature, threads) to inputs by name to outputs."""
    if model.endswith(".onnx"):
        onnxruntime = importlib.import_module("onnxruntime")

        def load(model, signature, threads):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(model, options, providers=providers)
            return lambda inputs: session.run(None, inputs)

        return load
    try:
        interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter
    except ImportError:
        interpreter = importlib.import_module("tensorflow").lite.Interpreter

    def load(model, signature, threads):
        loaded = interpreter(model_path=model, num_threads=threads)
        runner = loaded.get_signature_runner(signature)
        return lambda inputs, loaded=loaded: runner(**inputs)  # which does not keep it alive

    return load


def peak() -> int:
    """Most bytes of memory that this program has held."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        # What other systems tell begins with what the process held that started this one.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status).group(1))


def main(model, signature, folder, threads, seconds):
    calls = []
    for file in sorted(Path(folder).glob("*.npz")):
        with np.load(file) as inputs:
            calls.append(dict(inputs))
    load = runtime(model)
    before = peak()  # with the runtime's own code
    run = load(model, signature, int(threads))
    for inputs in calls[:WARMUP]:
        run(inputs)
    taken, end = [], time.perf_counter() + float(seconds)
    while time.perf_counter() < end or len(taken) < len(calls):
        inputs = calls[len(taken) % len(calls)]
        started = time.perf_counter()
        run(inputs)
        taken.append(time.perf_counter() - started)
    milliseconds = 1e3 * np.array(taken)
    print(
        json.dumps(
            {
                "threads": int(threads),
                "calls": len(taken),
                "p50_ms": float(np.percentile(milliseconds, 50)),
                "p95_ms": float(np.percentile(milliseconds, 95)),
                "peak_bytes": peak() - before,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
