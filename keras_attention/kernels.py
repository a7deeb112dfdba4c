"""What a layer can be told of its kernels."""

import keras
from keras import ops

from .normalizers import wide_dtype


def fresh(initializer):
    """A copy of an initializer: one of Keras's gives the same numbers whenever it is called."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer  # a plain function holds no state


def widely(initializer):
    """The initializer drawing in float32 or wider: Keras's orthogonal one has no bfloat16."""

    def initialize(shape, dtype):
        return ops.cast(initializer(shape, dtype=wide_dtype(dtype)), dtype)

    return initialize


class Kernels:
    """Of a layer with kernels: holds what Keras lets one say of a kernel.

    Stands before the layer in the bases of a class.

    Args:
        kernel_initializer: of every kernel.
        kernel_regularizer: of every kernel.
        kernel_constraint: of every kernel.
    """

    def __init__(
        self,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def kernel_arguments(self):
        """What this layer was told, for a layer inside it; the initializer is a fresh copy."""
        return {
            "kernel_initializer": fresh(self.kernel_initializer),
            "kernel_regularizer": self.kernel_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "dtype": self.dtype_policy,
        }

    def add_kernel(self, name, shape):
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=fresh(self.kernel_initializer),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def add_dense(self, name, input_width, units, **kwargs):
        """A dense layer that is built, without a bias where nothing is said of one."""
        arguments = {"use_bias": False, **self.kernel_arguments(), **kwargs}
        dense = keras.layers.Dense(units, name=name, **arguments)
        dense.build((None, input_width))
        return dense

    def get_config(self):
        return {
            **super().get_config(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
        }


def project(dense, x):
    """`dense(x)` for x (..., D), as a product of two matrices.

    Keras takes tensors of more axes through `tensordot`, whose gradient XLA does not compile in a
    loop over batches of unknown size, and the scores of a decoder stand in one.
    """
    *outer, width = ops.shape(x)
    return ops.reshape(dense(ops.reshape(x, (-1, width))), (*outer, dense.units))


class KernelLayer(Kernels, keras.layers.Layer):
    """Base of layers with kernels that can be told of biases, too.

    Args:
        use_bias: whether the dense layers and cells inside add a bias.
        **kwargs: see `Kernels`.
    """

    def __init__(self, use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.use_bias = use_bias

    def kernel_arguments(self):
        return {"use_bias": self.use_bias, **super().kernel_arguments()}

    def get_config(self):
        return {**super().get_config(), "use_bias": self.use_bias}
