"""Memories of several hops: what is tied, what a position and an age are, a linear start."""

import keras
import numpy as np
import pytest
from case import DK, DQ, DV, EXACT, B, S, T, U, W
from conftest import named_weights, randomize
from keras import ops

import keras_attention as ka
from keras_attention.episodic import EpisodicMemory
from keras_attention.memory import KeyValueMemory, position_encoding
from keras_attention.normalizers import linear
from keras_attention.scores import MultiDimensionalScore


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


def assert_all_close(actual, expected):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, **EXACT)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def made(kind, *shapes, scale=0.5, **options):
    layer = kind(dtype="float64", **options)
    layer.build(*shapes)
    randomize(layer, scale=scale)
    return layer


def ask(layer, *inputs, **kwargs):
    return layer(*inputs, return_attention_scores=True, **kwargs)


# --- Position encoding --------------------------------------------------------------------------


def test_position_encoding_of_the_paper():
    """l_kj = (1 - j/J) - (k/d)(1 - 2j/J): J = 2 words of d = 4 components."""
    first, second = [0.5, 0.5, 0.5, 0.5], [0.25, 0.5, 0.75, 1.0]
    words = np.array([[1.0, 10.0, 100.0, 1000.0], [1.0, 1.0, 1.0, 1.0]])
    expected = words[0] * first + words[1] * second
    assert_all_close([position_encoding(words)], [expected])
    one = numbers(1, DQ)
    assert_all_close([position_encoding(one)], [one[0] * np.arange(1, DQ + 1) / DQ])


def test_position_encoding_counts_the_words_that_are_there():
    words = numbers(B, S, W, DQ)
    padded = np.full((B, S, W + 3, DQ), np.nan)
    for padding in ([0, 0, 0], [2, 3, 9], [11, 12, 10]):
        places = np.setdiff1d(np.arange(W + 3), padding)[:W]
        mask = np.zeros((B, S, W + 3), bool)
        mask[..., places] = True
        padded[..., places, :] = words
        assert_all_close([position_encoding(padded, mask)], [position_encoding(words)])
        padded[:] = np.nan
    nothing = position_encoding(padded, np.zeros((B, S, W + 3), bool))
    assert_all_close([nothing], [np.zeros((B, S, DQ))])


def test_position_encoding_in_a_functional_model():
    words = keras.Input((None, None, DQ), dtype="float64")
    mask = keras.Input((None, None), dtype="bool")
    model = keras.Model([words, mask], position_encoding(words, mask))
    values, real = numbers(B, S, W, DQ), numbers(B, S, W, seed=1) > 0
    assert_all_close([model([values, real])], [position_encoding(values, real)])


def test_position_encoding_of_long_sentences_in_half_precision():
    """More words than bfloat16 has integers: counted in float32."""
    words = np.zeros((1, 1000, 2), "float32")
    words[0, 998] = 1.0
    found = position_encoding(ops.cast(words, "bfloat16"))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    expected = arrays([position_encoding(words)])[0]
    np.testing.assert_allclose(arrays([ops.cast(found, "float32")])[0], expected, rtol=2**-8)


# --- Linear start -------------------------------------------------------------------------------


