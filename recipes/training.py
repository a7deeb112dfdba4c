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
import tensorflow as tf

from .checkpoints import Checkpoints
from .errors import Interrupted, RunError
from .files import replacing


class Trainer:
    """Trains a model of tokens to logits by cross-entropy over the real tokens of each batch.

    The loss of a batch is the sum over its real tokens divided by their number, so a row weighs
    what it holds and padding weighs nothing:

        L = sum_i m_i ((1 - eps) nll_i + eps mean_v(-log p_iv)) / sum_i m_i

    Gradients are clipped by their global norm. The learning rate rises linearly over the first
    `warmup_steps`, a quarter of all steps at most, and falls along a half cosine to 0 at the end
    of the last epoch, or of the minutes where these end first.

    Args:
        model: a built `keras.Model` whose one output is logits (B, T, V).
        learning_rate: its highest value.
        warmup_steps: steps over which it rises.
        clip: largest global norm of the gradients.
        label_smoothing: eps.
        pad_id: label that is padding.

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
        learning_rate: float = 1e-3,
        warmup_steps: int = 200,
        clip: float = 1.0,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
    ):
        self.model = model
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.clip = clip
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id
        self.optimizer = keras.optimizers.Adam(learning_rate)
        self.optimizer.build(model.trainable_variables)
        tokens = tf.TensorSpec((None, None), "int32")
        signature = [{tensor.name: tokens for tensor in model.inputs}, tokens]
        self._train_step = tf.function(self._step, input_signature=signature, autograph=False)
        self._test_step = tf.function(self._count, input_signature=signature, autograph=False)

    def _logits(self, inputs, training):
        # By name into whatever structure of inputs the model was built with.
        flat = [inputs[tensor.name] for tensor in self.model.inputs]
        structured = keras.tree.pack_sequence_as(self.model.input, flat)
        return self.model(structured, training=training)

    def _step(self, inputs, labels):
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = self._logits(inputs, training=True)
            nll, real = self._nll(logits, labels)
            tokens = tf.maximum(tf.reduce_sum(real), 1.0)
            each = nll
            if self.label_smoothing:
                # (1 - eps) nll + eps mean(-log p) is nll + eps (logit of the label - mean logit).
                safe = tf.where(labels == self.pad_id, 0, labels)
                of_label = tf.gather(logits, safe, axis=-1, batch_dims=2)
                each += self.label_smoothing * (of_label - tf.reduce_mean(logits, axis=-1))
            loss = tf.reduce_sum(each * real) / tokens
        # Dense, because Adam moves every row of an embedding anyway.
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        gradients, _ = tf.clip_by_global_norm(gradients, self.clip)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return tf.reduce_sum(nll * real), tf.reduce_sum(real)

    def _count(self, inputs, labels):
        logits = self._logits(inputs, training=False)
        nll, real = self._nll(logits, labels)
        right = tf.cast(tf.argmax(logits, -1, output_type="int32") == labels, real.dtype)
        return tf.reduce_sum(nll * real), tf.reduce_sum(real), tf.reduce_sum(right * real)

    def _nll(self, logits, labels):
        real = tf.cast(labels != self.pad_id, "float32")
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return nll, real

    def evaluate(self, batches: Iterable) -> dict[str, float]:
        """Loss (nats a token, without smoothing), perplexity and accuracy over real tokens."""
        nll, tokens, right = np.sum(
            [[float(x) for x in self._test_step(*batch)] for batch in batches], axis=0
        )
        loss = nll / max(tokens, 1)
        return {
            "loss": float(loss),
            "perplexity": math.exp(min(loss, 100)),
            "token_accuracy": float(right / max(tokens, 1)),
        }

    def fit(
        self,
        epoch_data: Callable[[int], Iterable],
        *,
        epochs: int,
        minutes: float | None = None,
        steps: int | None = None,
        validate: Callable[[], dict[str, float]] | None = None,
        best_by: Callable[[dict[str, float]], Any] = lambda metrics: -metrics["loss"],
        folder: Path | None = None,
        resume: bool | Literal["auto"] = False,
        checkpoint_steps: int | None = None,
        patience: int | None = None,
        made_by: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = print,
        on_epoch: Callable[[dict[str, float]], None] = lambda metrics: None,
        progress: Callable[..., contextlib.AbstractContextManager] | None = None,
    ) -> list[dict[str, float]]:
        """Train, keeping the best model by validation and a state to resume from.

        Args:
            epoch_data: gives the batches `(inputs by name, labels)` of an epoch, the same ones in
                the same order whenever it is asked for the same epoch.
            epochs: how often to go through the data.
            minutes: most minutes to train, counted as this process's CPU time over the number of
                cores it may use, so that a run beside other work is not cut short; wall time
                where an accelerator does the work.
            steps: batches an epoch, for the schedule; counted by a first pass when None.
            validate: run after each epoch; its figures are recorded.
            best_by: from an epoch's figures, what to maximise: a number or a tuple.
            folder: where `model.keras` (the best so far), `checkpoints/` and `history.csv`, a line
                an epoch, are kept.
            resume: go on from the newest checkpoint in `folder`; `"auto"`: where there is one.
            checkpoint_steps: steps from one checkpoint to the next within an epoch; None: there
                is one at the end of each epoch, and when a signal stops the training.
            patience: epochs without a better one after which training ends; None: it does not.
            made_by: see `Checkpoints`; the model's sizes are checked in any case.
            report: receives a line when a checkpoint is broken.
            on_epoch: called with the figures of each finished epoch.
            progress: `progress(total, description)` is a context that gives a function
                `advance(**figures)`.

        Returns:
            The figures of each epoch.

        Raises:
            Interrupted: after SIGINT or SIGTERM, when the state has been saved.
            RunError: when `resume` finds no checkpoint, or only broken ones, or a foreign one.
            OSError: when a checkpoint cannot be written; older ones stay.
        """
        steps = steps or sum(1 for _ in epoch_data(0))
        if not steps:
            raise RunError("there is nothing to train on: the data gives no batch")
        checkpoints = None
        if folder:
            checkpoints = Checkpoints(folder / "checkpoints", made_by=made_by, report=report)
        if resume and checkpoints is None:
            raise RunError("resume needs the folder that the checkpoints are in")
        found = resume and (resume != "auto" or checkpoints.paths())
        state = self._restore(checkpoints) if found else _State()
        clock = _Clock(state.minutes, state.seconds)

        def time_spent():  # as a part of what is allowed
            return clock.minutes / minutes if minutes is not None else 0.0

        warmup_steps = min(self.warmup_steps, epochs * steps // 4)
        with _stop_signals() as stop:
            while state.epoch < epochs and time_spent() < 1 and not state.tired(patience):
                bar = progress(steps, f"epoch {state.epoch + 1}/{epochs}") if progress else None
                with bar or contextlib.nullcontext(lambda **figures: None) as advance:
                    for index, batch in enumerate(epoch_data(state.epoch)):
                        if index < state.step:
                            advance()
                            continue
                        step = state.epoch * steps + index
                        done = max(step / (epochs * steps), time_spent())
                        self._set_learning_rate(step, warmup_steps, min(done, 1.0))
                        self._train_on(batch, state)
                        advance(loss=state.loss, tokens_per_second=state.speed)
                        if stop or time_spent() >= 1:
                            break
                        if checkpoints and checkpoint_steps and not state.step % checkpoint_steps:
                            state.minutes, state.seconds = clock.minutes, clock.seconds
                            self._save(checkpoints, state)
                state.minutes, state.seconds = clock.minutes, clock.seconds
                if stop:
                    if checkpoints:
                        self._save(checkpoints, state)
                    raise Interrupted(stop[0], saved=folder is not None)
                figures = {
                    "epoch": state.epoch + 1,
                    "loss": state.loss,
                    "train_loss": state.loss,
                    "tokens_per_second": state.speed,
                    **(validate() if validate else {}),
                    "minutes": clock.minutes,
                    "seconds": clock.seconds,
                }
                figures["best"] = all(best_by(figures) > best_by(f) for f in state.history)
                state.end_epoch(figures)
                if checkpoints:
                    # The model first: a checkpoint never claims a best model that is not there.
                    if figures["best"]:
                        with replacing(folder / "model.keras") as beside:
                            self.model.save(beside)
                    self._save(checkpoints, state)
                    _write_table(folder / "history.csv", state.history)
                on_epoch(figures)
        return state.history

    def _train_on(self, batch, state: "_State") -> None:
        started = time.perf_counter()
        nll, tokens = (float(x) for x in self._train_step(*batch))
        state.busy += time.perf_counter() - started
        state.nll += nll
        state.tokens += tokens
        state.step += 1
        state.steps += 1
        if not math.isfinite(nll):
            raise RunError(
                f"the loss is not finite in epoch {state.epoch + 1}, step {state.step}: "
                "try a smaller learning rate"
            )

    def _set_learning_rate(self, step: int, warmup_steps: int, part: float) -> None:
        rise = min(1.0, (step + 1) / max(warmup_steps, 1))
        fall = 0.5 * (1.0 + math.cos(math.pi * part))
        self.optimizer.learning_rate.assign(self.learning_rate * rise * fall)

    def _variables(self) -> dict[str, keras.Variable]:
        # `model.variables` holds what `model.weights` does not: the state of the dropout seeds,
        # without which a resumed run would draw other masks.
        variables = [*self.model.variables, *self.optimizer.variables]
        return {f"{i:04d}": variable for i, variable in enumerate(variables)}

    def _save(self, checkpoints: Checkpoints, state: "_State") -> None:
        arrays = {name: np.asarray(v.value) for name, v in self._variables().items()}
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
        self.minutes, self.seconds = figures["minutes"], figures["seconds"]


def _write_table(path: Path, rows: list[dict]) -> None:
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


class _Clock:
    """Minutes of work: CPU time over the cores at hand, or wall time beside an accelerator."""

    def __init__(self, minutes: float, seconds: float):
        accelerator = bool(tf.config.list_physical_devices("GPU"))
        self._cores = 1 if accelerator else _cores()
        self._time = time.perf_counter if accelerator else time.process_time
        self._before = minutes * 60 * self._cores
        self._start = self._time()
        self._wall_before = seconds
        self._wall_start = time.perf_counter()

    @property
    def minutes(self) -> float:
        return (self._before + self._time() - self._start) / self._cores / 60

    @property
    def seconds(self) -> float:
        return self._wall_before + time.perf_counter() - self._wall_start


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that the step that runs can end and be saved."""
    received: list[int] = []

    def receive(number, frame):
        received.append(number)
        if len(received) > 1:  # asked twice: do not wait for the step
            raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, receive) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals belong to the main thread
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
