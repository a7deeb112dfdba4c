"""Keras's recurrent layers in the portable loop: equal, over the same weights, convertible."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_attention import exporting
from keras_attention.export.portable import portable

B, T, D, U = 3, 5, 4, 6
RANDOM = np.random.default_rng(0)
SEQUENCES = RANDOM.normal(size=(B, T, D)).astype("float32")
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1]], bool)


class NoState(keras.layers.Layer):
    """A cell of a user's own, without get_initial_state."""

    state_size = U

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], U), name="kernel")

    def call(self, inputs, states):
        output = keras.ops.tanh(keras.ops.matmul(inputs, self.kernel) + 0.5 * states[0])
        return output, [output]


KINDS = {
    "gru": lambda **flags: layers.GRU(U, **flags),
    "gru_reset_before": lambda **flags: layers.GRU(U, reset_after=False, dropout=0.3, **flags),
    "lstm": lambda **flags: layers.LSTM(U, recurrent_dropout=0.3, **flags),
    "simple": lambda **flags: layers.SimpleRNN(U, **flags),
    "cell": lambda **flags: layers.RNN(NoState(), **flags),
    "stacked": lambda **flags: layers.RNN([layers.LSTMCell(U), layers.GRUCell(7)], **flags),
    "bidirectional": lambda **flags: layers.Bidirectional(layers.GRU(U, **once(flags))),
    "both_apart": lambda **flags: layers.Bidirectional(
        layers.LSTM(U, **once(flags)), merge_mode=None
    ),
}
FLAGS = {
    "last": {},
    "sequences": {"return_sequences": True, "return_state": True},
    "backwards": {"return_state": True, "go_backwards": True},
}


def once(flags):
    """Without the direction, which Bidirectional chooses itself."""
    return {name: value for name, value in flags.items() if name != "go_backwards"}


def equal(model, inputs):
    """Compares model and copy, in both loops of the copy."""
    copy = portable(model)
    expected = keras.tree.flatten(model(inputs))
    found = keras.tree.flatten(copy(inputs))
    with exporting("tflite"):
        exported = keras.tree.flatten(tf.function(copy)(inputs))
    for e, f, x in zip(expected, found, exported, strict=True):
        assert e.shape == f.shape == x.shape
        np.testing.assert_allclose(f, e, rtol=0, atol=1e-6)
        np.testing.assert_allclose(x, e, rtol=0, atol=1e-6)
    return copy


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_keras_with_and_without_mask(kind, flags):
    inputs, mask = keras.Input((None, D)), keras.Input((None,), dtype="bool")
    layer = KINDS[kind](**FLAGS[flags])
    copy = equal(keras.Model(inputs, layer(inputs)), SEQUENCES)
    assert [id(w) for w in copy.weights] == [id(w) for w in layer.weights]
    equal(keras.Model([inputs, mask], layer(inputs, mask=mask)), [SEQUENCES, MASK])


def test_zero_output_for_mask():
    inputs, mask = keras.Input((None, D)), keras.Input((None,), dtype="bool")
    layer = layers.RNN(layers.GRUCell(U), return_sequences=True, zero_output_for_mask=True)
    equal(keras.Model([inputs, mask], layer(inputs, mask=mask)), [SEQUENCES, MASK])


@pytest.mark.parametrize("kind", ["gru", "lstm", "bidirectional"])
def test_initial_state_from_another_input(kind):
    count = {"gru": 1, "lstm": 2, "bidirectional": 2}[kind]
    inputs, states = keras.Input((None, D)), [keras.Input((U,)) for _ in range(count)]
    model = keras.Model([inputs, *states], KINDS[kind]()(inputs, initial_state=states))
    given = [RANDOM.normal(size=(B, U)).astype("float32") for _ in states]
    equal(model, [SEQUENCES, *given])


def test_masks_from_upstream_and_shared_and_nested_layers():
    shared = layers.GRU(U, return_sequences=True)
    nested = keras.Input((None, U))
    inner = keras.Model(nested, layers.LSTM(U)(shared(nested)), name="inner")
    inner.supports_masking = True
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedded = layers.Embedding(9, U, mask_zero=True)(ids)
    outputs = {"last": inner(shared(embedded)), "sum": shared(embedded) + 1.0}
    model = keras.Model({"ids": ids}, outputs)
    model.compile("adam", loss=lambda y, p: keras.ops.mean(p))
    given = {"ids": np.array([[1, 2, 3, 0], [0, 0, 0, 0], [4, 0, 5, 0]])}
    copy = equal(model, given)
    assert [id(w) for w in copy.weights] == [id(w) for w in model.weights]
    assert [w.path for w in copy.weights] == [w.path for w in model.weights]


def test_the_original_is_untouched_and_later_training_shows():
    model = keras.Sequential([keras.Input((None, D)), layers.GRU(U)])
    config, output = model.get_config(), model.layers[0].output
    copy = portable(model)
    assert model.get_config() == config
    assert model.layers[0].output is output
    model.set_weights([w + 0.1 for w in model.get_weights()])
    np.testing.assert_allclose(copy(SEQUENCES), model(SEQUENCES), atol=1e-6)


def test_time_distributed_is_one_call():
    inputs = keras.Input((None, None, D))
    child = keras.Sequential([keras.Input((None, D)), layers.GRU(U)])
    model = keras.Model(inputs, layers.TimeDistributed(child)(inputs))
    equal(model, RANDOM.normal(size=(2, 3, 5, D)).astype("float32"))
    flat = keras.Input((None, D))
    equal(keras.Model(flat, layers.TimeDistributed(layers.Dense(2))(flat)), SEQUENCES)


