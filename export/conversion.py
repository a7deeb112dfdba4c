"""Traced functions into the bytes of a TFLite model, and what an error of the converter means."""

import re
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from .calibration import Calls, calibrated
from .errors import OF_ANY_TARGET, ExportError
from .quiet import quiet
from .signatures import module_of

CALIBRATED = ("int8", "int16x8")  # of activations too, by examples
WEIGHT_ONLY = {"weight_only_int8": 8, "weight_only_int4": 4}
QUANTIZATIONS = (None, "float16", "dynamic", *CALIBRATED, *WEIGHT_ONLY)

INTEGERS_IN_16_BITS = (
    "int16x8 has no place for integers as inputs (LiteRT#168): give embedded inputs, or use "
    'quantization="dynamic" or "int8"'
)
ADVICE = {
    "TensorList": (
        "the loop of a Keras RNN layer, tf.scan, tf.map_fn or a TensorArray at an unknown batch "
        "size: use portable(model) for Keras layers, keras_attention's loops for others, or a "
        "fixed batch size in the InputSpec"
    ),
    "StridedSlice": "x[:, None] with two unknown sizes: use keras.ops.expand_dims",
    **OF_ANY_TARGET,
    "Cumprod": "use the exponential of a cumulative sum of logarithms",
    "Roll": "use a concatenation of two slices",
    "Regex": "strings are prepared outside: give ids to the model",
    "Max and min for dynamic tensors": INTEGERS_IN_16_BITS,
    "Empty min/max": INTEGERS_IN_16_BITS,
    "failed to prepare": (
        "calibration resizes the inputs of a call one after the other, and sizes that do not fit "
        "meanwhile stop it: give all examples of a signature of several inputs the same sizes"
    ),
}

# Names that stand in much that a converter prints.
OF_OPERATORS = {"Einsum": "an einsum that multiplies no matrices: use keras.ops.sum of a product"}


def convert(
    functions: Mapping[str, Any],
    quantization: str | None,
    examples: Calls | None = None,
    *,
    custom_operators: bool = False,
) -> bytes:
    """Convert traced functions; those of one file share their weights.

    Args:
        functions: `{name: concrete function}`.
        quantization: one of `QUANTIZATIONS`.
        examples: of the arguments of each function, where the kind is in `CALIBRATED`.
        custom_operators: let operators that are not built in into the file, by their names.

    Raises:
        ExportError: with the function and the operator that stand in the way, and what helps.
    """
    with tempfile.TemporaryDirectory() as folder:
        with quiet() as chatter:
            try:
                tf.saved_model.save(module_of(functions), folder, signatures=functions)
            except Exception as error:
                raise ExportError(_reason(functions, error, chatter())) from None
            try:
                return _converted(folder, list(functions), quantization, examples, custom_operators)
            except ExportError:
                raise
            except Exception as error:
                reason = _reason(functions, error, chatter())
            # The converter does not say which of several functions it failed on.
            for name in functions if len(functions) > 1 else ():
                try:
                    _converted(folder, [name], None, None, custom_operators)
                except Exception as error:
                    reason = _reason([name], error, chatter())
                    break
        # The converter's own error holds the whole graph as text: hundreds of lines.
        raise ExportError(reason)


def not_builtin(operators) -> str:
    """What to say of operators that are not built into TFLite."""
    return (
        f"needs operators that are not built into TFLite: {', '.join(operators)}"
        f"{_advice(' '.join(operators), ADVICE | OF_OPERATORS)}"
    )


def _converted(folder, names, quantization, examples, custom_operators):
    if quantization in CALIBRATED:
        return calibrated(folder, quantization, examples)
    bits = WEIGHT_ONLY.get(quantization)
    quantize = _small_weights(bits) if bits else bytes
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = custom_operators
    if quantization in ("float16", "dynamic"):
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return quantize(converter.convert())


def _small_weights(bits):
    """What turns the bytes of a model into those of one with its weights in `bits`."""
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ImportError:
        raise ExportError(
            "weights alone are quantised by ai-edge-quantizer: "
            "pip install 'keras-attention-layers[quantization]'"
        ) from None
    recipes = {8: recipe.weight_only_wi8_afp32, 4: recipe.weight_only_wi4_afp32}

    def quantize(content):
        small = quantizer.Quantizer(bytearray(content), recipes[bits]())
        return bytes(small.quantize(enable_progress_report=False).quantized_model)

    return quantize


def _reason(names, error, chatter):
    """One line out of a converter's many: what it could not do, where, and what helps."""
    text = f"{error}\n{chatter}"
    where = "signature " + ", ".join(map(repr, names))
    listed = re.findall(r"^\s*(?:TF Select|Custom) ops: (.+)$", text, re.MULTILINE)
    operators = sorted({name.strip() for line in listed for name in line.split(",")})
    if operators:
        return f"{where}: {not_builtin(operators)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line.split("error: ", 1)[1] for line in lines if "error: " in line]
    reason = (useful or lines or [type(error).__name__])[0][:300]
    return f"{where} does not convert: {reason}{_advice(text)}"


def _advice(text, known=ADVICE):
    found = {advice: None for word, advice in known.items() if word in text}  # each once
    return "".join(f"\n  {advice}" for advice in found)
