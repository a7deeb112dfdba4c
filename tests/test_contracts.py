"""What every layer keeps: each test is one contract, run over the table of `cases.py`."""

import inspect
import json

import keras
import numpy as np
import pytest
from case import DOUBLE, DQ, DV, DYNAMIC, EXACT, B, S, T, U
from cases import CASES
from keras import ops

import keras_attention as ka

POLICIES = ("float32", "float64", "float16", "mixed_bfloat16", "bfloat16", "mixed_float16")
if keras.backend.backend() == "jax":
    POLICIES = POLICIES[:4]  # each type once, both kinds of half precision: compiling takes long
OTHER_SIZES = {"B": 1, "T": 4, "S": 6, "W": 7}
# Two orders of summation in float32.
SINGLE = {"rtol": 1e-5, "atol": 1e-6}


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(ops.cast(x, "float64"))) for x in tensors]


def assert_all_close(actual, expected, **tolerance):
    actual, expected = arrays(actual), arrays(expected)
    assert [x.shape for x in actual] == [x.shape for x in expected]
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, **tolerance)


def assert_equal(actual, expected):
    assert_all_close(actual, expected, rtol=0, atol=0)


def returns_weights(case):
    return case.has_masks and case.weights > 0


def plain(config):
    """A config as it is after a file: lists for tuples."""
    return json.loads(json.dumps(config))


def poisoned(case, inputs, masks, value):
    """The inputs with `value` wherever a mask hides them."""
    inputs = {name: np.array(x) for name, x in inputs.items()}
    for mask, names in ((case.key_mask, case.keys), (case.query_mask, [case.queries])):
        for name in names if mask else ():
            inputs[name][~masks[mask]] = value
    return inputs


def over_weights(mask, weights):
    """A mask (B, ..., N) spread over weights of more axes (B, ..., ..., N)."""
    between = (1,) * (weights.ndim - mask.ndim)
    return np.broadcast_to(mask.reshape(*mask.shape[:-1], *between, mask.shape[-1]), weights.shape)


def hidden(case, masks, weights):
    """Where the weights must be 0, because the key is masked."""
    return over_weights(~masks[case.key_mask], weights)


def scalar(case, layer, masks=None, seed=3):
    """A scalar function of the inputs in which every entry of every output counts."""

    def function(inputs):
        rng = np.random.default_rng(seed)
        outputs = case.outputs(layer, inputs, masks)
        return sum(ops.sum(x * ops.cast(rng.normal(size=x.shape), x.dtype)) for x in outputs)

    return function


def symbolic_inputs(case, lengths=True):
    """Inputs of unknown batch and length, or of the table's shapes."""
    return {
        name: keras.Input(
            batch_shape=case.unknown(shape) if lengths else shape, name=name, dtype="float64"
        )
        for name, shape in case.shapes.items()
    }


def model_of(case, layer):
    """A functional model over the layer, which takes its masks as inputs too."""
    inputs = symbolic_inputs(case)
    masks = {
        name: keras.Input(batch_shape=case.unknown(shape), dtype="bool", name=name)
        for name, shape in case.mask_shapes().items()
    }
    return keras.Model({**inputs, **masks}, case.outputs(layer, inputs, masks))


def test_table_is_complete():
    tested = {type(case.create(name="made")) for case in CASES}
    public = {getattr(ka, name) for name in ka.__all__}
    layers = {x for x in public if isinstance(x, type) and issubclass(x, keras.layers.Layer)}
    assert layers - {ka.Score} == tested


def test_reference(case, made, weights_of):
    layer, inputs = made(case), case.inputs()
    expected = case.reference(weights_of(layer), inputs, {})
    assert_all_close(case.outputs(layer, inputs), expected, **EXACT)


def test_reference_under_masks(masked_case, made, weights_of):
    layer, inputs, masks = made(masked_case), masked_case.inputs(), masked_case.masks()
    masks[masked_case.key_mask][0] = False  # a row that has nothing to read
    expected = masked_case.reference(weights_of(layer), inputs, masks)
    assert_all_close(masked_case.outputs(layer, inputs, masks), expected, **EXACT)


