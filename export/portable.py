"""A model whose recurrent layers run in a loop that every target can hold.

The loop of `keras.layers.RNN` becomes TensorList operators, which TFLite's built-in set supports
only when the batch size is fixed. `portable` puts the same cells into the loop that this library
exports its own layers with, so a user's `keras.layers.GRU` leaves at any batch size and length.
"""

import inspect

import keras
from keras import ops, tree

from keras_attention import AttentionEnsemble, HierarchicalAttention, causal_mask
from keras_attention.extraction import is_graph
from keras_attention.loops import run_steps

RECURRENT = (keras.layers.RNN, keras.layers.GRU, keras.layers.LSTM, keras.layers.SimpleRNN)
RECURRENT_AND_WRAPPERS = (
    keras.layers.RNN,
    keras.layers.Bidirectional,
    keras.layers.TimeDistributed,
)
ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
REPLACED = (*RECURRENT_AND_WRAPPERS, *ATTENTION)


class _PortableRNN(keras.layers.RNN):
    """An RNN layer's cell, and with it its weights, in the loop of `run_steps`; inference only."""

    def __init__(self, layer):
        super().__init__(
            layer.cell,
            return_sequences=layer.return_sequences,
            return_state=layer.return_state,
            go_backwards=layer.go_backwards,
            zero_output_for_mask=layer.zero_output_for_mask,
            name=layer.name,
            dtype=layer.dtype_policy,
        )

    # Without a `training` argument: Keras draws dropout masks for a cell before the loop even when
    # they are not used, and the state of that generator would be written to in the artifact.
    def call(self, sequences, initial_state=None, mask=None):
        if len(sequences.shape) != 3:
            raise ValueError(
                f"layer {self.name!r} cannot be exported: only inputs (batch, time, width) can. "
                f"Received: inputs of shape {tuple(sequences.shape)}"
            )
        states = self._states(sequences, initial_state)
        structure = tree.map_structure(lambda _: None, states)
        states = tuple(tree.flatten(states))
        inputs = (sequences,)
        if mask is not None:
            mask = ops.cast(tree.flatten(mask)[0], sequences.dtype)
            inputs += (ops.expand_dims(mask, -1) if len(mask.shape) == 2 else mask,)
            # The output to hold while steps are masked; where those give zeros it is not needed.
            shape = self.compute_output_shape(tuple(sequences.shape))
            width = tree.flatten(shape[0] if self.return_state else shape)[-1]
            held = ops.zeros((ops.shape(sequences)[0], width), dtype=self.cell.compute_dtype)
            states = (held, *states)
        if self.go_backwards:
            inputs = tuple(ops.flip(x, axis=1) for x in inputs)

        def step(inputs, states):
            if mask is None:
                output, states = self.cell(inputs[0], _pack(structure, states))
                return (output,), tuple(tree.flatten(states))
            sequence, keep = inputs
            keep = keep > 0.5
            held, *states = states
            output, new_states = self.cell(sequence, _pack(structure, states))
            instead = ops.zeros_like(held) if self.zero_output_for_mask else held
            output = ops.where(keep, output, instead)
            new_states = tree.flatten(new_states)
            new_states = [ops.where(keep, n, s) for n, s in zip(new_states, states, strict=True)]
            return (output,), (output, *new_states)

        (outputs,), states = run_steps(step, inputs, states)
        states = states if mask is None else states[1:]
        output = outputs if self.return_sequences else outputs[:, -1]
        output = ops.cast(output, self.compute_dtype)
        if not self.return_state:
            return output
        states = [ops.cast(state, self.compute_dtype) for state in states]
        return (output, *_pack(structure, states))

    def _states(self, sequences, initial_state):
        if initial_state is None:
            initial_state = self.get_initial_state(batch_size=ops.shape(sequences)[0])
        if not tree.is_nested(initial_state):
            initial_state = [initial_state]
        return tree.map_structure(
            lambda x: ops.convert_to_tensor(x, dtype=self.cell.compute_dtype), list(initial_state)
        )


def _pack(structure, flat):
    return tree.pack_sequence_as(structure, list(flat))


