"""Stories: questions about them, answered by a memory that is read in several hops.

The question addresses the slots of the memory, and what it reads becomes the next question. In
the end-to-end memory network of Sukhbaatar et al. each sentence of the story is a slot, in the
key-value memory network of Miller et al. each word, with its sentence as the key. A text is a story
with its question as the last sentence; the answer is one of those that training has seen.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_attention import KeyValueMemory, attention_model, linear, position_encoding, softmax

from .batches import to_ids
from .data import DataError
from .labelled import LabelledCorpus
from .precision import computing_in
from .sentence_cut import cut, sentences_of
from .stories_options import Config
from .tokenizers import END_ID, PADDING_ID, Tokenizer

SOLVED = 5.0  # percent of errors at most


def build_model(
    vocabulary_size: int,
    classes: int,
    *,
    model: str = "memn2n",
    hops: int = 3,
    units: int = 50,
    lines: int = 50,
    words: int = 16,
    dropout: float = 0.0,
    seed: int = 0,
) -> keras.Model:
    """A model of ids (B, 1 + S, W), a question and the sentences of its story, to logits (B, C).

    Example:

    >>> from keras_attention.recipes.stories import build_model
    >>> build_model(50, 6, units=8, lines=10).output.shape
    (None, 6)

    Reference:
        `memn2n`: Sukhbaatar, Szlam, Weston, Fergus, "End-To-End Memory Networks", NeurIPS 2015:
        adjacent tying, position encoding, temporal encoding. The matrix of the answers is not
        tied. `key-value`: Miller et al., "Key-Value Memory Networks for Directly Reading
        Documents", EMNLP 2016, section 3.2, windows with their center encoded apart; here a window
        is a sentence, every word is a center, and sentences are encoded as in the other.
    """
    small = keras.initializers.RandomNormal(stddev=0.1, seed=seed)
    ids = keras.Input((None, words), dtype="int32", name="ids")
    read = {"memn2n": _of_sentences, "key-value": _of_windows}[model]
    x = read(ids, vocabulary_size, hops=hops, units=units, lines=lines, initializer=small)
    x = layers.Dropout(dropout, seed=seed)(x)
    answer = layers.Dense(classes, use_bias=False, kernel_initializer=small, name="logits")
    return keras.Model(ids, answer(x), name="stories")


def _of_sentences(ids, vocabulary_size, hops, units, lines, initializer):
    # Words as they are told apart, one-hot: the matrices of the memory are their embeddings.
    words = layers.Embedding(
        vocabulary_size,
        vocabulary_size,
        embeddings_initializer="identity",
        trainable=False,
        mask_zero=True,
        name="embedding",
    )
    memory = KeyValueMemory(
        hops,
        update="sum",
        units=units,
        tying="adjacent",
        temporal=lines,
        kernel_initializer=initializer,
        name="memory",
    )
    return memory(words(ids[:, 0]), words(ids[:, 1:]))


def _of_windows(ids, vocabulary_size, hops, units, lines, initializer):
    """Each word is a slot. Its key is the sentence around it and, by a matrix of its own, the word;
    its value is the word, by a third."""

    def embedding(size, name):
        return layers.Embedding(size, units, embeddings_initializer=initializer, name=name)

    words = embedding(vocabulary_size, "embedding")
    question, story = ids[:, 0], ids[:, 1:]
    told = story[:, :, 0] != PADDING_ID  # (B, S)
    newer = ops.cumsum(ops.cast(told, "int32")[:, ::-1], axis=1)[:, ::-1] - 1
    age = embedding(lines, "age")(ops.clip(newer, 0, lines - 1))
    window = position_encoding(words(story), story != PADDING_ID) + age  # (B, S, U)
    keys = ops.expand_dims(window, 2) + embedding(vocabulary_size, "center")(story)
    values = embedding(vocabulary_size, "value")(story)  # (B, S, W, U)
    memory = KeyValueMemory(hops, kernel_initializer="identity", name="memory")
    return memory(
        position_encoding(words(question), question != PADDING_ID),
        layers.Reshape((-1, units), name="keys")(keys),
        layers.Reshape((-1, units), name="values")(values),
        key_mask=layers.Reshape((-1,), name="centers")(story > END_ID),
    )


def model_of(config: Config, vocabulary_size: int, classes: int) -> keras.Model:
    """The model of a config, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            vocabulary_size,
            classes,
            model=config.model,
            hops=config.hops,
            units=config.units,
            lines=config.lines,
            words=config.words,
            dropout=config.dropout,
            seed=config.seed,
        )


def reading(model: keras.Model) -> keras.Model:
    """The model with what it read: ids (B, 1 + S, W) to logits (B, C) and weights (B, K, S) of the
    sentences in each hop; of a slot for each word, the sums over those of a sentence."""
    logits, found = attention_model(model).output
    weights, memory = found["memory"], model.get_layer("memory")
    if memory.units is None:
        words = model.inputs[0].shape[2]
        weights = ops.sum(layers.Reshape((memory.hops, -1, words))(weights), axis=-1)
    return keras.Model(model.inputs[0], [logits, weights], name="reading")


