"""Training of a run that translates, on whatever devices the strategy has."""

from pathlib import Path

import keras
import tensorflow as tf

from . import metrics, run_training
from .batches import batches, to_ids
from .data import DataError, Pairs
from .errors import UsageError
from .pairs_options import PairsConfig
from .runs import Run, write_config
from .strategies import Strategy
from .streams import PairStream
from .tokenizers import Tokenizer, learn_vocabulary
from .translator import batch_form, load_corpus, model_of, search_function, translate

_FOR_VOCABULARIES = 200_000  # rows of a stream


def train(config: PairsConfig, out: Path, **how) -> dict:
    """Train a recipe that translates into the folder `out` and return its metrics.

    Args:
        config: what to train.
        out: the run's folder.
        **how: the options of `run_training.train`, which also says what is raised.
    """
    if config.shard_policy == "file":
        (how.get("strategy") or Strategy()).check_sharded()
    return run_training.train(config, out, _corpus, _Training, **how)


def _corpus(config, data_dir, report):
    corpus = load_corpus(config, data_dir, report)
    if config.shard_policy == "file" and not isinstance(corpus, PairStream):
        raise UsageError("--shard-policy file is for streams of several files")
    return corpus


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
    """See `run_training.Training`."""

    def __init__(self, config, corpus, out, resume, strategy, jit, report):
        self._config, self._corpus, self._report = config, corpus, report
        self._tokenizers = _tokenizers(config, corpus, out, resume, strategy)
        self._strategy = strategy
        self.form = batch_form(config, compiled=jit or keras.backend.backend() == "jax")
        source, target = self._tokenizers
        with strategy.scope():
            model = model_of(config, source.size, target.size)
        sharded = config.shard_policy == "file"
        self.trainer = run_training.trainer_of(model, config, strategy, jit, sharded=sharded)
        self._streamed = isinstance(corpus, PairStream)
        rows = corpus.rows if self._streamed else len(corpus.train.source)
        report(
            f"{corpus.name}: {rows} training pairs, {source.size} and {target.size} pieces, "
            f"{model.count_params():,} parameters"
        )
        self._ids = None if self._streamed else self._of(corpus.train, "training")
        self._validation = self._of(corpus.validation, "validation")
        run = Run(config=config, model=model, source=source, target=target, folder=out)
        self._run, self._search = run, search_function(run, "greedy")

    def batches(self, epoch):
        config = self._config
        if not self._streamed:
            seed = config.seed * 1000 + epoch
            return batches(*self._ids, config.batch_size, seed, **self.form)
        return self._corpus.batches(
            *self._tokenizers,
            epoch,
            batch_size=config.batch_size,
            max_length=config.max_length,
            policy=config.shard_policy,
            workers=self._strategy.workers,
            worker=self._strategy.worker,
            **self.form,
        )

    def validate(self):
        texts, references = (side[:1000] for side in self._corpus.validation[:2])
        references = metrics.surface(references, self._corpus.target)
        tokenizer = metrics.bleu_tokenizer(self._corpus.target)
        tested = batches(*self._validation, self._config.batch_size, **self.form)
        found = self.trainer.evaluate(tested)
        hypotheses = [row["translation"] for row in translate(self._run, texts, self._search)]
        return {
            **found,
            "bleu": metrics.bleu(hypotheses, references, tokenizer).value,
            "exact_match": metrics.exact_match(hypotheses, references),
        }

    def best_by(self, figures):
        # By BLEU; below 5 it is noise, and the loss decides.
        return max(figures["bleu"], 5.0), -figures["loss"]

    def told(self, figures):
        return (
            f"validation perplexity {figures['perplexity']:.2f}, BLEU {figures['bleu']:.2f}, "
            f"exact match {figures['exact_match']:.3f}"
        )

    def _of(self, part: Pairs, what: str):
        source, target = (
            to_ids(texts, tokenizer)
            for texts, tokenizer in zip(part[:2], self._tokenizers, strict=True)
        )
        longest = tf.maximum(source.row_lengths(), target.row_lengths())
        fits = longest <= self._config.max_length
        if dropped := int(tf.reduce_sum(tf.cast(~fits, "int32"))):
            self._report(
                f"{dropped} {what} pairs are longer than {self._config.max_length} pieces: left out"
            )
        if dropped == len(part.source):
            raise DataError(f"No pair is left for {what}: raise --max-length.")
        return tuple(tf.ragged.boolean_mask(side, fits) for side in (source, target))
