"""Peak memory and speed of an epoch out of files, for ten times more rows.

python benchmarks/bench_streaming.py [--rows N]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from record import write_bench

SHARDS = 8
# Each size in a process of its own, for a process never gives its peak back.
MEASURE = """
import json, resource, sys, time
import tensorflow as tf
from keras_attention.recipes.streams import PairStream
from keras_attention.recipes.tokenizers import Tokenizer, learn_vocabulary

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

started, before = time.perf_counter(), peak()
stream = PairStream(sys.argv[1])
counted = time.perf_counter() - started
texts = stream.sample(10_000)
tokenizers = [
    Tokenizer(learn_vocabulary(side, 4000, "spaces", "none"), "spaces", "none")
    for side in texts[:2]
]
started, rows = time.perf_counter(), 0
for _, labels in stream.batches(*tokenizers, 0, batch_size=64, max_length=64):
    rows += labels.shape[0]
seconds = time.perf_counter() - started
print(json.dumps({
    "rows": stream.rows,
    "peak_mebibytes": round(peak()),
    "mebibytes_before": round(before),
    "rows_per_second_counted": round(stream.rows / counted),
    "rows_per_second_in_batches": round(rows / seconds),
}))
"""


def write_rows(folder: Path, rows: int) -> None:
    """Sentences of 4 to 24 of 3,000 words on either side."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 8))) for _ in range(3000)]
    folder.mkdir()
    for shard in range(SHARDS):
        with (folder / f"part-{shard}.tsv").open("w") as file:
            for _ in range(rows // SHARDS):
                source, target = (
                    " ".join(draw.choices(words, k=draw.randint(4, 24))) for _ in "ab"
                )
                file.write(f"{source}\t{target}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    found = []
    for rows in (options.rows, 10 * options.rows):
        with tempfile.TemporaryDirectory() as place:
            write_rows(Path(place) / "pairs", rows)
            output = subprocess.check_output(
                [sys.executable, "-c", MEASURE, str(Path(place) / "pairs")],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                text=True,
            )
        found.append(json.loads(output.splitlines()[-1]))
        print(found[-1], flush=True)
    growth = found[1]["peak_mebibytes"] / found[0]["peak_mebibytes"] - 1
    print(f"peak memory for ten times more rows: {growth:+.1%}")
    write_bench("streaming", {"few": found[0], "many": found[1], "growth": growth})


if __name__ == "__main__":
    main()
