"""The weights of every attention layer out of a model that did not ask for them."""

import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from keras_attention.extraction import attention_model
from keras_attention.self_attention import SelfAttention

TOKENS = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [0, 0, 0, 0, 0]])


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(tensors)]


def assert_equal(actual, expected):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_array_equal(a, e)


def embedded(**kwargs):
    tokens = keras.Input((None,), dtype="int32", **kwargs)
    return tokens, keras.layers.Embedding(9, 4, mask_zero=True)(tokens)


def test_every_layer_tells_its_weights(weighing_case, made, tmp_path):
    """What a layer gives when asked, from a model that is not; before and after a file."""
    case = weighing_case
    layer = made(case, name="reader")
    inputs = {
        name: keras.Input(batch_shape=case.unknown(shape), dtype="float64", name=name)
        for name, shape in case.shapes.items()
    }
    masks = {
        name: keras.Input(batch_shape=case.unknown(shape), dtype="bool", name=name)
        for name, shape in case.mask_shapes().items()
    }
    model = keras.Model(
        {**inputs, **masks}, case.outputs(layer, inputs, masks, return_attention_scores=False)
    )
    feed = {**case.inputs(), **case.masks()}
    expected, weights = case.split(case.outputs(layer, case.inputs(), case.masks()))
    telling = attention_model(model)
    output, found = telling(feed)
    assert_equal(output, expected)
    assert list(found) == ["reader"]
    assert isinstance(found["reader"], tuple) == (case.weights > 1)
    assert_equal(found, weights)
    assert {id(w) for w in telling.weights} == {id(w) for w in model.weights}

    telling.save(tmp_path / "telling.keras")
    output, found = keras.models.load_model(tmp_path / "telling.keras")(feed)
    assert_equal([output, found], [expected, weights])


def keras_layers():
    tokens, x = embedded()
    y = keras.layers.Dense(4)(x)
    mha = keras.layers.MultiHeadAttention(2, 3, name="mha")
    queries = keras.Input((5, 4))  # Keras's layer warns of the masks it takes
    grouped = keras.layers.GroupQueryAttention(3, 4, 2, name="grouped")
    outputs = [
        mha(x, y),
        mha(x, y),
        grouped(queries, queries, use_causal_mask=True),
        keras.layers.Attention(name="dot")([y, x], use_causal_mask=True),
        keras.layers.AdditiveAttention(name="additive")([y, x, x]),
    ]
    return keras.Model([tokens, queries], outputs)


def test_layers_of_keras():
    """Their output when they are not asked, which differs where there is nothing to read."""
    model = keras_layers()
    telling = attention_model(model)
    feed = [TOKENS, np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")]
    expected = model(feed)
    output, weights = telling(feed)
    assert_equal(output, expected)
    shapes = {name: tuple(x.shape) for name, x in weights.items()}
    heads = {"mha": (3, 2, 5, 5), "mha_1": (3, 2, 5, 5), "grouped": (3, 4, 5, 5)}
    assert shapes == {**heads, "dot": (3, 5, 5), "additive": (3, 5, 5)}
    # Of the second call Keras's layer knows no mask: the first has taken it off the inputs.
    for name in weights.keys() - {"mha_1", "grouped"}:
        found = arrays(weights[name])[0]
        assert np.all(found[0][..., 3:] == 0), name
        np.testing.assert_allclose(found[0][..., 2, :].sum(-1), 1.0, rtol=1e-6)
    assert_equal(telling.predict(feed, verbose=0)[1], weights)


def test_masks_and_what_stands_behind():
    """Padding reaches the layer, what it hands on reaches the next one, and losses stay."""
    tokens, x = embedded()
    attention = ka.Attention("additive", name="reader")
    model = keras.Model(tokens, keras.layers.GRU(3)(attention(x, x)))
    telling = attention_model(model)
    output, weights = telling(TOKENS)
    assert_equal(output, model(TOKENS))
    found = arrays(weights)[0]
    assert np.all(found[0, :, 3:] == 0) and np.all(found[0, 3:] == 0) and np.all(found[2] == 0)
    assert np.all(found[0, :3, :3] > 0)
    assert_equal(telling.predict(TOKENS, verbose=0), [output, weights])
    # In the graph too the context has the mask of the queries.
    output, _ = attention_model(keras.Model(tokens, attention(x, x))).output
    assert output._keras_mask.shape == x._keras_mask.shape


@pytest.mark.filterwarnings("ignore:.*does not support masking")
def test_a_layer_that_ends_the_mask_still_does():
    @keras.saving.register_keras_serializable("test_extraction")
    class Uniform(keras.layers.Layer):
        def call(self, inputs, return_attention_scores=False):
            weights = ops.ones_like(inputs[..., 0]) / inputs.shape[-1]
            return (inputs, weights) if return_attention_scores else inputs

        def compute_output_spec(self, inputs, return_attention_scores=False):
            output = keras.KerasTensor(inputs.shape, inputs.dtype)
            weights = keras.KerasTensor(inputs.shape[:-1], inputs.dtype)
            return (output, weights) if return_attention_scores else output

    tokens, x = embedded()
    output, _ = attention_model(keras.Model(tokens, Uniform()(x))).output
    assert getattr(output, "_keras_mask", None) is None


def test_weights_are_shared():
    query, value = keras.Input((3, 4)), keras.Input((5, 6))
    model = keras.Model([query, value], ka.Attention("bilinear", name="reader")(query, value))
    telling = attention_model(model)
    rng = np.random.default_rng(0)
    feed = [rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 6))]
    before = arrays(telling(feed))
    model.set_weights([2 * w for w in model.get_weights()])
    after = arrays(telling(feed))
    assert not np.allclose(before[1], after[1])
    assert_equal(after[0], model(feed))


