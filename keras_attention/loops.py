"""One step, two loops: how a recurrent step is run over time, in training and in an artifact."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from .targets import export_target

Tensors = tuple
Step = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def write_row(buffer, index, row):
    """`buffer` (L, ...) with `row` (...) written at `index`."""
    return write_rows(buffer, index, ops.expand_dims(row, 0))


def write_rows(buffer, index, rows, axis=0):
    """`buffer` with `rows` in place of its own from `index` on, along an axis.

    In the form the target can run: ONNX has no counterpart of XLA's dynamic update slice, which
    is the quickest form elsewhere.
    """
    if export_target() in (None, "tflite"):
        # Of one integer type, as JAX wants them.
        start = [ops.zeros((), dtype=index.dtype)] * len(buffer.shape)
        start[axis] = index
        return ops.slice_update(buffer, start, rows)
    buffer, rows = ops.moveaxis(buffer, axis, 0), ops.moveaxis(rows, axis, 0)
    indices = ops.expand_dims(index + ops.arange(ops.shape(rows)[0], dtype=index.dtype), 1)
    return ops.moveaxis(ops.scatter_update(buffer, indices, rows), 0, axis)


def run_steps(
    step: Step, inputs: Sequence, states: Sequence, width=None
) -> tuple[Tensors, Tensors]:
    """Run `outputs, states = step(inputs, states)` along the time axis of the inputs.

    Training goes through `keras.layers.RNN`, the one loop that differentiates in a TensorFlow
    graph, under XLA and on JAX alike. Inside `exporting(...)` it is a `while_loop` that writes
    into buffers: no gradient on TensorFlow, but it converts to TFLite's built-in operators and
    to ONNX at any batch size and length.

    Args:
        step: function of a tuple of inputs (B, D) and a tuple of states to a tuple of outputs
            (B, D) and the next states. It may close over anything; random draws belong outside.
            Only the last output may be of unknown width.
        inputs: tensors (B, T, D) of one dtype; only the last may be of unknown width.
        states: tensors (B, D).
        width: D of the last output, where it may be unknown before the graph runs.

    Returns:
        The outputs, each (B, T, D), and the last states.
    """
    inputs, states = tuple(inputs), tuple(states)
    if export_target() is None:
        return _differentiable_loop(step, inputs, states)
    return _exported_loop(step, inputs, states, width)


def _differentiable_loop(step, inputs, states):
    widths = []

    class Cell(keras.layers.Layer):
        # Holds no weights: those that `step` closes over belong to the layer that called.
        state_size = tuple(state.shape[-1] for state in states)

        def call(self, inputs, states, training=False):
            outputs, states = step(_split(inputs, input_widths), tuple(states))
            widths[:] = [output.shape[-1] for output in outputs]
            return _side_by_side(outputs), list(states)

    # keras.layers.RNN takes one tensor and gives one, so what goes in and what comes out travels
    # side by side in the last axis.
    input_widths = [x.shape[-1] for x in inputs]
    dtype = inputs[0].dtype
    rnn = keras.layers.RNN(Cell(dtype=dtype), return_sequences=True, return_state=True, dtype=dtype)
    outputs, *states = rnn(_side_by_side(inputs), initial_state=list(states))
    return _split(outputs, widths), tuple(states)


def _side_by_side(tensors):
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis=-1)


def _split(together, widths):
    """The inverse of `_side_by_side`; the last part may be of unknown width."""
    parts, start = [], 0
    for width in widths[:-1]:
        parts.append(together[..., start : start + width])
        start += width
    return (*parts, together[..., start:] if start else together)


def _exported_loop(step, inputs, states, width):
    inputs = tuple(ops.moveaxis(x, 1, 0) for x in inputs)  # (T, B, D)
    length, batch = ops.shape(inputs[0])[:2]
    # Traced for static widths and types alone: what nothing reads is left out of an artifact. The
    # numbers must not be read, not even for a size: of a step over nothing they are all near 0,
    # and a range of integers that is fitted to them holds no others.
    first, _ = step(tuple(ops.zeros(ops.shape(x)[1:], x.dtype) for x in inputs), states)
    widths = [width if row.shape[-1] is None else row.shape[-1] for row in first]
    buffers = tuple(
        ops.zeros((length, batch, size), dtype=row.dtype)
        for row, size in zip(first, widths, strict=True)
    )

    def body(index, states, buffers):
        row_inputs = tuple(ops.take(x, index, axis=0) for x in inputs)
        outputs, states = step(row_inputs, states)
        buffers = tuple(write_row(b, index, o) for b, o in zip(buffers, outputs, strict=True))
        return index + 1, states, buffers

    _, states, buffers = ops.while_loop(
        lambda index, states, buffers: index < length,
        body,
        (ops.convert_to_tensor(0, "int32"), states, buffers),
    )
    return tuple(ops.moveaxis(b, 0, 1) for b in buffers), states