def test_config_keeps_every_argument(case):
    layer = case.create(name="named", trainable=False)
    config = layer.get_config()
    for kind in type(layer).__mro__[: type(layer).__mro__.index(keras.layers.Layer) + 1]:
        for name in list(inspect.signature(kind.__init__).parameters)[1:]:
            if name in ("args", "kwargs", "activity_regularizer", "autocast"):
                continue
            if name not in config:  # then it must be one that the class does not take
                with pytest.raises(TypeError, match="multiple values"):
                    type(layer)(**{**config, name: None})
            elif name != "dtype" and isinstance(getattr(layer, name), int | float | str | None):
                assert config[name] == getattr(layer, name)
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    assert copy.trainable is False


def test_saving(case, made, tmp_path):
    layer = made(case, name="saved")
    model = model_of(case, layer)
    feed = {**case.inputs(), **case.masks()}
    expected = model(feed)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(loaded(feed), expected)
    assert plain(loaded.get_layer("saved").get_config()) == plain(layer.get_config())
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]

    clone = keras.models.clone_model(model)
    assert not layer.weights or not np.allclose(arrays(clone(feed))[0], arrays(expected)[0])
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    assert_equal(clone(feed), expected)


def test_symbolic_shape(case, made):
    layer = made(case)
    flags = [{}, *([{"return_attention_scores": False}] if returns_weights(case) else [])]
    for known in (True, False):
        for flag in flags:
            symbolic = case.outputs(layer, symbolic_inputs(case, lengths=not known), **flag)
            for sizes in ({}, {} if known else OTHER_SIZES):
                real = case.outputs(layer, case.inputs(**sizes), **flag)
                assert len(symbolic) == len(real)
                for s, r in zip(symbolic, real, strict=True):
                    assert s.dtype == keras.backend.standardize_dtype(r.dtype)
                    assert len(s.shape) == len(r.shape)
                    assert all(a in (None, b) for a, b in zip(s.shape, r.shape, strict=True))
                    assert not known or None not in s.shape


@pytest.mark.tensorflow("JAX compiles for the lengths that are given")
def test_dynamic_lengths(case, made, backend):
    layer = made(case)
    names = [*case.shapes, *case.masks()]

    def function(*tensors):
        return case.outputs(layer, dict(zip(names, tensors, strict=True)))

    shapes = [case.unknown(x) for x in (*case.shapes.values(), *case.mask_shapes().values())]
    dtypes = ["float64"] * len(case.shapes) + ["bool"] * len(case.mask_shapes())
    traced = backend.traced(function, shapes, dtypes)
    for sizes in ({}, OTHER_SIZES, {"T": 1, "S": 2, "W": 1}):
        inputs, masks = case.inputs(**sizes), case.masks(**sizes)
        expected = case.outputs(layer, inputs, masks)
        actual = traced(*inputs.values(), *masks.values())
        assert_all_close(actual, expected, **EXACT)


@pytest.mark.parametrize("policy", POLICIES)
def test_dtype_policy(case, policy, made, weights_of, backend):
    layer = made(case, policy, scale=0.3)
    inputs, masks = case.inputs(), case.masks()
    outputs = backend.at_once(lambda *given: case.outputs(layer, *given))(inputs, masks)

    policy = keras.DTypePolicy(policy)
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in outputs}
    # Scores themselves stay in float32 or wider, for the normalizer.
    widened = "float64" if policy.compute_dtype == "float64" else "float32"
    assert dtypes == {widened if case.wide else policy.compute_dtype}
    assert {keras.backend.standardize_dtype(w.dtype) for w in layer.weights} <= {
        policy.variable_dtype
    }
    # Rounding of the inputs and of each product: 2^-24, 2^-11 and 2^-8, summed over some terms.
    tolerance = {"float64": EXACT["rtol"], "float32": 1e-5, **case.tolerance}
    expected = case.reference(weights_of(layer), inputs, masks)
    if returns_weights(case):
        weights = arrays(outputs)[-1]
        assert np.all(weights[hidden(case, masks, weights)] == 0)
    close = tolerance[policy.compute_dtype]
    assert_all_close(outputs, expected, rtol=close, atol=close)


