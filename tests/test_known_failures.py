"""Kinds of failures that attention layers are known for, each over all layers it could befall.

Those of the contracts themselves are in `test_contracts.py`; here is what people ran into.
"""

import inspect
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from case import EXACT, B
from cases import CASES
from keras import ops, tree

import keras_attention as ka

# Two orders of summation in float32.
SINGLE = {"rtol": 1e-5, "atol": 1e-6}


def arrays(tensors):
    return [np.asarray(ops.convert_to_numpy(ops.cast(x, "float64"))) for x in tree.flatten(tensors)]


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(arrays(actual), arrays(expected), strict=True):
        np.testing.assert_allclose(a, e, **tolerance)


def assert_equal(actual, expected):
    assert_all_close(actual, expected, rtol=0, atol=0)


def sequences(case):
    """The sequences of vectors that have a mask, each with the name of its mask."""
    masked = dict.fromkeys(case.keys, case.key_mask)
    masked |= {case.queries: case.query_mask} if case.query_mask else {}
    return {n: mask for n, mask in masked.items() if case.unknown(case.shapes[n])[-1] is not None}


def argument_names(case):
    return inspect.signature(case.create().call).parameters


# --- Padding ------------------------------------------------------------------------------------


def test_padding_of_an_embedding_behind_a_recurrent_layer(masked_case, made):
    """`Embedding(mask_zero=True)`, a GRU, then the layer: padding is seen, and nobody says so."""
    case = masked_case
    layer, masks = made(case, "float32"), case.masks()
    rng = np.random.default_rng(0)
    tokens = {n: np.where(m, rng.integers(1, 9, m.shape), 0) for n, m in masks.items()}
    inputs = {
        name: keras.Input(shape=case.unknown(shape)[1:], name=name)
        for name, shape in case.shapes.items()
    }
    values = case.inputs("float32")
    sources = {}
    for name, mask in sequences(case).items():
        shape = case.unknown(case.shapes[name])
        if mask not in sources:
            sources[mask] = keras.Input(shape=shape[1:-1], dtype="int32", name=f"{mask}_tokens")
        x = keras.layers.Embedding(9, shape[-1], mask_zero=True)(sources[mask])
        inputs[name] = keras.layers.GRU(shape[-1], return_sequences=True)(x) if x.ndim == 3 else x
    given = {x.name: x for x in tree.flatten(inputs) if x.name in values}
    model = keras.Model([*given.values(), *sources.values()], [inputs, case.outputs(layer, inputs)])
    read, outputs = model([*(values[n] for n in given), *(tokens[m] for m in sources)])
    read = {name: ops.convert_to_numpy(x) for name, x in read.items()}  # which has no mask
    masks = {mask: masks[mask] for mask in sources}
    assert_all_close(outputs, case.outputs(layer, read, masks), **SINGLE)
    outputs, unmasked = arrays(outputs), arrays(case.outputs(layer, read))
    if not np.isin(outputs[-1], (0, 1)).all():  # weights of one key may be the same by chance
        assert not all(np.allclose(a, b) for a, b in zip(outputs, unmasked, strict=True))


def test_padding_that_is_longer_changes_nothing(masked_case, made):
    """One more padded word, or one more sentence of nothing but padding."""
    case = masked_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    if case.ordered and case.queries not in case.keys:
        pytest.skip("where the memory ends matters")
    mask = masks[case.key_mask]
    expected = arrays(case.outputs(layer, inputs, {case.key_mask: mask}))
    for axis in range(1, mask.ndim):
        length = mask.shape[axis]
        if any(length in case.shapes[n] for n in case.shapes.keys() - set(case.keys)):
            continue  # something else has this length

        def longer(x, axis=axis, filled=np.nan):
            widths = [(0, 2 if i == axis else 0) for i in range(x.ndim)]
            return np.pad(x, widths, constant_values=filled)

        padded = {n: longer(x) if n in case.keys else x for n, x in inputs.items()}
        outputs = arrays(case.outputs(layer, padded, {case.key_mask: longer(mask, filled=False)}))
        for actual, e in zip(outputs, expected, strict=True):
            kept = tuple(map(slice, e.shape))
            np.testing.assert_allclose(actual[kept], e, **EXACT)
            rest = actual.copy()
            rest[kept] = 0
            assert np.all(rest == 0)