class _PortableBidirectional(keras.layers.Bidirectional):
    """Bidirectional over two layers that exist; Keras's own makes new ones from their configs."""

    def __init__(self, layer, forward_layer, backward_layer):
        keras.layers.Layer.__init__(self, name=layer.name, dtype=layer.dtype_policy)
        self.forward_layer = forward_layer
        self.backward_layer = backward_layer
        self.merge_mode = layer.merge_mode
        self.stateful = False
        self.return_sequences = layer.return_sequences
        self.return_state = layer.return_state
        self.supports_masking = True
        self.input_spec = None


class _PortableTimeDistributed(keras.layers.TimeDistributed):
    """The layer applied once to all time steps: (B, T, ...) read as (B*T, ...)."""

    def call(self, inputs, mask=None):
        shape = ops.shape(inputs)
        flat = ops.reshape(inputs, (-1, *shape[2:]))
        arguments = {}
        if mask is not None and "mask" in inspect.signature(self.layer.call).parameters:
            arguments["mask"] = ops.reshape(mask, (-1, *ops.shape(mask)[2:]))
        outputs = self.layer(flat, **arguments)
        return ops.reshape(outputs, (*shape[:2], *ops.shape(outputs)[1:]))


class _PortableEnsemble(AttentionEnsemble):
    """An ensemble around another encoder, with the weights of the one that exists."""

    def __init__(self, layer, encoder):
        super().__init__(
            layer.units, layer.normalizer, encoder, name=layer.name, dtype=layer.dtype_policy
        )
        self._widths = layer._widths
        self._projections, self._score = layer._projections, layer._score

    def build(self, inputs_shape):
        self.built = True


class _PortableAttention(keras.layers.Layer):
    """An attention layer that is given its causal mask.

    The one that `keras.ops.dot_product_attention` makes by itself needs an operator that is not
    built into TFLite where lengths are unknown.
    """

    def __init__(self, layer):
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        self.layer = layer
        self.supports_masking = True

    def build(self, *shapes, **named_shapes):
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        if use_causal_mask:
            mask = ops.expand_dims(causal_mask(ops.shape(query)[1], ops.shape(value)[1]), 0)
            if attention_mask is not None:
                mask = ops.logical_and(mask, ops.cast(attention_mask, "bool"))
            attention_mask = mask
        return self.layer(
            query,
            value,
            key=key,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
        )


