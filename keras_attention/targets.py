"""Which artifact, if any, the layers are being traced for."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

TARGETS = ("tflite", "onnx", "saved_model")


class _Export(NamedTuple):
    target: str | None = None
    calibrated: bool = False


_NONE = _Export()
_export: contextvars.ContextVar[_Export] = contextvars.ContextVar("export", default=_NONE)


@contextlib.contextmanager
def exporting(target: str, *, calibrated: bool = False) -> Iterator[None]:
    """Trace layers in the form that `target` can run.

    Inside the context recurrent layers of this library run as a `while_loop` over a buffer of
    fixed size instead of `keras.layers.RNN`: that loop converts to TFLite's built-in operators at
    any batch size and length, but has no gradient on the TensorFlow backend. The exporters of
    `keras_attention.export` enter it while they trace; nothing else has to.

    Args:
        target: `"tflite"`, `"onnx"` or `"saved_model"`.
        calibrated: whether activations will be integers of 8 or 16 bits, in ranges fitted to what
            they hold. Masked scores then lie just below the others, for one of -1e38 would take
            the whole range.

    Raises:
        ValueError: for any other target.

    Example:

    >>> import keras_attention
    >>> with keras_attention.exporting("tflite"):
    ...     pass  # trace a tf.function over layers here
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}. Received: target={target!r}")
    token = _export.set(_Export(target, calibrated))
    try:
        yield
    finally:
        _export.reset(token)


def export_target() -> str | None:
    """The target of the innermost `exporting` context, or None outside of any."""
    return _export.get().target


def is_calibrated() -> bool:
    """Whether the artifact's activations will be integers in fitted ranges."""
    return _export.get().calibrated
