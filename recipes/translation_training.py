"""Training of a run that translates, on whatever devices the strategy has."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import keras
import numpy as np
import tensorflow as tf

from . import metrics
from .batches import batches, to_ids
from .data import DataError, Pairs
from .errors import RunError, UsageError
from .files import alone_in
from .interruptions import lost_peers
from .pairs_options import PairsConfig
from .runs import Run, versions, write_config, write_json
from .strategies import Strategy, check_batch_size
from .streams import PairStream
from .tokenizers import Tokenizer, learn_vocabulary
from .training import Trainer
from .translator import batch_form, load_corpus, model_of, search_function, translate

_FOR_VOCABULARIES = 200_000  # rows of a stream


class Listener(Protocol):
    """What is told of a training: see `tensorboard` and `profiling`."""

    def on_step(self, step: int, figures: dict[str, float]) -> None: ...

    def on_epoch(self, figures: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def train(
    config: PairsConfig,
    out: Path,
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
    if config.shard_policy == "file":
        strategy.check_sharded()
    if not strategy.is_chief:
        report, progress, listeners = (lambda line: None), None, ()
    with lost_peers(strategy.workers):
        if strategy.is_chief:
            _check_folder(out, resume)
        going_on = strategy.as_the_chief(bool(resume) and (out / "config.json").exists())
        if resume == "auto" and not going_on:
            resume = False
        corpus = load_corpus(config, data_dir, report)
        if config.shard_policy == "file" and not isinstance(corpus, PairStream):
            raise UsageError("--shard-policy file is for streams of several files")
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if strategy.is_chief:
                stack.enter_context(alone_in(out))
            for listener in listeners:
                stack.callback(listener.close)
            tokenizers = _tokenizers(config, corpus, out, resume, strategy)
            training = _Training(config, corpus, out, tokenizers, strategy, jit, report)
            figures = training.run(resume, listeners, progress)
            if strategy.is_chief:
                write_json(out / "metrics.json", figures)
            return figures


def _check_folder(out, resume):
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file: the run needs a folder of its own")
    if not resume and (out / "config.json").exists():
        raise RunError(f"{out} holds a run already: go on with --resume, or choose another --out")


def _tokenizers(config, corpus, out, resume, strategy) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run; where it begins, the first worker learns them for all."""
    if strategy.is_chief and not resume:
        streamed = isinstance(corpus, PairStream)
        pairs = corpus.sample(_FOR_VOCABULARIES) if streamed else corpus.train
        for name, texts, size, side in (
            ("source", pairs.source, config.source_vocabulary_size, corpus.source),
            ("target", pairs.target, config.target_vocabulary_size, corpus.target),
        ):
            Tokenizer(learn_vocabulary(texts, size, *side), *side).save(out, name)
        # Last: a folder with a config is a run, and has its vocabularies.
        write_config(out, config)
    strategy.wait()
    return tuple(Tokenizer.load(out, side) for side in ("source", "target"))


