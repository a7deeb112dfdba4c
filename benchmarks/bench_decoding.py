"""Greedy decoding of one sentence: exported files beside JoeyNMT, bare PyTorch and onnxruntime.

The sizes are those of a small translation model: words of 8,000 and 6,000, embeddings and decoder
256, encoder 2 x 128, Bahdanau attention with input feeding, weights at random; 13 words are read
and 32 written. Milliseconds a word are medians of one run of each after the other.

    python benchmarks/bench_decoding.py --peer .peer/bin/python

JoeyNMT and PyTorch live in an environment of their own: see bench_translation.py.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from record import write_bench

SOURCES, TARGETS, READ, EMITTED = 8000, 6000, 13, 32
PEER = """
import json, statistics, sys, time
import torch
from torch import nn
from types import SimpleNamespace
from joeynmt.model import build_model
from joeynmt.search import greedy
from joeynmt.vocabulary import Vocabulary

sources, targets, read, emitted, seconds = map(int, sys.argv[1:])
special = SimpleNamespace(
    unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
    unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[])
words = lambda count: Vocabulary([f"w{i}" for i in range(count - 4)], special)
part = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "dropout": 0.3, "freeze": False,
        "embeddings": {"embedding_dim": 256, "scale": False}}
model = build_model({
    "initializer": "xavier_uniform",
    "encoder": {**part, "hidden_size": 128, "bidirectional": True},
    "decoder": {**part, "hidden_size": 256, "hidden_dropout": 0.2, "input_feeding": True,
                "init_hidden": "bridge", "attention": "bahdanau"},
}, words(sources), words(targets)).eval()
ids = torch.randint(4, sources, (1, read))
mask, length = torch.ones(1, 1, read, dtype=torch.bool), torch.tensor([read])

def joey():
    with torch.no_grad():
        output, hidden, *_ = model(return_type="encode", src=ids, src_length=length, src_mask=mask)
        found, *_ = greedy(mask, emitted, model, output, hidden, min_output_length=emitted)
    assert len(found[0]) == emitted

class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(sources, 256), nn.Embedding(targets, 256)
        self.encoder = nn.GRU(256, 128, bidirectional=True, batch_first=True)
        self.start, self.cell = nn.Linear(128, 256), nn.GRUCell(512, 256)
        self.key, self.query = nn.Linear(256, 256, False), nn.Linear(256, 256, False)
        self.score, self.join = nn.Linear(256, 1, False), nn.Linear(512, 256)
        self.head = nn.Linear(256, targets)

    @torch.no_grad()
    def forward(self, ids):
        values, last = self.encoder(self.source(ids))
        keys, state = self.key(values), torch.tanh(self.start(last[1]))
        token, fed, found = torch.tensor([2]), torch.zeros(1, 256), []
        for _ in range(emitted):
            state = self.cell(torch.cat([self.target(token), fed], -1), state)
            scores = self.score(torch.tanh(keys + self.query(state)[:, None])).transpose(1, 2)
            context = (torch.softmax(scores, -1) @ values)[:, 0]
            fed = torch.tanh(self.join(torch.cat([state, context], -1)))
            token = self.head(fed).argmax(-1)
            found.append(token)
        return torch.stack(found, 1)

bare = Bare().eval()
for threads in (1, 2):
    torch.set_num_threads(threads)
    for name, run in (("joeynmt", joey), ("pytorch", lambda: bare(ids))):
        taken, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
        print(json.dumps({"name": name, "threads": threads,
                          "ms": 1e3 * statistics.median(taken) / emitted}), flush=True)
"""


def files(folder: Path) -> dict[str, Path]:
    """The greedy search of a model of these sizes, in every format."""
    import keras

    from keras_attention.export.onnx import export_onnx
    from keras_attention.export.portable import portable
    from keras_attention.export.tflite import export_tflite
    from keras_attention.recipes.searches import signatures
    from keras_attention.recipes.tokenizers import END_ID
    from keras_attention.recipes.translation import decoding, encoder_of, model_of
    from keras_attention.recipes.translation_options import Config

    keras.utils.set_random_seed(0)
    config = Config(max_length=EMITTED)
    model = model_of(config, SOURCES, TARGETS)
    for weight in model.weights:
        if weight.path.endswith("/bias") and weight.shape == (TARGETS,):
            weight.assign(keras.ops.where(keras.ops.arange(TARGETS) == END_ID, -1e3, weight))
    functions = {
        "greedy": signatures(decoding(model, config, portable(encoder_of(model))), config)["greedy"]
    }
    found = {}
    for name, quantization in (("float32", None), ("dynamic", "dynamic"), ("float16", "float16")):
        path = folder / f"{name}.tflite"
        found[f"tflite {name}"] = export_tflite(functions, path, quantization=quantization)
    found["onnxruntime float32"] = export_onnx(functions, folder / "greedy.onnx")
    return found


def measure(peer: str | None, seconds: int) -> dict:
    import numpy as np

    from keras_attention.export.parity import run_artifact
    from keras_attention.recipes.export_report import timed

    found = {}
    with tempfile.TemporaryDirectory() as place:
        made = files(Path(place))
        calls = Path(place, "calls")
        calls.mkdir()
        source = np.random.default_rng(0).integers(4, SOURCES, (1, READ)).astype("int32")
        np.savez(calls / "0.npz", source=source)
        for name, path in made.items():
            [emitted] = run_artifact(path, {"source": source}, "greedy")["lengths"]
            assert emitted == EMITTED, (name, emitted)
            for threads in (1, 2):
                taken = timed(path, "greedy", calls, threads, seconds)
                found[f"{name}, {threads} threads"] = taken["p50_ms"] / EMITTED
            found[f"{name}, bytes"] = path.stat().st_size
    if peer is None:
        print("JoeyNMT and PyTorch: not measured, name their Python by --peer")
        return found
    command = [peer, "-c", PEER, SOURCES, TARGETS, READ, EMITTED, seconds]
    lines = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    for line in map(json.loads, lines.stdout.splitlines()):
        found[f"{line['name']}, {line['threads']} threads"] = line["ms"]
    joey = min(found[f"joeynmt, {threads} threads"] for threads in (1, 2))
    for name in made:
        ours = min(found[f"{name}, {threads} threads"] for threads in (1, 2))
        found[f"{name}, times the speed of joeynmt"] = joey / ours
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", help="a Python that has JoeyNMT and PyTorch")
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    options = parser.parse_args()
    found = measure(options.peer, options.seconds)
    for name, value in found.items():
        print(f"{name:<50} {value:.4g}")
    if options.peer:
        write_bench("decoding", found)


if __name__ == "__main__":
    main()
