"""Training speed of the translation recipe beside JoeyNMT 2.3 (PyTorch), same sizes, one run.

Both train the same network on Multi30k de-en, word vocabularies of words seen twice, dropout on,
real length buckets, batches of 64 sentences; what is counted is non-padding target tokens a
second. They take turns, and the ratio is the median over the turns.

    python benchmarks/bench_translation.py --peer .peer/bin/python --data-dir DATA

JoeyNMT is installed in an environment of its own, without its outdated pins:

    python3 -m venv .peer
    .peer/bin/pip install torch numpy pyyaml sacrebleu sacremoses sentencepiece subword-nmt \
        packaging pandas matplotlib seaborn tqdm tensorboard datasets portalocker \
        importlib_metadata wrapt
    .peer/bin/pip install --no-deps joeynmt==2.3.0
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from record import write_bench

STEPS = 200
PEER = """
name: bench
joeynmt_version: "2.3.0"
model_dir: "{out}/model"
use_cuda: False
fp16: False
random_seed: 42
data:
  train: "{out}/train"
  dev: "{out}/val"
  dataset_type: plain
  src: {{lang: de, max_length: 64, lowercase: False, level: word, voc_limit: 8000,
        voc_min_freq: 2, tokenizer_type: pass, normalize: False}}
  trg: {{lang: en, max_length: 64, lowercase: False, level: word, voc_limit: 6000,
        voc_min_freq: 2, tokenizer_type: pass, normalize: False}}
  special_symbols: {{unk_token: <unk>, unk_id: 0, pad_token: <pad>, pad_id: 1, bos_token: <s>,
                    bos_id: 2, eos_token: </s>, eos_id: 3}}
testing: {{n_best: 1, beam_size: 1, batch_size: 64, batch_type: sentence, max_output_length: 5,
          eval_metrics: [bleu], sacrebleu_cfg: {{tokenize: none}}}}
training: {{optimizer: adam, learning_rate: 0.0005, scheduling: exponential,
           decrease_factor: 0.99, batch_size: 64, batch_type: sentence,
           epochs: 1, updates: {steps}, validation_freq: 100000, logging_freq: 100,
           eval_metrics: [bleu], overwrite: True, num_workers: 0}}
model:
  initializer: xavier_uniform
  encoder: {{type: recurrent, rnn_type: gru, embeddings: {{embedding_dim: 256, scale: False}},
            hidden_size: 128, bidirectional: True, dropout: 0.3, num_layers: 1, freeze: False}}
  decoder: {{type: recurrent, rnn_type: gru, embeddings: {{embedding_dim: 256, scale: False}},
            hidden_size: 256, dropout: 0.3, hidden_dropout: 0.2, num_layers: 1,
            input_feeding: True, init_hidden: bridge, attention: bahdanau, freeze: False}}
"""


def ours(data_dir: Path) -> float:
    """Target tokens a second of the recipe's own loop, after its first 20 steps."""
    from keras_attention.recipes import data
    from keras_attention.recipes.batches import batches, to_ids
    from keras_attention.recipes.tokenizers import SPECIAL, Tokenizer
    from keras_attention.recipes.training import Trainer
    from keras_attention.recipes.translation import build_model

    pairs = data.load("multi30k", data_dir).train
    tokenizers = []
    for texts, limit in ((pairs.source, 8000), (pairs.target, 6000)):
        counts = Counter(word for text in texts for word in text.split(" "))
        words = [word for word, count in counts.most_common(limit) if count > 1]
        tokenizers.append(Tokenizer([*SPECIAL, *words], "spaces", "none"))
    model = build_model(*(t.size for t in tokenizers), query="current")
    print(f"parameters {model.count_params():,}", file=sys.stderr)
    trainer = Trainer(model, learning_rate=5e-4)
    source, target = (
        to_ids(texts, tokenizer)
        for texts, tokenizer in zip((pairs.source, pairs.target), tokenizers, strict=True)
    )
    tokens, seconds = 0.0, 0.0
    for step, batch in enumerate(batches(source, target, 64, shuffle_seed=1).take(STEPS)):
        started = time.perf_counter()
        count = float(trainer._train_step(*batch)[1])
        if step >= 20:
            tokens, seconds = tokens + count, seconds + time.perf_counter() - started
    return tokens / seconds


def peer(python: Path, data_dir: Path) -> float:
    """Target tokens a second that JoeyNMT logs, the first 100 steps left out."""
    with tempfile.TemporaryDirectory() as out:
        for part, name in (("train", "train"), ("val", "val")):
            for language in ("de", "en"):
                source = data_dir / "multi30k" / "tok" / f"{part}.lc.norm.tok.{language}"
                shutil.copy(source, Path(out) / f"{name}.{language}")
        config = Path(out) / "config.yaml"
        config.write_text(PEER.format(out=out, steps=STEPS))
        command = [python, "-m", "joeynmt", "train", config, "--skip-test"]
        done = subprocess.run(command, capture_output=True, text=True)
        log = done.stdout + done.stderr
    speeds = [float(x) for x in re.findall(r"Tokens per Sec:\s+([\d.]+)", log)]
    if done.returncode or len(speeds) < 2:
        sys.exit(f"the peer failed:\n{log[-2000:]}")
    return statistics.mean(speeds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", type=Path, default=Path(".peer/bin/python"))
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("KERAS_ATTENTION_DATA"))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ours", action="store_true", help="print our own speed alone")
    options = parser.parse_args()
    if not options.data_dir:
        print("skipped: needs Multi30k, --data-dir or KERAS_ATTENTION_DATA")
        return
    if options.ours:
        print(ours(options.data_dir))
        return
    if not options.peer.exists():
        print(f"skipped: JoeyNMT is not installed at {options.peer} (see this file's head)")
        return
    rows = []
    for turn in range(options.turns):
        command = [sys.executable, __file__, "--ours", "--data-dir", str(options.data_dir)]
        mine = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        its = peer(options.peer, options.data_dir)
        rows.append({"ours": mine, "joeynmt": its, "ratio": mine / its})
        print(f"turn {turn + 1}: ours {mine:,.0f}, JoeyNMT {its:,.0f} tokens/s, {mine / its:.2f}x")
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"median ratio {ratio:.2f}")
    write_bench("training_speed", {"unit": "target tokens a second", "turns": rows, "ratio": ratio})


if __name__ == "__main__":
    main()
