"""The same models, batches and optimizer through Keras's own `compile` and `fit`."""

import keras
import numpy as np

from . import models


def trained(name: str, strategy):
    """Train `model/case` as a user of Keras alone would; the weights, or what the error says."""
    import tensorflow as tf

    model_name, case_name = name.split("/")
    case = models.CASES[case_name]
    with strategy.scope():
        model = models.made(model_name)
        model.compile(
            models.optimizer(global_clipnorm=case.clip),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    try:
        for epoch in range(models.EPOCHS):
            inputs, labels = (
                keras.tree.map_structure(lambda *parts: np.concatenate(parts), *column)
                for column in zip(*models.batches(model_name, case, epoch), strict=True)
            )
            data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(case.rows)
            model.fit(data, epochs=1, verbose=0)
    except Exception as error:  # which one is what is asked
        return {}, {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {f"{i:03d}": weight for i, weight in enumerate(model.get_weights())}, {}