def test_masked_keys_have_no_influence(masked_case, made):
    case = masked_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    expected = case.outputs(layer, inputs, masks)
    if returns_weights(case):
        weights = arrays(expected)[-1]
        assert np.all(weights[hidden(case, masks, weights)] == 0)
    for padding in (1e3, np.nan, np.inf, -np.inf):
        assert_equal(case.outputs(layer, poisoned(case, inputs, masks, padding), masks), expected)


def test_masked_keys_weigh_exactly_nothing_in_half_precision(weighing_case, made, backend):
    case = weighing_case
    layer, inputs, masks = made(case, "float16"), case.inputs(), case.masks()
    inputs = {name: 30 * x for name, x in inputs.items()}  # far apart scores
    outputs = backend.at_once(lambda *given: case.outputs(layer, *given))(inputs, masks)
    *_, weights = arrays(outputs)
    assert np.all(weights[hidden(case, masks, weights)] == 0)
    assert np.isfinite(weights).all()


def test_padding_leaks_into_no_gradient(masked_case, made, backend):
    case = masked_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    masks[case.key_mask][0] = False  # a row that has nothing to read
    function = scalar(case, layer, masks)
    expected = backend.gradients(function, layer, poisoned(case, inputs, masks, 0.0))
    for padding in (np.nan, np.inf):
        actual = backend.gradients(function, layer, poisoned(case, inputs, masks, padding))
        for a, e in zip(actual[0].values(), expected[0].values(), strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_array_equal(a, e)
        assert_equal(actual[1], expected[1])
        for name in case.keys:
            assert np.all(actual[0][name][~masks[case.key_mask]] == 0)


def test_row_with_nothing_to_read_is_zero(masked_case, made):
    case = masked_case
    layer, inputs = made(case), case.inputs()
    mask = np.zeros(case.mask_shapes()[case.key_mask], bool)
    outputs = arrays(case.outputs(layer, inputs, {case.key_mask: mask}))
    outputs, weights = case.split(outputs)
    assert all(np.all(x == 0) for x in weights)
    assert np.all(outputs[0] == 0) if case.void == "zero" else np.isfinite(outputs[0]).all()
    # That is what the reference says of such a row: see `test_reference_under_masks`.


def test_padded_query_row_is_zero(masked_case, made):
    case = masked_case
    if not case.query_mask:
        pytest.skip("one query a row has no mask")
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    real = masks[case.query_mask]
    outputs, weights = case.split(arrays(case.outputs(layer, inputs, {case.query_mask: real})))
    output = np.moveaxis(outputs[0], -2, 1)  # the axis of queries stands before the width
    assert np.all(output[~real] == 0)
    for x in weights:
        assert np.all(np.moveaxis(x, -2, 1)[~real] == 0)
    if not case.ordered:  # else a query may have nothing to read
        assert np.all(np.any(output[real] != 0, axis=-1))


def test_masks_of_integers(masked_case, made):
    case = masked_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    integers = {name: mask.astype("int32") for name, mask in masks.items()}
    assert_equal(case.outputs(layer, inputs, integers), case.outputs(layer, inputs, masks))


def test_wrong_masks_are_refused(masked_case, made):
    case = masked_case
    layer, inputs = made(case), case.inputs()
    for name, mask in case.masks().items():
        for wrong in (mask[..., :-1], mask[:, None], mask[0]):
            with pytest.raises(ValueError, match=rf"{name}.*Received: {name}.shape="):
                case.outputs(layer, inputs, {name: wrong})
        # What is added to scores elsewhere says True where nothing may be read.
        with pytest.raises(ValueError, match=rf"{name} must be boolean.*Received: {name}.dtype="):
            case.outputs(layer, inputs, {name: np.where(mask, 0.0, -1e9)})


def test_masks_from_upstream(masked_case, made):
    """Masks arrive by themselves, are left as they are, and explicit ones win."""
    case = masked_case
    layer, values, masks = made(case), case.inputs(), case.masks()
    upstream = {case.keys[0]: case.key_mask, case.queries: case.query_mask}
    if case.key_mask == "key_mask":
        upstream = {"key": "key_mask", "query": "query_mask"}
    upstream = {argument: mask for argument, mask in upstream.items() if argument}
    assert case.queries != case.keys[0] or case.query_mask == case.key_mask

    inputs = symbolic_inputs(case)
    masked = {
        name: keras.layers.Masking(dtype="float64")(x) if name in upstream else x
        for name, x in inputs.items()
    }
    before = {name: masked[name]._keras_mask for name in upstream}
    outputs = case.outputs(layer, masked)
    assert all(masked[name]._keras_mask is before[name] for name in upstream)
    if case.query_mask and case.carries_mask:
        assert outputs[0]._keras_mask is before[case.queries]
        outputs_without = outputs[1:]
    else:
        outputs_without = outputs
    assert not any(getattr(x, "_keras_mask", None) is not None for x in outputs_without)
    model = keras.Model(inputs, outputs)
    zeros = poisoned(case, values, masks, 0.0)
    if case.key_mask == "value_mask" and "key" in zeros:
        zeros["key"] = values["key"]
    assert_equal(keras.tree.flatten(model(zeros)), case.outputs(layer, values, masks))

    everything = {name: np.ones_like(mask) for name, mask in masks.items()}
    model = keras.Model(inputs, case.outputs(layer, masked, everything))
    assert_all_close(keras.tree.flatten(model(zeros)), case.outputs(layer, zeros), **EXACT)


@pytest.mark.tensorflow("eager JAX arrays carry no mask")
def test_eager_masks_of_inputs_stay(masked_case, made):
    case = masked_case
    layer, values = made(case), case.inputs()
    masked = {
        name: keras.layers.Masking(dtype="float64")(x) for name, x in values.items() if x.ndim > 2
    }
    before = {name: x._keras_mask for name, x in masked.items()}
    case.outputs(layer, {**values, **masked})
    assert all(masked[name]._keras_mask is before[name] for name in masked)


def test_returned_weights(weighing_case, made):
    case = weighing_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    asked, weights = case.split(case.outputs(layer, inputs, masks))
    assert_equal(case.outputs(layer, inputs, masks, return_attention_scores=False), asked)
    if case.sums is not None:
        for x in arrays(weights):
            sums = x.sum(-1)
            real = np.ones(sums.shape, bool)
            if case.query_mask:
                real = over_weights(masks[case.query_mask], sums)
            if case.ordered:  # a query may see nothing but masked keys
                real = real & (sums > 0)
            np.testing.assert_allclose(sums[real], case.sums, **EXACT)


def test_wrong_shapes(case):
    for changes in case.wrong_shapes:
        shapes = {**case.shapes, **changes}
        with pytest.raises(ValueError, match="Received"):
            case.create()(**{name: np.ones(shape, "float32") for name, shape in shapes.items()})
    for name, shape in case.shapes.items():
        unknown = {n: keras.Input(batch_shape=s) for n, s in case.shapes.items()}
        if shape[-1] in DYNAMIC.values():
            continue  # it has no width
        unknown[name] = keras.Input(batch_shape=(*shape[:-1], None))
        with pytest.raises(ValueError, match="Received"):
            case.create()(**unknown)


def test_compiled(compiled_case, made, backend):
    case = compiled_case
    layer = made(case, "float32")
    inputs, masks = case.inputs("float32"), case.masks()
    names = [*inputs, *masks]

    def function(*tensors):
        return case.outputs(layer, dict(zip(names, tensors, strict=True)))

    tensors = [ops.convert_to_tensor(x) for x in (*inputs.values(), *masks.values())]
    compiled = backend.jit(function)
    # Fusion changes the order of summation.
    assert_all_close(compiled(*tensors), function(*tensors), **SINGLE)
    if backend.name == "tensorflow":
        # "<=" is how a program says that a size is known only when it runs.
        program = compiled.experimental_get_compiler_ir(*tensors)(stage="hlo")
        assert "<=" not in program


def test_gradient(case, made, backend):
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    function = scalar(case, layer, masks)
    by_input, by_weight = backend.gradients(function, layer, inputs)

    rng = np.random.default_rng(4)
    direction = {name: rng.normal(size=x.shape) for name, x in inputs.items()}
    values = [np.asarray(ops.convert_to_numpy(w)) for w in layer.trainable_variables]
    weight_directions = [rng.normal(size=w.shape) for w in values]
    expected = sum(np.sum(by_input[name] * direction[name]) for name in inputs)
    expected += sum(np.sum(g * d) for g, d in zip(by_weight, weight_directions, strict=True))

    def at(step):
        moved = zip(layer.trainable_variables, values, weight_directions, strict=True)
        for weight, value, along in moved:
            weight.assign(value + step * along)
        return float(function({name: x + step * direction[name] for name, x in inputs.items()}))

    # This central difference is off by about step^4 and by rounding / step: 1e-16, or of the
    # float32 in which Keras's tanh computes on JAX 1e-7.
    step, close = (1e-3, 1e-6) if DOUBLE else (1e-2, 1e-3)
    near, far = at(step) - at(-step), at(2 * step) - at(-2 * step)
    difference = (8 * near - far) / (12 * step)
    np.testing.assert_allclose(expected, difference, rtol=close, atol=close / 10)


def test_weights_are_from_before_dropout(made):
    rng = np.random.default_rng(0)
    query, value = rng.normal(size=(B, T, DQ)), rng.normal(size=(B, S, DV))
    layer = ka.Attention("bilinear", dropout=0.5, seed=3, dtype="float64")
    context, weights = layer(query, value, return_attention_scores=True, training=True)
    np.testing.assert_allclose(arrays([weights])[0].sum(-1), 1.0, **EXACT)
    undropped, same = layer(query, value, return_attention_scores=True)
    assert_equal([weights], [same])
    assert not np.allclose(arrays([context])[0], arrays([undropped])[0])
    again = ka.Attention("bilinear", dropout=0.5, seed=3, dtype="float64")
    again.build(query.shape, value.shape)
    again.set_weights(layer.get_weights())
    assert_equal([again(query, value, training=True)], [context])
    # The mean over many draws is what was dropped from.
    many = np.repeat(query[:1], 4000, 0), np.repeat(value[:1], 4000, 0)
    mean = arrays([layer(*many, training=True)])[0].mean(0)
    # Six standard errors of 4000 draws, of values around 1.
    np.testing.assert_allclose(mean, arrays([undropped])[0][0], atol=0.1)


def test_attention_takes_the_list_form(made):
    case = next(c for c in CASES if c.name == "attention_bilinear_key")
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    query, value, key = inputs["query"], inputs["value"], inputs["key"]
    expected = layer(query, value, key, **masks)
    listed = layer([query, value, key], mask=[masks["query_mask"], masks["value_mask"]])
    assert_equal([listed], [expected])
    assert_equal([layer((query, value, key), **masks)], [expected])
    with pytest.raises(ValueError, match=r"attention\(x, x\)\. Received: value=None"):
        layer(query)
    for wrong in ([query], [query, value, key, key]):
        with pytest.raises(ValueError, match=r"\[query, value, key\]\. Received: \d inputs"):
            layer(wrong)


def test_attention_mask(made, weights_of):
    """A mask of each query and key, joined with all others; one of keys alone is refused."""
    case = next(c for c in CASES if c.name == "attention_bilinear_key")
    layer, inputs = made(case), case.inputs()
    masks = {**case.masks(), "key_mask": np.ones((B, S), bool)}
    masks["key_mask"][:, 2] = False
    masks["attention_mask"] = np.random.default_rng(2).random((B, T, S)) < 0.6
    expected = case.reference(weights_of(layer), inputs, masks)
    assert_all_close(case.outputs(layer, inputs, masks), expected, **EXACT)
    with pytest.raises(ValueError, match="value_mask"):
        layer(**inputs, attention_mask=np.ones((B, S), bool))


def test_causal_attention_over_a_cache():
    """One query over a cache of S keys sees what the last of S queries would see."""
    x = np.random.default_rng(0).normal(size=(B, S, DV))
    layer = ka.Attention("scaled_dot", dtype="float64")
    full = layer(x, x, use_causal_mask=True)
    last = layer(x[:, -1:], x, use_causal_mask=True)
    assert_all_close([last], [full[:, -1:]], **EXACT)
    first = layer(x[:, :1], x[:, :1], use_causal_mask=True)
    assert_all_close([first], [full[:, :1]], **EXACT)


def test_order_of_the_keys_does_not_matter(masked_case, made):
    case = masked_case
    if case.ordered:
        pytest.skip(case.ordered)
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    axis = masks[case.key_mask].ndim - 1
    order = np.random.default_rng(0).permutation(masks[case.key_mask].shape[axis])
    moved = {n: np.take(x, order, axis) if n in case.keys else x for n, x in inputs.items()}
    moved_masks = {**masks, case.key_mask: masks[case.key_mask][..., order]}
    expected = arrays(case.outputs(layer, inputs, masks))
    if returns_weights(case):
        expected[-1] = expected[-1][..., order]
    assert_all_close(case.outputs(layer, moved, moved_masks), expected, **EXACT)


def test_half_precision_scores_do_not_overflow():
    """Products beyond float16's 65504, a masked key with the largest score, negative scores."""
    query = np.array([[[300.0]]], "float16")
    key = np.array([[[300.0], [-200.0], [-150.0]]], "float16")
    layer = ka.Attention("dot", dtype="float16")
    weights = layer(query, key, value_mask=[[False, True, True]], return_attention_scores=True)[1]
    assert_equal([weights], [[[[0.0, 0.0, 1.0]]]])


def test_cosine_of_zero_vectors(backend):
    layer = ka.CosineScore(dtype="float64")
    inputs = {"query": np.zeros((1, 1, DQ)), "key": np.ones((1, 2, DQ))}
    assert_equal([layer(**inputs)], [np.zeros((1, 1, 2))])
    by_input, _ = backend.gradients(lambda x: ops.sum(layer(**x)), layer, inputs)
    assert np.all(by_input["query"] == 0)
    assert np.all(by_input["key"] == 0)


def test_one_score_belongs_to_one_layer():
    score = ka.AdditiveScore(3)
    query, value = np.ones((B, T, DQ)), np.ones((B, S, DV))
    ka.Attention(score)(query, value)
    with pytest.raises(ValueError, match="already built"):
        ka.Attention(score)(query, value)


def test_kernels_of_one_initializer_differ():
    layer = ka.AdditiveScore(4, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((B, T, 4), (B, S, 4))
    query, key, _ = layer.get_weights()
    assert not np.allclose(query, key)
    layer = ka.AttentionDecoder(4, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((B, T, 4), (B, S, 4), (B, 4))
    assert len({w.numpy().ravel()[0] for w in layer.weights if w.path.endswith("/kernel")}) == 6


def test_a_single_key_gets_all_the_weight():
    """And no warning, which is an error here: a cache begins with one key."""
    query, value = np.ones((B, T, DV)), np.ones((B, 1, DV))
    weights = ka.Attention("dot")(query, value, return_attention_scores=True)[1]
    assert_equal([weights], [np.ones((B, T, 1))])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ka.Attention("unknown"),
        lambda: ka.Attention(score=3),
        lambda: ka.Attention(normalizer="unknown"),
        lambda: ka.AdditiveScore(0),
        lambda: ka.AdditiveScore((3, 4)),
        lambda: ka.AdditiveScore(True),
        lambda: ka.MLPScore(()),
        lambda: ka.MLPScore((3, -1)),
        lambda: ka.MLPScore("8"),
        lambda: ka.AttentionDecoder(0),
        lambda: ka.AttentionDecoder(8, num_layers=0),
        lambda: ka.AttentionDecoder(8, query="next"),
        lambda: ka.AttentionDecoder(8, cell="rnn"),
        lambda: ka.AttentionDecoder(8, score="unknown"),
        lambda: ka.Attention(dropout=1.5),
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match="Received"):
        wrong()


def test_regularizers_and_constraints_are_used():
    layer = ka.AdditiveScore(4, kernel_regularizer="l2", kernel_constraint="max_norm")
    layer.build((B, T, DQ), (B, S, DV))
    assert len(layer.losses) == 3
    assert all(w.constraint is not None for w in layer.trainable_variables)


def test_training_lowers_the_loss():
    """Upstream masks, mixed precision, fit: the loss falls and stays finite."""
    query, ids = keras.Input((DQ,)), keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True)(ids)
    x = ka.Attention("additive", dropout=0.1, seed=1, dtype="mixed_bfloat16")(query, x)
    model = keras.Model([query, ids], keras.layers.Dense(1, dtype="float32")(x))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    tokens = np.random.default_rng(0).integers(0, 9, size=(16, 6))
    tokens[0] = 0
    found = (tokens == 3).any(1, keepdims=True).astype("float32")
    history = model.fit([np.ones((16, DQ)), tokens], found, epochs=4, verbose=0)
    losses = history.history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_a_plain_function_initializes():
    def ones(shape, dtype=None):
        return ops.ones(shape, dtype)

    for layer in (
        ka.Attention(ka.BilinearScore(kernel_initializer=ones)),
        ka.AttentionDecoder(U, kernel_initializer=ones, recurrent_initializer=ones),
    ):
        layer(np.ones((B, T, DQ)), np.ones((B, S, DV)))
        kernels = [w for w in layer.weights if "score" not in w.path and len(w.shape) == 2]
        for kernel in kernels:
            if "bias" not in kernel.path:
                assert np.all(arrays([kernel])[0] == 1), kernel.path


def test_one_query_a_row_takes_a_mask_of_rows():
    query, value = np.ones((B, DV)), np.ones((B, S, DV))
    context, weights = ka.Attention()(
        query, value, query_mask=np.array([True, False]), return_attention_scores=True
    )
    assert np.all(arrays([context])[0][0] == 1) and np.all(arrays([context])[0][1] == 0)
    assert np.all(arrays([weights])[0][1] == 0)


def test_a_mask_of_one_key_does_not_stand_for_all():
    with pytest.raises(ValueError, match="value_mask must have shape"):
        ka.Attention()(np.ones((B, T, DV)), np.ones((B, S, DV)), value_mask=np.ones((B, 1), bool))
    with pytest.raises(ValueError, match="inputs_mask must have shape"):
        decoder = ka.AttentionDecoder(4)
        decoder(np.ones((B, T, DQ)), np.ones((B, S, DV)), inputs_mask=np.ones((B, 1), bool))


def test_states_from_nothing_are_refused():
    decoder = ka.AttentionDecoder(4)
    with pytest.raises(ValueError, match=r"batch_size or an encoder_state\. Received"):
        decoder.initial_state()


@pytest.mark.parametrize("name", ["attention_bilinear_key", "decoder_bahdanau"])
def test_a_built_layer_refuses_other_shapes(made, name):
    """What would broadcast, or fail far inside, with the rank, width or batch it was built for."""
    case = next(c for c in CASES if c.name == name)
    layer, inputs = made(case), case.inputs()
    for argument, x in inputs.items():
        wrong = {"rank": x[0], "width": np.concatenate([x, x], -1), "batch": x[:1]}
        for kind, y in wrong.items():
            if kind == "rank" and argument == "query":
                continue  # one query a row
            with pytest.raises(ValueError, match=r"Received: .*shape="):
                layer(**{**inputs, argument: y})