def test_linear_leaves_scores_as_they_are():
    scores = [[0.5, -2.0, np.nan]]
    np.testing.assert_array_equal(
        *arrays([linear(scores, mask=[[True, True, False]]), np.array([[0.5, -2.0, 0.0]])])
    )
    np.testing.assert_array_equal(*arrays([linear([[3.0, -1.0]]), np.array([[3.0, -1.0]])]))
    half = linear(ops.convert_to_tensor([[1.0]], "float16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"


def test_a_linear_start_goes_on_with_softmax():
    """The same layer with the same weights; only what is compiled is another function."""
    memory = KeyValueMemory(2, normalizer=linear)
    query, key = keras.Input((DQ,)), keras.Input((None, DQ))
    model = keras.Model([query, key], memory(query, key))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    inputs = [numbers(8, DQ).astype("float32"), numbers(8, S, DQ, seed=1).astype("float32")]
    model.fit(inputs, inputs[0], epochs=2, verbose=0)
    weights, before = memory.get_weights(), model.predict(inputs, verbose=0)

    memory.normalizer = ka.softmax
    model.compile(model.optimizer, "mse")
    after = model.predict(inputs, verbose=0)
    assert model.optimizer.iterations.numpy().item() == 2
    for kept, weight in zip(memory.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(kept, weight)
    fresh = KeyValueMemory(2)
    fresh.build((None, DQ), (None, None, DQ))
    fresh.set_weights(weights)
    np.testing.assert_allclose(after, arrays([fresh(*inputs)])[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)
    losses = model.fit(inputs, inputs[0], epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert memory.get_config()["normalizer"] == fresh.get_config()["normalizer"]


# --- Memories that are read in hops -------------------------------------------------------------


def test_what_is_tied():
    """K + 1 matrices with adjacent tying, three with layer-wise tying, whatever K is."""
    for hops in (1, 3):
        adjacent = made(
            KeyValueMemory,
            (B, DQ),
            (B, S, DQ),
            hops=hops,
            update="sum",
            units=U,
            tying="adjacent",
            temporal=S,
        )
        kernels = {f"view_{i}/{n}" for i in range(hops + 1) for n in ("kernel", "temporal")}
        assert set(named_weights(adjacent)) == kernels
        layerwise = made(
            KeyValueMemory, (B, DQ), (B, S, DK), hops=hops, update="rnn", units=U, temporal=S
        )
        ages = {f"view_{i}/temporal" for i in (1, 2)}  # a query has none
        kernels = {f"view_{i}/kernel" for i in range(3)}
        assert set(named_weights(layerwise)) == kernels | ages | {"update/map"}
        plain = made(KeyValueMemory, (B, DQ), (B, S, DQ), hops=hops)
        assert set(named_weights(plain)) == {f"update/hop_{i}" for i in range(hops)}


@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_one_memory_is_its_keys_and_its_values(tying):
    layer = made(
        KeyValueMemory, (B, DQ), (B, S, DQ), hops=2, update="sum", units=U, tying=tying, temporal=4
    )
    query, memory, mask = numbers(B, DQ), numbers(B, S, DQ, seed=1), np.arange(S) < [[3], [S]]
    expected = ask(layer, query, memory, memory, key_mask=mask)
    assert_all_close(ask(layer, query, memory, key_mask=mask), expected)
    assert_all_close(ask(layer, query, memory, value_mask=mask), expected)
    both = np.arange(S) >= 1
    expected = ask(layer, query, memory, key_mask=mask & both)
    assert_all_close(
        ask(layer, query, memory, key_mask=mask, value_mask=np.tile(both, (B, 1))), expected
    )


def test_either_mask_speaks_of_the_words_of_one_memory():
    layer = made(KeyValueMemory, (B, DQ), (B, S, W, DQ))
    query, words, mask = numbers(B, DQ), numbers(B, S, W, DQ, seed=1), numbers(B, S, W) > -1
    expected = ask(layer, query, words, key_mask=mask)
    words[~mask] = np.nan
    assert_all_close(ask(layer, query, words, value_mask=mask), expected)


def test_hops_go_on_from_what_was_read():
    """Two hops are one hop twice, where both have the same matrix."""
    once = made(KeyValueMemory, (B, DQ), (B, S, DQ))
    twice = made(KeyValueMemory, (B, DQ), (B, S, DQ), hops=2)
    twice.set_weights(once.get_weights() * 2)
    query, memory = numbers(B, DQ), numbers(B, S, DQ, seed=1)
    first, weights = ask(once, query, memory)
    second, more_weights = ask(once, first, memory)
    assert_all_close(
        ask(twice, query, memory), [second, ops.concatenate([weights, more_weights], 1)]
    )


def test_bags_of_words_and_sums_of_embedded_words_are_one():
    vocabulary = 9
    layer = made(
        KeyValueMemory,
        (B, vocabulary),
        (B, S, vocabulary),
        hops=2,
        update="sum",
        units=U,
        tying="adjacent",
    )
    words, asked = np.arange(B * S * T).reshape(B, S, T) % vocabulary, np.arange(B * T) % vocabulary
    one_hot = np.eye(vocabulary)
    bags, question = one_hot[words].sum(2), one_hot[asked].reshape(B, T, vocabulary).sum(1)
    first, second, third = (layer.get_weights()[i] for i in range(3))
    embedded = [table[words].sum(2) for table in (first, second, third)]
    u = first[asked].reshape(B, T, U).sum(1)
    plain = KeyValueMemory(update="sum", dtype="float64")
    for hop in range(2):
        u = plain(u, embedded[hop], embedded[hop + 1])
    assert_all_close([layer(question, bags)], [u])


def test_words_are_projected_before_they_are_summed():
    """Position encoding counts the components of the projection, not those of the embedding."""
    layer = made(KeyValueMemory, (B, T, DQ), (B, S, W, DQ), update="sum", units=U)
    query, words = numbers(B, T, DQ), numbers(B, S, W, DQ, seed=1)
    of_query, of_key, of_value = layer.get_weights()
    plain = KeyValueMemory(update="sum", dtype="float64")
    expected = ask(
        plain,
        position_encoding(query @ of_query),
        position_encoding(words @ of_key),
        position_encoding(words @ of_value),
    )
    assert_all_close(ask(layer, query, words), expected)
    other = position_encoding(words) @ of_key
    assert not np.allclose(arrays([other])[0], arrays([position_encoding(words @ of_key)])[0])


def test_a_sentence_without_words_is_not_read():
    layer = made(KeyValueMemory, (B, DQ), (B, S, W, DQ), hops=2, temporal=3)
    query, words = numbers(B, DQ), numbers(B, S, W, DQ, seed=1)
    mask = numbers(B, S, W, seed=2) > -1
    mask[:, 1] = False
    output, weights = ask(layer, query, words, key_mask=mask)
    assert np.all(arrays([weights])[0][:, :, 1] == 0)
    rest = [0, 2, 3, 4]
    expected, others = ask(layer, query, words[:, rest], key_mask=mask[:, rest])
    assert_all_close([output, ops.take(weights, rest, axis=2)], [expected, others])


def test_keys_of_words_with_values_of_vectors():
    """Each with its own mask: (B, S, W) and (B, S)."""
    layer = made(KeyValueMemory, (B, DQ), (B, S, W, DQ), (B, S, DV), update="gru")
    query, words, value = numbers(B, DQ), numbers(B, S, W, DQ, seed=1), numbers(B, S, DV, seed=2)
    value[:, 3], words[:, :, 7:] = np.nan, np.nan
    readable, real = np.arange(S) != 3, np.arange(W) < 7
    masks = {"key_mask": np.tile(real, (B, S, 1)), "value_mask": np.tile(readable, (B, 1))}
    output, weights = ask(layer, query, words, value, **masks)
    expected = layer(query, words[:, readable][:, :, :7], value[:, readable])
    assert_all_close([output], [expected])
    assert np.all(arrays([weights])[0][..., 3] == 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_ages_are_counted_from_the_newest_real_memory(side):
    layer = made(KeyValueMemory, (B, DQ), (B, S, DQ), hops=2, units=U, temporal=S)
    query, memory = numbers(B, DQ), numbers(B, S, DQ, seed=1)
    padding = np.full((B, 2, DQ), np.nan)
    parts = [(padding, memory), (memory, padding)][side == "right"]
    places = slice(2, None) if side == "left" else slice(None, S)
    mask = np.zeros((B, S + 2), bool)
    mask[:, places] = True
    output, weights = ask(layer, query, np.concatenate(parts, 1), key_mask=mask)
    assert_all_close([output, weights[..., places]], ask(layer, query, memory))
    # Row 0 is the newest memory's: it matters even where there is but one.
    one = layer(query, memory[:, -1:])
    layer._views[2].temporal.assign(layer._views[2].temporal + np.eye(S, 1))
    assert not np.allclose(*arrays([one, layer(query, memory[:, -1:])]))


def test_what_is_older_than_all_ages_is_not_read():
    layer = made(KeyValueMemory, (B, DQ), (B, S, DQ), temporal=2)
    query, memory = numbers(B, DQ), numbers(B, S, DQ, seed=1)
    mask = np.array([[True] * S, [True] * (S - 1) + [False]])
    _, weights = ask(layer, query, memory, key_mask=mask)
    read = arrays([weights])[0][:, 0] != 0
    np.testing.assert_array_equal(read, [[0, 0, 0, 1, 1], [0, 0, 1, 1, 0]])
    with_nan = np.where(read[..., None], memory, np.nan)
    assert_all_close(
        ask(layer, query, with_nan, key_mask=mask), ask(layer, query, memory, key_mask=mask)
    )


def test_a_masked_query_gives_zeros():
    """One vector a row, or words of which none is real; whatever the update adds."""
    for shape, mask in (((B, DQ), [True, False]), ((B, T, DQ), [[True] * T, [False] * T])):
        layer = made(KeyValueMemory, shape, (B, S, DQ), hops=2, update="gru", temporal=3)
        query, memory = numbers(*shape), numbers(B, S, DQ, seed=1)
        expected = ask(layer, query, memory)
        query[1] = np.nan
        output, weights = arrays(ask(layer, query, memory, query_mask=np.array(mask)))
        assert np.all(output[1] == 0) and np.all(weights[1] == 0)
        assert_all_close([output[0], weights[0]], [x[0] for x in arrays(expected)])


def test_masked_words_of_a_query_are_not_read():
    layer = made(KeyValueMemory, (B, W, DQ), (B, S, DQ), units=U, update="sum")
    query, memory = numbers(B, W, DQ), numbers(B, S, DQ, seed=1)
    mask = np.tile(np.arange(W) < 4, (B, 1))
    expected = layer(query[:, :4], memory)
    query[:, 4:] = np.nan
    assert_all_close([layer(query, memory, query_mask=mask)], [expected])
    with pytest.raises(ValueError, match=r"query_mask must have shape.*Received"):
        layer(query, memory, query_mask=mask[:, :-1])


def test_stories_from_an_embedding():
    """Masks of words arrive by themselves, for the story and for the question."""
    story, question = (keras.Input(s, dtype="int32") for s in ((None, None), (None,)))
    embedding = keras.layers.Embedding(50, DQ, mask_zero=True)
    memory = KeyValueMemory(3, update="sum", units=U, tying="adjacent", temporal=4)
    found = memory(embedding(question), embedding(story), return_attention_scores=True)
    model = keras.Model([story, question], found)
    rng = np.random.default_rng(0)
    words, asked = rng.integers(0, 50, (B, S, W)), rng.integers(0, 50, (B, T))
    words[:, 3:] = 0
    asked[:, 2:] = 0
    expected = memory(
        ops.take(embedding.embeddings, asked, 0),
        ops.take(embedding.embeddings, words, 0),
        query_mask=asked != 0,
        key_mask=words != 0,
        return_attention_scores=True,
    )
    for a, e in zip(arrays(model([words, asked])), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
    assert np.all(arrays(expected)[1][..., 3:] == 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KeyValueMemory(0),
        lambda: KeyValueMemory(True),
        lambda: KeyValueMemory(update="lstm"),
        lambda: KeyValueMemory(tying="none"),
        lambda: KeyValueMemory(units=0),
        lambda: KeyValueMemory(temporal=-1),
        lambda: KeyValueMemory(score="unknown"),
        lambda: KeyValueMemory(normalizer="unknown"),
        lambda: EpisodicMemory(0),
        lambda: EpisodicMemory(episode="lstm"),
        lambda: EpisodicMemory(update="lstm"),
        lambda: EpisodicMemory(units=0.5),
        lambda: EpisodicMemory(normalizer="unknown"),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


@pytest.mark.parametrize("update", ["sum", "linear", "rnn"])
def test_what_is_added_to_a_query_has_its_width(update):
    layer = KeyValueMemory(update=update)
    with pytest.raises(ValueError, match=r"one width; 'gru' and 'relu' take two\. Received: query"):
        layer.build((B, DQ), (B, S, DQ), (B, S, DV))


def test_adjacent_tying_wants_one_width():
    layer = KeyValueMemory(units=U, tying="adjacent")
    with pytest.raises(ValueError, match=r"must have one width\. Received: query_shape"):
        layer.build((B, DQ), (B, S, DK), (B, S, DQ))


def test_a_memory_takes_one_score_a_pair():
    layer = KeyValueMemory(score=MultiDimensionalScore(3))
    with pytest.raises(ValueError, match=r"one score for each pair.*Received: score="):
        layer.build((B, DQ), (B, S, DQ))


def test_a_built_memory_refuses_other_shapes():
    layer = made(KeyValueMemory, (B, DQ), (B, S, DK), (B, S, DV), update="gru", score="bilinear")
    query, key, value = numbers(B, DQ), numbers(B, S, DK), numbers(B, S, DV)
    for wrong in (
        (query[0], key, value),
        (query, key[0], value),
        (query, key, value[0]),
        (query[:1], key, value),
        (query, key[:, 1:], value),
        (query, value, key),
        (query, key),  # built for values of another width
    ):
        with pytest.raises(ValueError, match=r"Received: .*shape="):
            layer(*wrong)


def test_kernels_of_one_initializer_differ():
    layer = KeyValueMemory(2, units=DQ, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((B, DQ), (B, S, DQ))
    assert len({w.ravel()[0] for w in layer.get_weights()}) == len(layer.weights) == 5


# --- Episodes -----------------------------------------------------------------------------------


def test_what_is_tied_over_passes():
    """The gates and the recurrent unit are one; each pass has an update of its own."""
    layer = made(EpisodicMemory, (B, S, DQ), (B, DQ), hops=2)
    denses = ("hidden", "gate", "update/hop_0", "update/hop_1")
    expected = {f"{name}/{part}" for name in denses for part in ("kernel", "bias")}
    expected |= {f"episode/{part}" for part in ("kernel", "recurrent_kernel", "bias")}
    assert set(named_weights(layer)) == expected


def test_soft_episodes_do_not_know_the_order_of_facts():
    facts, question = numbers(B, S, DQ), numbers(B, DQ, seed=1)
    for episode, same in (("soft", True), ("gru", False)):
        layer = made(EpisodicMemory, (B, S, DQ), (B, DQ), hops=2, episode=episode)
        memory, moved = arrays([layer(facts, question), layer(facts[:, ::-1], question)])
        assert np.allclose(memory, moved) == same


def test_each_pass_attends_anew():
    layer = made(EpisodicMemory, (B, S, DQ), (B, DQ), scale=1.0)
    _, gates = ask(layer, numbers(B, S, DQ), numbers(B, DQ, seed=1))
    first, second, third = np.moveaxis(arrays([gates])[0], 1, 0)
    assert not np.allclose(first, second) and not np.allclose(second, third)


def test_a_question_may_come_with_a_mask():
    """Of rows, which says nothing here, and no layer inside warns of it."""
    facts, question = keras.Input((None, DQ), dtype="float64"), keras.Input((DQ,), dtype="float64")
    layer = made(EpisodicMemory, (B, S, DQ), (B, DQ))
    masked = keras.layers.Masking(dtype="float64")(question)
    model = keras.Model([facts, question], layer(facts, masked))
    inputs = [numbers(B, S, DQ), numbers(B, DQ, seed=1)]
    assert_all_close([model(inputs)], [layer(*inputs)])


def test_a_built_episodic_memory_refuses_other_shapes():
    layer = made(EpisodicMemory, (B, S, DQ), (B, DQ))
    facts, question = numbers(B, S, DQ), numbers(B, DQ)
    for wrong in (
        (facts[0], question),
        (facts[..., 1:], question),
        (facts, question[0]),
        (facts, question[:1]),
        (facts, question[:, 1:]),
    ):
        with pytest.raises(ValueError, match=r"Received: .*shape="):
            layer(*wrong)


@pytest.mark.parametrize("kind", [KeyValueMemory, EpisodicMemory])
def test_regularizers_and_constraints_are_used(kind):
    layer = kind(kernel_regularizer="l2", kernel_constraint="max_norm", update="gru")
    first, second = ((B, S, DQ), (B, DQ))[:: 1 if kind is EpisodicMemory else -1]
    layer.build(first, second)
    kernels = [w for w in layer.weights if w.path.endswith("/kernel")]
    assert len(layer.losses) == len(kernels) == {KeyValueMemory: 1, EpisodicMemory: 4}[kind]
    assert all(w.constraint is not None for w in kernels)


@pytest.mark.parametrize("options", [{}, {"episode": "soft", "update": "gru"}])
def test_training_lowers_the_loss(options):
    """Which fact has a mark, asked of padded facts in mixed precision."""
    rng = np.random.default_rng(0)
    facts = rng.normal(size=(32, S, DQ)).astype("float32")
    marked = rng.integers(0, 3, 32)
    facts[:, :, 0] = 0.0
    facts[np.arange(32), marked, 0] = 3.0
    facts[:, 3:] = 0.0
    target = facts[np.arange(32), marked, 1:2]
    x, q = keras.Input((None, DQ)), keras.Input((DQ,))
    memory = EpisodicMemory(2, dtype="mixed_bfloat16", **options)(keras.layers.Masking()(x), q)
    model = keras.Model([x, q], keras.layers.Dense(1, dtype="float32")(memory))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    question = np.ones((32, DQ), "float32")
    losses = model.fit([facts, question], target, epochs=20, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
