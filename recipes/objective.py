"""What is minimised and measured, as sums over labels, so that parts of a batch add up."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

Elementwise = Callable[[Any, Any], Any]


def cross_entropy(labels, logits):
    """-log p of each label, in nats: labels (...), logits (..., V) to (...)."""
    logits = _wide(logits)
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def accuracy(labels, logits):
    """1 where the label has the highest logit, else 0: labels (...), logits (..., V) to (...)."""
    return ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")


def smoothed_cross_entropy(labels, logits, epsilon: float):
    """(1 - eps) nll + eps mean_v(-log p_v) of each label, as `cross_entropy`.

    By way of the target distribution: with a gradient of one operation this is the fastest form.
    """
    logits = _wide(logits)
    classes = logits.shape[-1]
    targets = (1 - epsilon) * ops.one_hot(labels, classes, dtype=logits.dtype) + epsilon / classes
    return ops.categorical_crossentropy(targets, logits, from_logits=True)


def smoothing(labels, logits):
    """What label smoothing adds to `cross_entropy`, over eps: logit of the label - mean logit."""
    logits = _wide(logits)
    of_label = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)
    return ops.squeeze(of_label, -1) - ops.mean(logits, axis=-1)


def _wide(logits):
    return ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))


class Objective:
    """A model's loss over the labels of a batch, as a function of its variables.

    Every label has a weight: that of its row, and 0 where it is padding. A part of a batch is
    told the weight of the whole batch, so the parts' objectives, and their gradients, add up:

        L = sum_i w_i loss_i / sum_i w_i + (regularisers of the model)

    Args:
        model: the model; what it is called with and its variables are given in each call.
        loss: `(labels, outputs)` to a value for each label.
        metrics: by name, functions of the same form, of which weighted means are measured.
        label_smoothing: eps, for a loss of `cross_entropy`.
        pad_id: the label that is padding; None: none is; `"auto"`: 0 in sequences of labels.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Elementwise,
        metrics: Mapping[str, Elementwise],
        label_smoothing: float = 0.0,
        pad_id: int | Literal["auto"] | None = None,
    ):
        self.model = model
        self.loss = loss
        self.metrics = dict(metrics)
        self.label_smoothing = label_smoothing
        self._pad_id = pad_id

    def padding_of(self, labels) -> int | None:
        """The label that is padding among these, if one is."""
        if self._pad_id == "auto":
            return 0 if len(labels.shape) > 1 else None
        return self._pad_id

    def weights(self, labels, of_rows=None):
        """The weight of each label, in float32; `of_rows` (B,) are those of the rows."""
        labels = ops.convert_to_tensor(labels)
        weights = ops.ones_like(labels, dtype="float32")
        padding = self.padding_of(labels)
        if padding is not None:
            weights = ops.cast(ops.not_equal(labels, padding), "float32")
        if of_rows is not None:
            rank = len(labels.shape)
            of_rows = ops.convert_to_tensor(of_rows, "float32")
            weights *= ops.reshape(of_rows, (-1, *(1,) * (rank - 1)))
        return weights

    def train(self, trainable, non_trainable, inputs, labels, weights, total, share=1.0):
        """The objective of a part, `share` of all parts.

        Returns:
            The objective, and `(sums, non_trainable)`: the sum of the loss over the labels without
            smoothing, in a vector of one, and the variables' new values.
        """
        outputs, non_trainable, added = self.model.stateless_call(
            trainable, non_trainable, self._structured(inputs), training=True, return_losses=True
        )
        labels = self._harmless(labels)
        if epsilon := self.label_smoothing:
            smoothed = smoothed_cross_entropy(labels, outputs, epsilon)
            loss = smoothed - epsilon * smoothing(labels, ops.stop_gradient(outputs))
        else:
            loss = smoothed = self._each(self.loss, labels, outputs)
        objective = ops.sum(smoothed * weights) / total
        for term in added:
            objective += ops.cast(term, "float32") * share
        return objective, (ops.stack([ops.sum(loss * weights)]), non_trainable)

    def test(self, trainable, non_trainable, inputs, labels, weights):
        """Sums over the labels of the loss and of each metric, in a vector."""
        outputs, _ = self.model.stateless_call(
            trainable, non_trainable, self._structured(inputs), training=False
        )
        labels = self._harmless(labels)
        measured = (self.loss, *self.metrics.values())
        return ops.stack([ops.sum(self._each(f, labels, outputs) * weights) for f in measured])

    def _structured(self, inputs):
        # By name into whatever structure of inputs the model was built with.
        flat = [inputs[tensor.name] for tensor in self.model.inputs]
        if isinstance(self.model, keras.Sequential):
            return flat[0]
        return keras.tree.pack_sequence_as(self.model.input, flat)

    def _harmless(self, labels):
        # Padding may be a label that the loss knows nothing of, like -100.
        padding = self.padding_of(labels)
        if padding is None:
            return labels
        return ops.where(ops.equal(labels, padding), ops.zeros_like(labels), labels)

    def _each(self, function, labels, outputs):
        values = ops.cast(function(labels, outputs), "float32")
        if len(values.shape) != len(labels.shape):
            raise ValueError(
                "A loss and a metric must give a value for each label, of labels "
                f"{tuple(labels.shape)}. Received: {tuple(values.shape)} of "
                f"{getattr(function, '__name__', function)}"
            )
        return values


def check_class_labels(labels: np.ndarray, padding: int | None, logits) -> None:
    """Refuse labels that are no classes of the logits (a symbolic tensor).

    On some devices they would be learned from without an error.

    Raises:
        ValueError: naming what is wrong with them.
    """
    wanted = f"Labels must be the numbers of classes, of logits {tuple(logits.shape)}. Received: "
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{wanted}{labels.dtype}")
    if labels.ndim != len(logits.shape) - 1:
        raise ValueError(f"{wanted}labels of the shape {labels.shape}")
    real = labels if padding is None else labels[labels != padding]
    classes = logits.shape[-1]
    if real.size and classes is not None and not 0 <= real.min() <= real.max() < classes:
        raise ValueError(f"{wanted}labels from {real.min()} to {real.max()}")


def clipped(gradients, limit):
    """The gradients, scaled down to a global norm of `limit` where theirs is larger."""
    norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients))
    factor = limit / ops.maximum(norm, limit)
    return [g * ops.cast(factor, g.dtype) for g in gradients]


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a random generator, which no weight file holds."""
    return variable.path.rpartition("/")[-1] == "seed_generator_state"