def portable(model: keras.Model, *, strict: bool | None = None) -> keras.Model:
    """The model with Keras's recurrent layers in a loop that converts at any batch and length.

    `RNN`, `GRU`, `LSTM`, `SimpleRNN`, `Bidirectional` of them and `TimeDistributed` are replaced,
    in nested models too; `MultiHeadAttention` and `GroupQueryAttention` are given their causal
    masks in a form that converts. The replacements hold the same variables as `model`, every other
    layer is the same object, and the outputs are equal. The copy is for inference: it has no
    dropout. The loop takes its exported form inside `keras_attention.exporting(...)`.

    Args:
        model: a built functional or Sequential model.
        strict: whether a recurrent layer that cannot be replaced is refused. None: unless all
            inputs have a fixed batch size, for which Keras's own loop converts to TFLite, too.

    Returns:
        A functional model over the same weights; `model` itself where nothing had to be replaced.

    Raises:
        ValueError: for a recurrent layer that cannot be replaced, by its path: one with
            `stateful=True`, one that overrides `call`, one inside a subclassed model or a custom
            layer. Also for a model that is subclassed itself or not built.

    Example:

    >>> import keras
    >>> from keras_attention.export.portable import portable
    >>> inputs = keras.Input((None, 4))
    >>> model = keras.Model(inputs, keras.layers.GRU(3)(inputs))
    >>> portable(model).output_shape
    (None, 3)
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"a keras.Model is needed. Received: model={model!r}")
    if not is_graph(model):
        raise ValueError(
            f"model {model.name!r} is subclassed, so the layers inside its call cannot be seen: "
            "give named functions over it instead, {name: (callable, {argument: InputSpec})}, "
            "with a fixed batch size if it holds recurrent layers of Keras"
        )
    if strict is None:
        strict = any(tensor.shape[0] is None for tensor in model.inputs)
    return _Replacing(strict)(model, model.name)


class _Replacing:
    """What stands for each layer in a copy; the same one for every use of a layer."""

    def __init__(self, strict):
        self._strict = strict
        self._done = {}

    def __call__(self, layer, path):
        if id(layer) not in self._done:
            self._done[id(layer)] = self._replacement(layer, path)
        return self._done[id(layer)]

    def _replacement(self, layer, path):
        if isinstance(layer, keras.layers.Bidirectional):
            parts = (layer.forward_layer, layer.backward_layer)
            copies = [self(child, f"{path}/{child.name}") for child in parts]
            changed = any(copy is not child for copy, child in zip(copies, parts, strict=True))
            return _PortableBidirectional(layer, *copies) if changed else layer
        if isinstance(layer, keras.layers.RNN):
            return self._recurrent(layer, path)
        if isinstance(layer, keras.layers.TimeDistributed):
            child = self(layer.layer, f"{path}/{layer.layer.name}")
            return _PortableTimeDistributed(child, name=layer.name, dtype=layer.dtype_policy)
        if isinstance(layer, ATTENTION):
            return _PortableAttention(layer)
        if not _contains(layer, REPLACED if is_graph(layer) else RECURRENT_AND_WRAPPERS):
            return layer
        if isinstance(layer, HierarchicalAttention):
            return self._hierarchical(layer, path)
        if isinstance(layer, AttentionEnsemble):
            encoder = self(layer.encoder, f"{path}/{layer.encoder.name}")
            return _PortableEnsemble(layer, encoder)
        return self._graph(layer, path) if is_graph(layer) else self._opaque(layer, path)

    def _recurrent(self, layer, path):
        if layer.stateful:
            raise ValueError(
                f"{path} cannot be exported: stateful=True keeps its state in a variable. Build it "
                "with stateful=False and pass initial_state, or return the state and feed it back"
            )
        if type(layer).call in {kind.call for kind in RECURRENT}:
            return _PortableRNN(layer)
        if self._strict:
            raise ValueError(
                f"{path} cannot be exported: {type(layer).__name__} has a call of its own; GRU, "
                "LSTM, SimpleRNN and RNN(cell) can be, and others with a fixed batch size"
            )
        return layer

    def _opaque(self, layer, path):
        if self._strict:
            inner = next(
                p
                for p, child in _descendants(layer, path)
                if isinstance(child, RECURRENT_AND_WRAPPERS)
            )
            raise ValueError(
                f"{inner} cannot be exported: it is called inside {path!r} "
                f"({type(layer).__name__}), where it cannot be replaced. Build that part with the "
                "functional API, or give the inputs a fixed batch size"
            )
        return layer

    def _hierarchical(self, layer, path):
        """One around the replaced parts: it has no weights but theirs."""
        places = (
            "word_encoder", "word_pooling", "sentence_encoder", "sentence_pooling", "top_down",
        )  # fmt: skip
        parts = {place: getattr(layer, place) for place in places}
        parts = {
            place: self(part, f"{path}/{part.name}")
            for place, part in parts.items()
            if part is not None
        }
        return HierarchicalAttention(**parts, name=layer.name, dtype=layer.dtype_policy)

    def _graph(self, model, path):
        # A bare model over the same graph: cloning a compiled one would also rebuild its losses.
        if isinstance(model, keras.Sequential):
            bare = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
        else:
            bare = keras.Model(model.input, model.output, name=model.name)

        def clone(operation):
            if not isinstance(operation, keras.layers.Layer):
                return operation
            return self(operation, f"{path}/{operation.name}")

        copy = keras.models.clone_model(bare, clone_function=clone)
        copy.supports_masking = model.supports_masking
        return copy


def _contains(layer, kinds):
    return any(isinstance(child, kinds) for _, child in _descendants(layer, layer.name))


def _descendants(layer, path):
    for child in layer._flatten_layers(include_self=False, recursive=False):
        below = f"{path}/{child.name}"
        yield below, child
        yield from _descendants(child, below)
