"""A run's artifacts beside the model: sizes, and what they answer to the test part.

python benchmarks/bench_artifacts.py RUN --data-dir DATA
"""

import argparse
import os
import tempfile
from pathlib import Path

from record import write_bench

QUANTIZATIONS = (None, "dynamic", "float16", "weight_only_int8", "weight_only_int4", "int8")


def measure(folder: Path, data_dir: Path | None) -> dict:
    """Export a run in every form, and answer the test part with each artifact."""
    from keras_attention.recipes.options import CONFIGS
    from keras_attention.recipes.runs import load_config

    config = load_config(folder, CONFIGS.values())
    translates = config.commands == "translation_commands"
    artifacts = (_of_translation if translates else _of_classes)(folder, data_dir)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (export, task) in artifacts.items():
            path = export(Path(place) / name)
            found[name] = {"bytes": _bytes(path), **task(path)}
            found[name]["part_of_float32"] = found[name]["bytes"] / found["float32"]["bytes"]
            print(name, found[name], flush=True)
    return found


def _of_translation(folder, data_dir):
    from keras_attention.export.conversion import CALIBRATED
    from keras_attention.recipes import translation_export, translator

    run = translator.load_run(folder)
    corpus = translator.load_corpus(run.config, data_dir)
    texts = translation_export.calibration_texts(run, data_dir=data_dir)

    def task(path):
        return translation_export.measured(run, path, corpus.test, corpus.target)["task"]

    def exporter(quantize):
        given = {"quantize": quantize, "texts": texts if quantize in CALIBRATED else ()}
        return lambda path: translation_export.export(
            run, "tflite", path.with_suffix(".tflite"), **given
        )

    return {quantize or "float32": (exporter(quantize), task) for quantize in QUANTIZATIONS}


def _of_classes(folder, data_dir):
    from keras_attention.recipes import classification_export, classifier

    run = classifier.load_run(folder)
    corpus = classifier.load_corpus(run.config, data_dir)

    def task(path):
        return classification_export.compared(run, path, corpus.test)

    def exporter(to, **given):
        return lambda path: classification_export.export(run, to, path, **given)

    files = {
        quantize or "float32": exporter("tflite", quantize=quantize, texts=corpus.train.texts[:100])
        for quantize in QUANTIZATIONS
    }
    others = {to: exporter(to) for to in ("saved_model", "onnx")}
    return {name: (export, task) for name, export in {**files, **others}.items()}


def _bytes(path):
    return sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")))


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
