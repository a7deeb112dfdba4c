"""The trainer's step beside Keras's `fit` on one device, and what half precision learns.

python benchmarks/bench_trainer.py [--quick] [--only speed|precision]

Speed is a ratio within one process, in turns. Precision trains the embedded phrasebook once in
float32 and once in each mixed precision, and compares the validation figures.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from record import write_bench

from keras_attention.recipes import translation_training
from keras_attention.recipes.training import Trainer
from keras_attention.recipes.translation import build_model
from keras_attention.recipes.translation_options import Config

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
VOCABULARY, BATCH, LENGTH = 5000, 64, 16


def batches(count):
    """So many batches `(inputs, labels, weights)` of one length with padding at their ends."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(4, VOCABULARY, (2, count, BATCH, LENGTH)).astype("int32")
    for ids in (source, target):
        ids[np.arange(LENGTH) >= rng.integers(LENGTH // 2, LENGTH + 1, (count, BATCH, 1))] = 0
    fed = np.pad(target[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=2)
    weights = (target != 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices(
        ({"source": source, "target": fed}, target, weights)
    ).prefetch(4)


def speed(steps: int, turns: int) -> dict:
    """Steps a second of both, in turns; the first epoch of each is not counted."""
    data = batches(steps)
    pairs = data.map(lambda inputs, labels, weights: (inputs, labels))
    mine, other = (build_model(VOCABULARY, VOCABULARY, dropout=0.2) for _ in range(2))
    trainer = Trainer(mine, clip=1.0)
    other.compile(
        keras.optimizers.Adam(1e-3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )

    ways = {
        "trainer": lambda: trainer.fit(lambda epoch: pairs, epochs=1, steps=steps),
        "fit": lambda: other.fit(data, epochs=1, verbose=0),
    }
    seconds = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    ratios = [b / a for a, b in zip(seconds["trainer"], seconds["fit"], strict=True)]
    return {
        "unit": "throughput of the trainer's step over that of fit, one device",
        "backend": keras.backend.backend(),
        "steps_per_second": {name: steps / min(x) for name, x in seconds.items()},
        "ratios": ratios,
        "ratio": statistics.median(ratios),
    }


def precision(epochs: int) -> dict:
    """Validation figures after the same training in each precision."""
    found = {}
    for name in PRECISIONS:
        with tempfile.TemporaryDirectory() as folder:
            config = Config(**{**Config.small, "epochs": epochs, "precision": name})
            figures = translation_training.train(config, Path(folder) / "run")
        last = figures["history"][-1]
        found[name] = {k: last[k] for k in ("loss", "token_accuracy", "bleu", "exact_match")}
        print(name, found[name])
    exact = found["float32"]
    worst = {
        name: max(abs(found[name][k] / exact[k] - 1) for k in ("token_accuracy", "bleu"))
        for name in PRECISIONS[1:]
    }
    return {"epochs": epochs, **found, "largest_relative_difference": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is recorded")
    parser.add_argument("--only", choices=("speed", "precision"))
    options = parser.parse_args()
    for name, measure in (
        ("speed", lambda: speed(*((5, 1) if options.quick else (40, 5)))),
        ("precision", lambda: precision(1 if options.quick else Config.small["epochs"])),
    ):
        if options.only in (None, name):
            values = measure()
            print(f"trainer_{name}", values)
            if not options.quick:
                write_bench(f"trainer_{name}", values)


if __name__ == "__main__":
    main()
