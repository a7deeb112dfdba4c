"""What a layer can be told of its kernels."""

import keras

from .scores import fresh


class KernelLayer(keras.layers.Layer):
    """Base of layers with kernels: holds what Keras lets one say of a kernel.

    Args:
        use_bias: whether the dense layers and cells inside add a bias.
        kernel_initializer: of every kernel.
        kernel_regularizer: of every kernel.
        kernel_constraint: of every kernel.
    """

    def __init__(
        self,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def kernel_arguments(self):
        """What this layer was told, for a layer inside it; the initializer is a fresh copy."""
        return {
            "use_bias": self.use_bias,
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

    def add_dense(self, name, input_width, units):
        """A dense layer that is built."""
        dense = keras.layers.Dense(units, name=name, **self.kernel_arguments())
        dense.build((None, input_width))
        return dense

    def get_config(self):
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
        }
