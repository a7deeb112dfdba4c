"""The functions that go into an artifact, in one form: named, with known arguments and results."""

import inspect as python_inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_attention.targets import exporting

from .errors import ExportError
from .portable import portable

DEFAULT = "serving_default"


class Signature(NamedTuple):
    """One function of an artifact: `function(**tensors) -> {name: tensor}`, and its arguments.

    Attributes:
        function: of tensors by name.
        arguments: their shapes and dtypes.
        eager: whether its own results are those without a graph. A model's are: in a graph
            Keras's TimeDistributed gives wrong shapes for unknown sizes.
    """

    function: Callable[..., dict[str, Any]]
    arguments: dict[str, tf.TensorSpec]
    eager: bool = False

    @property
    def sizes(self) -> dict[str, tuple[tuple[int | None, ...], str]]:
        """Shape and dtype of every argument by its name."""
        return {k: (tuple(spec.shape), spec.dtype.name) for k, spec in self.arguments.items()}

    def with_length(self, length: int) -> "Signature":
        """The same of fixed sizes: a free first one is 1, every other free one is `length`."""

        def fixed(spec):
            shape = spec.shape.as_list()
            shape[:1] = [1 if size is None else size for size in shape[:1]]
            shape = [length if size is None else size for size in shape]
            return tf.TensorSpec(shape, spec.dtype, spec.name)

        return self._replace(arguments={k: fixed(spec) for k, spec in self.arguments.items()})

    def takes(self, inputs: Mapping[str, Any]) -> bool:
        """Whether arrays have the sizes of the arguments."""
        return all(
            spec.shape.is_compatible_with(np.shape(inputs[name]))
            for name, spec in self.arguments.items()
            if name in inputs
        )

    def concrete(self):
        """The traced function; traced anew on each call, for the target of the moment."""
        return tf.function(self.function).get_concrete_function(**self.arguments)


def signatures_of(
    model: keras.Model | Mapping,
    more: Mapping | None = None,
    *,
    copy: bool = True,
    strict: bool | None = None,
) -> dict[str, Signature]:
    """Bring every accepted form of `model` into named signatures.

    Args:
        model: a built `keras.Model`, which becomes the signature `serving_default`, or named
            functions `{name: tf.function with input_signature | (callable, {argument: spec})}`
            with `keras.InputSpec` or `tf.TensorSpec` as spec.
        more: functions beside those of `model`, in the second form.
        copy: put a model's recurrent layers into the loop that targets can hold. The original
            is what such a copy is compared with.
        strict: that of `portable`.

    Returns:
        `{name: Signature}` in the order given.

    Raises:
        ValueError: for anything of another form, by the name of the signature.
    """
    if isinstance(model, keras.Model):
        signatures = {DEFAULT: _of_model(portable(model, strict=strict) if copy else model, model)}
    elif isinstance(model, Mapping):
        signatures = {name: _of_function(name, given) for name, given in model.items()}
    else:
        raise ValueError(
            "model must be a built keras.Model or {name: function}. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    for name, given in (more or {}).items():
        if name in signatures and name != DEFAULT:
            raise ValueError(f"signature {name!r} is given twice")
        signatures[name] = _of_function(name, given)
    if not signatures:
        raise ValueError(f"at least one signature is needed. Received: model={model!r}")
    return signatures


def trace(
    signatures: Mapping[str, Signature], target: str, *, calibrated: bool = False
) -> dict[str, Any]:
    """Trace every signature in the form that `target` can run: `{name: concrete function}`.

    `calibrated` is that of `keras_attention.exporting`.

    Raises:
        ExportError: on another backend than TensorFlow, whose graphs artifacts are made from.
    """
    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            f"export needs KERAS_BACKEND=tensorflow, and Keras runs on {keras.backend.backend()}: "
            "save the model as .keras, and load and export it there"
        )
    with exporting(target, calibrated=calibrated):
        return {name: signature.concrete() for name, signature in signatures.items()}


def module_of(functions: Mapping[str, Any], resources=()) -> tf.Module:
    """An object to save the functions with, which holds all that they read.

    A function that closes over layers names no owner for their variables, and a model alone is
    not enough: a variable read inside a loop then has no value when the artifact runs.
    """
    module = tf.Module()
    variables = {id(v): v for f in functions.values() for v in f.graph.variables}
    module.read = list(variables.values())
    module.resources = list(resources)
    return module


def described(functions: Mapping[str, Any]) -> dict[str, dict]:
    """Names, shapes (None where unknown) and dtypes of what the functions take and give."""

    def of(specs):
        return {
            name: {"shape": list(spec.shape), "dtype": spec.dtype.name}
            for name, spec in specs.items()
        }

    return {
        name: {
            "inputs": of(function.structured_input_signature[1]),
            "outputs": of(function.structured_outputs),
        }
        for name, function in functions.items()
    }


def _of_model(model, original):
    if isinstance(original, keras.Sequential):
        structure, output_names = original.inputs[0], [original.layers[-1].name]
    elif isinstance(original.output, dict):
        structure, output_names = original.input, sorted(original.output)
    else:
        structure, output_names = original.input, _unique(original.output_names)
    arguments = {
        tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name)
        for tensor in original.inputs
    }

    def call(**inputs):
        flat = [inputs[name] for name in arguments]
        outputs = model(keras.tree.pack_sequence_as(structure, flat), training=False)
        return dict(zip(output_names, keras.tree.flatten(outputs), strict=True))

    return Signature(call, arguments, eager=True)


def _unique(names):
    """The names, counted where one stands for several tensors of one layer."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        unique.append(f"{name}_{count}" if count else name)
    return unique


def _of_function(name, given):
    if isinstance(given, tuple) and len(given) == 2 and callable(given[0]):
        function, specs = given
        if not isinstance(specs, Mapping):
            raise ValueError(
                f"signature {name!r}: the second part must be {{argument: keras.InputSpec or "
                f"tf.TensorSpec}}. Received: {specs!r}"
            )
        function = getattr(function, "python_function", function)
    elif callable(given) and getattr(given, "input_signature", None) is not None:
        # Its cache may hold a trace made for training, so the Python function is traced anew.
        function = given.python_function
        specs = _named(name, function, given.input_signature)
    else:
        raise ValueError(
            f"signature {name!r} must be a tf.function with input_signature or "
            f"(callable, {{argument: keras.InputSpec or tf.TensorSpec}}). Received: {given!r}"
        )
    arguments = {key: _spec(name, key, spec) for key, spec in specs.items()}

    def call(**inputs):
        return _results(name, function(**inputs))

    return Signature(call, arguments)


def _named(name, function, input_signature):
    parameters = [
        p.name
        for p in python_inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if len(parameters) < len(input_signature):
        raise ValueError(
            f"signature {name!r}: every argument needs a name of its own, found {parameters} for "
            f"{len(input_signature)} specs"
        )
    return dict(zip(parameters, input_signature, strict=False))


def _spec(name, argument, spec):
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if not isinstance(spec, tf.TensorSpec | keras.InputSpec) or shape is None or dtype is None:
        raise ValueError(
            f"signature {name!r}, argument {argument!r}: a keras.InputSpec or tf.TensorSpec with "
            f"shape and dtype is needed. Received: {spec!r}"
        )
    return tf.TensorSpec(shape, dtype, argument)


def _results(name, results):
    if isinstance(results, Mapping) and results and all(isinstance(k, str) for k in results):
        return dict(results)
    raise ValueError(
        f"signature {name!r} must return {{name: tensor}}, so that results are known by name. "
        f"Received: {type(results).__name__}"
    )
