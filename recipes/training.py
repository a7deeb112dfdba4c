"""The training loop of the recipes: one step, checkpoints that a killed run resumes from.

`Trainer` is a plain class around a functional model: only the model is saved, and it knows
nothing of the trainer.
"""

import contextlib
import csv
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from keras_attention.export.places import replacing

from .averaging import Averaging
from .checkpoints import Checkpoints
from .clock import Clock
from .errors import Interrupted, PeerLost, RunError
from .interruptions import lost_peers, stop_signals
from .objective import Elementwise, Objective, accuracy, check_class_labels, cross_entropy
from .schedules import SCHEDULES
from .strategies import Strategy

Batches = Iterable[tuple]
Figures = dict[str, float]


class Trainer:
    """Trains a model by one step that is right on any number of devices, on both backends.

    The loss of a batch is the sum over its real labels divided by their number, on all devices
    together, so a row weighs what it holds and padding weighs nothing:

        L = sum_i m_i ((1 - eps) nll_i + eps mean_v(-log p_iv)) / sum_i m_i

    Gradients are summed over the devices and then clipped by their global norm; every device
    draws dropout masks of its own. The learning rate rises linearly over the first `warmup_steps`,
    a quarter of all steps at most, and falls by the schedule to the end of the last epoch, or of
    the minutes where these end first.

    A batch is `(inputs, labels)` or `(inputs, labels, weights)`: tensors or arrays by the names of
    the model's inputs (or in a list in their order, or the one input alone), labels (B, T) or
    (B,), weights of rows (B,). Every worker is given the whole batch and trains on its rows of it;
    with `sharded` it trains on batches of its own. Where rows do not divide over the devices,
    copies that weigh nothing fill up.

    Args:
        model: a functional `keras.Model`, or a built Sequential one, with one output: by default
            logits (B, T, V) or (B, V). Whether and how it was compiled does not matter.
        strategy: see `strategies.choose`; None: one device.
        loss: `(labels, outputs)` to a value for each label; by default the cross-entropy of
            integer labels by logits.
        metrics: by name, functions of the same form that `evaluate` gives the means of; by
            default `token_accuracy`.
        optimizer: without clipping or a schedule of its own; None: Adam.
        learning_rate: its highest value; None: the optimizer's own, Adam's 0.001.
        warmup_steps: steps over which it rises.
        schedule: how it falls: a name in `schedules.SCHEDULES`, or a function of that form.
        clip: largest global norm of the gradients; None: any.
        label_smoothing: eps, with the default loss.
        pad_id: label that is padding; None: none is; `"auto"`: 0 in sequences of labels (B, T),
            none where a row has one label (B,).
        accumulate: into how many parts each device cuts its rows, one after the other, to need
            less memory for the same step.
        jit: whether XLA compiles the step on TensorFlow, once for each shape of a batch; on JAX
            it always does.
        sharded: whether each worker is given batches to train on that no other has, as of its share
            of the files. A worker that has no more waits for the others. Not on JAX.

    Attributes:
        traces: how often a step was traced; under XLA the number of compilations.

    Raises:
        ValueError: for an optimizer that clips or has a schedule, or options that do not fit.
        UsageError: for a model made outside of the strategy's scope, or `jit` where it cannot be.

    Example:

    ```python
    import numpy as np, keras
    from keras_attention.recipes.training import Trainer

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    model = keras.Model(tokens, keras.layers.Dense(9)(keras.layers.Embedding(9, 4)(tokens)))
    rows = np.random.default_rng(0).integers(1, 9, (8, 5)).astype("int32")
    history = Trainer(model).fit(lambda epoch: [({"tokens": rows}, rows)], epochs=2)
    print(history[-1]["loss"])
    ```
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        strategy: Strategy | None = None,
        loss: Elementwise = cross_entropy,
        metrics: Mapping[str, Elementwise] | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
        learning_rate: float | None = None,
        warmup_steps: int = 200,
        schedule: str | Callable[[int, int, float], float] = "cosine",
        clip: float | None = 1.0,
        label_smoothing: float = 0.0,
        pad_id: int | Literal["auto"] | None = "auto",
        accumulate: int = 1,
        jit: bool = False,
        sharded: bool = False,
    ):
        if label_smoothing and loss is not cross_entropy:
            raise ValueError(
                "label_smoothing is for the default loss. Received: "
                f"label_smoothing={label_smoothing}"
            )
        if isinstance(schedule, str) and schedule not in SCHEDULES:
            raise ValueError(f"`schedule` must be in {list(SCHEDULES)}. Received: {schedule!r}")
        if accumulate < 1:
            raise ValueError(f"`accumulate` must be at least 1. Received: accumulate={accumulate}")
        _check_model(model)
        self.model = model
        self.strategy = strategy or Strategy()
        self.strategy.check(model)
        self.loss = loss
        self.metrics = {"token_accuracy": accuracy} if metrics is None else dict(metrics)
        self.warmup_steps = warmup_steps
        self.schedule = SCHEDULES[schedule] if isinstance(schedule, str) else schedule
        with self.strategy.scope():
            self.optimizer = _scaled(optimizer or keras.optimizers.Adam(), model)
            self.optimizer.build(model.trainable_variables)
        if learning_rate is None:
            learning_rate = float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))
        self.learning_rate = learning_rate
        self._objective = Objective(model, loss, self.metrics, label_smoothing, pad_id)
        self._steps = self.strategy.steps(
            self._objective,
            self.optimizer,
            clip=clip,
            pieces=accumulate,
            jit=jit,
            sharded=sharded,
        )
        self._sharded = sharded and self.strategy.workers > 1

    @property
    def traces(self) -> int:
        return self._steps.traces

    def retrace(self) -> None:
        """Compile the steps anew, for a model of which something other than weights was changed.

        As Keras's `compile` does; weights and the state of the optimizer stay.
        """
        self._steps.retrace()

    def evaluate(self, batches: Batches) -> Figures:
        """Means over the real labels: the loss (without smoothing) and the metrics.

        The loss of `cross_entropy` is in nats a label, and its perplexity is given, too.
        """
        sums, weight = np.zeros(1 + len(self.metrics)), 0.0
        with self._steps.held(), lost_peers(self.strategy.workers):
            for batch in batches:
                more, further = self._steps.test(*self._unpacked(batch))
                weight, sums = weight + more, sums + further
        loss, *others = (float(x) for x in sums / max(weight, 1e-9))
        figures = {"loss": loss}
        if self.loss is cross_entropy:
            figures["perplexity"] = math.exp(min(loss, 100))
        return figures | dict(zip(self.metrics, others, strict=True))

    def fit(
        self,
        epoch_data: Callable[[int], Batches],
        *,
        epochs: int,
        minutes: float | None = None,
        steps: int | None = None,
        validate: Callable[[], Figures] | None = None,
        best_by: Callable[[Figures], Any] = lambda metrics: -metrics["loss"],
        folder: str | os.PathLike | None = None,
        resume: bool | Literal["auto"] = False,
        checkpoint_steps: int | None = None,
        average: int = 1,
        patience: int | None = None,
        made_by: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = print,
        on_epoch: Callable[[Figures], None] = lambda figures: None,
        on_step: Callable[[int, Figures], None] = lambda step, figures: None,
        progress: Callable[..., contextlib.AbstractContextManager] | None = None,
    ) -> list[Figures]:
        """Train, keeping the best model by validation and a state to resume from.

        Args:
            epoch_data: gives the batches of an epoch, the same ones in the same order whenever
                and by whichever worker it is asked for the same epoch.
            epochs: how often to go through the data.
            minutes: most minutes to train, counted as this process's CPU time over the number of
                cores it may use, so that a run beside other work is not cut short; wall time
                where an accelerator does the work. Of several workers the mean counts.
            steps: batches an epoch, for the schedule; counted by a first pass when None.
            validate: run after each epoch, by every worker; its figures are recorded.
            best_by: from an epoch's figures, what to maximise: a number or a tuple.
            folder: where `model.keras` (the best so far), `checkpoints/` and `history.csv`, a line
                an epoch, are kept: one folder for all workers, in which the first writes.
            resume: go on from the newest checkpoint in `folder`; `"auto"`: where there is one.
            checkpoint_steps: steps from one checkpoint to the next within an epoch; None: there
                is one at the end of each epoch, and when a signal stops the training.
            average: over how many epochs the mean of the weights is taken that is validated and
                kept, while training goes on with its own.
            patience: epochs without a better one after which training ends; None: it does not.
            made_by: see `Checkpoints`; the model's sizes are checked in any case.
            report: receives a line when a checkpoint is broken.
            on_epoch: called with the figures of each finished epoch.
            on_step: called after each step with its number, from 1, and its figures: `loss`,
                `learning_rate`, `tokens_per_second`.
            progress: `progress(total, description)` is a context that gives a function
                `advance(**figures)`.

        Returns:
            The figures of each epoch.

        Raises:
            Interrupted: after SIGINT or SIGTERM, when the state has been saved.
            PeerLost: when another worker is gone: all are to be started again.
            RunError: when `resume` finds no checkpoint, or only broken ones, or a foreign one.
            OSError: when a checkpoint cannot be written; older ones stay.
        """
        if not callable(epoch_data):
            raise ValueError(
                "`epoch_data` is a function of the epoch that gives its batches, as "
                f"`lambda epoch: dataset`. Received: {type(epoch_data).__name__}"
            )
        steps = steps or sum(1 for _ in self._batches(epoch_data, 0))
        if not steps:
            raise RunError("there is nothing to train on: the data gives no batch")
        checkpoints = None
        if folder:
            folder = Path(folder)
            checkpoints = Checkpoints(folder / "checkpoints", made_by=made_by, report=report)
        if resume and checkpoints is None:
            raise RunError("resume needs the folder that the checkpoints are in")
        if checkpoints and not resume and checkpoints.paths():
            raise RunError(
                f"{folder} holds the checkpoints of a training already: resume it, or choose "
                "another folder"
            )
        found = resume and (resume != "auto" or checkpoints.paths())
        state = self._restore(checkpoints) if found else _State()
        past = Averaging(
            self.model, average, checkpoints and checkpoints.folder, self.strategy.is_chief
        )
        past.restore(state.epoch)
        clock = Clock(state.minutes, state.seconds, self.strategy.accelerated)
        warmup_steps = min(self.warmup_steps, epochs * steps // 4)
        if state.epoch >= epochs:
            report(f"nothing is left to train: all {epochs} epochs are done")

        def time_spent():  # as a part of what is allowed
            return state.minutes / minutes if minutes is not None else 0.0

        with stop_signals() as stop, lost_peers(self.strategy.workers):
            self._check_together(state)
            while state.epoch < epochs and time_spent() < 1 and not state.tired(patience):
                bar = progress(steps, f"epoch {state.epoch + 1}/{epochs}") if progress else None
                with (
                    bar or contextlib.nullcontext(lambda **figures: None) as advance,
                    self._steps.held(),
                ):
                    for index, batch in enumerate(self._batches(epoch_data, state.epoch)):
                        if index < state.step:
                            advance()
                            continue
                        step = state.epoch * steps + index
                        done = min(max(step / (epochs * steps), time_spent()), 1.0)
                        rate = self.learning_rate * self.schedule(step, warmup_steps, done)
                        loss = self._train_on(batch, state, rate)
                        stopped_by = self._shared(state, stop, clock)
                        advance(loss=state.loss, tokens_per_second=state.speed)
                        of_step = {"loss": loss, "learning_rate": rate}
                        on_step(step + 1, {**of_step, "tokens_per_second": state.speed})
                        if stopped_by or time_spent() >= 1:
                            break
                        if checkpoint_steps and not state.step % checkpoint_steps:
                            self._save(checkpoints, state)
                stopped_by = self._shared(state, stop, clock)
                if stopped_by:
                    self._save(checkpoints, state)
                    self._end_together()
                    raise Interrupted(stopped_by, saved=folder is not None)
                if not state.tokens:
                    raise RunError(
                        f"there is nothing to train on: epoch {state.epoch + 1} holds no label, or "
                        "padding alone"
                    )
                past.add(state.epoch)
                with past.mean():
                    figures = {
                        "epoch": state.epoch + 1,
                        "loss": state.loss,
                        "train_loss": state.loss,
                        "tokens_per_second": state.speed,
                        **(validate() if validate else {}),
                    }
                    self._shared(state, stop, clock)
                    figures |= {"minutes": state.minutes, "seconds": state.seconds}
                    better = all(best_by(figures) > best_by(f) for f in state.history)
                    figures["best"] = self.strategy.as_the_chief(better)
                    # The model first: a checkpoint never claims a best model that is not there.
                    if checkpoints and self.strategy.is_chief and figures["best"]:
                        with replacing(folder / "model.keras") as beside:
                            self.model.save(beside)
                state.end_epoch(figures)
                if checkpoints and self.strategy.is_chief:
                    self._save(checkpoints, state)
                    _write_table(folder / "history.csv", state.history)
                on_epoch(figures)
        self._end_together()
        return state.history

    def _batches(self, epoch_data, epoch: int) -> Iterator[tuple]:
        """The batches of an epoch; as many for each worker, the last ones weighing nothing."""
        if not self._sharded:
            yield from epoch_data(epoch)
            return
        last, own = None, iter(epoch_data(epoch))
        while True:
            batch = next(own, None)
            if not self.strategy.total([batch is not None])[0]:
                return
            if batch is None and last is None:
                raise RunError(f"worker {self.strategy.worker} has nothing to train on")
            # Weights in any case: all workers have to run one and the same compiled step.
            if batch is None:
                inputs, labels, weights = last
                batch = inputs, labels, np.zeros_like(weights)
            elif len(batch) == 2:
                batch = (*batch, np.ones(len(batch[1]), "float32"))
            yield (last := batch)

    def _unpacked(self, batch):
        if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 3:
            raise ValueError(
                "a batch is (inputs, labels) or (inputs, labels, weights). Received: "
                f"{type(batch).__name__} of {len(batch)}"
            )
        inputs, labels, *weights = batch
        names = [tensor.name for tensor in self.model.inputs]
        if not isinstance(inputs, Mapping):
            given = inputs if isinstance(inputs, tuple | list) else [inputs]
            if len(given) == len(names):
                inputs = dict(zip(names, given, strict=True))
        missing = [name for name in names if name not in inputs]
        if missing:
            what = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(f"A batch must have the model's inputs {names}. Received: {what}")
        inputs = {name: inputs[name] for name in names}
        rows = {name: len(x) for name, x in {**inputs, "labels": labels}.items()}
        if weights:
            rows["weights"] = len(weights[0])
        if len(set(rows.values())) > 1:
            raise ValueError(f"All of a batch must have as many rows. Received: {rows}")
        if self.loss is cross_entropy:
            numbers = np.asarray(labels)
            check_class_labels(numbers, self._objective.padding_of(numbers), self.model.outputs[0])
        return inputs, labels, weights[0] if weights else None

    def _train_on(self, batch, state: "_State", learning_rate: float) -> float:
        started = time.perf_counter()
        tokens, [total] = self._steps.train(*self._unpacked(batch), learning_rate)
        state.busy += time.perf_counter() - started
        state.nll += float(total)
        state.tokens += tokens
        state.step += 1
        state.steps += 1
        if not math.isfinite(total):
            raise RunError(
                f"the loss is not finite in epoch {state.epoch + 1}, step {state.step}: "
                "try a smaller learning rate, and see that no id is beyond its embedding"
            )
        return float(total) / max(tokens, 1.0)

    def _shared(self, state: "_State", stop: list[int], clock: Clock) -> int | None:
        """Note the minutes that all workers agree on; the signal that stops them, if any."""
        own = [clock.minutes, *(float(stop[:1] == [s]) for s in (signal.SIGINT, signal.SIGTERM))]
        minutes, interrupted, ended = self.strategy.total(own)
        state.minutes, state.seconds = float(minutes) / self.strategy.workers, clock.seconds
        if interrupted:
            return signal.SIGINT
        return signal.SIGTERM if ended else None

    def _check_together(self, state: "_State") -> None:
        """Refuse workers that found different checkpoints."""
        steps = self.strategy.total([state.steps])[0] / self.strategy.workers
        if steps != state.steps:
            raise RunError(
                f"worker {self.strategy.worker} goes on from step {state.steps} and others do not: "
                "the run's folder must be one that all workers share"
            )

    def _end_together(self) -> None:
        """Wait until the chief has written; who is gone by now is not missed any more.

        A sum that has arrived at one worker may still be on its way to the chief, who would miss
        one that ends at once, and save nothing.
        """
        with contextlib.suppress(PeerLost):
            self.strategy.wait()

    def _variables(self) -> dict[str, keras.Variable]:
        # `model.variables` holds what `model.weights` does not: the state of the dropout seeds,
        # without which a resumed run would draw other masks.
        variables = [*self.model.variables, *self.optimizer.variables]
        return {f"{i:04d}": variable for i, variable in enumerate(variables)}

    def _save(self, checkpoints: Checkpoints | None, state: "_State") -> None:
        if checkpoints and self.strategy.is_chief:
            self._steps.write_back()
            arrays = {n: keras.ops.convert_to_numpy(v) for n, v in self._variables().items()}
            checkpoints.save(state.steps, arrays, dataclasses.asdict(state))

    def _restore(self, checkpoints: Checkpoints) -> "_State":
        arrays, state = checkpoints.load()
        variables = self._variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: x.shape for name, x in arrays.items()}:
            raise RunError(
                f"{checkpoints.folder} is of another model: resume with the options of the run, or "
                "train into another folder"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        return _State(**state)


def _check_model(model):
    if getattr(model, "inputs", None) is None or not hasattr(model, "outputs"):
        raise ValueError(
            "The model must be functional, or Sequential and built. Received: "
            f"{type(model).__name__} {model.name}"
        )
    if len(model.outputs) != 1:
        raise ValueError(f"The model must have one output. Received: {len(model.outputs)}")


def _scaled(optimizer, model):
    """The optimizer, with a scaled loss where the model computes in float16."""
    clips = [n for n in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(optimizer, n, None)]
    if clips:
        raise ValueError(
            "An optimizer clips before gradients are summed over devices: leave it to `clip`. "
            f"Received: {clips[0]}={getattr(optimizer, clips[0])}"
        )
    if not isinstance(optimizer.learning_rate, keras.Variable):
        raise ValueError(
            "The learning rate is given as a number; leave how it changes to `schedule`. "
            f"Received: {optimizer.get_config()['learning_rate']}"
        )
    half = any(layer.compute_dtype == "float16" for layer in model.layers)
    if half and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@dataclasses.dataclass
class _State:
    """Where a training stands, beside its variables."""

    epoch: int = 0
    steps: int = 0  # batches done of the whole training
    step: int = 0  # and of this epoch
    nll: float = 0.0  # over these
    tokens: float = 0.0
    busy: float = 0.0  # seconds
    minutes: float = 0.0  # of the whole training
    seconds: float = 0.0
    history: list = dataclasses.field(default_factory=list)

    @property
    def loss(self) -> float:
        return self.nll / max(self.tokens, 1.0)

    @property
    def speed(self) -> float:
        return self.tokens / max(self.busy, 1e-9)

    def tired(self, patience: int | None) -> bool:
        """Whether so many epochs in a row were no better than one before."""
        return (
            bool(patience)
            and len(self.history) > patience
            and not any(figures["best"] for figures in self.history[-patience:])
        )

    def end_epoch(self, figures: dict) -> None:
        self.history.append(figures)
        self.epoch, self.step = self.epoch + 1, 0
        self.nll = self.tokens = self.busy = 0.0


def _write_table(path: Path, rows: list[dict]) -> None:
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
