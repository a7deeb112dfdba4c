"""A GRU that is told from outside how much of each step to take in."""

import keras
from keras import ops

from . import masking
from .kernels import KernelLayer, widely
from .loops import run_steps
from .scores import is_width
from .shapes import check_batches, check_mask, check_shapes

# How many update gates the cell has of its own, and what share of the candidate it takes in.
_GATES = {
    "replace": (0, lambda attention: attention),
    "scale": (1, lambda attention, update: attention * (1.0 - update)),
}


@keras.saving.register_keras_serializable("keras_attention")
class AttentionGRU(KernelLayer):
    """A gated recurrent unit whose steps are weighed by attention gates.

    With `gate="replace"` the gate `g_i`, one number a step, stands in the place of the update
    gate:

        r_i = sigma(W_r x_i + U_r h_{i-1} + b_r)
        c_i = tanh(W x_i + r_i * (U h_{i-1} + b'_h) + b_h)
        h_i = g_i c_i + (1 - g_i) h_{i-1}

    With `gate="scale"` (AUGRU) it scales the update gate, which each unit has of its own:

        z_i = sigma(W_z x_i + U_z h_{i-1} + b_z)
        u_i = g_i (1 - z_i)
        h_i = u_i * c_i + (1 - u_i) * h_{i-1}

    `z` is, as in `keras.layers.GRU`, what is kept of the state, so that with gates of 1 and the
    same weights (`set_weights`) the two layers are the same; papers write `1 - z` for the update.
    With `reset_after=False` the reset gate comes before the product: `c_i = tanh(W x_i +
    U (r_i * h_{i-1}) + b_h)`.

    Args:
        units: width U of the state.
        gate: `"replace"` or `"scale"`.
        reset_after: whether the reset gate applies after the product with the recurrent kernel,
            which then has biases of its own.
        return_sequences: whether to return the state after every step, not the last alone.
        return_state: whether to return the last state too.
        activation: of the candidate.
        recurrent_activation: of the reset and the update gate.
        use_bias: whether to add biases.
        kernel_initializer: of the input kernel, [W_z | W_r | W] side by side.
        recurrent_initializer: of the recurrent kernel, [U_z | U_r | U].
        bias_initializer: of the biases.
        kernel_regularizer: of the input kernel.
        recurrent_regularizer: of the recurrent kernel.
        bias_regularizer: of the biases.
        kernel_constraint: of the input kernel.
        recurrent_constraint: of the recurrent kernel.
        bias_constraint: of the biases.

    Call arguments:
        inputs: (B, T, D).
        gates: (B, T), the weights of an attention over the steps for example.
        initial_state: (B, U); zeros when None.
        inputs_mask: boolean (B, T), True = may be read. A masked step leaves the state as it is
            and gives zeros.

    Returns:
        The last state (B, U), or the states after every step (B, T, U); with `return_state` the
        pair of it and the last state.

    Raises:
        ValueError: in `__init__`, for an unknown name or a width that is none; in `build` and in
            the call, for a wrong rank or width, or gates that are not one for each step; in the
            call, for a mask of the wrong rank or length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import AttentionGRU
    >>> facts, gates = np.ones((2, 5, 4), "float32"), np.array([[0.0] * 5, [0.2] * 5], "float32")
    >>> episode = AttentionGRU(8)(facts, gates)
    >>> episode.shape.as_list(), episode[0].numpy().any().item()
    ([2, 8], False)

    Reference:
        Xiong, Merity, Socher, "Dynamic Memory Networks for Visual and Textual Question
        Answering", ICML 2016, equations 2, 3 and 11 ("replace"); Zhou et al., "Deep Interest
        Evolution Network for Click-Through Rate Prediction", AAAI 2019, section 4.3, AUGRU
        ("scale"). Both reset after the product; the bias there, `b'_h`, is Keras's.
    """

    def __init__(
        self,
        units,
        gate="replace",
        reset_after=True,
        return_sequences=False,
        return_state=False,
        activation="tanh",
        recurrent_activation="sigmoid",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        bias_initializer="zeros",
        kernel_regularizer=None,
        recurrent_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        recurrent_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            **kwargs,
        )
        if not is_width(units):
            raise ValueError(f"units must be a positive int. Received: units={units!r}")
        if gate not in _GATES:
            raise ValueError(f"gate must be one of {', '.join(_GATES)}. Received: gate={gate!r}")
        self.units = units
        self.gate = gate
        self.reset_after = reset_after
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.activation = keras.activations.get(activation)
        self.recurrent_activation = keras.activations.get(recurrent_activation)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.recurrent_regularizer = keras.regularizers.get(recurrent_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.recurrent_constraint = keras.constraints.get(recurrent_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

        self._widths = None  # of the inputs; known when built
        self._update_gates, self._share = _GATES[gate]
        self.kernel = None
        self.recurrent_kernel = None
        self.bias = None
        self.supports_masking = True

    def build(self, inputs_shape, gates_shape, initial_state_shape=None):
        check_shapes({"inputs": (inputs_shape, (3,))})
        self._widths = {"inputs": inputs_shape[-1], "initial_state": self.units}
        self._check_shapes(inputs_shape, gates_shape, initial_state_shape)
        columns = (self._update_gates + 2) * self.units  # update gate, reset gate, candidate
        self.kernel = self.add_kernel("kernel", (inputs_shape[-1], columns))
        self.recurrent_kernel = self.add_weight(
            (self.units, columns),
            widely(self.recurrent_initializer),
            regularizer=self.recurrent_regularizer,
            constraint=self.recurrent_constraint,
            name="recurrent_kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                (2, columns) if self.reset_after else (columns,),  # of inputs and of the state
                self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )
        self.built = True

    def _check_shapes(self, inputs_shape, gates_shape, initial_state_shape):
        check_shapes({"inputs": (inputs_shape, (3,))}, self._widths)
        if len(gates_shape) != 2 or len({inputs_shape[1], gates_shape[1]} - {None}) > 1:
            raise ValueError(
                "gates must have shape (batch, length), a number for each step of the inputs. "
                f"Received: gates_shape={tuple(gates_shape)}, inputs_shape={tuple(inputs_shape)}"
            )
        shapes = {"inputs": inputs_shape, "gates": gates_shape}
        if initial_state_shape is not None:
            check_shapes({"initial_state": (initial_state_shape, (2,))}, self._widths)
            shapes["initial_state"] = initial_state_shape
        check_batches(**shapes)

    def call(self, inputs, gates, initial_state=None, inputs_mask=None):
        state_shape = None if initial_state is None else initial_state.shape
        self._check_shapes(inputs.shape, gates.shape, state_shape)
        check_mask("inputs_mask", inputs_mask, inputs.shape[:2])
        gates = ops.cast(ops.expand_dims(gates, -1), self.compute_dtype)  # (B, T, 1)
        if inputs_mask is not None:
            # A gate of 0 leaves the state as it is.
            inputs_mask = ops.cast(inputs_mask, "bool")
            inputs, gates = (masking.select(x, inputs_mask) for x in (inputs, gates))
        if initial_state is None:
            initial_state = ops.zeros((ops.shape(inputs)[0], self.units), self.compute_dtype)
        from_inputs = ops.matmul(inputs, self.kernel)  # (B, T, columns), all steps at once
        if self.use_bias:
            from_inputs = from_inputs + (self.bias[0] if self.reset_after else self.bias)

        (sequence,), (state,) = run_steps(self._step(), (from_inputs, gates), (initial_state,))
        if not self.return_sequences:
            outputs = state
        elif inputs_mask is None:
            outputs = sequence
        else:
            outputs = masking.select(sequence, inputs_mask)
        return (outputs, state) if self.return_state else outputs

    def _step(self):
        """The function of one step: `((B, columns), (B, 1)), ((B, U),)` to the next state."""
        gates_kernel, candidate_kernel = self._apart(self.recurrent_kernel)
        gates_bias = candidate_bias = 0.0
        if self.use_bias and self.reset_after:
            gates_bias, candidate_bias = self._apart(self.bias[1])

        def step(row, states):
            (from_inputs, attention), (state,) = row, states
            for_gates, for_candidate = self._apart(from_inputs)
            gates = self.recurrent_activation(
                for_gates + ops.matmul(state, gates_kernel) + gates_bias
            )
            *update, reset = ops.split(gates, self._update_gates + 1, axis=-1)  # (B, U) each
            if self.reset_after:
                remembered = reset * (ops.matmul(state, candidate_kernel) + candidate_bias)
            else:
                remembered = ops.matmul(reset * state, candidate_kernel)
            share = self._share(attention, *update)
            state = share * self.activation(for_candidate + remembered) + (1.0 - share) * state
            # Keras's tanh makes float64 float32 on JAX, and what a loop carries must keep its type.
            state = ops.cast(state, self.compute_dtype)
            return (state,), (state,)

        return step

    def _apart(self, columns):
        """The columns of the gates and those of the candidate, which stand last."""
        return columns[..., : -self.units], columns[..., -self.units :]

    def compute_output_spec(self, inputs, gates, initial_state=None, inputs_mask=None):
        batch, length = inputs.shape[:2]
        state = keras.KerasTensor((batch, self.units), self.compute_dtype)
        sequence = keras.KerasTensor((batch, length, self.units), self.compute_dtype)
        outputs = sequence if self.return_sequences else state
        return (outputs, state) if self.return_state else outputs

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask if self.return_sequences else None

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "gate": self.gate,
            "reset_after": self.reset_after,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "activation": keras.activations.serialize(self.activation),
            "recurrent_activation": keras.activations.serialize(self.recurrent_activation),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "recurrent_regularizer": keras.regularizers.serialize(self.recurrent_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "recurrent_constraint": keras.constraints.serialize(self.recurrent_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }
