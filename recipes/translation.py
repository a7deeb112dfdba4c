"""Translation: a recurrent encoder and decoder with attention.

A bidirectional encoder reads the source; a decoder asks it, word by word, what to say next. All
of it is built by the functional API from `keras.layers` and `AttentionDecoder`; what search and
export run is functions over the same layers. What is done with such a model - runs, figures,
artifacts - is in `translator`, for it is the same with a Transformer.
"""

import keras
from keras import ops

from keras_attention import AttentionDecoder, padding_mask

from .precision import computing_in
from .searches import Decoding
from .tokenizers import PADDING_ID
from .translation_options import Config


def build_model(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    attention: str = "additive",
    query: str = "previous",
    input_feeding: bool = True,
    cell: str = "gru",
    layers: int = 1,
    embedding: int = 256,
    encoder_units: int = 128,
    source_in_memory: bool = False,
    units: int = 256,
    dropout: float = 0.3,
    seed: int = 0,
) -> keras.Model:
    """A model of source and target ids, (B, S) and (B, T), to logits (B, T, V).

    The target is what the decoder is fed: the sentence moved by one, beginning with the start
    token. With `source_in_memory` the memory holds the source embeddings beside the states of
    the encoder (Bahdanau's holds the states alone).

    `attention="none"` is the sequence-to-sequence model without attention: its memory is one
    vector, the last states of the encoder, which the decoder is given in every step.

    Example:

    >>> from keras_attention.recipes.translation import build_model
    >>> build_model(50, 40, embedding=8, encoder_units=4, units=8).output.shape
    (None, None, 40)
    """
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    recurrent = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[cell]

    x = embedded = keras.layers.Embedding(
        source_vocabulary_size, embedding, mask_zero=True, name="source_embedding"
    )(source)
    for i in range(layers):
        x = keras.layers.Dropout(dropout, seed=seed + 10 + i)(x)
        x, *states = keras.layers.Bidirectional(
            recurrent(encoder_units, return_sequences=True, return_state=True),
            name=f"encoder_{i}",
        )(x)
    # Of an LSTM the hidden states, of a GRU its only ones: forward first, then backward.
    forward, backward = states[0], states[len(states) // 2]
    encoder_state = keras.layers.Concatenate(name="encoder_state")([forward, backward])
    if attention == "none":
        memory = keras.layers.Reshape((1, 2 * encoder_units), name="memory")(encoder_state)
    else:
        if source_in_memory:
            # The word itself beside what surrounds it: what is looked at and what is looked up
            # are then the same place, and alignments become sharper.
            x = keras.layers.Concatenate(name="annotations")([x, embedded])
        memory = keras.layers.Dropout(dropout, seed=seed + 1, name="memory")(x)

    x = keras.layers.Embedding(
        target_vocabulary_size, embedding, mask_zero=True, name="target_embedding"
    )(target)
    x = keras.layers.Dropout(dropout, seed=seed + 2)(x)
    outputs, _ = AttentionDecoder(
        units,
        # Over a memory of one vector every score gives that vector a weight of 1.
        score="bilinear" if attention == "none" else attention,
        query=query,
        cell=cell,
        num_layers=layers,
        input_feeding=input_feeding,
        dropout=dropout,
        seed=seed + 3,
        name="decoder",
    )(x, memory, encoder_state=encoder_state)
    logits = keras.layers.Dense(target_vocabulary_size, name="logits")(outputs)
    return keras.Model([source, target], logits, name="translation")


def model_of(config: Config, source_size: int, target_size: int) -> keras.Model:
    """The model of a config, for vocabularies of these sizes, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            source_size,
            target_size,
            attention=config.attention,
            query=config.query,
            input_feeding=config.input_feeding,
            cell=config.cell,
            layers=config.layers,
            embedding=config.embedding,
            encoder_units=config.encoder_units,
            source_in_memory=config.source_in_memory,
            units=config.units,
            dropout=config.dropout,
            seed=config.seed,
        )


# What search and export run.


def encoder_of(model: keras.Model) -> keras.Model:
    """The part of a model that reads the source: ids to memory and encoder state."""
    outputs = [model.get_layer(name).output for name in ("memory", "encoder_state")]
    return keras.Model(model.inputs[0], outputs)


def decoding(model: keras.Model, config: Config, encoder: keras.Model | None = None) -> Decoding:
    """How a model translates, step by step.

    Export gives an `encoder` whose loops a target can hold, in place of `encoder_of(model)`.
    """
    encoder = encoder or encoder_of(model)
    embed, decoder = model.get_layer("target_embedding"), model.get_layer("decoder")
    to_logits = model.get_layer("logits")

    def encode(source):
        memory, encoder_state = encoder(source)
        if encoder.output[0].shape[1] is None:
            mask = padding_mask(source, PADDING_ID)  # (B, S)
        else:  # the one vector of a model without attention
            mask = ops.ones_like(memory[..., 0], dtype="bool")
        values, keys = decoder.prepare_memory(memory, mask)
        states = decoder.initial_state(encoder_state=encoder_state)
        named = {f"state_{i}": state for i, state in enumerate(states)}
        return named, {"values": values, "keys": keys, "mask": mask}

    def step(tokens, states, memory):
        output, moved, weights = decoder.step(
            embed(tokens), tuple(states.values()), memory["values"], memory["keys"], memory["mask"]
        )
        return to_logits(output), dict(zip(states, moved, strict=True)), weights

    return Decoding(encode, step)


def forced_weights(model: keras.Model, encoder: keras.Model, source, target):
    """What each target token attends to when the reference is fed in, (B, T, S)."""
    memory, encoder_state = encoder(source)
    *_, weights = model.get_layer("decoder")(
        model.get_layer("target_embedding")(target),
        memory,
        encoder_state=encoder_state,
        memory_mask=padding_mask(source, PADDING_ID),
        return_attention_scores=True,
    )
    return weights
