"""What cannot be seen in the weights of an ordinary training: dropout masks, moving averages."""

import keras
import numpy as np

from keras_attention.recipes.objective import is_seed
from keras_attention.recipes.training import Trainer

from .training import on_each_replica

FEATURES, ROWS, STEPS = 16, 8, 3
MOMENTUM = 0.5


def _output(labels, outputs):
    """A loss that is the output itself."""
    return outputs[:, 0]


def dropout(strategy):
    """The masks that a training drew, (steps, rows, features), and the seeds it ends with.

    All inputs are 1 and the loss is linear, so the gradient of weight f is 2 sum_r w_r mask_rf /
    sum_r w_r. Rows weigh 1, 2, 4, ..., so its binary digits are the masks of the rows.
    """
    with strategy.scope():
        x = keras.Input((FEATURES,), name="x")
        dropped = keras.layers.Dropout(0.5, seed=3)(x)
        model = keras.Model(x, keras.layers.Dense(1, use_bias=False)(dropped))
        model.set_weights([np.zeros((FEATURES, 1), "float32")])
    seen = [model.get_weights()[0]]
    weights = 2.0 ** np.arange(ROWS)
    trainer = Trainer(
        model,
        strategy=strategy,
        loss=_output,
        metrics={},
        optimizer=keras.optimizers.SGD(),
        learning_rate=1.0,
        warmup_steps=0,
        schedule="constant",
        clip=None,
        pad_id=None,
    )
    batch = {"x": np.ones((ROWS, FEATURES), "float32")}, np.zeros(ROWS, "int32"), weights
    for _ in range(STEPS):  # a training each, after which the model has the weights
        trainer.fit(lambda epoch: [batch], epochs=1)
        seen.append(model.get_weights()[0])
    gradients = -np.diff(np.stack(seen)[..., 0], axis=0)  # (steps, features)
    sums = np.rint(gradients * weights.sum() / 2).astype(int)
    masks = (sums[:, None] >> np.arange(ROWS)[:, None]) & 1
    [seed] = [variable for variable in model.variables if is_seed(variable)]
    return {"masks": masks, "seeds": np.stack(on_each_replica(seed))}, {}


def normalised_batches():
    """Batches of which the two halves have other means and variances."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        x = rng.normal(size=(ROWS, FEATURES))
        x[ROWS // 2 :] = 3 * x[ROWS // 2 :] + step
        yield {"x": x.astype("float32")}, np.arange(ROWS) % 2


def batch_norm(strategy):
    """The moving averages of a training with batch normalisation, of each replica."""
    with strategy.scope():
        x = keras.Input((FEATURES,), name="x")
        norm = keras.layers.BatchNormalization(momentum=MOMENTUM)
        model = keras.Model(x, keras.layers.Dense(2)(norm(x)))
    trainer = Trainer(model, strategy=strategy, metrics={}, pad_id=None)
    trainer.fit(lambda epoch: normalised_batches(), epochs=1)
    mean, variance = (
        np.stack(on_each_replica(variable)) for variable in (norm.moving_mean, norm.moving_variance)
    )
    return {"mean": mean, "variance": variance}, {}


PROPERTIES = {"dropout": dropout, "batch_norm": batch_norm}
