"""The precision that layers compute in."""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def computing_in(policy: str) -> Iterator[None]:
    """Within it, new layers have this dtype policy, `"mixed_bfloat16"` for one.

    Example:

    >>> import keras
    >>> from keras_attention.recipes.precision import computing_in
    >>> with computing_in("mixed_bfloat16"):
    ...     layer = keras.layers.Dense(3)
    >>> layer.compute_dtype, layer.variable_dtype
    ('bfloat16', 'float32')
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
