"""Training of a run that classifies texts, on whatever devices the strategy has."""

import time
from pathlib import Path

import keras
import tensorflow as tf

from . import classifier, run_training
from .batches import BOUNDARIES, few_boundaries, filled, to_ids
from .checkpoints import Checkpoints
from .classifier import RECIPES, write_labels
from .data import DataError
from .errors import UsageError
from .runs import write_config
from .texts_options import TextsConfig
from .tokenizers import END_ID, PADDING_ID, Tokenizer, learn_words
from .vectors import begin_with, vectors_of, word2vec


def train(config: TextsConfig, out: Path, **how) -> dict:
    """Train a recipe that classifies into the folder `out` and return its metrics.

    Args:
        config: what to train.
        out: the run's folder.
        **how: the options of `run_training.train`, which also says what is raised.
    """
    return run_training.train(config, out, _corpus, _Training, **how)


def _corpus(config, data_dir, report):
    if config.vectors and config.word2vec:
        raise UsageError("give either --vectors or --word2vec")
    if config.vectors:  # A mistake in them is told before there is a folder.
        vectors_of(config.vectors, config.embedding)
    return classifier.load_corpus(config, data_dir, report)


def batches(
    config: TextsConfig, ids, labels, form: dict, seed: int | None = None
) -> tf.data.Dataset:
    """Padded batches of texts of about one length: `(ids, labels, weights)`.

    Args:
        config: says how long texts are, and how many a batch has.
        ids: of the texts, ragged.
        labels: the class of each.
        form: `boundaries` of the lengths, and `fixed_shapes`: whether all batches of a bucket have
            one shape, filled up with rows that weigh nothing.
        seed: of the order; None leaves the rows as they are.
    """
    recipe, batch_size = RECIPES[config.recipe], config.batch_size
    if seed is not None and hasattr(recipe, "augmented"):
        ids = recipe.augmented(ids, config, seed)
    rows = tf.data.Dataset.from_tensor_slices((ids, labels))
    if seed is not None:
        rows = rows.shuffle(ids.nrows(), seed=seed, reshuffle_each_iteration=False)
    rows = rows.map(lambda text, label: (recipe.padded(text, config), label, 1.0))
    shape = rows.element_spec[0].shape
    rows = rows.bucket_by_sequence_length(
        lambda text, label, weight: tf.shape(text)[0],
        list(form["boundaries"]),
        [batch_size] * (len(form["boundaries"]) + 1),
        padded_shapes=(shape, [], []),
        padding_values=(PADDING_ID, tf.constant(0, labels.dtype), 0.0),
        pad_to_bucket_boundary=form["fixed_shapes"],
    )
    if form["fixed_shapes"]:
        rows = rows.map(
            lambda text, label, weight: (
                filled(text, batch_size, END_ID),
                *(tf.pad(x, [[0, batch_size - tf.shape(x)[0]]]) for x in (label, weight)),
            )
        )
    return rows.prefetch(4)


class _Training:
    """See `run_training.Training`."""

    def __init__(self, config, corpus, out, resume, strategy, jit, report):
        self._config = config
        labels = corpus.labels
        if strategy.is_chief and not resume:
            pieces = learn_words(corpus.train.texts, config.vocabulary_size, *corpus.side)
            Tokenizer(pieces, *corpus.side).save(out, "text")
            write_labels(out, labels)
            # Last: a folder with a config is a run, and has its vocabulary.
            write_config(out, config)
        strategy.wait()
        self._tokenizer = Tokenizer.load(out, "text")
        compiled = jit or keras.backend.backend() == "jax"
        lengths = few_boundaries(config.longest) if compiled else BOUNDARIES
        self.form = {"boundaries": lengths, "fixed_shapes": compiled}
        with strategy.scope():
            model = RECIPES[config.recipe].model_of(config, self._tokenizer.size, len(labels))
            if not Checkpoints(out / "checkpoints").paths():
                self._begin_with_vectors(model.get_layer("embedding"), corpus.train.texts, report)
        self.trainer = run_training.trainer_of(model, config, strategy, jit)
        self._training, self._validation = (
            self._rows(part, labels) for part in (corpus.train, corpus.validation)
        )
        report(
            f"{corpus.name}: {len(corpus.train.texts)} training texts of {len(labels)} classes, "
            f"{self._tokenizer.size} pieces, {model.count_params():,} parameters"
        )

    def _begin_with_vectors(self, embedding, texts, report):
        config, tokenizer = self._config, self._tokenizer
        if config.vectors:
            vectors = vectors_of(config.vectors, config.embedding)
        elif config.word2vec:
            report(f"word2vec: {config.word2vec} passes over the training texts")
            started = time.process_time()
            pieces = tokenizer.pieces(to_ids(texts, tokenizer)).to_list()
            pieces = [[piece.decode() for piece in text] for text in pieces]
            vectors = word2vec(pieces, config.embedding, config.word2vec, config.seed)
            report(f"word2vec: {(time.process_time() - started) / 60:.1f} minutes of one core")
        else:
            return
        known = begin_with(embedding, tokenizer, vectors)
        if not known:
            raise DataError(
                f"{config.vectors} has a vector for none of the {tokenizer.size} pieces"
            )
        report(f"{known} of {tokenizer.size} pieces begin with a vector")

    def _rows(self, part, labels):
        places = {label: place for place, label in enumerate(labels)}
        classes = tf.constant([places[label] for label in part.labels], "int32")
        recipe = RECIPES[self._config.recipe]
        return recipe.ids_of(part.texts, self._tokenizer, self._config), classes

    def batches(self, epoch):
        recipe = RECIPES[self._config.recipe]
        if hasattr(recipe, "begin_epoch"):
            changed = recipe.begin_epoch(self.trainer.model, epoch, self._config)
            if changed:
                self.trainer.retrace()
        seed = self._config.seed * 1000 + epoch
        return batches(self._config, *self._training, self.form, seed)

    def validate(self):
        found = self.trainer.evaluate(batches(self._config, *self._validation, self.form))
        figures = {"loss": found["loss"], "accuracy": 100 * found["token_accuracy"]}
        recipe = RECIPES[self._config.recipe]
        if hasattr(recipe, "is_settled"):
            figures["settled"] = recipe.is_settled(self.trainer.model)
        return figures

    def best_by(self, figures):
        return figures.get("settled", True), figures["accuracy"], -figures["loss"]

    def told(self, figures):
        return f"validation accuracy {figures['accuracy']:.2f} %, loss {figures['loss']:.3f}"
