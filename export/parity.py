"""Run an artifact, and compare it with the model it was made from.

TensorFlow is imported only where a SavedModel or a model is at hand: a `.tflite` file runs with
`ai-edge-litert` and NumPy alone, an `.onnx` file with `onnxruntime` and NumPy.

Artifacts of this library carry checksums: any change to one is found before a runtime sees it.
Foreign ones carry none, and runtimes trust what they read. `run_artifact` therefore runs those in
a process of their own; the `load_` functions, which are for many runs, do not.
"""

import contextlib
import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .apart import run_apart
from .errors import ArtifactError, ParityError
from .inspect import described_by, inspect_bytes, read_tflite
from .inspect_onnx import TYPES, onnx_files, read_onnx, signature_in
from .inspect_saved_model import check_saved_model, version_of
from .quiet import quiet

# max|error| / max|reference|, by how the file was quantised. Of integers in fitted ranges and of 4
# bits any finite error is allowed: how good such a file is, its task says.
TOLERANCES = {
    None: 1e-5,
    "float16": 2e-3,
    "dynamic": 3e-2,
    "weight_only_int8": 3e-2,
    "int16x8": 5e-2,
    "int8": np.inf,
    "weight_only_int4": np.inf,
}
FAR = 0.3  # of max|error| / max|reference| where any is allowed: told, and not refused
RUNTIMES = ("litert", "tf.lite")
_MODULES = {"litert": "ai_edge_litert.interpreter", "tf.lite": "tensorflow"}


class TFLiteRunner:
    """One signature of a loaded `.tflite`, called again and again: `runner(inputs) -> outputs`.

    Attributes:
        signature: its name.
        inputs: `{name: (shape, dtype)}`, with None in a shape where the size is free.
        outputs: the same of the outputs.
    """

    def __init__(self, interpreter, signature, report, path):
        self.signature = signature
        self.inputs = report.signatures[signature]["inputs"]
        self.outputs = report.signatures[signature]["outputs"]
        self._path = path
        self._interpreter = interpreter  # The runner of a signature does not keep it alive.
        self._run = interpreter.get_signature_runner(signature)
        self._announced = False

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        arrays = arrays_of(inputs, self.inputs, self.signature)
        try:
            # The runtime announces on standard error, at the first call, how it will compute.
            with contextlib.nullcontext() if self._announced else quiet():
                outputs = self._run(**arrays)
            self._announced = True
            return outputs
        except (RuntimeError, ValueError) as error:
            shapes = {name: array.shape for name, array in arrays.items()}
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{self._path}: signature {self.signature!r} does not run on inputs of shapes "
                f"{shapes}: {reason}"
            ) from error


def load_tflite(
    path: str | os.PathLike, signature: str | None = None, *, runtime: str | None = None
) -> TFLiteRunner:
    """Load one signature of a `.tflite`, to be run on many inputs in this process.

    Any change to a file of this library is found, by its checksum. In a foreign one the structure
    is checked, and what the runtime itself does not check may crash it: for such a file
    `run_artifact` is safer.

    Args:
        path: the file.
        signature: its name; None for the only one, or for `serving_default`.
        runtime: `"litert"` (ai-edge-litert), `"tf.lite"` (TensorFlow), or None for the first of
            them that is installed.

    Returns:
        A `TFLiteRunner`: `runner({name: array}) -> {name: array}`.

    Raises:
        ArtifactError: for a file that is not a sound TFLite model or that needs operators which
            the runtime lacks.
        ValueError: for an unknown signature or runtime.
        ImportError: when the runtime is not installed.
    """
    content, _ = read_tflite(path)
    report = inspect_bytes(content, path)
    if not report.signatures:
        raise ArtifactError(f"{path}: has no signatures, so its inputs have no names")
    signature = _chosen(signature, report.signatures, path)
    if report.flex or report.custom:
        raise ArtifactError(
            f"{path}: needs operators that are not built in: "
            f"{', '.join(report.flex + report.custom)}"
        )
    kind = _interpreter_class(runtime)
    try:
        with quiet(), warnings.catch_warnings():
            # tf.lite announces its own end on every load.
            warnings.simplefilter("ignore")
            interpreter = kind(model_content=content)
        return TFLiteRunner(interpreter, signature, report, path)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be loaded ({_first_line(error)})") from error


