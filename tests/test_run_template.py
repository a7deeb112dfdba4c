"""The program that is copied beside a translation model: from the file alone, no TensorFlow."""

import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention.export import run_template
from keras_attention.export.run_template import Text
from keras_attention.export.tflite import export_tflite

SPECIAL = ["[PAD]", "[START]", "[END]", "[UNK]"]
SOURCE = [*SPECIAL, "guten", "mor", "##gen", "welt", "un", "##d", "##s", "a", "b"]
TARGET = [*SPECIAL, "good", "mor", "##ning", "world", "an", "##d", "##'s", "早", "上"]
V, LONGEST = len(SOURCE), 8


def one_hot(ids):
    return ops.cast(ops.equal(ops.expand_dims(ids, -1), ops.arange(V, dtype="int32")), "float32")


def places(source):
    """The identity as an alignment (B, S, S)."""
    index = ops.arange(ops.shape(source)[1], dtype="int32")
    same = ops.equal(ops.expand_dims(index, 0), ops.expand_dims(index, 1))
    return ops.cast(ops.expand_dims(same, 0), "float32") + ops.zeros_like(
        ops.expand_dims(ops.cast(source, "float32"), -1)
    )


# A model that says the ids it was given: what run.py has to do around it is the real thing.
def greedy(source):
    scores = ops.sum(ops.cast(source, "float32"), axis=1)
    return {"tokens": source + 0, "scores": scores, "alignment": places(source)}


def beam(source):
    found = greedy(source)
    worse = {name: ops.zeros_like(value) for name, value in found.items()}
    return {name: ops.stack([found[name], worse[name]], axis=1) for name in found}


def encode(source):
    values = one_hot(source)
    state = ops.zeros_like(values[:, 0, :1])
    return {"values": values, "keys": values + 0.0, "mask": source > 0, "state_0": state}


def decode_step(token, values, keys, mask, state_0):
    index = ops.arange(ops.shape(values)[1], dtype="int32")
    here = ops.equal(ops.cast(state_0, "int32"), ops.expand_dims(index, 0)) & mask
    weights = ops.cast(here, "float32") + 0.0 * ops.sum(keys, axis=-1)
    weights = weights + 0.0 * ops.cast(ops.expand_dims(token, -1), "float32")
    logits = ops.einsum("bs,bsv->bv", weights, values)
    return {"logits": logits, "weights": weights, "next_state_0": state_0 + 1.0}


def spec(*shape, dtype="float32"):
    return keras.InputSpec(shape=shape, dtype=dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = {"source": spec(None, None, dtype="int32")}
    step = {
        "token": spec(None, dtype="int32"),
        "values": spec(None, None, V),
        "keys": spec(None, None, V),
        "mask": spec(None, None, dtype="bool"),
        "state_0": spec(None, 1),
    }
    settings = {
        "start_id": 1, "end_id": 2, "pad_id": 0,
        "max_source_length": LONGEST, "max_target_length": LONGEST,
        "source": {"split": "spaces", "normalize": "nfkc_lower"},
        "target": {"split": "spaces", "normalize": "none"},
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("run")
    export_tflite(
        {
            "greedy": (greedy, source),
            "beam": (beam, source),
            "encode": (encode, source),
            "decode_step": (decode_step, step),
        },
        folder / "model.tflite",
        metadata={
            "translation.json": json.dumps(settings),
            "source_vocabulary.txt": "".join(f"{piece}\n" for piece in SOURCE),
            "target_vocabulary.txt": "".join(f"{piece}\n" for piece in TARGET),
        },
    )
    shutil.copyfile(run_template.__file__, folder / "run.py")
    return folder


def run(folder, *arguments, given=None):
    return subprocess.run(
        [sys.executable, "-X", "importtime", "run.py", *arguments],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


def test_translates_texts_and_lines_without_tensorflow(folder):
    done = run(folder, "Guten  Morgen", "welt unds")
    assert done.stdout == "good morning\nworld and's\n", done.stderr[-2000:]
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "numpy" in imported
    assert not imported & {"tensorflow", "keras", "keras_attention"}
    assert run(folder, given="welt\n\ngüten a\n").stdout == "world\n\n[UNK] 早\n"


def test_beam_alignment_and_step(folder):
    done = run(folder, "--beam", "--alignment", "guten morgen welt")
    assert done.stdout.splitlines() == [
        "good morning world",
        "  good <- guten",
        "  morning <- morgen",
        "  world <- welt",
    ]
    done = run(folder, "--step", "guten morgen")
    assert done.stdout.replace("\r", "\n").splitlines()[-1] == "good morning"


def last_line(done):
    return [line for line in done.stderr.splitlines() if not line.startswith("import time")][-1]


def test_errors_are_one_line(folder, tmp_path):
    done = run(folder, "welt " * LONGEST)
    assert done.returncode == 1
    assert last_line(done).startswith("error: the text has 9 pieces, the model reads 8")
    (tmp_path / "bad.tflite").write_bytes(b"not a model")
    done = run(folder, "--model", str(tmp_path / "bad.tflite"), "welt")
    assert done.returncode == 1
    assert "bad.tflite is truncated or no translation model" in last_line(done)
    shutil.copyfile(folder / "run.py", tmp_path / "run.py")
    (tmp_path / "other.tflite").write_bytes(b"")
    assert "2 models beside run.py" in last_line(run(tmp_path, "welt"))


TEXTS = [
    "Guten Morgen",
    "  un\tbekannt und\nwelt ",
    "##gen [START] [UNK] [END] a ##",
    "ﬁ Ａ　b İ ß",
    "早上 好 a",
    "x" * 101,
    "a" * 100,
    "",
    "a\u2028b e\u0301",
]


@pytest.mark.parametrize("split", ["spaces", "characters"])
@pytest.mark.parametrize("normalize", ["none", "nfkc", "nfkc_lower"])
def test_the_same_ids_as_in_the_graph(split, normalize):
    tokenizers = pytest.importorskip("keras_attention.recipes.tokenizers")
    pytest.importorskip("tensorflow_text")
    extra = ["##a", "\u2028", "早", "上", "f", "##i", "x", "##x", "e", "##\u0301"]
    vocabulary = [*SOURCE, *extra]
    graph = tokenizers.Tokenizer(vocabulary, split, normalize)
    alone = Text("".join(f"{piece}\n" for piece in vocabulary).encode(), split, normalize)
    assert tuple(alone.pieces) == graph.vocabulary
    expected = graph.tokenize(TEXTS).to_list()
    assert [alone.encode(text) for text in TEXTS] == expected
    for row in expected:
        text = graph.detokenize(np.array([row], "int32").reshape(1, -1)).numpy()[0].decode()
        assert alone.decode(row) == text
