"""Models of Keras's own layers, as users bring them: none of them knows of this library."""

from typing import NamedTuple

import keras
import numpy as np
from keras import layers

V, D, U = 30, 8, 12  # vocabulary, width, units


class Model(NamedTuple):
    """A model to export.

    make: makes it, for a batch size and a length that may be None.
    ids: whether it reads ids, or vectors of width D.
    loops: whether it has a loop.
    """

    make: callable
    ids: bool = True
    loops: bool = True


def ids(batch, length):
    return keras.Input((length,), batch_size=batch, dtype="int32", name="inputs")


def vectors(batch, length):
    return keras.Input((length, D), batch_size=batch, name="inputs")


def embedded(inputs, mask_zero=False):
    return layers.Embedding(V, D, mask_zero=mask_zero)(inputs)


def embedding_gru(batch, length):
    x = ids(batch, length)
    return keras.Model(x, layers.Dense(3)(layers.GRU(U)(embedded(x))))


def bidirectional_lstm(batch, length):
    x = ids(batch, length)
    y = layers.Bidirectional(layers.LSTM(U, return_sequences=True))(embedded(x))
    return keras.Model(x, layers.Dense(3)(y))


def stacked_gru(batch, length):
    model = keras.Sequential([vectors(batch, length)])
    model.add(layers.GRU(U, return_sequences=True))
    model.add(layers.GRU(7, go_backwards=True))
    model.add(layers.Dense(3, activation="softmax"))
    return model


def time_distributed(batch, length):
    x = vectors(batch, length)
    return keras.Model(x, layers.TimeDistributed(layers.Dense(3, activation="relu"))(x))


def masked_lstm(batch, length):
    x = ids(batch, length)
    y, hidden, cell = layers.LSTM(U, return_sequences=True, return_state=True)(embedded(x, True))
    return keras.Model(x, {"outputs": y, "hidden": hidden, "cell": cell})


def masking_simple_rnn(batch, length):
    x = vectors(batch, length)
    return keras.Model(x, layers.SimpleRNN(U)(layers.Masking()(x)))


def causal_self_attention(batch, length):
    x = ids(batch, length)
    y = embedded(x)
    y = layers.Add()([y, layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)])
    y = layers.LayerNormalization()(y)
    return keras.Model(x, layers.Dense(3)(y))


def masked_self_attention(batch, length):
    x = ids(batch, length)
    y = embedded(x, True)
    attention = layers.MultiHeadAttention(2, 4, dropout=0.1)
    y, weights = attention(y, y, use_causal_mask=True, return_attention_scores=True)
    y = layers.Dense(3)(layers.RMSNormalization()(y))
    return keras.Model(x, {"outputs": y, "weights": weights})


def grouped_attention(batch, length):
    x = vectors(batch, length)
    y = layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
    return keras.Model(x, layers.Dense(3, activation="gelu")(y))


def attention_over_gru(batch, length):
    x = ids(batch, length)
    y = layers.Bidirectional(layers.GRU(U, return_sequences=True), merge_mode="sum")(
        embedded(x, True)
    )
    read, weights = layers.AdditiveAttention()(
        [y, y], return_attention_scores=True, use_causal_mask=True
    )
    read = layers.Attention(score_mode="dot", use_scale=True)([read, y], use_causal_mask=True)
    return keras.Model(x, {"read": read, "weights": weights})


def convolution_gru(batch, length):
    x = vectors(batch, length)
    y = layers.Conv1D(U, 3, padding="causal", activation="relu")(x)
    y = layers.GRU(U, return_sequences=True)(y)
    return keras.Model(x, layers.GlobalMaxPooling1D()(y))


def nested(batch, length):
    inner = keras.Sequential(
        [keras.Input((None, D)), layers.GRU(U, return_sequences=True), layers.Dense(D)]
    )
    x = vectors(batch, length)
    return keras.Model(x, layers.Add()([x, inner(x)]))


def encoder_decoder(batch, length):
    x = ids(batch, length)
    memory, state = layers.GRU(U, return_sequences=True, return_state=True)(embedded(x, True))
    y = layers.RNN([layers.GRUCell(U), layers.LSTMCell(7)], return_sequences=True)(memory)
    y = layers.Concatenate()([y, layers.GRU(U, return_sequences=True)(memory, initial_state=state)])
    return keras.Model(x, layers.Dense(V, activation="log_softmax")(y))


def gated_convolution(batch, length):
    x = vectors(batch, length)
    y = layers.SeparableConv1D(U, 3, padding="same")(x)
    y = layers.Multiply()([y, layers.Dense(U, activation="sigmoid")(x)])
    y = layers.BatchNormalization()(layers.Dropout(0.5)(y))
    return keras.Model(x, layers.GlobalAveragePooling1D()(layers.UnitNormalization()(y)))


MODELS = {
    "embedding_gru": Model(embedding_gru),
    "bidirectional_lstm": Model(bidirectional_lstm),
    "stacked_gru": Model(stacked_gru, ids=False),
    "time_distributed": Model(time_distributed, ids=False, loops=False),
    "masked_lstm": Model(masked_lstm),
    "masking_simple_rnn": Model(masking_simple_rnn, ids=False),
    "causal_self_attention": Model(causal_self_attention, loops=False),
    "masked_self_attention": Model(masked_self_attention, loops=False),
    "grouped_attention": Model(grouped_attention, ids=False, loops=False),
    "attention_over_gru": Model(attention_over_gru),
    "convolution_gru": Model(convolution_gru, ids=False),
    "nested": Model(nested, ids=False),
    "encoder_decoder": Model(encoder_decoder),
    "gated_convolution": Model(gated_convolution, ids=False, loops=False),
}


def inputs(name: str, batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the input of a model; the first row ends in padding where it reads ids."""
    rng = np.random.default_rng([seed, batch, length])
    if not MODELS[name].ids:
        return {"inputs": rng.normal(size=(batch, length, D)).astype("float32")}
    found = rng.integers(1, V, (batch, length)).astype("int32")
    found[0, length // 2 + 1 :] = 0
    return {"inputs": found}