class SavedModelRunner:
    """One signature of a loaded SavedModel: `runner(inputs) -> outputs`.

    Attributes:
        signature: its name.
        loaded: what `tf.saved_model.load` gave. Runners of further signatures can be made of it,
            `SavedModelRunner(runner.loaded, name)`, which then share the weights.
        inputs: `{name: (shape, dtype)}`, with None in a shape where the size is free.
        outputs: the same of the outputs.
    """

    def __init__(self, loaded, signature):
        self.signature = signature
        self.loaded = loaded  # A signature alone does not keep the variables alive.
        self._run = loaded.signatures[signature]
        self.inputs = _specs(self._run.structured_input_signature[1])
        self.outputs = _specs(self._run.structured_outputs)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        import tensorflow as tf

        arrays = arrays_of(inputs, self.inputs, self.signature)
        outputs = self._run(**{name: tf.constant(array) for name, array in arrays.items()})
        return {name: output.numpy() for name, output in outputs.items()}


def load_saved_model(path: str | os.PathLike, signature: str | None = None) -> SavedModelRunner:
    """Load one signature of a SavedModel folder, to be run on many inputs in this process.

    Any change to a folder of this library is found, by its checksums. A foreign one is loaded as
    it is and may do whatever TensorFlow can: for such a folder `run_artifact` is safer.

    Args:
        path: the folder, with or without its version number: the highest one is taken.
        signature: its name; None for the only one, or for `serving_default`.

    Returns:
        A `SavedModelRunner`.

    Raises:
        ArtifactError: for a folder that is not a SavedModel, or that is damaged.
        ValueError: for an unknown signature.
    """
    import tensorflow as tf

    folder = version_of(path)
    check_saved_model(folder)
    try:
        try:
            loaded = tf.saved_model.load(str(folder))
        except Exception as error:
            if "not registered" not in str(error):
                raise
            # A graph that reads text holds operators that this import makes known.
            importlib.import_module("tensorflow_text")
            loaded = tf.saved_model.load(str(folder))
    except Exception as error:
        raise ArtifactError(f"{path}: cannot be loaded ({_first_line(error)})") from error
    return SavedModelRunner(loaded, _chosen(signature, loaded.signatures, path))


class OnnxRunner:
    """One function of an ONNX export in onnxruntime: `runner(inputs) -> outputs`.

    Attributes:
        signature: its name.
        inputs: `{name: (shape, dtype)}`, with None in a shape where the size is free.
        outputs: the same of the outputs.
        metadata: `{name: text}` of the texts that travel inside the file.
    """

    def __init__(self, session, path):
        self.inputs = _onnx_specs(session.get_inputs())
        self.outputs = _onnx_specs(session.get_outputs())
        self.metadata = dict(session.get_modelmeta().custom_metadata_map)
        self.signature = signature_in(self.metadata)
        self._session = session
        self._path = path

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        arrays = arrays_of(inputs, self.inputs, self.signature)
        try:
            found = self._session.run(list(self.outputs), arrays)
        except Exception as error:  # onnxruntime's own kinds have no public base.
            shapes = {name: array.shape for name, array in arrays.items()}
            raise ValueError(
                f"{self._path}: does not run on inputs of shapes {shapes}: {_first_line(error)}"
            ) from error
        return dict(zip(self.outputs, found, strict=True))


def load_onnx(path: str | os.PathLike, signature: str | None = None) -> OnnxRunner:
    """Load one function of an ONNX export, to be run on many inputs in this process.

    Any change to a file of this library is found, by its checksum. A foreign one goes to
    onnxruntime as it is: for such a file `run_artifact` is safer.

    Args:
        path: an `.onnx` file, or a folder of them, one for each function.
        signature: the name of the function; None for the only one, or for `serving_default`.

    Returns:
        An `OnnxRunner`.

    Raises:
        ArtifactError: for a file that is damaged or that onnxruntime does not load, or a folder
            without any.
        ValueError: for an unknown function.
        ImportError: when onnxruntime is not installed.
    """
    path, signature = _onnx_file(path, signature)
    content, ours = read_onnx(path)
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            "an ONNX runtime is needed: pip install 'keras-attention-layers[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # What it would print of errors is raised as well.
    try:
        with quiet():  # It prints some errors all the same.
            session = onnxruntime.InferenceSession(
                # A foreign file may name others beside it, which are found by its path alone.
                content if ours else str(path),
                options,
                providers=["CPUExecutionProvider"],
            )
        runner = OnnxRunner(session, path)
    except Exception as error:
        raise ArtifactError(f"{path}: cannot be loaded ({_first_line(error)})") from error
    _chosen(signature, [runner.signature], path)
    return runner


