"""A run's `.tflite` files beside the model: sizes, equal sentences, BLEU.

python benchmarks/bench_artifacts.py RUN --data-dir DATA
"""

import argparse
import os
import tempfile
from pathlib import Path

from record import write_bench

QUANTIZATIONS = (None, "dynamic", "float16", "weight_only_int8", "weight_only_int4", "int8")


def measure(folder: Path, data_dir: Path | None) -> dict:
    """Export a run in every quantization and translate the test part with each file."""
    from keras_attention.export.conversion import CALIBRATED
    from keras_attention.recipes import translation_export, translator
    from keras_attention.recipes.export_report import measured

    run = translator.load_run(folder)
    corpus = translator.load_corpus(run.config, data_dir)
    texts = translation_export.calibration_texts(run, data_dir=data_dir)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for quantize in QUANTIZATIONS:
            path = Path(place) / f"{quantize}.tflite"
            examples = texts if quantize in CALIBRATED else ()
            translation_export.export(run, "tflite", path, quantize=quantize, texts=examples)
            report = measured(run, path, corpus.test, corpus.target)
            name = quantize or "float32"
            found[name] = {"bytes": report["bytes"], **report["task"]}
            found[name]["part_of_float32"] = report["bytes"] / found["float32"]["bytes"]
            print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("KERAS_ATTENTION_DATA"))
    options = parser.parse_args()
    if options.run is None:
        print("skipped: name the folder of a trained run")
        return
    found = measure(options.run, options.data_dir)
    write_bench(f"artifacts_{options.run.name}", found)


if __name__ == "__main__":
    main()
