"""Transformer blocks: stacks, caches, both kinds of weights, and wrong use."""

import keras
import numpy as np
import pytest
from case import DE, DV, EXACT, B, S, T, U
from conftest import randomize
from keras import ops

import keras_attention as ka
from keras_attention.heads import CrossAttention
from keras_attention.positions import LearnedPositions, RotaryPositions
from keras_attention.self_attention import SelfAttention
from keras_attention.transformer import TransformerDecoderBlock, TransformerEncoderBlock

RANDOM = np.random.default_rng(0)
X, MEMORY = RANDOM.normal(size=(B, T, U)), RANDOM.normal(size=(B, S, DV))
MASK, READABLE = np.array([[1, 0, 1], [1, 1, 0]], bool), RANDOM.random((B, S)) < 0.6
LENGTH = 6


def array(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float64")))


def decoder(**options):
    block = TransformerDecoderBlock(DE, 4, dtype="float64", **options)
    block.build((None, None, U), (None, None, DV))
    randomize(block)
    return block


def in_chunks(block, sizes, mask, **given):
    cache, index, found = block.initial_cache(B, LENGTH), 0, []
    for size in sizes:
        part = slice(index, index + size)
        output, *weights, cache = block(
            X[:, part],
            cache=cache,
            cache_index=ops.convert_to_tensor(index, "int32"),
            return_attention_scores=True,
            **{mask: MASK[:, part]},
            **given,
        )
        found.append([array(output), *map(array, weights)])
        index += size
    outputs, *weights = zip(*found, strict=True)
    return np.concatenate(outputs, 1), *(np.concatenate(w, 2) for w in weights)


@pytest.mark.parametrize("sizes", [[1, 1, 1], [2, 1]])
def test_a_decoder_over_a_cache_is_the_whole_pass(sizes):
    block = decoder(normalize_first=True)
    flags = {"memory_mask": READABLE, "return_attention_scores": True}
    output, own, alignment = block(X, MEMORY, inputs_mask=MASK, **flags)
    projected = block.project_memory(ops.convert_to_tensor(MEMORY), READABLE)
    for given in ({"projected_memory": projected}, {"memory": MEMORY}):
        found = in_chunks(block, sizes, "inputs_mask", memory_mask=READABLE, **given)
        np.testing.assert_allclose(found[0], array(output), **EXACT)
        np.testing.assert_allclose(found[1][..., :T], array(own), **EXACT)
        np.testing.assert_allclose(found[2], array(alignment), **EXACT)


def test_an_encoder_block_over_a_cache_is_the_whole_pass():
    attention = SelfAttention(
        4, direction="causal", positions=RotaryPositions(dtype="float64"), dtype="float64"
    )
    block = TransformerEncoderBlock(DE, attention=attention, dtype="float64")
    output, weights = block(X, mask=MASK, return_attention_scores=True)
    found = in_chunks(block, [1, 2], "mask")
    np.testing.assert_allclose(found[0], array(output), **EXACT)
    np.testing.assert_allclose(found[1][..., :T], array(weights), **EXACT)


def test_search_over_a_cache():
    """Greedy search finds what whole passes find, and a beam of one finds the same."""
    vocabulary, start, end, longest = 7, 1, 0, 5
    block = decoder()
    embedding = keras.layers.Embedding(vocabulary, U, dtype="float64")
    head = keras.layers.Dense(vocabulary, dtype="float64")
    embedding.build()
    head.build((None, U))
    for layer in (embedding, head):
        randomize(layer, scale=1.0)
    readable = ops.convert_to_tensor(READABLE)
    projected = block.project_memory(ops.convert_to_tensor(MEMORY), readable)

    def step(tokens, states, keys, values, readable):
        index, *cache = states
        x, _, alignment, cache = block(
            embedding(ops.expand_dims(tokens, 1)),
            projected_memory=(keys, values),
            memory_mask=readable,
            cache=tuple(cache),
            cache_index=index[0],
            return_attention_scores=True,
        )
        weights = ops.mean(ops.squeeze(alignment, 2), axis=1)  # (B, S), of the heads
        return head(ops.squeeze(x, 1)), (index + 1, *cache), weights

    states = ops.zeros((B,), dtype="int32"), *block.initial_cache(B, longest)
    given = step, states, (*projected, readable)
    limits = {"start_id": start, "end_id": end, "max_length": longest}
    greedy = ka.greedy_search(*given, **limits)
    beam = ka.beam_search(*given, **limits, beam_width=1)
    np.testing.assert_array_equal(array(beam.tokens)[:, 0], array(greedy.tokens))

    tokens = np.full((B, 1), start)
    for _ in range(longest):
        x = block(embedding(tokens), MEMORY, memory_mask=READABLE)
        best = array(head(x))[:, -1].argmax(-1)
        ended = np.any(tokens[:, 1:] == end, axis=1)
        tokens = np.concatenate([tokens, np.where(ended, end, best)[:, None]], axis=1)
    np.testing.assert_array_equal(array(greedy.tokens), tokens[:, 1:])


def test_returns_of_every_flag():
    block = decoder()
    x, memory = keras.Input((None, U)), keras.Input((None, DV))
    cache = [keras.Input(c.shape[1:], dtype=c.dtype) for c in block.initial_cache(B, LENGTH)]
    given = {"cache": tuple(cache), "cache_index": 1}
    for flags in ({}, {"return_attention_scores": True}):
        for more in ({}, given):
            symbolic = keras.tree.flatten(block(x, memory, **flags, **more))
            filled = {"cache": block.initial_cache(B, LENGTH), "cache_index": 1}
            real = filled if more else {}
            found = keras.tree.flatten(block(X, MEMORY, **flags, **real))
            assert len(symbolic) == len(found)
            for s, f in zip(symbolic, found, strict=True):
                assert len(s.shape) == len(f.shape)
                assert all(a in (None, b) for a, b in zip(s.shape, f.shape, strict=True))


def test_a_memory_with_nothing_to_read():
    block = decoder()
    output, own, alignment = block(
        X, MEMORY, memory_mask=np.zeros((B, S), bool), return_attention_scores=True
    )
    assert np.all(array(alignment) == 0) and np.all(np.isfinite(array(output)))
    np.testing.assert_allclose(array(own).sum(-1), 1.0, **EXACT)


def test_no_position_of_a_decoder_sees_what_comes_after():
    block = decoder()
    before = array(block(X, MEMORY))
    moved = X.copy()
    moved[:, 1] += 1.0
    after = array(block(moved, MEMORY))
    np.testing.assert_array_equal(after[:, 0], before[:, 0])
    assert np.all(np.any(after[:, 1:] != before[:, 1:], axis=-1))


def test_what_a_block_makes_for_itself():
    block = TransformerDecoderBlock(DE, 4, dropout=0.3, seed=5, use_bias=False)
    for attention in (block.attention, block.cross_attention):
        assert (attention.num_heads, attention.dropout, attention.seed) == (4, 0.3, 5)
        assert not attention.use_bias
    assert block.attention.direction == "causal"
    assert block.activation is keras.activations.relu
    encoder = TransformerEncoderBlock(DE, 2, kernel_initializer="ones")
    assert encoder.attention.direction is None
    encoder.build((None, None, U))
    kernels = [w for w in encoder.weights if w.path.endswith("kernel")]
    assert len(kernels) == 6 and all(np.all(array(kernel) == 1) for kernel in kernels)


def test_dropout_drops_in_training_alone():
    block = TransformerEncoderBlock(DE, 4, dropout=0.5, seed=3, dtype="float64")
    output = array(block(X))
    np.testing.assert_array_equal(array(block(X)), output)
    dropped = array(block(X, training=True))
    assert not np.allclose(dropped, output)
    # What is dropped of a sublayer leaves its residual connection.
    bare = SelfAttention(4, dtype="float64", direction="causal", kernel_initializer="zeros")
    block = TransformerEncoderBlock(
        DE, attention=bare, normalize_first=True, dropout=0.5, seed=3, dtype="float64"
    )
    block.build(X.shape)
    hidden = array(block(X, training=True)) - X
    whole = array(block(X)) - X
    kept = hidden != 0
    assert 0 < kept.mean() < 1
    np.testing.assert_allclose(hidden[kept], 2 * whole[kept], rtol=1e-4)


def test_a_stack_with_masks_from_upstream_learns():
    """Which token came first, of sequences padded behind, in mixed precision."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, U, mask_zero=True)(ids)
    x = LearnedPositions(8)(x)
    for i in range(2):
        x = TransformerEncoderBlock(
            16, 2, dropout=0.05, normalize_first=bool(i), seed=i, dtype="mixed_bfloat16"
        )(x)
    assert x._keras_mask is not None
    x = keras.layers.GlobalAveragePooling1D(dtype="float32")(x)
    model = keras.Model(ids, keras.layers.Dense(9)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    tokens = np.random.default_rng(0).integers(1, 9, size=(64, 6))
    tokens[::2, 4:] = 0
    history = model.fit(tokens, tokens[:, 0], epochs=6, verbose=0).history["loss"]
    assert np.isfinite(history).all() and history[-1] < 0.8 * history[0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TransformerEncoderBlock(0, 2),
        lambda: TransformerEncoderBlock(8, 0),
        lambda: TransformerEncoderBlock(8),
        lambda: TransformerEncoderBlock(8, attention=CrossAttention(2)),
        lambda: TransformerEncoderBlock(8, attention=SelfAttention(2, output_dim=5))(X),
        lambda: TransformerEncoderBlock(8, 2, dropout=-0.1),
        lambda: TransformerDecoderBlock(8, attention=SelfAttention(2, direction="causal")),
        lambda: TransformerDecoderBlock(8, 2, attention=SelfAttention(2)),
        lambda: TransformerDecoderBlock(8, 2, cross_attention=SelfAttention(2)),
        lambda: TransformerDecoderBlock(8, 2)(X),
        lambda: decoder()(X),
        lambda: decoder()(X, MEMORY, inputs_mask=np.ones((B, 1), bool)),
        lambda: decoder()(X[..., :4], MEMORY),
        lambda: decoder()(X, MEMORY[:1]),
    ],
)
def test_wrong_use_is_refused(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_an_attention_belongs_to_one_block():
    attention = SelfAttention(2)
    TransformerEncoderBlock(8, attention=attention)(X)
    with pytest.raises(ValueError, match="already built"):
        TransformerEncoderBlock(8, attention=attention)(X)