def test_a_layer_that_is_used_again_and_again(tmp_path):
    """Each call has a name of its own, which is no other layer's, and one set of weights."""
    tokens, x = embedded()
    reader = ka.Attention("bilinear", name="reader")
    first = reader(x, x)
    second = reader(first, x)
    other = ka.Attention("dot", name="reader_1")(second, x)
    model = keras.Model(tokens, reader(other, x))
    telling = attention_model(model)
    output, weights = telling(TOKENS)
    assert set(weights) == {"reader", "reader_1", "reader_2", "reader_3"}
    steps = keras.Model(tokens, [x, first, second, other])(TOKENS)
    x, first, second, other = steps
    asked = {"return_attention_scores": True}
    assert_equal(weights["reader"], reader(x, x, **asked)[1])
    assert_equal(weights["reader_2"], reader(first, x, **asked)[1])
    assert_equal(weights["reader_3"], reader(other, x, **asked)[1])
    assert_equal(output, model(TOKENS))

    telling.save(tmp_path / "telling.keras")
    loaded = keras.models.load_model(tmp_path / "telling.keras")
    assert len(loaded.weights) == len(model.weights)
    assert_equal(loaded(TOKENS), [output, weights])


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_nested_models(kind, tmp_path):
    class ToItself(keras.layers.Layer):
        """A layer of ones own: what is counted is the argument of its call."""

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.attention = ka.Attention("bilinear")
            self.supports_masking = True

        def build(self, input_shape):
            self.attention.build(input_shape, input_shape)

        def call(self, inputs, mask=None, return_attention_scores=False):
            masks = {"query_mask": mask, "value_mask": mask}
            return self.attention(
                inputs, inputs, **masks, return_attention_scores=return_attention_scores
            )

        def compute_output_spec(self, inputs, mask=None, return_attention_scores=False):
            return self.attention.compute_output_spec(
                inputs, inputs, return_attention_scores=return_attention_scores
            )

    inside = keras.Input((None, 4))
    if kind == "functional":
        inner = keras.Model(inside, ToItself(name="reader")(inside), name="inner")
    else:
        inner = keras.Sequential([inside, ToItself(name="reader")], name="inner")
    middle_in = keras.Input((None, 4))
    middle = keras.Model(middle_in, inner(inner(middle_in)), name="middle")
    inner.supports_masking = middle.supports_masking = True
    tokens, x = embedded()
    without = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(4)], name="without")
    without.supports_masking = True
    model = keras.Model(tokens, inner(without(middle(x))))
    telling = attention_model(model)
    output, weights = telling(TOKENS)
    assert set(weights) == {"middle/inner/reader", "middle/inner_1/reader", "inner/reader"}
    assert_equal(output, model(TOKENS))
    first = arrays(weights["middle/inner/reader"])[0]
    assert np.all(first[0, :, 3:] == 0) and np.all(first[0, :3, :3] > 0)

    # Keras saves no layer that two models share, so without the one that both call.
    tokens, x = embedded()
    model = keras.Model(tokens, middle(x))
    telling = attention_model(model)
    expected = telling(TOKENS)
    telling.save(tmp_path / "telling.keras")
    with warnings.catch_warnings():
        # Keras does not save that a model hands masks on, and warns when it loads one that does.
        warnings.filterwarnings("ignore", ".*does not support masking")
        loaded = keras.models.load_model(tmp_path / "telling.keras", {"ToItself": ToItself})
        assert_equal(loaded(TOKENS), expected)
    assert len(loaded.weights) == len(model.weights)


