"""`keras-attention train`: on which devices, out of which files, and what a mistake costs."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.recipes.files import alone_in
from keras_attention.recipes.streams import write_tfrecords

pytestmark = pytest.mark.xdist_group("cli_train")

COMMAND = Path(__file__).resolve().parents[1] / "bin" / "keras-attention"
SIZES = "--embedding 8 --encoder-units 4 --units 8 --batch-size 32 --max-length 16".split()
SIZES += "--normalize none --warmup-steps 5 --learning-rate 0.01 --epochs 1".split()


@pytest.fixture(scope="module")
def pairs_file(phrases_file):
    return phrases_file(160, seed=4)


@pytest.fixture
def said(command_line, capsys):
    return command_line(capsys)


def run(*arguments, environment=(), **options):
    """A process of its own: its exit code, standard output and standard error by lines."""
    done = subprocess.run(
        [sys.executable, COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **dict(environment)},
        **options,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def train(pairs, out, *more):
    return ["train", "translation", "--pairs", pairs, "--out", out, *SIZES, *more]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--strategy", "parameter_server"], "not supported by Keras 3: take mirrored"),
        (["--strategy", "sideways"], "take one of auto, one, mirrored, multiworker, tpu"),
        (["--strategy", "tpu"], "take --backend jax --strategy tpu"),
        (["--strategy", "multiworker"], "start them by keras-attention launch"),
        (["--backend", "jax"], "set KERAS_BACKEND=jax"),
        (["--shard-policy", "file"], "for streams of several files"),
        (["--tensorboard", "--accumulate", "5"], "of 5 pieces: take 30 or 35"),
        (["--accumulate", "5"], "does not divide over 1 replicas of 5 pieces: take 30 or 35"),
    ],
)
def test_devices_that_cannot_be_are_refused(said, pairs_file, tmp_path, options, says):
    code, out, err = said(*train(pairs_file, tmp_path / "run", *options))
    assert code == 2 and not out
    assert says in err[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_does_not_divide_is_refused(pairs_file, tmp_path):
    code, out, err = run(*train(pairs_file, tmp_path / "run", "--replicas", 3))
    assert code == 2 and not out
    assert err[-1].endswith("a batch of 32 does not divide over 3 replicas: take 30 or 33")


@pytest.fixture(scope="module")
def of_two_replicas(pairs_file, tmp_path_factory):
    """A run without attention and with curves: its folder, and what was said."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    options = ["--replicas", 2, "--epochs", 3, "--attention", "none", "--tensorboard", "--json"]
    code, out, err = run(*train(pairs_file, folder, *options))
    assert code == 0, err
    return folder, out, err


def test_a_run_says_what_it_is_trained_on(of_two_replicas):
    _, out, err = of_two_replicas
    strategy = "strategy mirrored on tensorflow, 2 replicas (asked for)"
    assert json.loads(out[-1])["strategy"] == strategy and err[0] == strategy


def test_a_model_without_attention_has_nothing_to_plot(said, of_two_replicas, tmp_path):
    folder, *_ = of_two_replicas
    code, _, err = said("plot", folder, "早上 好", "--out", tmp_path / "a.svg")
    assert code == 2 and "has no alignment" in err[-1]
    assert said("predict", folder, "--alignment", "早上 好")[0] == 0


@pytest.mark.slow
def test_a_run_of_another_backend_is_one_like_any(said, pairs_file, tmp_path):
    folder = tmp_path / "run"
    code, _, err = run(*train(pairs_file, folder, "--backend", "jax", "--attention", "dot"))
    assert code == 0, err
    assert err[0].startswith("strategy one on jax, 1 replica (")
    code, out, err = said("evaluate", folder, "--json", "--limit", 5)
    assert code == 0, err
    assert json.loads(out[-1])["sentences"] == 5


@pytest.fixture
def shards(pairs_file, tmp_path):
    lines = pairs_file.read_text("utf-8").splitlines()
    folder = tmp_path / "shards"
    write_tfrecords((line.split("\t") for line in lines), folder, 3)
    return folder


@pytest.mark.parametrize("how", ["pattern", pytest.param("one", marks=pytest.mark.slow)])
def test_files_are_streamed(said, pairs_file, shards, tmp_path, how):
    pairs = {"pattern": [shards / "*.tfrecord"], "one": [pairs_file, "--stream"]}[how]
    command = ["train", "translation", "--out", tmp_path / "run", *SIZES, "--pairs", *pairs]
    code, _, err = said(*command)
    assert code == 0, err
    assert any("144 training pairs" in line for line in err)  # of 160, but a twentieth twice
    code, out, _ = said("evaluate", tmp_path / "run", "--json")
    assert code == 0 and json.loads(out[-1])["sentences"] == 8


def test_a_stream_has_no_limit_of_rows(said, shards, tmp_path):
    code, _, err = said(*train(shards, tmp_path / "run", "--limit", 5))
    assert code == 1 and "A stream has no limit of rows" in err[-1]


@pytest.mark.slow
def test_a_run_goes_on_after_a_full_disk(said, pairs_file, tmp_path):
    """As if it had not been full: what was there before stays, and no half file is left."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert said(*train(pairs_file, folder))[0] == 0
    shutil.copytree(folder, whole)
    before = sorted(path.name for path in folder.rglob("*"))

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    more = ["--resume", "--epochs", "2"]
    code, _, err = run(*train(pairs_file, folder, *more), preexec_fn=small)
    assert code == 1 and "File too large" in err[-1]
    assert sorted(path.name for path in folder.rglob("*")) == before
    for place in (folder, whole):
        assert said(*train(pairs_file, place, *more))[0] == 0
    one, other = (keras.models.load_model(f / "model.keras").get_weights() for f in (folder, whole))
    for array, wanted in zip(one, other, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_named(said, pairs_file):
    code, _, err = said(*train(pairs_file, "/sys/kernel/run"))
    assert code == 1 and err[-1].startswith("keras-attention: /sys/kernel/run: ")


def test_two_trainings_of_one_folder_are_one_too_many(said, pairs_file, tmp_path):
    with alone_in(tmp_path):
        code, _, err = said(*train(pairs_file, tmp_path))
    assert code == 1 and "another process trains in" in err[-1]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_curves_for_tensorboard(of_two_replicas):
    folder, *_ = of_two_replicas
    [events] = (folder / "tensorboard").iterdir()
    points = {}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            points.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    assert list(points["step/learning_rate"]) == list(range(10, max(points["epoch/loss"]) + 1, 10))
    history = json.loads((folder / "metrics.json").read_text("utf-8"))["history"]
    losses = [figures["loss"] for figures in history]
    np.testing.assert_allclose(list(points["epoch/loss"].values()), losses, rtol=1e-6)
