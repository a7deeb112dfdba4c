"""Training into a run's folder, whatever the recipe: who writes, what is resumed, what is told."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import keras
import numpy as np
import tensorflow as tf

from .errors import RunError
from .files import alone_in
from .interruptions import lost_peers
from .runs import versions, write_json
from .strategies import Strategy, check_batch_size
from .training import Trainer
from .training_options import TrainingConfig


class Listener(Protocol):
    """What is told of a training: see `tensorboard` and `profiling`."""

    def on_step(self, step: int, figures: dict[str, float]) -> None: ...

    def on_epoch(self, figures: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Training(Protocol):
    """A training of a recipe: what the loop is given, and what it says."""

    trainer: Trainer
    form: dict  # how batches are made, by which what is learned differs

    def batches(self, epoch: int): ...

    def validate(self) -> dict: ...

    def best_by(self, figures: dict) -> Any: ...

    def told(self, figures: dict) -> str: ...


def train(
    config: TrainingConfig,
    out: Path,
    load_corpus: Callable,
    begin: Callable[..., Training],
    *,
    data_dir=None,
    resume: bool | Literal["auto"] = False,
    strategy: Strategy | None = None,
    jit: bool = False,
    listeners: Sequence[Listener] = (),
    report: Callable[[str], None] = print,
    progress=None,
) -> dict:
    """Train into the folder `out` and return its metrics.

    Args:
        config: what to train; with `resume`, that of the run with another `epochs` or `minutes`.
        out: the run's folder; one that holds a run already is refused. All workers share it.
        load_corpus: `(config, data_dir, report)` to the data.
        begin: `(config, corpus, out, resume, strategy, jit, report)` to the training.
        data_dir: where named data sets lie.
        resume: go on with the run in `out`; `"auto"`: if there is one, else begin it.
        strategy: see `strategies.choose`; None: one device.
        jit: whether XLA compiles the step on TensorFlow.
        listeners: are told of each step and epoch.
        report: receives a line of news at a time.
        progress: see `Trainer.fit`.

    Raises:
        DataError: for data that cannot be used.
        RunError: for a folder that cannot be trained into, or resumed.
        UsageError: for a batch that does not divide over the devices.
        PeerLost: when another worker is gone.
    """
    out, strategy = Path(out), strategy or Strategy()
    if keras.backend.backend() == "jax":
        # TensorFlow reads the data here, and would take the memory of the GPU that JAX needs.
        with contextlib.suppress(RuntimeError):
            tf.config.set_visible_devices([], "GPU")
    check_batch_size(config.batch_size, strategy, config.accumulate)
    if not strategy.is_chief:
        report, progress, listeners = (lambda line: None), None, ()
    with lost_peers(strategy.workers):
        if strategy.is_chief:
            _check_folder(out, resume)
        going_on = strategy.as_the_chief(bool(resume) and (out / "config.json").exists())
        if resume == "auto" and not going_on:
            resume = False
        corpus = load_corpus(config, data_dir, report)
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if strategy.is_chief:
                stack.enter_context(alone_in(out))
            for listener in listeners:
                stack.callback(listener.close)
            keras.utils.set_random_seed(config.seed)
            training = begin(config, corpus, out, resume, strategy, jit, report)
            figures = _fit(training, config, out, resume, listeners, report, progress)
            if strategy.is_chief:
                write_json(out / "metrics.json", figures)
            return figures


def trainer_of(
    model: keras.Model, config: TrainingConfig, strategy: Strategy, jit: bool, **more
) -> Trainer:
    """A trainer of a model that was made in the strategy's scope, as the config says."""
    return Trainer(
        model,
        strategy=strategy,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        schedule=config.schedule,
        label_smoothing=config.label_smoothing,
        accumulate=config.accumulate,
        jit=jit,
        **more,
    )


def _check_folder(out, resume):
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file: the run needs a folder of its own")
    if not resume and (out / "config.json").exists():
        raise RunError(f"{out} holds a run already: go on with --resume, or choose another --out")


def _fit(training, config, out, resume, listeners, report, progress) -> dict:
    started = time.time()

    def on_step(step, figures):
        for listener in listeners:
            listener.on_step(step, figures)

    def on_epoch(figures):
        report(
            f"epoch {figures['epoch']}: loss {figures['train_loss']:.3f}, "
            f"{training.told(figures)}, {figures['tokens_per_second']:,.0f} tokens/s, "
            f"{figures['minutes']:.1f} minutes{' *' if figures['best'] else ''}"
        )
        for listener in listeners:
            listener.on_epoch(figures)

    history = training.trainer.fit(
        training.batches,
        epochs=config.epochs,
        minutes=config.minutes,
        validate=training.validate,
        best_by=training.best_by,
        folder=out,
        resume=resume,
        checkpoint_steps=config.checkpoint_steps,
        average=config.average,
        patience=config.patience,
        made_by={**config.decided(), "form": training.form},
        report=report,
        on_step=on_step,
        on_epoch=on_epoch,
        progress=progress,
    )
    best = max((f for f in history if f["best"]), key=lambda f: f["epoch"])
    own = {"epoch", "loss", "train_loss", "tokens_per_second", "minutes", "seconds", "best"}
    return {
        "parameters": training.trainer.model.count_params(),
        "best_epoch": best["epoch"],
        "validation": {name: value for name, value in best.items() if name not in own},
        "minutes": history[-1]["minutes"],
        "seconds": history[-1]["seconds"],
        "tokens_per_second": float(np.median([f["tokens_per_second"] for f in history])),
        "strategy": str(training.trainer.strategy),
        "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
        "versions": versions(),
        "history": history,
    }
