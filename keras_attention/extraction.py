"""Attention weights out of a model that was built without asking for them."""

import inspect
import itertools

import keras
from keras import ops, tree

from .given import takes

ASK = "return_attention_scores"


def attention_model(model: keras.Model) -> keras.Model:
    """The model with the weights of all its attention layers as a further output.

    Works on every layer whose `call` takes `return_attention_scores`, Keras's own included, in
    nested models too. The layers are those of `model`: what is trained or loaded into the one is
    seen by the other. The output is that of `model` itself, to the last bit.

    Args:
        model: a built functional or Sequential model.

    Returns:
        A functional model that gives `(output, weights)`: `weights` is a dict from the name of
        the layer to its weights, or to a tuple of them where the layer gives several. The second
        call of a layer `"name"` stands under `"name_1"`, a layer inside a nested model under
        `"model/name"`. It is for looking at: train `model` itself.

    Raises:
        ValueError: for a model that is subclassed or not built, and for one without any attention
            layer that can be seen. Layers inside a subclassed model, a `TimeDistributed` or a
            custom layer cannot.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_attention import Attention, attention_model
    >>> query, source = keras.Input((3, 8)), keras.Input((5, 8))
    >>> context = Attention("dot", name="reader")(query, source)
    >>> model = keras.Model([query, source], keras.layers.Dense(2)(context))
    >>> inputs = [np.ones((1, 3, 8), "float32"), np.ones((1, 5, 8), "float32")]
    >>> output, weights = attention_model(model)(inputs)
    >>> output.shape.as_list(), weights["reader"].shape.as_list()
    ([1, 3, 2], [1, 3, 5])
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"a keras.Model is needed. Received: model={model!r}")
    if not is_graph(model):
        raise ValueError(
            "the layers inside the call of a subclassed model cannot be seen: build it with the "
            f"functional API. Received: model={model.name!r} of type {type(model).__name__}"
        )
    telling = _Copies().of(model)
    if telling is None:
        names = ", ".join(layer.name for layer in model.layers)
        raise ValueError(
            f"no layer of the model takes {ASK}. Received: model={model.name!r} with the "
            f"layers {names}"
        )
    return telling


class _Copies:
    """What stands for each model and for each attention layer, however often it is used."""

    def __init__(self):
        self._models = {}
        self._layers = {}

    def of(self, model):
        """A functional model that gives `(output, weights)`, or None without any weights."""
        if id(model) not in self._models:
            self._models[id(model)] = self._copy(model)
        return self._models[id(model)]

    def _copy(self, model):
        if isinstance(model, keras.Sequential):
            inputs, outputs = model.inputs[0], model.outputs[0]
        else:
            inputs, outputs = model.input, model.output
        # A bare model over the same graph: cloning a compiled one would rebuild its losses.
        bare = keras.Model(inputs, outputs, name=model.name)
        names, found = _Names(operation.name for operation in bare.operations), {}

        def call(operation, *args, **kwargs):
            nested = is_graph(operation) and self.of(operation)
            if nested:
                outputs, weights = nested(*args, **kwargs)
                name = names.next(operation.name)
                found.update({f"{name}/{inner}": x for inner, x in weights.items()})
                return outputs
            if not _can_be_asked(operation):
                return operation(*args, **kwargs)
            outputs, weights = self._ask(operation, args, kwargs)
            if weights:
                name = names.next(operation.name)
                found[name] = weights[0] if len(weights) == 1 else tuple(weights)
            return outputs

        copy = keras.models.clone_model(
            bare, input_tensors=inputs, clone_function=lambda layer: layer, call_function=call
        )
        if not found:
            return None
        telling = keras.Model(copy.input, (copy.output, found), name=model.name)
        telling.supports_masking = model.supports_masking
        return telling

    def _ask(self, layer, args, kwargs):
        """What a call gives as it was made, and the weights that it gives beside when asked."""
        without = layer.compute_output_spec(*args, **{**kwargs, ASK: False})
        asked = layer.compute_output_spec(*args, **{**kwargs, ASK: True})
        places = _places(asked, without)
        if id(layer) not in self._layers:
            self._layers[id(layer)] = AskedLayer(layer, name=layer.name, dtype=layer.dtype_policy)
        if not args:
            first = next(iter(inspect.signature(layer.call).parameters))
            args = (kwargs[first],)
            kwargs = {name: value for name, value in kwargs.items() if name != first}
        tensors = {name: value for name, value in kwargs.items() if _holds_tensors(value)}
        options = {name: value for name, value in kwargs.items() if name not in tensors}
        results = self._layers[id(layer)](args, tensors=tensors, options=options, places=places)
        weights = [results[i] for i in places]
        if kwargs.get(ASK):
            return tree.pack_sequence_as(asked, results), weights
        others = [x for i, x in enumerate(results) if i not in places]
        return tree.pack_sequence_as(without, others), weights


def _places(asked, without):
    """Where, among all that a layer gives when it is asked, stand the weights."""
    expected = list(without) if isinstance(without, tuple) else [without]
    places, count = [], 0
    for part in asked if isinstance(asked, tuple) else [asked]:
        size = len(tree.flatten(part))
        if expected and _shapes(part) == _shapes(expected[0]):
            expected.pop(0)
        else:
            places.extend(range(count, count + size))
        count += size
    return places


def _shapes(structure):
    return tree.map_structure(lambda x: str(x.shape), structure)


class _Names:
    """The name of a layer for its first call, `name_1` and so on for the next ones."""

    def __init__(self, of_layers):
        self._of_layers = set(of_layers)
        self._used = set()

    def next(self, name):
        numbered = (f"{name}_{i}" for i in itertools.count(1))
        candidates = itertools.chain([name], (x for x in numbered if x not in self._of_layers))
        found = next(x for x in candidates if x not in self._used)
        self._used.add(found)
        return found


def is_graph(layer):
    """Whether its layers are known and called by Keras, not by code of its own."""
    if not isinstance(layer, keras.Sequential | keras.Function):
        return False
    if not layer.built:
        raise ValueError(
            "the model is not built: call it once, or give it an Input, first. "
            f"Received: model={layer.name!r}"
        )
    return type(layer).call.__module__.split(".")[0] == "keras"


def _can_be_asked(operation):
    return isinstance(operation, keras.layers.Layer) and takes(operation, ASK)


def _holds_tensors(value):
    return any(hasattr(x, "shape") for x in tree.flatten(value))


@keras.saving.register_keras_serializable("keras_attention")
class AskedLayer(keras.layers.Wrapper):
    """A layer that is asked for its attention weights: all that it gives then, flat.

    A layer of its own and not a call of the one it holds, because Keras takes every call of a
    layer to have as many outputs as its first.

    Args:
        layer: whose `call` takes `return_attention_scores`.

    Call arguments:
        inputs: the positional arguments, a tuple.
        tensors: the other arguments that hold tensors, a dict.
        options: the arguments that do not, a dict.
        places: where among the results the weights stand.
    """

    def __init__(self, layer, **kwargs):
        super().__init__(layer, **kwargs)
        self._copy = _CopyWithMask(name="copy")
        self.supports_masking = layer.supports_masking

    def call(self, inputs, tensors, options, places):
        given = {**tensors, **options}
        if given.get(ASK) or _keeps_its_output(self.layer):
            return tree.flatten(self.layer(*inputs, **{**given, ASK: True}))
        # Keras's own attention computes in another way when it is asked, and takes the masks off
        # the tensors it is given: it is called as it was, and asked over copies with their masks.
        copies = tree.map_structure(self._copy, inputs)
        outputs = iter(tree.flatten(self.layer(*inputs, **given)))
        asked = tree.flatten(self.layer(*copies, **{**given, ASK: True}))
        return [x if i in places else next(outputs) for i, x in enumerate(asked)]

    def compute_output_spec(self, inputs, tensors, options, places):
        given = {**tensors, **options, ASK: True}
        return tree.flatten(self.layer.compute_output_spec(*inputs, **given))

    def compute_mask(self, inputs, previous_mask=None):
        return self.layer.compute_mask(inputs[0], previous_mask and previous_mask[0])


def _keeps_its_output(layer):
    """Whether asking never changes the output: a promise of every layer of this library."""
    return keras.saving.get_registered_name(type(layer)).startswith("keras_attention>")


class _CopyWithMask(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return ops.copy(inputs)
