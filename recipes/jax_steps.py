"""Steps of training and of measuring on JAX, over any number of devices and processes."""

import contextlib
from collections.abc import Sequence

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .objective import Objective, clipped


class JaxSteps:
    """Compiled steps, one for each shape of batches.

    The batch lies across the devices, the variables are on each of them, and the compiler sees
    one computation over the whole batch: sums, clipping, dropout and metrics are those of one
    device. Between the steps of a training the variables are held here, and the model's are old.

    Args:
        objective: what is minimised and measured.
        optimizer: of the model's trainable variables, built.
        clip: largest global norm of the gradients; None: any.
        pieces: into how many parts a device cuts its rows, one after the other, to need less
            memory.
        devices: of all processes, in one order everywhere.

    Attributes:
        traces: how often a step was traced, which is the number of compilations.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: keras.optimizers.Optimizer,
        *,
        clip: float | None,
        pieces: int = 1,
        devices: Sequence[jax.Device],
    ):
        self.traces = 0
        self._objective = objective
        self._optimizer = optimizer
        self._clip = clip
        self._pieces = pieces
        mesh = Mesh(np.asarray(devices), ("rows",))
        self._replicas = len(devices)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._rows = NamedSharding(mesh, PartitionSpec(None, "rows"))
        self._state = None
        self._old = False  # whether the model's variables are
        # By identity: variables compare by value.
        places = {id(variable): i for i, variable in enumerate(optimizer.variables)}
        self._rate = places[id(optimizer.learning_rate)]
        self._scale = None
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            self._scale = places[id(optimizer.dynamic_scale)]
        self._compiled_train = jax.jit(
            self._train, donate_argnums=0, out_shardings=self._everywhere
        )
        self._compiled_test = jax.jit(self._test, out_shardings=self._everywhere)

    @contextlib.contextmanager
    def held(self):
        """While a training runs: the variables are taken here, and given back at the end."""
        if self._state is not None:
            yield
            return
        self._state = [
            [self._placed(np.asarray(v.value), self._everywhere) for v in variables]
            for variables in self._variables()
        ]
        try:
            yield
        finally:
            self.write_back()
            self._state = None

    def write_back(self) -> None:
        """Make the model's and the optimizer's variables new."""
        if self._state is not None and self._old:
            for variables, values in zip(self._variables(), self._state, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(np.asarray(value))
        self._old = False

    def retrace(self) -> None:
        """Trace the steps anew when they are next run."""
        self._compiled_train.clear_cache()
        self._compiled_test.clear_cache()

    def train(self, inputs, labels, weights, learning_rate: float) -> tuple[float, np.ndarray]:
        """Train on a batch; its weight, and the sum of the loss in a vector."""
        # The step consumes the state: should it fail there is none, and the model's is whole.
        state, self._state = self._state, None
        batch = self._batch(inputs, labels, weights, self._pieces)
        self._state, total, sums = self._compiled_train(state, batch, np.float32(learning_rate))
        self._old = True
        return float(total), np.asarray(sums)

    def test(self, inputs, labels, weights) -> tuple[float, np.ndarray]:
        """The weight of a batch, and the sums of loss and metrics over it."""
        total, sums = self._compiled_test(self._state[:2], self._batch(inputs, labels, weights, 1))
        return float(total), np.asarray(sums)

    def _variables(self):
        model = self._objective.model
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            self._optimizer.variables,
        )

    def _placed(self, array, sharding):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def _batch(self, inputs, labels, weights, pieces):
        """Arrays (pieces, rows, ...) across the devices; missing rows are row 0 with weight 0."""
        labels = np.asarray(labels)
        count = len(labels)
        size = -(-count // (self._replicas * pieces))
        index = np.arange(self._replicas * pieces * size)
        there = (index < count).astype("float32")
        index = np.where(index < count, index, 0)

        def arranged(array):
            # A device's rows lie together, as they would on one.
            parts = np.asarray(array).reshape(self._replicas, pieces, size, *array.shape[1:])
            parts = parts.swapaxes(0, 1).reshape(pieces, self._replicas * size, *array.shape[1:])
            return self._placed(parts, self._rows)

        of_rows = there if weights is None else there * np.asarray(weights, "float32")[index]
        inputs = {name: arranged(np.asarray(x)[index]) for name, x in inputs.items()}
        return inputs, arranged(labels[index]), arranged(of_rows)

    def _train(self, state, batch, learning_rate):
        self.traces += 1
        trainable, non_trainable, of_optimizer = state
        of_optimizer = list(of_optimizer)
        of_optimizer[self._rate] = learning_rate.astype(of_optimizer[self._rate].dtype)
        scale = 1.0 if self._scale is None else of_optimizer[self._scale]
        inputs, labels, of_rows = batch
        weights = jax.vmap(self._objective.weights)(labels, of_rows)
        total = weights.sum()
        divisor = jax.numpy.where(total > 0, total, 1.0)

        def objective(trainable, non_trainable, inputs, labels, weights):
            value, rest = self._objective.train(
                trainable, non_trainable, inputs, labels, weights, divisor, 1.0 / self._pieces
            )
            return value * scale, rest

        gradient = jax.grad(objective, has_aux=True)

        def piece(carried, rows):
            gradients, sums, non_trainable = carried
            more, (further, non_trainable) = gradient(trainable, non_trainable, *rows)
            gradients = [a + b for a, b in zip(gradients, more, strict=True)]
            return (gradients, sums + further, non_trainable), None

        rows = inputs, labels, weights
        if self._pieces == 1:
            rows = jax.tree.map(lambda x: x[0], rows)
            gradients, (sums, non_trainable) = gradient(trainable, non_trainable, *rows)
        else:
            zeros = [jax.numpy.zeros_like(x) for x in trainable]
            start = zeros, jax.numpy.zeros(1, "float32"), non_trainable
            (gradients, sums, non_trainable), _ = jax.lax.scan(piece, start, rows)
        if self._clip is not None:
            gradients = clipped(gradients, self._clip * scale)
        trainable, of_optimizer = self._optimizer.stateless_apply(
            of_optimizer, gradients, trainable
        )
        return [trainable, non_trainable, of_optimizer], total, sums

    def _test(self, state, batch):
        self.traces += 1
        inputs, labels, of_rows = jax.tree.map(lambda x: x[0], batch)
        weights = self._objective.weights(labels, of_rows)
        return weights.sum(), self._objective.test(*state, inputs, labels, weights)