class _Training:
    def __init__(self, config, corpus, out, tokenizers, strategy, jit, report):
        keras.utils.set_random_seed(config.seed)
        self.config, self.corpus, self.out = config, corpus, out
        self.tokenizers, self.strategy, self.report = tokenizers, strategy, report
        self.form = batch_form(config, compiled=jit or keras.backend.backend() == "jax")
        source, target = tokenizers
        with strategy.scope():
            self.model = model_of(config, source.size, target.size)
        self.trainer = Trainer(
            self.model,
            strategy=strategy,
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_steps,
            schedule=config.schedule,
            label_smoothing=config.label_smoothing,
            accumulate=config.accumulate,
            jit=jit,
            sharded=config.shard_policy == "file",
        )
        rows = corpus.rows if isinstance(corpus, PairStream) else len(corpus.train.source)
        report(
            f"{corpus.name}: {rows} training pairs, {source.size} and {target.size} pieces, "
            f"{self.model.count_params():,} parameters"
        )

    def run(self, resume, listeners, progress) -> dict:
        started = time.time()
        config = self.config

        def on_step(step, figures):
            for listener in listeners:
                listener.on_step(step, figures)

        def on_epoch(figures):
            self._tell(figures)
            for listener in listeners:
                listener.on_epoch(figures)

        history = self.trainer.fit(
            self._batches(),
            epochs=config.epochs,
            minutes=config.minutes,
            validate=self._validation(),
            # By BLEU; below 5 it is noise, and the loss decides.
            best_by=lambda figures: (max(figures["bleu"], 5.0), -figures["loss"]),
            folder=self.out,
            resume=resume,
            checkpoint_steps=config.checkpoint_steps,
            average=config.average,
            patience=config.patience,
            made_by={**config.decided(), "form": self.form},
            report=self.report,
            on_step=on_step,
            on_epoch=on_epoch,
            progress=progress,
        )
        best = max((f for f in history if f["best"]), key=lambda f: f["epoch"])
        return {
            "parameters": self.model.count_params(),
            "best_epoch": best["epoch"],
            "validation": {k: best[k] for k in ("perplexity", "token_accuracy", "bleu")},
            "minutes": history[-1]["minutes"],
            "seconds": history[-1]["seconds"],
            "tokens_per_second": float(np.median([f["tokens_per_second"] for f in history])),
            "strategy": str(self.strategy),
            "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
            "versions": versions(),
            "history": history,
        }

    def _batches(self) -> Callable[[int], Iterable]:
        config = self.config
        if isinstance(self.corpus, PairStream):
            return lambda epoch: self.corpus.batches(
                *self.tokenizers,
                epoch,
                batch_size=config.batch_size,
                max_length=config.max_length,
                policy=config.shard_policy,
                workers=self.strategy.workers,
                worker=self.strategy.worker,
                **self.form,
            )
        training = self._ids(self.corpus.train, "training")
        return lambda epoch: batches(
            *training, config.batch_size, config.seed * 1000 + epoch, **self.form
        )

    def _ids(self, part: Pairs, what: str):
        source, target = (
            to_ids(texts, tokenizer)
            for texts, tokenizer in zip(part[:2], self.tokenizers, strict=True)
        )
        longest = tf.maximum(source.row_lengths(), target.row_lengths())
        fits = longest <= self.config.max_length
        if dropped := int(tf.reduce_sum(tf.cast(~fits, "int32"))):
            self.report(
                f"{dropped} {what} pairs are longer than {self.config.max_length} pieces: left out"
            )
        if dropped == len(part.source):
            raise DataError(f"No pair is left for {what}: raise --max-length.")
        return tuple(tf.ragged.boolean_mask(side, fits) for side in (source, target))

    def _validation(self) -> Callable[[], dict]:
        corpus = self.corpus
        ids = self._ids(corpus.validation, "validation")
        source, target = self.tokenizers
        run = Run(
            config=self.config, model=self.model, source=source, target=target, folder=self.out
        )
        translate_ids = search_function(run, "greedy")
        texts = corpus.validation.source[:1000]
        references = metrics.surface(corpus.validation.target[:1000], corpus.target)
        tokenizer = metrics.bleu_tokenizer(corpus.target)

        def validate():
            found = self.trainer.evaluate(batches(*ids, self.config.batch_size, **self.form))
            hypotheses = [row["translation"] for row in translate(run, texts, translate_ids)]
            return {
                **found,
                "bleu": metrics.bleu(hypotheses, references, tokenizer).value,
                "exact_match": metrics.exact_match(hypotheses, references),
            }

        return validate

    def _tell(self, figures):
        self.report(
            f"epoch {figures['epoch']}: loss {figures['train_loss']:.3f}, validation perplexity "
            f"{figures['perplexity']:.2f}, BLEU {figures['bleu']:.2f}, exact match "
            f"{figures['exact_match']:.3f}, {figures['tokens_per_second']:,.0f} tokens/s, "
            f"{figures['minutes']:.1f} minutes{' *' if figures['best'] else ''}"
        )
