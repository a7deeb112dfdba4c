"""Sentences: what kind each is, read by attention of several hops or of several dimensions.

`self-attentive` is the structured embedding of Lin et al.: r queries read the states of a
bidirectional LSTM, or words and their n-grams, and a penalty keeps them from reading the same.
`disan` is the network of Shen et al. without recurrence: each feature of a word reads those before
it, and those behind it, with weights of its own, and so are the words' features read for the
sentence.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_attention import (
    AttentionPooling,
    DiversityPenalty,
    MultiDimensionalPooling,
    MultiDimensionalScore,
    SelfAttention,
    attention_model,
)

from .batches import to_ids
from .precision import computing_in
from .sentences_options import Config
from .tokenizers import PADDING_ID, Tokenizer


def build_model(
    vocabulary_size: int,
    classes: int,
    *,
    model: str = "self-attentive",
    encoder: str = "lstm",
    embedding: int = 200,
    units: int = 100,
    hidden: int = 100,
    hops: int = 8,
    penalty: float = 0.03,
    dropout: float = 0.5,
    seed: int = 0,
) -> keras.Model:
    """A model of ids (B, T) to logits (B, C).

    Example:

    >>> from keras_attention.recipes.sentences import build_model
    >>> build_model(50, 6, embedding=8, units=4, hidden=8, hops=2).output.shape
    (None, 6)

    Reference:
        Lin et al., "A Structured Self-attentive Sentence Embedding", ICLR 2017. Shen et al.,
        "DiSAN: Directional Self-Attention Network for RNN/CNN-Free Language Understanding", AAAI
        2018; its scores are additive, here they are bilinear (see `SelfAttention`). `ngrams` are
        the convolutions of Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP
        2014: hops read them and the words, the strongest of each is put beside, and nothing is
        hidden before the classes.
    """
    self_attentive = {"lstm": _over_states, "ngrams": _over_ngrams}[encoder]
    read = {"self-attentive": self_attentive, "disan": _disan}[model]
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(vocabulary_size, embedding, mask_zero=True, name="embedding")(ids)
    x = layers.Dropout(dropout, seed=seed)(x)
    x = read(x, real=ids != PADDING_ID, units=units, hidden=hidden, hops=hops, penalty=penalty)
    x = layers.Dropout(dropout, seed=seed + 1)(x)
    if read is not _over_ngrams:
        x = layers.Dense(hidden, activation="relu", name="hidden")(x)
        x = layers.Dropout(dropout, seed=seed + 2)(x)
    return keras.Model(ids, layers.Dense(classes, name="logits")(x), name="sentences")


def _over_states(x, units, hidden, hops, penalty, **unused):
    recurrent = layers.LSTM(units, return_sequences=True)
    states = layers.Bidirectional(recurrent, name="states")(x)
    pooling = _pooling(hidden, hops, penalty)
    return layers.Flatten(name="embedded")(pooling(states))  # (B, r 2u)


def _over_ngrams(x, real, units, hidden, hops, penalty):
    states = _ngrams(x, real, units)
    read = _pooling(hidden, hops, penalty)(states, mask=real)
    strongest = layers.GlobalMaxPooling1D(name="strongest")(ops.relu(states))
    # (B, (r + 1) (d + 2u))
    return layers.Concatenate(name="found")([layers.Flatten(name="embedded")(read), strongest])


def _pooling(hidden, hops, penalty):
    return AttentionPooling(
        hidden,
        hops=hops,
        use_bias=False,
        weights_regularizer=DiversityPenalty(penalty) if penalty else None,
        name="attention",
    )


def _ngrams(words, real, units):
    """Words with what the pairs and triples around each are, (B, T, D + 2U); zeros in padding,
    which nothing at the end of a sentence sees."""
    real = ops.expand_dims(real, -1)
    words = ops.where(real, words, 0.0)
    pairs, triples = (
        layers.Conv1D(units, size, padding="same", activation="relu", name=name)(words)
        for size, name in ((2, "pairs"), (3, "triples"))
    )
    return ops.where(real, layers.Concatenate(name="states")([words, pairs, triples]), 0.0)


def _disan(x, units, **unused):
    x = layers.Dense(units, activation="elu", name="words")(x)
    both = [
        _gated(
            x,
            SelfAttention(
                units,
                score=MultiDimensionalScore(units),
                direction=direction,
                use_output=False,
                name=direction,
            )(x),
            direction,
        )
        for direction in ("forward", "backward")
    ]
    return MultiDimensionalPooling(name="attention")(layers.Concatenate(name="context")(both))


def _gated(words, context, name):
    """`g words + (1 - g) context`, each feature by its own gate (DiSAN, equations 16 and 17)."""
    units = words.shape[-1]
    gate = layers.Dense(units, "sigmoid", name=f"{name}_gate")(
        layers.Concatenate(name=f"{name}_both")([words, context])
    )
    difference = layers.Subtract(name=f"{name}_difference")([words, context])
    return layers.Add(name=f"{name}_words")(
        [context, layers.Multiply(name=f"{name}_gated")([gate, difference])]
    )


def model_of(config: Config, vocabulary_size: int, classes: int) -> keras.Model:
    """The model of a config, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            vocabulary_size,
            classes,
            model=config.model,
            encoder=config.encoder,
            embedding=config.embedding,
            units=config.units,
            hidden=config.hidden,
            hops=config.hops,
            penalty=config.penalty,
            dropout=config.dropout,
            seed=config.seed,
        )


def reading(model: keras.Model) -> keras.Model:
    """The model with what it read: ids (B, T) to logits (B, C) and weights (B, r, T).

    Of a self-attentive embedding the weights of each hop; of DiSAN the mean over all features.
    """
    logits, found = attention_model(model).output
    weights = found["attention"]
    if isinstance(model.get_layer("attention"), MultiDimensionalPooling):
        weights = ops.mean(weights, axis=1, keepdims=True)
    return keras.Model(model.inputs[0], [logits, weights], name="reading")


def ids_of(texts, tokenizer: Tokenizer, config: Config) -> tf.RaggedTensor:
    """Ids (B, T) of texts with the end token behind them; of a long text those of its beginning."""
    return to_ids(texts, tokenizer)[:, : config.max_length]


def padded(ids: tf.RaggedTensor, config: Config) -> tf.Tensor:
    """The ids of a batch, or of one text, as a tensor."""
    return ids.to_tensor() if isinstance(ids, tf.RaggedTensor) else tf.identity(ids)


def figures(rows: list[dict], test) -> dict:
    """What is measured beside accuracy: how much hops read the same, 0 where no two do."""
    return {"redundancy": float(np.mean([redundancy(row["weights"]) for row in rows]))}


def redundancy(weights) -> float:
    """`||A A^T - I||` of the weights (r, T) of hops (Lin et al. 2017, equation 8, unsquared)."""
    weights = np.asarray(weights, "float64")
    return float(np.linalg.norm(weights @ weights.T - np.eye(len(weights))))