def test_padding_of_the_queries_hides_no_key(masked_case, made):
    """Cross-attention: what is padding among the queries says nothing of the keys."""
    case = masked_case
    if not case.query_mask or case.query_mask == case.key_mask:
        pytest.skip("queries have no mask of their own")
    layer, inputs = made(case), case.inputs()
    mask = np.ones(case.mask_shapes()[case.query_mask], bool)
    mask[:, -1] = False  # at the end: what a recurrent layer reads later says nothing of before

    def real(outputs):
        outputs, weights = case.split(arrays(outputs))
        return [np.moveaxis(x, -2, 1)[:, :-1] for x in (outputs[0], *weights)]

    expected = real(case.outputs(layer, inputs))
    assert_all_close(real(case.outputs(layer, inputs, {case.query_mask: mask})), expected, **EXACT)


def test_a_mask_of_keys_is_not_taken_for_one_of_pairs(masked_case, made):
    """(batch, keys) as an attention mask would fit (queries, keys) where the sizes are equal."""
    case = masked_case
    names = [name for name in argument_names(case) if name.endswith("attention_mask")]
    if not names:
        pytest.skip("no mask of pairs")
    layer, inputs = made(case), case.inputs(B=3, T=3, S=3)
    for name in names:
        with pytest.raises(ValueError, match=rf"{name} must.*Received"):
            case.outputs(layer, inputs, {name: np.ones((3, 3), bool)})
        pairs = np.array([[[1, 1, 0], [1, 0, 0], [0, 1, 1]]], bool)
        if len(case.shapes[case.keys[0]]) == 3 and case.query_mask:
            found = case.outputs(layer, inputs, {name: pairs})
            assert_equal(found, case.outputs(layer, inputs, {name: np.repeat(pairs, 3, 0)}))
            _, weights = case.split(arrays(found))
            assert all(np.all(x[~np.broadcast_to(pairs, x.shape)] == 0) for x in weights)


def test_asking_changes_nothing_where_nothing_can_be_read(weighing_case, made):
    case = weighing_case
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    for mask in masks.values():
        mask[0] = False
    asked, _ = case.split(case.outputs(layer, inputs, masks))
    assert_equal(case.outputs(layer, inputs, masks, return_attention_scores=False), asked)


def test_the_mask_of_the_output_fits_what_comes_next(masked_case, made):
    """Pooling drops the mask of time; a residual connection keeps the mask of the queries."""
    case = masked_case
    layer, values, masks = made(case, "float32"), case.inputs("float32"), case.masks()
    inputs = {n: keras.Input(batch_shape=s, name=n) for n, s in case.shapes.items()}
    masked = dict(inputs)
    for name, mask in sequences(case).items():
        masked[name] = keras.layers.Masking()(inputs[name])
        values[name][~masks[mask]] = 0
    output = case.outputs(layer, masked)[0]
    mask = getattr(output, "_keras_mask", None)
    assert mask is None or len(mask.shape) < len(output.shape)
    assert mask is None or mask.shape == output.shape[: len(mask.shape)]
    if output.shape[1] is not None and len(output.shape) in (2, 3):
        following = keras.layers.GRU(2) if len(output.shape) == 3 else keras.layers.Dense(2)
        assert np.isfinite(arrays(keras.Model(inputs, following(output))(values))[0]).all()
    if mask is not None:
        query = keras.layers.Dense(output.shape[-1])(masked[case.queries])
        added = keras.layers.Add()([query, output])
        found = arrays(keras.Model(inputs, added._keras_mask)(values))[0]
        np.testing.assert_array_equal(found, masks[case.query_mask])


def test_masks_arrive_in_the_list_form():
    tokens = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    query, value = (keras.layers.Embedding(9, 4, mask_zero=True)(x) for x in tokens)
    asked = {"return_attention_scores": True}
    results = [ka.Attention("dot")(*given, **asked) for given in ([[query, value]], [query, value])]
    model = keras.Model(tokens, results)
    listed, separate = model([np.array([[1, 2, 0]]), np.array([[3, 0, 4, 0, 0]])])
    assert_equal(listed, separate)
    weights = arrays(listed)[1][0]
    assert np.all((weights > 0) == [[True, False, True, False, False]] * 2 + [[False] * 5])


# --- Shapes and results -------------------------------------------------------------------------


