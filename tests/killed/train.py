"""Train in FOLDER, going on from what is there, and tell of each step in a line of JSON.

Whoever reads may kill the process at any time. Dropout, a shuffled order, a short last batch and
moving averages make that the end depends on every step and on all that a checkpoint holds.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

if os.environ["KERAS_BACKEND"] == "jax":
    sys.modules["tensorflow"] = None  # Keras would look for it, which takes seconds

import keras
import numpy as np

from keras_attention.recipes import strategies
from keras_attention.recipes.checkpoints import Checkpoints
from keras_attention.recipes.errors import Interrupted, PeerLost, RunError
from keras_attention.recipes.training import Trainer

ROWS, BATCH, LENGTH, VOCABULARY = 23, 4, 5, 11
STEPS, EPOCHS = 6, 5  # the last step of each epoch is of 3 rows

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("--whole", type=Path, help="first, once, train in this folder without a word")
parser.add_argument("--rest", type=float, default=0.0, help="seconds after each step")
parser.add_argument("--apart", action="store_true", help="each worker in a folder of its own")
options = parser.parse_args()


def tell(**what):
    print(json.dumps(what), flush=True)


class Shuffled:
    """The batches of an epoch in an order of its own; knows the rows of the last one given."""

    def __init__(self):
        self.tokens = np.random.default_rng(0).integers(1, VOCABULARY, (ROWS, LENGTH), "int32")
        self.given = None

    def __call__(self, epoch):
        order = np.random.default_rng(epoch).permutation(ROWS)
        for start in range(0, ROWS, BATCH):
            self.given = order[start : start + BATCH]
            tokens = self.tokens[self.given]
            yield {"tokens": tokens}, (tokens * 3 + 1) % VOCABULARY


def made():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(VOCABULARY, 6)(tokens)
    x = keras.layers.Dropout(0.4, seed=3)(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY)(x))


def train(strategy, folder, heard=True):
    with strategy.scope():
        model = made()
    trainer, data = Trainer(model, strategy=strategy), Shuffled()

    def on_step(step, figures):
        if heard:
            tell(step=step, rows=data.given.tolist(), pid=os.getpid())
            time.sleep(options.rest)

    history = trainer.fit(
        data,
        epochs=EPOCHS,
        steps=STEPS,
        folder=folder,
        resume="auto",
        checkpoint_steps=2,
        on_step=on_step,
    )
    if strategy.is_chief:
        variables = [*model.variables, *trainer.optimizer.variables]
        final = [keras.ops.convert_to_numpy(variable) for variable in variables]
        np.savez(folder / "final.npz", np.array([f["loss"] for f in history]), *final)


strategy = strategies.choose("auto")
folder = options.folder / str(strategy.worker) if options.apart else options.folder
newest = [path.stem for path in Checkpoints(folder / "checkpoints").paths()[:1]]
tell(found=int(newest[0].removeprefix("step-")) if newest else 0)
code, why = 0, None
try:
    if options.whole and not (options.whole / "final.npz").exists():
        train(strategy, options.whole, heard=False)
    train(strategy, folder)
except (Interrupted, PeerLost, RunError) as error:
    code = 1 if isinstance(error, RunError) else 75
    why = f"{type(error).__name__}: {error}"
tell(exit=code, why=why)
if strategy.workers > 1:
    strategy.leave(code)
sys.exit(code)
