"""A run's `.tflite` files beside the model: sizes, equal sentences, BLEU, operators.

python benchmarks/bench_artifacts.py RUN --data-dir DATA
"""

import argparse
import os
import tempfile
from pathlib import Path

from record import write_bench


def measure(folder: Path, data_dir: Path | None) -> dict:
    """Export a run in every quantization and decode the test part with each file."""
    import numpy as np
    import tensorflow as tf

    from keras_attention.export.inspect import inspect_tflite
    from keras_attention.export.parity import load_tflite
    from keras_attention.recipes import metrics, translation, translation_export
    from keras_attention.recipes.batches import to_ids

    run = translation.load_run(folder)
    corpus = translation.load_corpus(run.config, data_dir)
    texts = corpus.test.source
    references = metrics.surface(corpus.test.target, corpus.target)
    ids = to_ids(texts, run.source)
    order = np.argsort(ids.row_lengths().numpy(), kind="stable")
    found = {"sentences": len(texts)}
    with tempfile.TemporaryDirectory() as place:
        for quantize in (None, "dynamic", "float16"):
            path = Path(place) / f"{quantize}.tflite"
            translation_export.export(run, "tflite", path, quantize=quantize)
            report = inspect_tflite(path)
            search = load_tflite(path, "greedy")
            hypotheses = [""] * len(texts)
            for start in range(0, len(order), 50):
                rows = order[start : start + 50]
                tokens = search({"source": tf.gather(ids, rows).to_tensor().numpy()})["tokens"]
                joined = run.target.detokenize(tf.constant(tokens)).numpy()
                for row, text in zip(rows, joined, strict=True):
                    hypotheses[row] = text.decode()
            tokenizer = metrics.bleu_tokenizer(corpus.target)
            match = translation_export.token_match(run, path, texts)
            found[quantize or "float32"] = {
                "bytes": report.bytes,
                "sentences_equal": match["equal"],
                "bleu_greedy": metrics.bleu(hypotheses, references, tokenizer).value,
                "flex_operators": len(report.flex),
                "custom_operators": len(report.custom),
            }
    found["dynamic"]["part_of_float32"] = found["dynamic"]["bytes"] / found["float32"]["bytes"]
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
    for name, values in found.items():
        print(name, values)
    write_bench(f"artifacts_{options.run.name}", found)


if __name__ == "__main__":
    main()
