"""Documents: what kind each is, read by attention over words and over sentences.

The hierarchical attention network of Yang et al.: words make sentences and sentences make the
document, and at both levels attention says which mattered. Text is cut into sentences where one of
`.!?` stands before a space.
"""

import keras
import tensorflow as tf
from keras import layers

from keras_attention import AttentionPooling, HierarchicalAttention, attention_model

from .batches import to_ids
from .documents_options import Config
from .precision import computing_in
from .sentence_cut import sentences_of
from .tokenizers import Tokenizer


def build_model(
    vocabulary_size: int,
    classes: int,
    *,
    attention: str = "both",
    embedding: int = 100,
    units: int = 50,
    dropout: float = 0.5,
    seed: int = 0,
) -> keras.Model:
    """A model of ids (B, S, W), sentences of words, to logits (B, C).

    Example:

    >>> from keras_attention.recipes.documents import build_model
    >>> build_model(50, 2, embedding=8, units=4).output.shape
    (None, 2)

    Reference:
        Yang et al., "Hierarchical Attention Networks for Document Classification", NAACL 2016.
    """

    def encoder():
        return layers.Bidirectional(layers.GRU(units, return_sequences=True))

    def pooling(level):
        if attention in ("both", level):
            return AttentionPooling()
        # Scores of 0, which stay: the mean of what is there.
        return AttentionPooling(kernel_initializer="zeros", use_bias=False, trainable=False)

    ids = keras.Input((None, None), dtype="int32", name="ids")
    x = layers.Embedding(vocabulary_size, embedding, mask_zero=True, name="embedding")(ids)
    x = layers.Dropout(dropout, seed=seed)(x)
    x = HierarchicalAttention(
        word_encoder=encoder(),
        word_pooling=pooling("words"),
        sentence_encoder=encoder(),
        sentence_pooling=pooling("sentences"),
        name="document",
    )(x)
    x = layers.Dropout(dropout, seed=seed + 1)(x)
    return keras.Model(ids, layers.Dense(classes, name="logits")(x), name="documents")


def model_of(config: Config, vocabulary_size: int, classes: int) -> keras.Model:
    """The model of a config, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            vocabulary_size,
            classes,
            attention=config.attention,
            embedding=config.embedding,
            units=config.units,
            dropout=config.dropout,
            seed=config.seed,
        )


def reading(model: keras.Model) -> keras.Model:
    """The model with what it read: ids (B, S, W) to logits (B, C), the weights of the sentences
    (B, S) and those of the words in each (B, S, W)."""
    logits, found = attention_model(model).output
    return keras.Model(model.inputs[0], [logits, *found["document"]], name="reading")


def ids_of(texts, tokenizer: Tokenizer, config: Config) -> tf.RaggedTensor:
    """Ids (B, S, W) of the sentences of texts, each with the end token behind it."""
    sentences = sentences_of(texts)[:, : config.sentences]
    ids = to_ids(sentences.flat_values, tokenizer)[:, : config.words]
    return sentences.with_flat_values(ids)


def padded(ids: tf.RaggedTensor, config: Config) -> tf.Tensor:
    """The ids of a batch or of one text, in sentences of a fixed number of words."""
    return ids.to_tensor(shape=[*[None] * (ids.shape.rank - 1), config.words])


def figures(rows: list[dict], test) -> dict:
    """What is measured beside accuracy: nothing."""
    return {}
