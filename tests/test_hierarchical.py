"""Hierarchical attention in models: masks of ids, padding on both levels, the pass down."""

import warnings

import keras
import numpy as np
import pytest
from case import DV, EXACT, B, S, W
from keras import ops

from keras_attention import AdditiveScore, Attention
from keras_attention.hierarchical import HierarchicalAttention
from keras_attention.pooling import AttentionPooling
from keras_attention.regularizers import DiversityPenalty


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def gru(units):
    return keras.layers.Bidirectional(keras.layers.GRU(units, return_sequences=True))


def recurrent(**kwargs):
    return HierarchicalAttention(gru(4), sentence_encoder=gru(3), **kwargs)


def documents(sentences=4, words=6, seed=0):
    """Token ids (3, S, W): short sentences, few sentences, and nothing but padding."""
    ids = np.random.default_rng(seed).integers(1, 20, (3, sentences, words))
    ids[0, :, words // 2 :] = 0
    ids[1, 1:] = 0
    ids[1, 0, 2:] = 0
    ids[2] = 0
    return ids


def model_of(layer):
    tokens = keras.Input((None, None), dtype="int32")
    words = keras.layers.Embedding(20, DV, mask_zero=True)(tokens)
    return keras.Model(tokens, layer(words, return_attention_scores=True))


@pytest.mark.parametrize("top_down", [None, "additive"])
def test_padding_changes_nothing(top_down):
    """Neither words appended to every sentence nor sentences appended to every document."""
    model = model_of(recurrent(top_down=top_down))
    ids = documents()
    document, of_sentences, of_words = map(array, model(ids))
    for more_sentences, more_words in ((0, 3), (2, 0), (2, 3)):
        padded = np.pad(ids, ((0, 0), (0, more_sentences), (0, more_words)))
        found = list(map(array, model(padded)))
        np.testing.assert_allclose(found[0], document, atol=1e-6)
        np.testing.assert_allclose(found[1][:, : ids.shape[1]], of_sentences, atol=1e-6)
        np.testing.assert_allclose(found[2][:, : ids.shape[1], : ids.shape[2]], of_words, atol=1e-6)
        assert np.all(found[1][:, ids.shape[1] :] == 0)
        assert np.all(found[2][padded == 0] == 0)
    assert np.all(document[2] == 0)
    assert np.all(of_sentences[~(ids > 0).any(-1)] == 0)


def test_ids_say_which_sentences_there_are():
    model = model_of(layer := recurrent())
    ids = documents()
    words = model.layers[1](ids)
    plain = ops.convert_to_tensor(array(words))  # without the mask that Keras hangs on it
    expected = layer(plain, mask=ids > 0, return_attention_scores=True)
    for found, wanted in zip(model(ids), expected, strict=True):
        np.testing.assert_allclose(array(found), array(wanted), atol=1e-6)


@pytest.mark.slow
def test_trains_on_documents_with_empty_sentences():
    tokens = keras.Input((None, None), dtype="int32")
    words = keras.layers.Embedding(20, DV, mask_zero=True)(tokens)
    output = keras.layers.Dense(1)(recurrent(top_down="additive")(words))
    model = keras.Model(tokens, output)
    model.compile("adam", "mse")
    history = model.fit(documents(), np.ones((3, 1)), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


class Told(keras.layers.Layer):
    """Hands on what it gets, and keeps the masks that it is told."""

    def __init__(self, axis=None, **kwargs):
        super().__init__(**kwargs)
        self.axis = axis
        self.masks = []
        self.supports_masking = True

    def call(self, inputs, mask=None):
        self.masks.append(array(mask))
        return inputs if self.axis is None else ops.mean(inputs, axis=self.axis)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        return inputs_shape if self.axis is None else (inputs_shape[0], inputs_shape[2])


def test_no_layer_is_handed_a_sequence_in_which_everything_is_masked():
    """Encoders, and poolings that have no weights: cuDNN and Keras's mean cannot take one."""
    parts = {
        "word_encoder": Told(),
        "word_pooling": Told(axis=1),
        "sentence_encoder": Told(),
        "sentence_pooling": Told(axis=1),
    }
    ids = documents()
    document = HierarchicalAttention(**parts)(numbers(*ids.shape, DV), mask=ids > 0)
    assert np.all(array(document)[2] == 0)
    for name, part in parts.items():
        (told,) = part.masks
        wanted = ids.reshape(-1, ids.shape[2]) > 0 if "word" in name else (ids > 0).any(-1)
        empty = ~wanted.any(-1)
        assert empty.any()
        np.testing.assert_array_equal(told[~empty], wanted[~empty])
        assert told[empty][:, 0].all() and not told[empty][:, 1:].any()


def test_a_penalty_leaves_out_what_is_empty():
    layer = HierarchicalAttention(
        word_pooling=AttentionPooling(
            hops=2, weights_regularizer=DiversityPenalty(), dtype="float64"
        ),
        dtype="float64",
    )
    ids = documents()
    _, _, weights = layer(numbers(*ids.shape, DV), mask=ids > 0, return_attention_scores=True)
    real = array(weights)[(ids > 0).any(-1)]  # (real sentences, 2, W)
    found = [np.sum(np.square(a @ a.T - np.eye(2))) for a in real]
    expected = np.sum(found) / (ids.shape[0] * ids.shape[1])
    np.testing.assert_allclose([float(x) for x in layer.losses], [expected], **EXACT)


def test_top_down_lets_a_sentence_read_by_its_place_in_the_document():
    """Other sentences change which words of a sentence are read, where they do not without it."""
    words = numbers(1, S, W, DV)
    changed = np.array(words)
    changed[:, 1:] = numbers(1, S - 1, W, DV, seed=1)
    for top_down, steered in ((None, False), ("additive", True)):
        keras.utils.set_random_seed(0)
        layer = recurrent(top_down=top_down, dtype="float64")
        read = [array(layer(x, return_attention_scores=True)[2])[0, 0] for x in (words, changed)]
        assert np.allclose(*read) is not steered


def test_top_down_by_name_score_attention_or_config():
    for given in ("additive", AdditiveScore(4), Attention("additive", "sparsemax")):
        layer = HierarchicalAttention(top_down=given)
        assert isinstance(layer.top_down, Attention)
        copy = HierarchicalAttention.from_config(layer.get_config())
        assert copy.top_down.get_config() == layer.top_down.get_config()
        assert isinstance(copy.top_down.score, AdditiveScore)
    assert HierarchicalAttention.from_config(HierarchicalAttention().get_config()).top_down is None


@pytest.mark.parametrize("built", [False, True])
def test_models_as_encoders(built, tmp_path):
    def encoder(width):
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(width)]
        return keras.Sequential([keras.Input((None, width)), *layers] if built else layers)

    model = model_of(HierarchicalAttention(encoder(DV), sentence_encoder=encoder(DV)))
    expected = list(map(array, model(documents())))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for found, wanted in zip(loaded(documents()), expected, strict=True):
        np.testing.assert_array_equal(array(found), wanted)
    assert len(model.trainable_variables) == 1 + 2 * 4 + 2 * 3


def test_pooling_that_knows_no_mask():
    """No warning of a mask that is lost: what an encoder gives carries none."""
    layer = HierarchicalAttention(gru(3), keras.layers.GlobalMaxPooling1D())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        document = array(layer(numbers(3, 4, 6, DV), mask=documents() > 0))
    assert document.shape == (3, 6)
    assert np.all(document[2] == 0)


def test_recurrent_layers_as_poolings():
    """Their last state stands for the sequence; one of padding alone gives zeros all the same."""
    last = [keras.layers.GRU(units, bias_initializer="ones") for units in (3, 4)]
    layer = HierarchicalAttention(word_pooling=last[0], sentence_pooling=last[1])
    ids = documents()
    words = numbers(*ids.shape, DV)
    document = array(layer(words, mask=ids > 0))
    assert np.all(document[2] == 0)
    sentences = [last[0](words[:1, i, : np.sum(ids[0, i] > 0)]) for i in range(ids.shape[1])]
    expected = last[1](ops.stack(sentences, axis=1))
    np.testing.assert_allclose(document[:1], array(expected), atol=1e-6)


def test_training_reaches_the_layers_inside():
    layer = HierarchicalAttention(
        keras.layers.Dropout(0.5, seed=1, dtype="float64"), dtype="float64"
    )
    words = numbers(B, S, W, DV)
    still = array(layer(words))
    np.testing.assert_array_equal(array(layer(words, training=False)), still)
    assert not np.allclose(array(layer(words, training=True)), still)


def test_weights_of_a_pooling_without_them_are_refused():
    words = numbers(B, S, W, DV)
    mean = keras.layers.GlobalAveragePooling1D
    for parts in ({"word_pooling": mean()}, {"sentence_pooling": mean()}):
        layer = HierarchicalAttention(**parts)
        assert array(layer(words)).shape == (B, DV)
        for asked in (words, keras.Input((S, W, DV))):
            with pytest.raises(ValueError, match=r"Received: return_attention_scores=True with"):
                layer(asked, return_attention_scores=True)
    # With a pass down its weights are those that are told.
    layer = HierarchicalAttention(word_pooling=mean(), top_down="additive")
    assert array(layer(words, return_attention_scores=True)[2]).shape == (B, S, W)


def test_wrong_parts_are_refused():
    shared = AttentionPooling(name="shared")
    with pytest.raises(ValueError, match=r"layer of its own\. Received: .*shared, .*shared"):
        HierarchicalAttention(word_pooling=shared, sentence_pooling=shared)
    with pytest.raises(ValueError, match="Received: word_encoder='gru'"):
        HierarchicalAttention("gru")
    for place in ("word_encoder", "sentence_encoder"):
        layer = HierarchicalAttention(**{place: keras.layers.GRU(3, name="last")})
        with pytest.raises(ValueError, match=rf"{place}.*return_sequences.*Received: 'last'"):
            layer.build((None, S, W, DV))
        layer = HierarchicalAttention(**{place: keras.layers.LSTM(3, return_state=True)})
        with pytest.raises(ValueError, match=rf"{place} must give a sequence.*Received: 'lstm"):
            layer.build((None, S, W, DV))
    with pytest.raises(ValueError, match=r"word_pooling must give vectors of known width\."):
        HierarchicalAttention(word_pooling=keras.layers.Flatten()).build((None, S, None, DV))
    layer = HierarchicalAttention(word_pooling=AttentionPooling(hops=2), top_down="additive")
    with pytest.raises(ValueError, match="Received: 7 and 14"):
        layer.build((None, S, W, DV))


def test_other_width_than_built_for_is_refused():
    layer = HierarchicalAttention()
    layer(numbers(B, S, W, DV))
    with pytest.raises(ValueError, match=r"Received: inputs_shape=\(2, 5, 10, 8\)"):
        layer(numbers(B, S, W, 8))


def test_a_mask_for_all_documents():
    layer, words = HierarchicalAttention(top_down="additive"), numbers(B, S, W, DV)
    mask = numbers(1, S, W, seed=1) > 0
    expected = layer(words, mask=mask.repeat(B, 0), return_attention_scores=True)
    for found, wanted in zip(
        layer(words, mask=mask, return_attention_scores=True), expected, strict=True
    ):
        np.testing.assert_array_equal(array(found), array(wanted))


def test_documents_without_sentences():
    document = array(HierarchicalAttention()(np.zeros((2, 0, 3, DV))))
    np.testing.assert_array_equal(document, np.zeros((2, DV)))