def test_layers_that_were_asked_already():
    tokens, x = embedded()
    reader = ka.Attention("bilinear", name="reader")
    context, weights = reader(x, x, return_attention_scores=True)
    mha, scores = keras.layers.MultiHeadAttention(2, 3, name="mha")(
        x, context, return_attention_scores=True
    )
    decoder = ka.AttentionDecoder(4, name="decoder")
    outputs, states, alignments = decoder(mha, x, return_attention_scores=True)
    outputs_again, _ = decoder(x, outputs)
    model = keras.Model(tokens, [context, weights, scores, outputs, *states, alignments])
    output, found = attention_model(model)(TOKENS)
    expected = model(TOKENS)
    assert_equal(output, expected)
    assert_equal([found["reader"], found["mha"]], [expected[1], expected[2]])
    assert_equal(found["decoder"], expected[-1])
    both = keras.Model(tokens, [alignments, outputs_again])
    output, found = attention_model(both)(TOKENS)
    assert_equal(output, both(TOKENS))
    assert {"decoder", "decoder_1"} < set(found)


def test_weights_in_the_midst_of_what_a_layer_gives():
    """Of a self-attention over a cache: the output, the weights, the cache."""
    layer = SelfAttention(2, direction="causal", name="reader")
    layer.build((None, None, 4))
    cache = tuple(arrays(layer.initial_cache(3, 5)))
    x = keras.Input((1, 4))
    before = [keras.Input(part.shape[1:], dtype=str(part.dtype)) for part in cache]
    output, after = layer(x, cache=tuple(before), cache_index=2)
    model = keras.Model([x, *before], [output, *after])
    feed = [np.random.default_rng(0).normal(size=(3, 1, 4)).astype("float32"), *cache]
    expected, weights, last = layer(
        feed[0], cache=cache, cache_index=2, return_attention_scores=True
    )
    output, found = attention_model(model)(feed)
    assert_equal(output, [expected, *last])
    assert_equal(found["reader"], weights)


def test_compiled(backend):
    tokens, x = embedded()
    y = ka.Attention("additive", name="reader")(x, x)
    model = keras.Model(tokens, keras.layers.MultiHeadAttention(2, 3, name="mha")(y, x))
    telling = attention_model(model)
    compiled = backend.jit(lambda tokens: telling(tokens))
    tokens = ops.convert_to_tensor(TOKENS)
    for a, e in zip(arrays(compiled(tokens)), arrays(telling(tokens)), strict=True):
        # Fusion changes the order of summation.
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


def test_a_file_needs_no_more_than_the_package(tmp_path):
    query, value = keras.Input((3, 4)), keras.Input((5, 6))
    model = keras.Model([query, value], ka.Attention("bilinear", name="reader")(query, value))
    attention_model(model).save(tmp_path / "telling.keras")
    code = (
        "import keras, keras_attention.extraction; "
        f"print(keras.models.load_model({str(tmp_path / 'telling.keras')!r}).output_shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "(None, 3, 5)" in done.stdout, done.stderr


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.attention = ka.Attention()

    def call(self, inputs):
        return self.attention(inputs, inputs)


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: None, "keras.Model is needed"),
        (Subclassed, "functional API"),
        (lambda: keras.Sequential([keras.layers.Dense(3)]), "not built"),
        (
            lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="only")]),
            "with the layers only",
        ),
    ],
)
def test_what_it_cannot_see_it_refuses(model, words):
    with pytest.raises(ValueError, match=f"{words}|Received.*{words}") as error:
        attention_model(model())
    assert "Received: " in str(error.value)