def run_artifact(
    path: str | os.PathLike,
    inputs: Mapping[str, Any],
    signature: str | None = None,
    *,
    runtime: str | None = None,
) -> dict[str, np.ndarray]:
    """Run an artifact once.

    What carries no checksum of this library runs in a process of its own, which takes seconds to
    start, 8 GiB of memory at most (where the system can limit it) and ten minutes: a file that
    makes its runtime crash is an error like others.

    Args:
        path: a `.tflite` file, a SavedModel folder, an `.onnx` file or a folder of those.
        inputs: `{name: array}`; what is not an array of the wanted dtype is turned into one where
            nothing is lost.
        signature: its name; None for the only one, or for `serving_default`.
        runtime: for a `.tflite`, as in `load_tflite`.

    Returns:
        `{name: array}`.

    Raises:
        ArtifactError: for a file or folder that is not a sound artifact, or is damaged.
        ValueError: for unknown names, or inputs that do not fit.
    """
    if _is_ours(path, signature):
        return load(path, signature, runtime)(inputs)
    return run_apart(path, inputs, signature, runtime=runtime)


def load(path: str | os.PathLike, signature: str | None = None, runtime: str | None = None):
    """`load_tflite`, `load_saved_model` or `load_onnx`, whichever the artifact is for."""
    if not _is_onnx(path) and not Path(path).is_dir():
        return load_tflite(path, signature, runtime=runtime)
    if runtime is not None:
        raise ValueError(f"runtime is for .tflite files. Received: runtime={runtime!r}")
    return load_onnx(path, signature) if _is_onnx(path) else load_saved_model(path, signature)


def _is_ours(path, signature) -> bool:
    """Whether what would run carries checksums of this library, which then were right."""
    if _is_onnx(path):
        return read_onnx(_onnx_file(path, signature)[0])[1]
    if Path(path).is_dir():
        return bool(check_saved_model(version_of(path)))
    content, ours = read_tflite(path)
    if not ours:
        inspect_bytes(content, path)  # What is cut or no model at all needs no other process.
    return ours


class Difference(NamedTuple):
    """How one output of one signature differs, over all inputs, in one runtime.

    Attributes:
        absolute: max|error|; infinite where the shapes differ.
        relative: max|error| / max|reference|.
        matched: share of equal values, for integers, booleans and strings; else None.
        tolerance: the bound of `relative`; None where there is none.
        equal: whether it is within its bound.
    """

    runtime: str
    signature: str
    output: str
    absolute: float
    relative: float
    matched: float | None
    tolerance: float | None
    equal: bool

    def __str__(self):
        if self.matched is None:
            found = f"max error {self.absolute:.2e}, relative {self.relative:.2e}"
            found += "" if self.tolerance is None else f" (allowed {self.tolerance:.0e})"
        else:
            found = f"{self.matched:.2%} equal"
        mark = "ok " if self.equal else "NOT EQUAL"
        return f"{mark} {self.runtime} {self.signature} {self.output}: {found}"


class ParityReport(NamedTuple):
    """What `check_parity` found, one `Difference` for each runtime, signature and output."""

    differences: list[Difference]

    @property
    def equal(self) -> bool:
        """Whether every output is within its bound."""
        return all(difference.equal for difference in self.differences)

    def require_equal(self, name: str | os.PathLike) -> None:
        """Raise `ParityError` unless `equal`; `name` is what its message calls the artifact."""
        wrong = [str(difference) for difference in self.differences if not difference.equal]
        if wrong:
            raise ParityError("\n  ".join([f"{name} does not equal the model:", *wrong]))

    def warn_of_far(self, name: str | os.PathLike) -> None:
        """Warn of outputs that no bound refuses, but that are far from the model's."""
        for found in self.differences:
            if found.matched is None and found.tolerance is None and found.relative > FAR:
                warnings.warn(
                    f"{name}: {found.output!r} of {found.signature!r} is up to "
                    f"{found.relative:.0%} of its largest value away from the model's: measure "
                    'the file on its task, or use quantization="dynamic". (Masks inside layers '
                    "of Keras take the range of integers; those of keras_attention do not.)",
                    stacklevel=2,
                )

    def __str__(self):
        return "\n".join(map(str, self.differences))