def test_weights_come_in_one_form(weighing_case, made):
    """Eager and symbolic alike: a tuple with the weights last, else as without them."""
    case = weighing_case
    layer, inputs = made(case), case.inputs()
    symbolic = {
        n: keras.Input(batch_shape=s, dtype="float64", name=n) for n, s in case.shapes.items()
    }
    plain = layer(**inputs, **case.call)
    for flag in (False, True):
        asked = {**case.call, "return_attention_scores": flag}
        eager = layer(**inputs, **asked)
        tree.assert_same_structure(eager, layer(**symbolic, **asked))
        if flag:
            assert type(eager) is tuple
            assert len(eager) == (len(plain) if type(plain) is tuple else 1) + case.weights
        else:
            tree.assert_same_structure(eager, plain)


def test_asking_in_the_constructor_is_refused_by_name(weighing_case):
    with pytest.raises((TypeError, ValueError), match="return_attention_scores"):
        weighing_case.create(return_attention_scores=True)


def test_a_row_does_not_depend_on_its_batch(case, made):
    layer, inputs, masks = made(case), case.inputs(), case.masks()
    together = arrays(case.outputs(layer, inputs, masks))
    for row in range(B):
        alone = {n: x[row : row + 1] for n, x in inputs.items()}
        outputs = case.outputs(layer, alone, {n: m[row : row + 1] for n, m in masks.items()})
        for actual, expected in zip(arrays(outputs), together, strict=True):
            np.testing.assert_allclose(actual[0], expected[row], **EXACT)


def test_weights_sum_to_one_while_training(weighing_case, made):
    """Dropout comes after what is returned."""
    case = weighing_case
    if case.sums is None:
        pytest.skip("weights need not sum to anything")
    layer, inputs = made(case), case.inputs()
    for masks in ({}, case.masks()):
        _, weights = case.split(case.outputs(layer, inputs, masks, training=True))
        for x in arrays(weights):
            sums = x.sum(-1)
            # A padded query, or one of an ordered layer, may have nothing to read.
            readable = sums[sums > 0] if masks or case.ordered else sums
            np.testing.assert_allclose(readable, case.sums, **EXACT)


# --- Numbers ------------------------------------------------------------------------------------


def weights_of_large_inputs(case, layer, dtype, scale):
    inputs = {
        name: x if name in case.prepare else scale * x for name, x in case.inputs(dtype).items()
    }
    outputs, weights = case.split(arrays(case.outputs(layer, inputs, case.masks())))
    assert all(np.isfinite(x).all() for x in (*outputs, *weights))
    return weights


def test_scores_beyond_half_precision(weighing_case, made):
    """Products of queries and keys beyond 65504."""
    case = weighing_case
    if case.sums is None:
        pytest.skip("weights need not be bounded")
    for x in weights_of_large_inputs(case, made(case, "float16"), "float16", 300.0):
        sums = x.sum(-1)
        # Each weight is rounded to half precision: 2^-11.
        np.testing.assert_allclose(sums[sums > 0], case.sums, rtol=1e-2)


def test_scores_that_are_large(weighing_case, made):
    """Exponents beyond what float32 can hold."""
    case = weighing_case
    for x in weights_of_large_inputs(case, made(case, "float32"), "float32", 1e5):
        if case.sums is not None:
            sums = x.sum(-1)
            np.testing.assert_allclose(sums[sums > 0], case.sums, **SINGLE)


def test_gradients_at_zero(case, made, backend):
    """Of vectors of zeros, whose length has no gradient and which all keys answer alike."""
    layer = made(case)
    inputs = {
        name: x if name in case.prepare else np.zeros_like(x) for name, x in case.inputs().items()
    }

    def function(inputs):
        outputs = case.outputs(layer, inputs, case.masks())
        return sum(ops.sum(x) for x in outputs)

    by_input, by_weight = backend.gradients(function, layer, inputs)
    for gradient in (*by_input.values(), *by_weight):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max(initial=0.0) < 1e4


# --- Saving -------------------------------------------------------------------------------------


