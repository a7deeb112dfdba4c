"""Steps of training and of measuring on TensorFlow, on one device or on replicas."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from .objective import Objective, clipped, is_seed

_SUM = tf.distribute.ReduceOp.SUM
# Odd and with no pattern in its bits: seeds of replicas are far from the next layer's seed.
_BETWEEN_SEEDS = 0x9E3779B9


class TensorFlowSteps:
    """One compiled step for all shapes, or with `jit` one for each.

    Every replica is given the whole batch and takes its rows of it, so the weight of the batch is
    known to each without asking the others. The gradients are summed over the replicas, clipped
    after that, and applied by the optimizer, the same everywhere. Each replica draws its own
    dropout masks, and all count on alike.

    Args:
        objective: what is minimised and measured.
        optimizer: of the model's trainable variables, built.
        clip: largest global norm of the gradients; None: any.
        pieces: into how many parts a replica cuts its rows, one after the other, to need less
            memory.
        jit: whether XLA compiles the steps.
        sharded: whether a worker's batch in training is of rows that no other worker has, instead
            of the whole batch that all of them have.
        distribution: the `tf.distribute.Strategy`; None: one device.

    Attributes:
        traces: how often a step was traced: with `jit` the number of compilations.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: keras.optimizers.Optimizer,
        *,
        clip: float | None,
        pieces: int = 1,
        jit: bool = False,
        sharded: bool = False,
        distribution: tf.distribute.Strategy | None = None,
    ):
        self.traces = 0
        self._objective = objective
        self._optimizer = optimizer
        self._clip = clip
        self._pieces = pieces
        self._jit = jit
        self._sharded = sharded
        self._distribution = distribution
        self._replicas = distribution.num_replicas_in_sync if distribution else 1
        self._compiled = {}

    @contextlib.contextmanager
    def held(self):
        """While a training runs; the variables are always those of the model here."""
        yield

    def write_back(self) -> None:
        """Nothing to do: see `held`."""

    def retrace(self) -> None:
        """Trace the steps anew when they are next run."""
        self._compiled.clear()

    def train(self, inputs, labels, weights, learning_rate: float) -> tuple[float, np.ndarray]:
        """Train on a batch; its weight, and the sum of the loss in a vector."""
        self._optimizer.learning_rate.assign(learning_rate)
        return self._run(self._train, inputs, labels, weights, sharded=self._sharded)

    def test(self, inputs, labels, weights) -> tuple[float, np.ndarray]:
        """The weight of a batch, and the sums of loss and metrics over it."""
        return self._run(self._test, inputs, labels, weights)

    def _run(self, step, *batch, sharded=False):
        batch = self._tensors(*batch)
        key = step.__name__, len(batch)
        if key not in self._compiled:
            self._compiled[key] = tf.function(
                self._everywhere(step, sharded),
                input_signature=None if self._jit else self._signature(*batch),
                autograph=False,
                jit_compile=self._jit or None,
            )
        total, sums = self._compiled[key](*batch)
        return float(total), sums.numpy()

    def _tensors(self, inputs, labels, weights):
        inputs = {t.name: _as_tensor(inputs[t.name], t.dtype) for t in self._objective.model.inputs}
        of_rows = () if weights is None else (_as_tensor(weights, "float32"),)
        return inputs, tf.convert_to_tensor(labels), *of_rows

    def _signature(self, inputs, labels, *of_rows):
        """Of all batches: lengths that the model leaves open are open."""
        free = tf.TensorSpec([None] * labels.shape.rank, labels.dtype)
        specs = {
            t.name: tf.TensorSpec((None, *t.shape[1:]), t.dtype)
            for t in self._objective.model.inputs
        }
        return specs, free, *(tf.TensorSpec([None], x.dtype) for x in of_rows)

    def _everywhere(self, step, sharded):
        def run(inputs, labels, *of_rows):
            self.traces += 1
            batch = inputs, labels, self._objective.weights(labels, *of_rows)
            if self._distribution is None:
                return step(batch, tf.reduce_sum(batch[-1]), 0)

            def on_replica():
                context = tf.distribute.get_replica_context()
                replica = context.replica_id_in_sync_group
                if sharded:
                    local = len(self._distribution.extended.worker_devices)
                    rows = _part(batch, replica % local, local)
                    total = context.all_reduce(_SUM, tf.reduce_sum(rows[-1]))
                else:
                    rows = _part(batch, replica, self._replicas)
                    total = tf.reduce_sum(batch[-1])
                return step(rows, total, replica)

            results = self._distribution.run(on_replica)
            return tf.nest.map_structure(
                lambda x: self._distribution.experimental_local_results(x)[0], results
            )

        return run

    def _all_reduced(self, tensors):
        if self._replicas == 1:
            return tensors
        return tf.distribute.get_replica_context().all_reduce(_SUM, tensors)

    def _train(self, batch, total, replica):
        model, optimizer = self._objective.model, self._optimizer
        divisor = tf.where(total > 0, total, 1.0)
        scale = 1.0
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            scale = tf.convert_to_tensor(optimizer.dynamic_scale.value)
        trainable = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        before = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
        seeds = [is_seed(v) for v in model.non_trainable_variables]
        share = 1.0 / (self._replicas * self._pieces)

        def piece(index, non_trainable):
            rows = _part(batch, index, self._pieces)
            with tf.GradientTape() as tape:
                tape.watch(trainable)
                value, (sums, after) = self._objective.train(
                    trainable, non_trainable, *rows, divisor, share
                )
                value *= scale
            zero = tf.UnconnectedGradients.ZERO
            gradients = tape.gradient(value, trainable, unconnected_gradients=zero)
            # Dense: Keras's Adam squares those of a token's occurrences one by one.
            return [tf.convert_to_tensor(g) for g in gradients], sums, after

        own = [
            _moved(x, replica) if seed and self._replicas > 1 else x
            for x, seed in zip(before, seeds, strict=True)
        ]
        if self._pieces == 1:
            gradients, sums, after = piece(0, own)
        else:

            def body(index, gradients, sums, non_trainable):
                more, further, non_trainable = piece(index, non_trainable)
                gradients = [a + b for a, b in zip(gradients, more, strict=True)]
                return index + 1, gradients, sums + further, non_trainable

            start = (0, [tf.zeros_like(x) for x in trainable], tf.zeros([1]), own)
            _, gradients, sums, after = tf.while_loop(
                lambda index, *rest: index < self._pieces, body, start, parallel_iterations=1
            )
        *gradients, sums = self._all_reduced([*gradients, sums])
        if self._clip is not None:
            gradients = clipped(gradients, self._clip * scale)
        # The optimizer sums over the replicas once more.
        gradients = [g / self._replicas for g in gradients]
        optimizer.apply(gradients, model.trainable_variables)
        self._store(zip(model.non_trainable_variables, seeds, before, own, after, strict=True))
        return total, sums

    def _store(self, rows) -> None:
        means = []
        for variable, seed, before, own, after in rows:
            if seed:
                variable.assign(before + (after - own))  # what was drawn, the same everywhere
            elif self._replicas == 1 or not after.dtype.is_floating:
                variable.assign(after)
            else:
                means.append((variable, after))
        if means:  # moving averages
            variables, values = zip(*means, strict=True)
            for variable, value in zip(variables, self._all_reduced(list(values)), strict=True):
                variable.assign(value / self._replicas)

    def _test(self, batch, total, replica):
        model = self._objective.model
        values = [
            [tf.convert_to_tensor(v.value) for v in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]
        return total, self._all_reduced([self._objective.test(*values, *batch)])[0]


def _as_tensor(x, dtype):
    x = tf.convert_to_tensor(x)
    return x if x.dtype == dtype else tf.cast(x, dtype)


def _part(batch, number, parts):
    """Rows of a part of a batch; ones that are missing are copies of row 0 of weight 0.

    Copies, because some kernels (cuDNN's recurrent ones) cannot read a row of padding alone.
    """
    inputs, labels, weights = batch
    if parts == 1:
        return inputs, labels, weights
    count = tf.shape(labels)[0]
    size = -(-count // parts)
    index = number * size + tf.range(size)
    there = index < count
    index = tf.where(there, index, 0)
    inputs = {name: tf.gather(x, index) for name, x in inputs.items()}
    weights = tf.gather(weights, index)
    there = tf.reshape(tf.cast(there, weights.dtype), [-1] + [1] * (weights.shape.rank - 1))
    return inputs, tf.gather(labels, index), weights * there


def _moved(seed, replica):
    """The state of a generator, (key, count), with another key for each replica."""
    moved = tf.cast(seed, "int64") + tf.cast(replica, "int64") * tf.constant([_BETWEEN_SEEDS, 0])
    return tf.cast(moved % 2**32, seed.dtype)