def check_parity(
    model,
    path: str | os.PathLike,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Mapping[str, Sequence],
    *,
    signatures: Mapping | None = None,
    tolerance: float | None = None,
) -> ParityReport:
    """Run an artifact and its model on the same inputs, in every runtime that is installed.

    The first inputs run again at the end, after the shapes of all others, since an artifact may
    be right only once.

    Args:
        model: what was exported: a `keras.Model` or `{name: function}`, as `export_tflite` takes
            them. It runs as in training, not in the form that was traced for the artifact.
        path: a `.tflite` file, a SavedModel folder, an `.onnx` file or a folder of those.
        inputs: `{argument: array}`; or a list of those, for several shapes; or for more than one
            signature `{signature: list of those}`.
        signatures: the functions beside those of `model`, as they were exported.
        tolerance: bound of max|error| / max|reference|. None chooses by how the file stores its
            weights, see `TOLERANCES`: 1e-5 for float32, 2e-3 for float16, 3e-2 for dynamic range.

    Returns:
        A `ParityReport`. Integers (tokens) have to be equal; in a file with quantised weights
        the share of equal ones is reported, and the other outputs of a row whose tokens differ
        are not compared, since they belong to another answer.

    Raises:
        ArtifactError: for a file or folder that is not a sound artifact.
        ValueError: for inputs that do not fit.
    """
    from .signatures import signatures_of

    found = signatures_of(model, signatures, copy=False)
    return compare(found, path, inputs, tolerance=tolerance)


def compare(signatures: Mapping, path, inputs, *, tolerance: float | None = None) -> ParityReport:
    """`check_parity` for signatures that are already in one form."""
    quantization = None
    runtimes: tuple = (None,)
    alone = "onnxruntime" if _is_onnx(path) else "saved_model"
    if Path(path).is_file() and not _is_onnx(path):
        report = inspect_bytes(read_tflite(path)[0], path)
        quantization = described_by(report).get("quantization")
        runtimes = _installed()
    if tolerance is None:
        tolerance = TOLERANCES.get(quantization, TOLERANCES[None])
    differences = []
    for signature, calls in calls_of(inputs, signatures).items():
        reference = _reference(signatures[signature], signature)
        expected = [reference(call) for call in calls]
        for runtime in runtimes:
            run = load(path, signature, runtime)
            calls, expected = [*calls, calls[0]], [*expected, expected[0]]
            pairs = [(e, run(c)) for c, e in zip(calls, expected, strict=True)]
            found = _differences(pairs, tolerance, exact=quantization is None)
            differences += [Difference(runtime or alone, signature, *row) for row in found]
    return ParityReport(differences)


def _reference(signature, name):
    import tensorflow as tf

    function = signature.function if signature.eager else signature.concrete()

    def run(inputs):
        arrays = arrays_of(inputs, signature.sizes, name)
        outputs = function(**{name: tf.constant(array) for name, array in arrays.items()})
        return {name: output.numpy() for name, output in outputs.items()}

    return run


def calls_of(inputs, signatures: Mapping) -> dict[str, list[Mapping]]:
    """`{signature: [inputs of a call]}` from any of the forms."""
    if not isinstance(inputs, Mapping):
        inputs = _listed(inputs)
    if isinstance(inputs, Mapping) and inputs and all(map(_is_calls, inputs.values())):
        unknown = sorted(set(inputs) - set(signatures))
        if unknown:
            raise ValueError(f"inputs for unknown signatures: {unknown}. Known: {[*signatures]}")
        calls = {k: [v] if isinstance(v, Mapping) else list(v) for k, v in inputs.items()}
    elif len(signatures) == 1:
        calls = {next(iter(signatures)): [inputs] if isinstance(inputs, Mapping) else inputs}
    else:
        raise ValueError(
            f"with several signatures inputs must be {{signature: [inputs]}}, of {[*signatures]}"
        )
    return calls


def _listed(inputs) -> list[Mapping]:
    calls = list(inputs) if isinstance(inputs, Iterable) else []
    if not _is_calls(calls):
        given = type(inputs).__name__ + (f" of {type(calls[0]).__name__}" if calls else "")
        raise ValueError(
            "inputs must be {argument: array}, or a list of at least one of those. "
            f"Received: {given}"
        )
    return calls


def _is_calls(value):
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(call, Mapping) for call in value)
    )


def _differences(pairs, tolerance, exact):
    rows = []
    bound = None if np.isinf(tolerance) else tolerance
    for output in pairs[0][0]:
        wanted, given = [], []
        counted = not np.issubdtype(pairs[0][0][output].dtype, np.floating)
        missing = any(output not in found or found[output].shape != reference[output].shape
                      for reference, found in pairs)  # fmt: skip
        if missing:
            rows.append((output, np.inf, np.inf, None, bound, False))
            continue
        for reference, found in pairs:
            rows_equal = ... if exact or counted else _same_answer(reference, found, output)
            wanted.append(np.ravel(reference[output][rows_equal]))
            given.append(np.ravel(found[output][rows_equal]))
        wanted, given = np.concatenate(wanted), np.concatenate(given)
        if counted:
            share = float(np.mean(wanted == given)) if wanted.size else 1.0
            lost = 1.0 - share
            rows.append(
                (output, lost, lost, share, 0.0 if exact else None, share == 1 or not exact)
            )
        else:
            absolute, relative = _error(wanted, given)
            equal = bool(np.isfinite(relative) and relative <= tolerance)
            rows.append((output, absolute, relative, None, bound, equal))
    return rows


