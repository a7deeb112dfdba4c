"""Workers that each read a share of the files, of which one has more than another."""

import sys

import keras
import numpy as np
import pytest
from strategies.processes import TESTS, run_workers

from keras_attention.recipes.training import Trainer

pytestmark = pytest.mark.tensorflow("on JAX all workers form the same batches")

ROWS = [(4, 3, 2), (4,)]  # of the batches that each worker has


def batch(worker, index):
    """Rows of a length of their own, with padding."""
    rng = np.random.default_rng([worker, index])
    tokens = rng.integers(1, 9, (ROWS[worker][index], 3 + index + worker)).astype("int32")
    tokens[0, 1:] = 0
    return {"tokens": tokens}, tokens


def made():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(9, 4, mask_zero=True)(tokens)
    x = keras.layers.GRU(5, return_sequences=True)(x)
    return keras.Model(tokens, keras.layers.Dense(9)(x))


def trained(data, strategy=None, **options):
    with strategy.scope() if strategy else keras.name_scope("one"):
        model = made()
    options |= {"strategy": strategy, "warmup_steps": 0, "clip": 0.3, "schedule": "constant"}
    history = Trainer(model, learning_rate=0.01, **options).fit(data, epochs=2, checkpoint_steps=1)
    return [figures["loss"] for figures in history], model.get_weights()


def together(epoch):
    """The same rows in one process: of both workers in the first step, of one in the others."""
    width = max(tokens.shape[1] for _, tokens in (batch(0, 0), batch(1, 0)))
    both = [np.pad(x, ((0, 0), (0, width - x.shape[1]))) for _, x in (batch(0, 0), batch(1, 0))]
    yield {"tokens": np.concatenate(both)}, np.concatenate(both)
    yield batch(0, 1)
    yield batch(0, 2)


def test_unequal_shares_are_trained_on_as_one_device_would(tmp_path):
    environment = {"PYTHONPATH": str(TESTS), "CUDA_VISIBLE_DEVICES": "-1"}
    run_workers([sys.executable, "-c", SCRIPT, str(tmp_path)], 2, environment)
    losses, weights = trained(together)
    with np.load(tmp_path / "0.npz") as first, np.load(tmp_path / "1.npz") as second:
        np.testing.assert_allclose(first["losses"], losses, rtol=1e-5)
        for i, wanted in enumerate(weights):
            np.testing.assert_array_equal(first[f"arr_{i}"], second[f"arr_{i}"])
            np.testing.assert_allclose(first[f"arr_{i}"], wanted, atol=1e-5)


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from keras_attention.recipes import strategies

strategy = strategies.choose("multiworker")
from test_shares import ROWS, batch, trained

worker = strategy.worker
share = [batch(worker, i) for i in range(len(ROWS[worker]))]
losses, weights = trained(lambda epoch: share, strategy, sharded=True)
np.savez(Path(sys.argv[1]) / f"{worker}.npz", *weights, losses=losses)
strategy.leave(0)
"""