def test_nothing_is_stored_between_calls(case, made):
    """No tensor of a call on the layer: memory and state are arguments."""
    layer, masks = made(case), case.masks()
    case.outputs(layer, case.inputs(), masks)
    symbolic = {
        n: keras.Input(batch_shape=s, dtype="float64", name=n) for n, s in case.shapes.items()
    }
    case.outputs(layer, symbolic)
    for part in layer._flatten_layers():
        for name, value in vars(part).items():
            if name in ("_losses", "_inbound_nodes", "_outbound_nodes"):
                continue  # Keras's own: what `add_loss` was given, and the graph
            held = tree.flatten(value) if isinstance(value, list | tuple | dict) else [value]
            tensors = [x for x in held if ops.is_tensor(x) or isinstance(x, keras.KerasTensor)]
            assert all(isinstance(x, keras.Variable) for x in tensors), f"{part.name}.{name}"


def options_used(case):
    """Which options of weights change the weights of this row as they should."""
    layer = case.create()
    config = layer.get_config()

    def built(**changes):
        other = type(layer).from_config({**config, **changes})
        case.build(other)
        return other

    used = set()
    for name in config:
        if name.endswith("_initializer"):
            constant = keras.initializers.serialize(keras.initializers.Constant(0.123))
            weights = built(**{name: constant}).get_weights()
            changed = any(np.all(w == np.float32(0.123)) for w in weights)
        elif name.endswith("_regularizer") and name != "weights_regularizer":
            l2 = keras.regularizers.serialize(keras.regularizers.L2(0.1))
            changed = len(built(**{name: l2}).losses) > len(built(**{name: None}).losses)
        elif name.endswith("_constraint"):
            norm = keras.constraints.serialize(keras.constraints.UnitNorm())
            constraints = [w.constraint for w in built(**{name: norm}).weights]
            changed = any(isinstance(x, keras.constraints.UnitNorm) for x in constraints)
        elif name == "use_bias":
            changed = len(built(use_bias=True).weights) > len(built(use_bias=False).weights)
        else:
            continue
        used |= {name} if changed else {f"not {name}"}
    return type(layer).__name__, used


def test_options_of_weights_are_used():
    """No argument is taken and saved, but does nothing: in some row of its class it does."""
    used = {}
    for case in CASES:
        name, options = options_used(case)
        used.setdefault(name, set()).update(options)
    idle = {
        f"{name}: {option}"
        for name, options in used.items()
        for option in options
        if option.startswith("not ") and option.removeprefix("not ") not in options
    }
    assert not idle
    assert sum(map(len, used.values())) > 20


@pytest.mark.parametrize("score", [ka.DotScore, ka.AdditiveScore])
def test_a_score_of_two_layers_is_refused(score):
    """It would be saved as two, and loaded as two."""
    one = score()
    inputs = np.ones((B, 3, 4)), np.ones((B, 5, 4))
    ka.Attention(one)(*inputs)
    with pytest.raises(ValueError, match="belongs to one layer"):
        ka.Attention(one)(*inputs)


FRESH = """
import json, pathlib, sys
import keras
import keras_attention
for name, config in json.loads(pathlib.Path(sys.argv[1]).read_text()).items():
    layer = keras.saving.deserialize_keras_object(config)
    same = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    del same["build_config"], config["build_config"]
    if same != config:
        print(name, config, same)
print("done")
"""


def test_a_fresh_process_needs_only_the_package(tmp_path, made):
    """Every row of the table, without `custom_objects`."""
    configs = {
        case.name: keras.saving.serialize_keras_object(made(case, "float32")) for case in CASES
    }
    (tmp_path / "configs.json").write_text(json.dumps(configs), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "configs.json")],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    "method, create, arguments",
    [
        ("prepare_memory", lambda: ka.AttentionDecoder(3), [(2, 5, 6)]),
        ("initial_state", lambda: ka.AttentionDecoder(3), [None, (2, 6)]),
        ("prepare_memory", ka.MonotonicAttention, [(2, 5, 6)]),
        ("rank", ka.GraphAttention, [(2, 3, 6), (2, 5, 6)]),
        ("project_memory", lambda: ka.TransformerDecoderBlock(8, 2), [(2, 5, 6)]),
        ("initial_cache", lambda: ka.TransformerEncoderBlock(8, 2), None),
        ("initial_cache", lambda: ka.SelfAttention(2), None),
    ],
)
def test_a_method_that_needs_weights_before_there_are_any(method, create, arguments):
    given = [shape and np.ones(shape, "float32") for shape in arguments] if arguments else [2, 4]
    with pytest.raises(ValueError, match=f"build the layer.*before its {method}.*Received: "):
        getattr(create(), method)(*given)