def _same_answer(reference, found, output):
    """Which rows of an output belong to rows whose integers (tokens) all agree."""
    same = np.ones(reference[output].shape[:1], bool)
    for name, wanted in reference.items():
        if np.issubdtype(wanted.dtype, np.integer) and wanted.shape[:1] == same.shape:
            same &= (wanted == found[name]).reshape(len(same), -1).all(axis=1)
    return same if same.ndim and same.size else ...


def _error(wanted, given):
    wanted, given = wanted.astype(np.float64), given.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], given[~finite], equal_nan=True):
        return np.inf, np.inf
    error = np.abs(wanted[finite] - given[finite])
    absolute = float(error.max(initial=0.0))
    scale = float(np.abs(wanted[finite]).max(initial=0.0))
    return absolute, absolute / scale if scale else absolute


def _is_onnx(path) -> bool:
    return Path(path).suffix == ".onnx" or any(Path(path).glob("*.onnx"))


def _installed() -> tuple[str, ...]:
    return tuple(
        name for name in RUNTIMES if importlib.util.find_spec(_MODULES[name].split(".")[0])
    )


def _interpreter_class(runtime):
    if runtime is not None and runtime not in RUNTIMES:
        raise ValueError(
            f"runtime must be one of {', '.join(RUNTIMES)} or None. Received: runtime={runtime!r}"
        )
    names = _installed() if runtime is None else (runtime,)
    if not names:
        raise ImportError("a TFLite runtime is needed: pip install ai-edge-litert")
    module = importlib.import_module(_MODULES[names[0]])
    return module.Interpreter if names[0] == "litert" else module.lite.Interpreter


def _onnx_file(path, signature):
    """The file that holds a function, and the function's name."""
    path = Path(path)
    if path.is_dir():
        files = onnx_files(path)
        if not files:
            raise ArtifactError(f"{path}: holds no .onnx file")
        signature = _chosen(signature, files, path)
        path = files[signature]
    return path, signature


def _chosen(signature, signatures, path) -> str:
    if signature is None:
        names = list(signatures)
        if len(names) == 1:
            return names[0]
        signature = "serving_default"
    if signature not in signatures:
        raise ValueError(
            f"{path}: has the signatures {', '.join(sorted(signatures))}. "
            f"Received: signature={signature!r}"
        )
    return signature


def arrays_of(inputs, specs, signature) -> dict[str, np.ndarray]:
    """Inputs as arrays of the wanted types, `{name: (shape, dtype)}`; None is any size."""
    if set(inputs) != set(specs):
        raise ValueError(
            f"signature {signature!r} takes {sorted(specs)}. Received: {sorted(inputs)}"
        )
    return {name: _array(name, inputs[name], *specs[name]) for name in specs}


def _array(name, value, shape, dtype):
    array = np.asarray(value)
    if dtype == "string":
        array = array.astype(object)
    else:
        if array.dtype != dtype and not _fits(array, dtype):
            raise ValueError(f"input {name!r} must be {dtype}. Received: {array.dtype}")
        array = array.astype(dtype)
    if len(array.shape) != len(shape) or any(
        size is not None and size != given for size, given in zip(shape, array.shape, strict=True)
    ):
        raise ValueError(f"input {name!r} must be of shape {shape}. Received: {array.shape}")
    return array


def _fits(array, dtype):
    """Whether a plain list of numbers, which NumPy made 64 bits wide, means the wanted dtype."""
    if array.dtype.kind == "f" and np.dtype(dtype).kind == "f":
        return True
    return array.dtype.kind in "iu" and bool(np.all(array.astype(dtype) == array))


def _specs(specs):
    return {name: (tuple(s.shape), s.dtype.name) for name, s in specs.items()}


def _onnx_specs(entries):
    def dtype(entry):
        name = entry.type.removeprefix("tensor(").removesuffix(")")
        return TYPES.get(name, name)

    return {
        entry.name: (tuple(s if isinstance(s, int) else None for s in entry.shape), dtype(entry))
        for entry in entries
    }


def _first_line(error) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
