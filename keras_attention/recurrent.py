"""A recurrent decoder that looks at a memory in every step."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import attend, read
from .kernels import KernelLayer, fresh, widely
from .loops import run_steps
from .scores import is_width
from .shapes import check_batches, check_built, check_mask, check_shapes

_CELLS = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
_STATES = {"gru": 1, "lstm": 2}
_QUERIES = ("previous", "current")


@keras.saving.register_keras_serializable("keras_attention")
class AttentionDecoder(KernelLayer):
    """A recurrent network whose every step reads a memory by attention.

    With `query="previous"` (Bahdanau) the last state asks before the cell moves on:

        a_t = normalizer(score(h_{t-1}, m))     c_t = sum_s a_ts m_s
        h_t = cell([x_t; c_t], h_{t-1})         o_t = tanh(W [x_t; c_t; h_t] + b)

    With `query="current"` (Luong) the new state asks, and what comes out is Luong's attentional
    vector:

        h_t = cell(x_t, h_{t-1})
        a_t = normalizer(score(h_t, m))         c_t = sum_s a_ts m_s
        o_t = tanh(W [c_t; h_t] + b)

    With `input_feeding` the cell reads `[...; o_{t-1}]`, so that it knows what was attended to.
    Further layers of cells stand above the first; the top one is `h_t`.

    Nothing is stored between calls: the memory, its mask and the states are arguments, and
    `step` is the same function that the whole pass repeats, so that search and export run what
    was trained.

    Args:
        units: width U of the states and of what comes out.
        score: a name or a `Score`; see `Attention`.
        normalizer: a name or a callable; see `Attention`.
        query: `"previous"` or `"current"`.
        cell: `"gru"` or `"lstm"`.
        num_layers: how many cells stand above one another.
        input_feeding: whether the last output is part of the next input.
        dropout: fraction of the output dropped in training, before it is fed back. The mask of
            each step is drawn before the loop.
        kernel_initializer: of the input kernels of the cells, the readout and the bridge.
        recurrent_initializer: of the recurrent kernels.
        kernel_regularizer: of the kernels that `kernel_initializer` names.
        kernel_constraint: of the kernels that `kernel_initializer` names.
        use_bias: whether cells, readout and bridge add a bias.
        seed: of the dropout.

    Call arguments:
        inputs: what is fed in, one vector a step (B, T, E): in training the embedded target, moved
            by one.
        memory: what is read, (B, S, Dm).
        encoder_state: (B, De), made the first state of each layer by a learned bridge,
            `tanh(W e + b)`; zeros where neither this nor `initial_state` is given.
        initial_state: the states to go on from, as a call or `step` returned them.
        inputs_mask: boolean (B, T). A masked step leaves the states as they are and gives zeros.
        memory_mask: boolean (B, S), True = may be read.
        return_attention_scores: whether to return the weights too.
        training: whether to drop.

    Returns:
        `(outputs, states)`, or with `return_attention_scores` `(outputs, states, weights)`:
        outputs (B, T, U), weights (B, T, S), and the states after the last step as a tuple of
        (B, U) tensors, bottom layer first (LSTM: hidden and cell), then, with input feeding, the
        last output.

    Raises:
        ValueError: in `__init__`, for an unknown name or a width that is none; in `build`, for a
            wrong rank or an unknown width; in the call, for a mask of the wrong rank or length,
            a wrong number of states, or a normalizer that draws, in training: nothing may be
            drawn in a loop. A loop of one's own around `step` trains it.

    Example:

    >>> import numpy as np
    >>> from keras_attention import AttentionDecoder
    >>> decoder = AttentionDecoder(8, score="bilinear", query="current")
    >>> inputs, memory = np.ones((2, 3, 4), "float32"), np.ones((2, 5, 7), "float32")
    >>> outputs, states, weights = decoder(inputs, memory, return_attention_scores=True)
    >>> outputs.shape.as_list(), weights.shape.as_list()
    ([2, 3, 8], [2, 3, 5])

    Reference:
        Bahdanau, Cho, Bengio, ICLR 2015, section 3.1 and appendix A.2.2: our readout is one tanh
        layer over input, context and new state in place of the maxout over input, context and
        previous state. Luong, Pham, Manning, EMNLP 2015, equation 5 and section 3.3.
    """

    def __init__(
        self,
        units,
        score="additive",
        normalizer="softmax",
        query="previous",
        cell="gru",
        num_layers=1,
        input_feeding=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        kernel_regularizer=None,
        kernel_constraint=None,
        use_bias=True,
        seed=None,
        **kwargs,
    ):
        super().__init__(
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            **kwargs,
        )
        for name, number in (("units", units), ("num_layers", num_layers)):
            if not is_width(number):
                raise ValueError(f"{name} must be a positive int. Received: {name}={number!r}")
        for name, value, known in (("query", query, _QUERIES), ("cell", cell, tuple(_CELLS))):
            if value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}. Received: {name}={value!r}"
                )
        self.units = units
        self.score = scores.pair_score(score, self.dtype_policy)
        self.normalizer = normalizers.get(normalizer)
        self.query = query
        self.cell = cell
        self.num_layers = num_layers
        self.input_feeding = input_feeding
        self.dropout = dropout
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.seed = seed

        self._widths = None  # of the inputs; known when built
        self._cells = [
            _CELLS[cell](
                units,
                recurrent_initializer=widely(fresh(self.recurrent_initializer)),
                name=f"cell_{i}",
                **self.kernel_arguments(),
            )
            for i in range(num_layers)
        ]
        self._readout = keras.layers.Dense(
            units, activation="tanh", name="readout", **self.kernel_arguments()
        )
        self._bridges = [
            keras.layers.Dense(
                units, activation="tanh", name=f"bridge_{i}", **self.kernel_arguments()
            )
            for i in range(num_layers * _STATES[cell])
        ]
        self._dropout = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape, memory_shape, encoder_state_shape=None, initial_state_shape=None):
        shapes = {"inputs": (inputs_shape, (3,)), "memory": (memory_shape, (3,))}
        if encoder_state_shape is not None:
            shapes["encoder_state"] = (encoder_state_shape, (2,))
        check_shapes(shapes)
        self._widths = {name: shape[-1] for name, (shape, _) in shapes.items()}
        inputs_width, memory_width = inputs_shape[-1], memory_shape[-1]
        self.score.build((None, 1, self.units), (None, None, memory_width))
        fed = self.units if self.input_feeding else 0
        context = memory_width if self.query == "previous" else 0
        width = inputs_width + context + fed
        for cell in self._cells:
            cell.build((None, width))
            width = self.units
        read_out = inputs_width if self.query == "previous" else 0
        self._readout.build((None, read_out + memory_width + self.units))
        if encoder_state_shape is not None:
            for bridge in self._bridges:
                bridge.build((None, encoder_state_shape[-1]))
        self.built = True

    def initial_state(self, batch_size=None, encoder_state=None):
        """The states before the first step, as a tuple of (B, U) tensors.

        Args:
            batch_size: number of rows of zeros, where there is no encoder state.
            encoder_state: (B, De), sent through the learned bridge.

        Raises:
            ValueError: when neither is given.
        """
        if batch_size is None and encoder_state is None:
            raise ValueError(
                "initial_state needs a batch_size or an encoder_state. "
                "Received: batch_size=None, encoder_state=None"
            )
        if encoder_state is not None:
            check_built(self, "initial_state of an encoder_state")
            states = [self._computed(bridge(encoder_state)) for bridge in self._bridges]
            batch_size = ops.shape(encoder_state)[0]
        else:
            states = [self._zeros(batch_size) for _ in self._bridges]
        if self.input_feeding:
            states.append(self._zeros(batch_size))
        return tuple(states)

    def _computed(self, x):
        # Keras's tanh makes float64 float32 on JAX, and what a loop carries must keep its type.
        return ops.cast(x, self.compute_dtype)

    def _zeros(self, batch_size):
        return ops.zeros((batch_size, self.units), dtype=self.compute_dtype)

    def prepare_memory(self, memory, memory_mask=None):
        """What every step reads of a memory, computed once: `(values, keys)`.

        Args:
            memory: (B, S, Dm).
            memory_mask: boolean (B, S).

        Returns:
            The memory with masked rows selected to 0, (B, S, Dm), and its projected keys.
        """
        check_built(self, "prepare_memory")
        if memory_mask is not None:
            memory = masking.select(memory, ops.cast(memory_mask, "bool"))
        return memory, self.score.project_key(memory)

    def step(self, inputs, states, values, keys, memory_mask=None, *, noise=None, training=None):
        """One step.

        Args:
            inputs: (B, E).
            states: as `initial_state` or the step before returned them.
            values: (B, S, Dm), from `prepare_memory`.
            keys: (B, S, ...), from `prepare_memory`.
            memory_mask: boolean (B, S).
            noise: (B, U), multiplies the output: the dropout of a training pass.
            training: handed on to the normalizer.

        Returns:
            `(output (B, U), states, weights (B, S))`.
        """
        count = len(self._bridges)
        states, fed = tuple(states[:count]), tuple(states[count:])
        if self.query == "previous":
            context, weights = self._look(states, values, keys, memory_mask, training)
            states = self._move((inputs, context, *fed), states)
            readable = (inputs, context, self._top(states))
        else:
            states = self._move((inputs, *fed), states)
            context, weights = self._look(states, values, keys, memory_mask, training)
            readable = (context, self._top(states))
        output = self._computed(self._readout(ops.concatenate(readable, axis=-1)))
        if noise is not None:
            output = output * noise
        return output, (*states, output) if self.input_feeding else states, weights

    def _top(self, states):
        """The hidden state of the top layer; of an LSTM its cell state stands behind it."""
        return states[-_STATES[self.cell]]

    def _look(self, states, values, keys, memory_mask, training):
        query = ops.expand_dims(self._top(states), 1)  # (B, 1, U)
        mask = masking.over_keys(memory_mask)  # (B, 1, S)
        weights = attend(self.score, self.normalizer, query, keys, mask, training)  # (B, 1, S)
        context = ops.squeeze(read(weights, values), 1)  # (B, Dm)
        return context, ops.cast(ops.squeeze(weights, 1), self.compute_dtype)

    def _move(self, inputs, states):
        """Run the cells, bottom first."""
        count = _STATES[self.cell]
        # A copy has no mask; of that of an embedding, which comes with its output, cells warn.
        output = ops.copy(inputs[0]) if len(inputs) == 1 else ops.concatenate(inputs, axis=-1)
        moved = []
        for i, cell in enumerate(self._cells):
            output, new = cell(output, list(states[i * count : (i + 1) * count]))
            moved.extend(new)
        return tuple(moved)

    def call(
        self,
        inputs,
        memory,
        encoder_state=None,
        initial_state=None,
        inputs_mask=None,
        memory_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        if training and getattr(self.normalizer, "random", False):
            raise ValueError(
                "a normalizer that draws cannot do so in the loop over the steps; to train it, "
                "call `step` in a loop of your own. "
                f"Received: normalizer={self.normalizer.name!r}, training={training}"
            )
        shapes = {"inputs": inputs.shape, "memory": memory.shape}
        check_shapes({name: (shape, (3,)) for name, shape in shapes.items()}, self._widths)
        if encoder_state is not None:
            if "encoder_state" not in self._widths:
                raise ValueError(
                    "the decoder was built without an encoder_state, so it has no bridge. "
                    f"Received: encoder_state.shape={tuple(encoder_state.shape)}"
                )
            shapes["encoder_state"] = encoder_state.shape
            check_shapes({"encoder_state": (encoder_state.shape, (2,))}, self._widths)
        check_batches(**shapes)
        check_mask("inputs_mask", inputs_mask, inputs.shape[:2])
        check_mask("memory_mask", memory_mask, memory.shape[:2])
        if inputs_mask is not None:
            inputs = masking.select(inputs, ops.cast(inputs_mask, "bool"))
        if memory_mask is not None:
            memory_mask = ops.cast(memory_mask, "bool")
        values, keys = self.prepare_memory(memory, memory_mask)
        if initial_state is None:
            initial_state = self.initial_state(ops.shape(inputs)[0], encoder_state)
        elif len(initial_state) != (wanted := len(self._bridges) + bool(self.input_feeding)):
            raise ValueError(
                f"initial_state must be {wanted} tensors (batch, units). "
                f"Received: {len(initial_state)} tensors"
            )

        sequences = {"inputs": inputs}
        if self.dropout and training:
            ones = ops.ones((*ops.shape(inputs)[:2], self.units), dtype=self.compute_dtype)
            sequences["noise"] = self._dropout(ones, training=True)
        if inputs_mask is not None:
            real = masking.over_queries(ops.cast(inputs_mask, self.compute_dtype))
            sequences["real"] = real  # (B, T, 1)

        def step(row, states):
            row = dict(zip(sequences, row, strict=True))
            output, next_states, weights = self.step(
                row["inputs"],
                states,
                values,
                keys,
                memory_mask,
                noise=row.get("noise"),
                training=training,
            )
            if "real" in row:
                real = row["real"] > 0
                next_states = tuple(
                    ops.where(real, new, old) for new, old in zip(next_states, states, strict=True)
                )
                output, weights = ops.where(real, output, 0.0), ops.where(real, weights, 0.0)
            # Weights that nobody asked for would only be carried through the loop.
            return ((output, weights) if return_attention_scores else (output,)), next_states

        results, states = run_steps(
            step, sequences.values(), initial_state, width=ops.shape(memory)[1]
        )
        return (results[0], states, results[1]) if return_attention_scores else (results[0], states)

    def compute_output_spec(self, inputs, memory, *args, return_attention_scores=False, **kwargs):
        batch, length = inputs.shape[:2]
        outputs = keras.KerasTensor((batch, length, self.units), self.compute_dtype)
        states = tuple(
            keras.KerasTensor((batch, self.units), self.compute_dtype)
            for _ in range(len(self._bridges) + bool(self.input_feeding))
        )
        weights = keras.KerasTensor((batch, length, memory.shape[1]), self.compute_dtype)
        return (outputs, states, weights) if return_attention_scores else (outputs, states)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "score": keras.saving.serialize_keras_object(self.score),
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "query": self.query,
            "cell": self.cell,
            "num_layers": self.num_layers,
            "input_feeding": self.input_feeding,
            "dropout": self.dropout,
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "seed": self.seed,
        }
