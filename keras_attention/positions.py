"""Positions: telling a model where in its sequence each input stands.

Added to the inputs (sinusoidal, learned) or turned into them (rotary). The positions begin at
`start_index`, so that one step of decoding is placed as the whole sequence would place it.
"""

import keras
from keras import ops

from .normalizers import wide_dtype, widen
from .scores import is_width
from .shapes import check_shapes

register = keras.saving.register_keras_serializable("keras_attention")


class PositionLayer(keras.layers.Layer):
    """Base of the position layers: `(inputs, start_index=0, positions=None)`, like shape out.

    Inputs are (B, T, D), or with heads (B, H, T, D). Their mask goes on to what comes next.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._widths = None  # of the inputs; known when built
        self.supports_masking = True

    def build(self, inputs_shape, positions_shape=None):
        check_shapes({"inputs": (inputs_shape, (3, 4))})
        self._widths = {"inputs": inputs_shape[-1]}
        self.built = True

    def _positions(self, inputs, start_index, positions):
        """Where the inputs stand: (T,), (B, T), or with heads (B, 1, T)."""
        check_shapes({"inputs": (inputs.shape, (3, 4))}, self._widths)
        if positions is None:
            return ops.arange(ops.shape(inputs)[-2], dtype="int32") + start_index
        positions = ops.convert_to_tensor(positions)
        wanted = (inputs.shape[0], inputs.shape[-2])
        known = zip(positions.shape[::-1], wanted[::-1], strict=False)
        fits = all(size == other or None in (size, other) for size, other in known)
        if len(positions.shape) not in (1, 2) or not fits:
            raise ValueError(
                f"positions must have shape (batch, length) = {wanted} or (length,). "
                f"Received: positions.shape={tuple(positions.shape)}"
            )
        with_heads = len(inputs.shape) == 4 and len(positions.shape) == 2
        return ops.expand_dims(positions, 1) if with_heads else positions

    def compute_output_spec(self, inputs, *args, **kwargs):
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def get_config(self):
        # Written out: the one that Keras makes up refuses a `DTypePolicy` object as `dtype`.
        return super().get_config()


class _AddedPositions(PositionLayer):
    """Positions that are added: a subclass says what, in `encoding`."""

    def encoding(self, inputs, start_index=0, positions=None):
        """What a call would add to the inputs, of their shape."""
        raise NotImplementedError(f"{type(self).__name__} must implement encoding")

    def call(self, inputs, start_index=0, positions=None):
        return inputs + self.encoding(inputs, start_index, positions)


def _angles(positions, width, max_wavelength, dtype):
    """`p / max_wavelength^(2i / D)`, the angle of features 2i and 2i + 1: (..., T, D)."""
    frequencies = [max_wavelength ** (-(i - i % 2) / width) for i in range(width)]
    positions = ops.expand_dims(ops.cast(positions, dtype), -1)  # (..., T, 1)
    return positions * ops.convert_to_tensor(frequencies, dtype=dtype)


def _spread(x, inputs):
    """`x` (..., T, D) in the shape of the inputs.

    Sums and products would do that by themselves, but TensorFlow 2.21's TFLite interpreter gets
    them wrong where one call had a batch of 1 and the next has not: it goes on to write the
    result in place of the smaller side.
    """
    return ops.broadcast_to(x, ops.shape(inputs))


def _check_wavelength(max_wavelength):
    if not isinstance(max_wavelength, int | float) or max_wavelength <= 0:
        raise ValueError(
            f"max_wavelength must be a positive number. Received: max_wavelength={max_wavelength!r}"
        )


@register
class SinusoidalPositions(_AddedPositions):
    """Adds sines and cosines of the position, of wavelengths from 2 pi up.

    `PE(p, 2i) = sin(p / w^(2i/D))`, `PE(p, 2i+1) = cos(p / w^(2i/D))` with `w = max_wavelength`.
    Sines and cosines take turns, as the paper writes them (its authors' code puts all sines
    before all cosines). In an odd depth the last feature is a sine without its cosine. The paper
    multiplies embeddings by `sqrt(D)` before it adds these; that is the caller's to do.

    Args:
        max_wavelength: `w`; the longest wavelength comes near `2 pi w`.

    Call arguments:
        inputs: (B, T, D), or with heads (B, H, T, D).
        start_index: position of the first input, an int or an integer scalar tensor.
        positions: (B, T) or (T,), where each input stands, in place of `start_index` and on.
            Integers; fractions are taken too, in the layer's compute dtype.

    Returns:
        Inputs and encoding added up, of the shape of the inputs. `encoding(inputs,
        start_index=0, positions=None)` gives what is added alone, in the same shape.

    Raises:
        ValueError: in `__init__`, for a wavelength that is none; in `build`, for a wrong rank or
            an unknown width; in the call, for positions of another shape.

    Example:

    >>> import numpy as np
    >>> from keras_attention import SinusoidalPositions
    >>> SinusoidalPositions()(np.zeros((1, 1, 4), "float32")).numpy().tolist()
    [[[0.0, 1.0, 0.0, 1.0]]]

    Reference:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.
    """

    def __init__(self, max_wavelength=10000, **kwargs):
        super().__init__(**kwargs)
        _check_wavelength(max_wavelength)
        self.max_wavelength = max_wavelength

    def encoding(self, inputs, start_index=0, positions=None):
        positions = self._positions(inputs, start_index, positions)
        width = inputs.shape[-1]
        angles = _angles(positions, width, self.max_wavelength, wide_dtype(self.compute_dtype))
        even = ops.convert_to_tensor([i % 2 == 0 for i in range(width)])
        encoding = ops.where(even, ops.sin(angles), ops.cos(angles))  # (..., T, D)
        return _spread(ops.cast(encoding, self.compute_dtype), inputs)

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}


@register
class LearnedPositions(_AddedPositions):
    """Adds a learned vector for each position.

    Args:
        max_length: number of positions that have a vector. A sequence that is known to go
            beyond is refused; where the length or `start_index` is only known when a graph
            runs, later positions get the last vector.
        embeddings_initializer: of the vectors.
        embeddings_regularizer: of the vectors.
        embeddings_constraint: of the vectors.

    Call arguments:
        inputs: (B, T, D), or with heads (B, H, T, D).
        start_index: position of the first input, an int or an integer scalar tensor.
        positions: integers (B, T) or (T,), where each input stands, in place of `start_index`
            and on; beyond either end the vector at that end is used.

    Returns:
        Inputs and vectors added up, of the shape of the inputs. `encoding(inputs, start_index=0,
        positions=None)` gives what is added alone, in the same shape.

    Raises:
        ValueError: in `__init__`, when `max_length` is not a positive int; in `build`, for a
            wrong rank or an unknown width; in the call, for positions of another shape or a
            sequence that is too long.

    Example:

    >>> import keras
    >>> from keras_attention import LearnedPositions
    >>> model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(100, 16)])
    >>> model.add(LearnedPositions(max_length=50))
    >>> model.output_shape
    (None, None, 16)

    Reference:
        Gehring et al., "Convolutional Sequence to Sequence Learning", ICML 2017, section 3.1;
        Vaswani et al., NeurIPS 2017, table 3 row (E).
    """

    def __init__(
        self,
        max_length,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not is_width(max_length):
            raise ValueError(
                f"max_length must be a positive int. Received: max_length={max_length!r}"
            )
        self.max_length = max_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.embeddings = None

    def build(self, inputs_shape, positions_shape=None):
        super().build(inputs_shape, positions_shape)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, inputs_shape[-1]),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )

    def encoding(self, inputs, start_index=0, positions=None):
        length = inputs.shape[-2]
        known = positions is None and isinstance(start_index, int) and length is not None
        if known and start_index + length > self.max_length:
            raise ValueError(
                f"the inputs reach beyond the {self.max_length} positions that are learned. "
                f"Received: start_index={start_index}, inputs.shape={tuple(inputs.shape)}"
            )
        positions = ops.cast(self._positions(inputs, start_index, positions), "int32")
        positions = within(positions, self.max_length)
        encoding = ops.take(self.embeddings, positions, axis=0)  # (..., T, D)
        return _spread(ops.cast(encoding, self.compute_dtype), inputs)

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
        }


@register
class RotaryPositions(PositionLayer):
    """Turns each pair of features by an angle that grows with the position.

    `(x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i+1 cos a + x_2i sin a)` with
    `a = p / w^(2i/D)`, `w = max_wavelength`. Of a query and a key that are both turned, the dot
    product depends on their distance alone, so it belongs on queries and keys:
    `SelfAttention(positions=RotaryPositions())`.

    Pairs are neighbours, 2i and 2i + 1, as in the paper. GPT-NeoX, LLaMA and
    `keras_hub.layers.RotaryEmbedding` pair feature i with i + D/2: the same after a fixed
    reordering of the features, which a projection before it can hold in its columns.

    Args:
        max_wavelength: `w`; the slowest pair has a wavelength near `2 pi w`.

    Call arguments:
        inputs: (B, T, D), or with heads (B, H, T, D), D even.
        start_index: position of the first input, an int or an integer scalar tensor.
        positions: (B, T) or (T,), where each input stands, in place of `start_index` and on.
            Integers; fractions are taken too, in the layer's compute dtype.

    Returns:
        The turned inputs, of the shape of the inputs; turned in float32 or wider.

    Raises:
        ValueError: in `__init__`, for a wavelength that is none; in `build`, for a wrong rank or
            an odd or unknown width; in the call, for positions of another shape.

    Example:

    >>> import numpy as np
    >>> from keras_attention import RotaryPositions
    >>> x = np.array([[[1.0, 0.0], [1.0, 0.0]]], "float32")
    >>> RotaryPositions()(x).numpy().round(3).tolist()[0]  # cos 1 and sin 1
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]

    Reference:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        equations 15 and 34.
    """

    def __init__(self, max_wavelength=10000, **kwargs):
        super().__init__(**kwargs)
        _check_wavelength(max_wavelength)
        self.max_wavelength = max_wavelength

    def build(self, inputs_shape, positions_shape=None):
        super().build(inputs_shape, positions_shape)
        if inputs_shape[-1] % 2:
            raise ValueError(
                "RotaryPositions turns pairs of features, so it needs an even width. "
                f"Received: inputs_shape={tuple(inputs_shape)}"
            )

    def call(self, inputs, start_index=0, positions=None):
        positions = self._positions(inputs, start_index, positions)
        x = widen(inputs)
        width = x.shape[-1]
        angles = _angles(positions, width, self.max_wavelength, x.dtype)  # (..., T, D)
        partners = [i + 1 if i % 2 == 0 else i - 1 for i in range(width)]
        signs = [-1.0, 1.0] * (width // 2)
        across = ops.take(x, partners, axis=-1) * ops.convert_to_tensor(signs, dtype=x.dtype)
        cosines, sines = _spread(ops.cos(angles), x), _spread(ops.sin(angles), x)
        return ops.cast(x * cosines + across * sines, self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}


def within(positions, length):
    """Positions moved to the nearest of `0 ... length - 1`.

    Not by `ops.clip`: integers clipped to 0 ... 6 become a ReLU6 on the way to TFLite, which has
    none for integers.
    """
    last = length - 1
    positions = ops.where(positions > last, last, positions)
    return ops.where(positions < 0, 0, positions)
