"""A training by the library's `Trainer`: its weights, its figures, what each step counted."""

import keras
import numpy as np

from keras_attention.recipes.objective import accuracy
from keras_attention.recipes.training import Trainer

from . import models


def on_each_replica(variable: keras.Variable) -> list[np.ndarray]:
    """The values that this process's replicas have of a variable."""
    copies = getattr(variable.value, "values", (variable.value,))
    return [np.asarray(keras.ops.convert_to_numpy(copy)) for copy in copies]


def apart(variables) -> float:
    """How far the replicas are from one another."""
    values = [on_each_replica(variable) for variable in variables]
    return max(float(np.ptp(np.stack(copies), axis=0).max()) for copies in values if copies[0].size)


def counting(trainer: Trainer) -> dict[str, list[float]]:
    """Fill lists with the weight that each step of training and of measuring says its batch had."""
    counts = {"train": [], "test": []}

    def recorded(name, step):
        def run(*arguments):
            weight, sums = step(*arguments)
            counts[name].append(weight)
            return weight, sums

        return run

    for name in counts:
        setattr(trainer._steps, name, recorded(name, getattr(trainer._steps, name)))
    return counts


def trained(name: str, strategy) -> tuple[dict[str, np.ndarray], dict]:
    """Train `model/case`; the arrays and the figures of it."""
    model_name, case_name = name.split("/")
    case = models.CASES[case_name]
    with strategy.scope():
        model = models.made(model_name)
        optimizer = models.optimizer()
    trainer = Trainer(
        model,
        strategy=strategy,
        metrics={"accuracy": accuracy},
        optimizer=optimizer,
        warmup_steps=0,
        schedule="constant",
        clip=case.clip,
        pad_id=models.pad_id(model_name),
        accumulate=case.accumulate,
    )
    counts = counting(trainer)
    history = trainer.fit(
        lambda epoch: models.batches(model_name, case, epoch),
        epochs=models.EPOCHS,
        steps=models.STEPS,
    )
    measured = trainer.evaluate(models.batches(model_name, case, 0))
    figures = {
        "loss": measured["loss"],
        "accuracy": measured["accuracy"],
        "train_losses": [epoch["loss"] for epoch in history],
        "trained_labels": counts["train"],
        "measured_labels": counts["test"],
        "replicas_apart": apart([*model.variables, *trainer.optimizer.variables]),
    }
    weights = model.get_weights()
    return {f"{i:03d}": weight for i, weight in enumerate(weights)}, figures