def test_nothing_to_replace_is_the_model_itself():
    model = keras.Sequential([keras.Input((D,)), layers.Dense(2)])
    assert portable(model) is model


class Wrapped(keras.layers.Layer):
    def __init__(self):
        super().__init__(name="wrapped")
        self.inner = layers.GRU(U, name="inner_gru")

    def call(self, inputs):
        return self.inner(inputs)


class OwnCall(layers.GRU):
    def call(self, sequences, initial_state=None, mask=None, training=False):
        return 2 * super().call(sequences, initial_state, mask, training)


def functional(layer, shape=(None, D), **options):
    inputs = keras.Input(shape, **options)
    return keras.Model(inputs, layer(inputs), name="outer")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: functional(Wrapped()), "outer/wrapped/inner_gru"),
        (lambda: functional(OwnCall(U, name="own")), "outer/own .*OwnCall"),
        (
            lambda: functional(layers.GRU(U, stateful=True, name="s"), batch_size=2),
            "outer/s .*stat",
        ),
        (lambda: functional(layers.ConvLSTM1D(2, 1, name="c"), (None, 7, 2)), "outer/c .*ConvLSTM"),
        (lambda: keras.Sequential([layers.GRU(U)]), "not built"),
        (lambda: "model", "keras.Model is needed"),
    ],
)
def test_refusals_name_the_layer(make, message):
    with pytest.raises(ValueError, match=message):
        portable(make())


def test_a_subclassed_model_is_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.part = layers.GRU(U, name="part")

        def build(self, shape):
            self.part.build(shape)

        def call(self, inputs):
            return self.part(inputs)

    with pytest.raises(ValueError, match="subclassed"):
        portable(Own())
    with pytest.raises(ValueError, match=r"own/part .* inside 'outer/own'"):
        portable(functional(Own()))


@pytest.mark.parametrize("layer", [Wrapped, lambda: OwnCall(U, name="own")])
def test_with_a_fixed_batch_size_layers_that_cannot_be_replaced_convert(layer, tmp_path):
    from keras_attention.export.saved_model import export_saved_model
    from keras_attention.export.tflite import export_tflite

    fixed, free = functional(layer(), name="x", batch_size=B), functional(layer(), name="x")
    calls = [{"x": SEQUENCES}, {"x": SEQUENCES[:, :2]}]
    export_tflite(fixed, tmp_path / "fixed.tflite", verify=calls)
    export_tflite(free, tmp_path / "bucket", shapes=[T], verify={"x": SEQUENCES[:1]})
    export_saved_model(free, tmp_path / "served", verify=[*calls, {"x": SEQUENCES[:1]}])
    with pytest.raises(ValueError, match="fixed batch size"):
        export_tflite(free, tmp_path / "free.tflite")


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """One model of every kind, so that there is one conversion."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(20, D, mask_zero=True)(ids)
    outputs = {}
    for kind, make in KINDS.items():
        found = make(return_sequences=kind in ("gru", "bidirectional"))(x)
        for number, output in enumerate(keras.tree.flatten(found)):
            outputs[f"{kind}_{number}"] = output
    outputs["each"] = layers.TimeDistributed(layers.Dense(2))(x)
    return keras.Model(ids, outputs)


def test_every_kind_converts_with_dynamic_batch_and_time(every_kind, tmp_path):
    from keras_attention.export.tflite import export_tflite

    calls = [
        {"ids": np.array([[3, 1, 4, 0], [0, 0, 0, 0]])},
        {"ids": np.array([[7]])},
        {"ids": RANDOM.integers(0, 20, (3, 9))},
    ]
    export_tflite(every_kind, tmp_path / "every.tflite", verify=calls)


def test_a_hierarchy_of_recurrent_encoders_converts(tmp_path):
    """Its encoders are layers inside a layer: a copy is made around the replaced ones."""
    from keras_attention import HierarchicalAttention
    from keras_attention.export.tflite import export_tflite

    def encoder():
        return layers.Bidirectional(layers.GRU(U, return_sequences=True))

    ids = keras.Input((None, None), dtype="int32", name="ids")
    words = layers.Embedding(20, D, mask_zero=True)(ids)
    layer = HierarchicalAttention(encoder(), sentence_encoder=encoder(), top_down="additive")
    model = keras.Model(ids, layer(words))
    assert {id(w) for w in portable(model).weights} == {id(w) for w in model.weights}
    calls = [
        {"ids": np.array([[[3, 1, 0], [4, 0, 0]], [[7, 7, 7], [0, 0, 0]]])},
        {"ids": np.array([[[7]]])},
        {"ids": RANDOM.integers(0, 20, (3, 4, 5))},
    ]
    export_tflite(model, tmp_path / "document.tflite", verify=calls)


def test_an_ensemble_with_a_recurrent_encoder_converts(tmp_path):
    from keras_attention import AttentionEnsemble
    from keras_attention.export.tflite import export_tflite

    ids = keras.Input((None,), dtype="int32", name="ids")
    words = [layers.Embedding(20, width, mask_zero=True)(ids) for width in (D, D + 3)]
    encoder = layers.Bidirectional(layers.LSTM(U, return_sequences=True))
    mixed, weights = AttentionEnsemble(4, encoder=encoder)(words, return_attention_scores=True)
    model = keras.Model(ids, {"mixed": mixed, "weights": weights})
    assert {id(w) for w in portable(model).weights} == {id(w) for w in model.weights}
    calls = [
        {"ids": np.array([[3, 1, 0], [0, 0, 0]])},
        {"ids": np.array([[7]])},
        {"ids": RANDOM.integers(0, 20, (3, 5))},
    ]
    export_tflite(model, tmp_path / "ensemble.tflite", verify=calls)
