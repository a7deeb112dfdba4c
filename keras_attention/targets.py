"""Which artifact, if any, the layers are being traced for."""

import contextlib
import contextvars
from collections.abc import Iterator

TARGETS = ("tflite", "onnx", "saved_model")

_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)


@contextlib.contextmanager
def exporting(target: str) -> Iterator[None]:
    """Trace layers in the form that `target` can run.

    Inside the context recurrent layers of this library run as a `while_loop` over a buffer of
    fixed size instead of `keras.layers.RNN`: that loop converts to TFLite's built-in operators at
    any batch size and length, but has no gradient on the TensorFlow backend. The exporters of
    `keras_attention.export` enter it while they trace; nothing else has to.

    Args:
        target: `"tflite"`, `"onnx"` or `"saved_model"`.

    Raises:
        ValueError: for any other target.

    Example:

    >>> import keras_attention
    >>> with keras_attention.exporting("tflite"):
    ...     pass  # trace a tf.function over layers here
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}. Received: target={target!r}")
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def export_target() -> str | None:
    """The target of the innermost `exporting` context, or None outside of any."""
    return _target.get()