def of_tasks(corpus: LabelledCorpus, tasks: str | None) -> LabelledCorpus:
    """The rows of some tasks, named with commas between; all without any.

    Raises:
        DataError: for a task that there is not.
    """
    if tasks is None:
        return corpus
    wanted, there = tasks.split(","), dict.fromkeys(corpus.train.tasks)
    unknown = [task for task in wanted if task not in there]
    if unknown:
        raise DataError(f"{corpus.name} has no task {unknown[0]!r}; there are: {', '.join(there)}")
    parts = {
        name: getattr(corpus, name).of_tasks(wanted) for name in ("train", "validation", "test")
    }
    return corpus._replace(**parts)


def ids_of(texts, tokenizer: Tokenizer, config: Config) -> tf.RaggedTensor:
    """Ids (B, 1 + S, W): of the last sentence of each text, its question, and of the story."""
    sentences = sentences_of(texts)
    return _ids(sentences[:, -1:], sentences[:, :-1], tokenizer, config)


def ids_of_parts(stories, questions, tokenizer: Tokenizer, config: Config) -> tf.RaggedTensor:
    """As `ids_of`, of stories (B,) and questions (B,) that are texts of their own."""
    told = sentences_of(stories)
    told = tf.ragged.boolean_mask(told, told != "")
    questions = tf.convert_to_tensor(questions, tf.string)
    asked = tf.RaggedTensor.from_uniform_row_length(questions, 1)
    return _ids(asked, told, tokenizer, config)


def _ids(questions, stories, tokenizer, config):
    ordered = tf.concat([questions, stories[:, -config.lines :]], axis=1)
    return ordered.with_flat_values(to_ids(ordered.flat_values, tokenizer)[:, : config.words])


def padded(ids: tf.RaggedTensor, config: Config) -> tf.Tensor:
    """The ids of a batch or of one text, in sentences of a fixed number of words; of an empty
    story there is one empty sentence."""
    found = ids.to_tensor(shape=[*[None] * (ids.shape.rank - 1), config.words])
    missing = tf.maximum(2 - tf.shape(found)[-2], 0)
    return tf.pad(found, [*[[0, 0]] * (ids.shape.rank - 2), [0, missing], [0, 0]])


def augmented(ids: tf.RaggedTensor, config: Config, seed: int) -> tf.RaggedTensor:
    """The ids of another pass: with empty sentences between those of the stories, so that it is
    not learned by heart how long ago each was told."""
    count = ids.values.nrows()
    chance = np.random.default_rng(seed).random(count)
    after = np.flatnonzero(chance < config.noise)
    lines = tf.concat([ids.values, tf.fill([len(after), 1], END_ID)], axis=0)
    places = np.concatenate([np.arange(count), after + 0.5])
    added = np.searchsorted(after, ids.row_splits.numpy(), side="left")
    return tf.RaggedTensor.from_row_splits(
        tf.gather(lines, np.argsort(places, kind="stable")), ids.row_splits + added
    )


def begin_epoch(model: keras.Model, epoch: int, config: Config) -> bool:
    """Linear start: the first epochs, half of all at most, read without softmax.

    Returns:
        Whether the model is another now.
    """
    memory = model.get_layer("memory")
    before = memory.normalizer
    start = min(config.linear_start, config.epochs // 2)
    memory.normalizer = linear if epoch <= start else softmax
    return memory.normalizer is not before


def is_settled(model: keras.Model) -> bool:
    """Whether it reads as it will in the end: before, no epoch is the best."""
    return model.get_layer("memory").normalizer is softmax


def figures(rows: list[dict], test) -> dict:
    """Errors by task, in percent, and how often the annotated sentences were read."""
    if not hasattr(test, "tasks"):
        return {}
    errors = {}
    for task in sorted(set(test.tasks), key=lambda name: (len(name), name)):
        wrong = [
            row["label"] != label
            for row, label, of in zip(rows, test.labels, test.tasks, strict=True)
            if of == task
        ]
        errors[task] = 100 * float(np.mean(wrong))
    found = {task: [] for task in errors}
    for row, text, supports, task in zip(rows, test.texts, test.supports, test.tasks, strict=True):
        if supports:
            found[task].append(supports_read(row, len(cut(text)) - 1, supports))
    return {
        "mean_error": float(np.mean([*errors.values()])),
        "failed_tasks": sum(error > SOLVED for error in errors.values()),
        "errors": errors,
        "supports_read": {task: float(np.mean(hits)) for task, hits in found.items() if hits},
    }


def supports_read(row: dict, told: int, supports) -> bool:
    """Whether each annotated sentence, of all that were told, is the one that some hop read most.

    Sentences that were too long ago to be kept are not read.
    """
    left_out = told - len(row["pieces"])
    read = {left_out + int(np.argmax(weights)) for weights in row["weights"]}
    return read >= set(supports)
