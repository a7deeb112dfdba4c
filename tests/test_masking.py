"""Masks: True = may be read, aligned at the right, joined by broadcasting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_attention as ka
from keras_attention import masking
from keras_attention.masking import directional_mask, window_mask

lengths = st.integers(1, 5)


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor))


def test_true_means_may_be_read():
    np.testing.assert_array_equal(
        array(ka.padding_mask(np.array([[7, 0, 3], [0, 0, 1]]))),
        [[True, False, True], [False, False, True]],
    )
    np.testing.assert_array_equal(
        array(ka.padding_mask(np.array([[7, 0, 3]]), pad_id=3)), [[True, True, False]]
    )


@settings(deadline=None, max_examples=30)
@given(queries=lengths, keys=lengths, offset=st.integers(-3, 5))
def test_causal_mask(queries, keys, offset):
    expected = [[s <= t + offset for s in range(keys)] for t in range(queries)]
    np.testing.assert_array_equal(array(ka.causal_mask(queries, keys, offset)), expected)


def test_causal_mask_of_a_square():
    np.testing.assert_array_equal(array(ka.causal_mask(3)), np.tri(3, dtype=bool))


def test_causal_mask_step_by_step_is_the_whole_one():
    """One query at a time over a growing cache."""
    whole = array(ka.causal_mask(4))
    for position in range(4):
        row = array(ka.causal_mask(1, position + 1, offset=position))
        np.testing.assert_array_equal(row[0], whole[position, : position + 1])
    np.testing.assert_array_equal(array(ka.causal_mask(2, 4, offset=2)), whole[2:])


@settings(deadline=None, max_examples=30)
@given(queries=lengths, keys=lengths, window=st.integers(0, 6), offset=st.integers(-3, 5))
def test_window_mask(queries, keys, window, offset):
    expected = [[abs(s - (t + offset)) <= window for s in range(keys)] for t in range(queries)]
    np.testing.assert_array_equal(array(window_mask(queries, keys, window, offset)), expected)


def test_window_mask_of_a_square():
    np.testing.assert_array_equal(
        array(window_mask(4)), np.tri(4, k=1, dtype=bool) & np.tri(4, k=1, dtype=bool).T
    )


@pytest.mark.parametrize(
    "direction, may_read",
    [
        ("forward", lambda s, t: s < t),
        ("backward", lambda s, t: s > t),
        ("no_diagonal", lambda s, t: s != t),
    ],
)
@settings(deadline=None, max_examples=30)
@given(queries=lengths, keys=lengths, offset=st.integers(-3, 5))
def test_directional_mask(direction, may_read, queries, keys, offset):
    expected = [[may_read(s, t + offset) for s in range(keys)] for t in range(queries)]
    np.testing.assert_array_equal(
        array(directional_mask(queries, keys, direction, offset)), expected
    )


def test_directional_mask_of_a_square():
    np.testing.assert_array_equal(array(directional_mask(3)), np.tri(3, k=-1, dtype=bool))
    with pytest.raises(ValueError, match=r"forward, backward, no_diagonal\. Received.*'both'"):
        directional_mask(3, direction="both")


@pytest.mark.tensorflow("only TensorFlow has lengths that are tensors")
@pytest.mark.parametrize("function", [ka.causal_mask, window_mask, directional_mask])
def test_masks_of_unknown_lengths(function):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([], "int32")] * 3)
    def mask(queries, keys, offset):
        return function(queries, keys, offset=offset)

    np.testing.assert_array_equal(array(mask(2, 4, 1)), array(function(2, 4, offset=1)))


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_combined_masks_are_the_conjunction(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    shapes = data.draw(st.lists(st.sampled_from([(2, 1, 5), (2, 3, 1), (1, 3, 5), (2, 3, 5)])))
    masks = [rng.random(shape) < 0.7 for shape in shapes]
    given_masks = [
        data.draw(st.sampled_from([mask, mask.astype("int32"), mask.astype("float32")]))
        for mask in masks
    ]
    given_masks.insert(data.draw(st.integers(0, len(masks))), None)
    combined = ka.combine_masks(*given_masks)
    if not masks:
        assert combined is None
        return
    expected = np.ones((), bool)
    for mask in masks:
        expected = expected & mask
    assert array(combined).dtype == bool
    np.testing.assert_array_equal(array(combined), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_selection_hides_what_no_product_can(dtype):
    values = np.array([[[1.0], [np.nan], [np.inf]], [[-np.inf], [2.0], [3.0]]], dtype)
    mask = np.array([[True, False, False], [False, True, True]])
    selected = array(masking.select(ops.convert_to_tensor(values), mask))
    assert selected.dtype == dtype
    np.testing.assert_array_equal(selected, [[[1], [0], [0]], [[0], [2], [3]]])
