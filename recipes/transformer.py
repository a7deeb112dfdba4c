"""Translation by a Transformer: attention alone, in an encoder and a decoder.

Every word of the source reads every other; every word of the target reads those before it and the
source. Built by the functional API from `keras.layers` and the blocks of this library; what search
and export run is functions over the same layers, step by step over a cache of fixed length.
"""

import keras
from keras import ops

from keras_attention import (
    SinusoidalPositions,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    padding_mask,
)

from .precision import computing_in
from .searches import Decoding
from .tokenizers import PADDING_ID
from .transformer_options import Config


def build_model(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    layers: int = 3,
    heads: int = 4,
    width: int = 128,
    hidden: int = 512,
    dropout: float = 0.3,
    seed: int = 0,
) -> keras.Model:
    """A model of source and target ids, (B, S) and (B, T), to logits (B, T, V).

    The target is what the decoder is fed: the sentence moved by one, beginning with the start
    token. Its embeddings are what logits are made with, too (Press and Wolf, 2017). Blocks
    normalise first, which trains from any state without care (Xiong et al., 2020).

    Example:

    >>> from keras_attention.recipes.transformer import build_model
    >>> build_model(50, 40, layers=1, heads=2, width=8, hidden=16).output.shape
    (None, None, 40)

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    """
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    block = {"num_heads": heads, "dropout": dropout, "normalize_first": True}
    # Of this size, logits by the same table begin near 0, and times the root embeddings near 1.
    normal = keras.initializers.RandomNormal(stddev=width**-0.5, seed=seed)
    scale = keras.layers.Rescaling(width**0.5, name="scale")
    positions = SinusoidalPositions(name="positions")

    x = keras.layers.Embedding(
        source_vocabulary_size,
        width,
        embeddings_initializer=normal,
        mask_zero=True,
        name="source_embedding",
    )(source)
    x = keras.layers.Dropout(dropout, seed=seed + 1)(positions(scale(x)))
    for i in range(layers):
        x = TransformerEncoderBlock(hidden, seed=seed + 10 + i, name=f"encoder_{i}", **block)(x)
    memory = keras.layers.LayerNormalization(name="memory")(x)

    embedding = keras.layers.ReversibleEmbedding(
        target_vocabulary_size,
        width,
        embeddings_initializer=normal.clone(),
        mask_zero=True,
        name="target_embedding",
    )
    x = keras.layers.Dropout(dropout, seed=seed + 2)(positions(scale(embedding(target))))
    for i in range(layers):
        x = TransformerDecoderBlock(hidden, seed=seed + 50 + i, name=f"decoder_{i}", **block)(
            x, memory
        )
    logits = embedding(keras.layers.LayerNormalization(name="outputs")(x), reverse=True)
    return keras.Model([source, target], logits, name="transformer")


def model_of(config: Config, source_size: int, target_size: int) -> keras.Model:
    """The model of a config, for vocabularies of these sizes, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            source_size,
            target_size,
            layers=config.layers,
            heads=config.heads,
            width=config.width,
            hidden=config.hidden,
            dropout=config.dropout,
            seed=config.seed,
        )


# What search and export run.


def encoder_of(model: keras.Model) -> keras.Model:
    """The part of a model that reads the source: ids to the memory."""
    return keras.Model(model.inputs[0], model.get_layer("memory").output)


def decoding(model: keras.Model, config: Config, encoder: keras.Model | None = None) -> Decoding:
    """How a model translates, step by step: `max_length` steps, as many as the cache holds.

    The weights of a step are the mean over the heads of the last block but one, where attention is
    most of an alignment (Garg et al., EMNLP 2019, section 4.1).
    """
    blocks = _decoder_blocks(model)
    encoder = encoder or encoder_of(model)

    def encode(source):
        memory, mask = encoder(source), padding_mask(source, PADDING_ID)
        read = {"mask": mask}
        states = {"position": ops.zeros_like(source[:, 0])}  # the same for all rows
        for i, block in enumerate(blocks):
            read[f"keys_{i}"], read[f"values_{i}"] = block.project_memory(memory, mask)
            cache = block.initial_cache(ops.shape(source)[0], config.max_length)
            states |= dict(zip(_cached(i), cache, strict=True))
        return states, read

    def step(tokens, states, memory):
        position = states["position"][0]
        x = _embedded(model, ops.expand_dims(tokens, 1), position)
        moved = {"position": states["position"] + 1}
        weights = []
        for i, block in enumerate(blocks):
            x, _, alignment, cache = block(
                x,
                projected_memory=(memory[f"keys_{i}"], memory[f"values_{i}"]),
                memory_mask=memory["mask"],
                cache=tuple(states[name] for name in _cached(i)),
                cache_index=position,
                return_attention_scores=True,
            )
            moved |= dict(zip(_cached(i), cache, strict=True))
            weights.append(ops.squeeze(ops.mean(alignment, axis=1), 1))  # (B, S)
        return ops.squeeze(_logits(model, x), 1), moved, _aligned(weights)

    return Decoding(encode, step)


def forced_weights(model: keras.Model, encoder: keras.Model, source, target):
    """What each target token attends to when the reference is fed in, (B, T, S)."""
    memory, mask = encoder(source), padding_mask(source, PADDING_ID)
    x, weights = _embedded(model, target, 0), []
    for block in _decoder_blocks(model):
        x, _, alignment = block(
            x,
            memory,
            inputs_mask=padding_mask(target, PADDING_ID),
            memory_mask=mask,
            return_attention_scores=True,
        )
        weights.append(ops.mean(alignment, axis=1))
    return _aligned(weights)


def _decoder_blocks(model):
    return [layer for layer in model.layers if isinstance(layer, TransformerDecoderBlock)]


def _cached(i):
    return f"cache_keys_{i}", f"cache_values_{i}", f"cached_{i}"


def _embedded(model, tokens, position):
    x = model.get_layer("scale")(model.get_layer("target_embedding")(tokens))
    return model.get_layer("positions")(x, start_index=position)


def _logits(model, x):
    return model.get_layer("target_embedding")(model.get_layer("outputs")(x), reverse=True)


def _aligned(weights):
    """Of the weights of all blocks those of the last but one."""
    return weights[-2] if len(weights) > 1 else weights[-1]
