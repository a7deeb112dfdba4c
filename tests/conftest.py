"""The table meets the contracts, and both backends speak one language."""

import os
import random
import re

if os.environ.get("KERAS_BACKEND") == "jax":
    # What is compiled here runs once or twice: compiling is what takes time.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import keras
import numpy as np
import pytest
from cases import CASES

BACKEND = keras.backend.backend()


def one_of_each_kind(cases):
    """A row of every class with every normalizer."""

    def kind(case):
        layer = case.create()
        normalizer = getattr(layer, "normalizer", None)
        return type(layer), getattr(normalizer, "__name__", type(normalizer))

    return list({kind(case): case for case in reversed(cases)}.values())[::-1]


def one_of_each_class(cases):
    return list({type(case.create()): case for case in reversed(cases)}.values())[::-1]


# A test that takes one of these arguments is a contract over the rows that fit. The second is what
# runs of them without `--matrix`: a conversion takes seconds, and on JAX compiling does.
ON_JAX = one_of_each_class if BACKEND == "jax" else list
TABLES = {
    "case": (lambda case: True, ON_JAX),
    "compiled_case": (lambda case: True, one_of_each_kind),
    "masked_case": (lambda case: case.has_masks, ON_JAX),
    "weighing_case": (lambda case: case.has_masks and case.weights, ON_JAX),
    "decoder_case": (lambda case: case.name.startswith("decoder"), list),
    "tflite_case": (lambda case: True, one_of_each_kind),
    "served_case": (lambda case: True, lambda cases: cases[::8]),
    "onnx_case": (lambda case: True, lambda cases: cases[4::8]),
}


def pytest_configure(config):
    config.addinivalue_line("markers", "tensorflow: what only TensorFlow can do; the text says why")


def pytest_addoption(parser):
    parser.addoption("--matrix", action="store_true", help="every row, where a sample would run")


def pytest_generate_tests(metafunc):
    contract = metafunc.function.__name__.removeprefix("test_")
    for argument, (fits, sample) in TABLES.items():
        if argument in metafunc.fixturenames:
            rows = [case for case in CASES if fits(case)]
            rows = rows if metafunc.config.getoption("--matrix") else sample(rows)
            metafunc.parametrize(argument, [as_parameter(case, contract) for case in rows])


def as_parameter(case, contract):
    """A row as the parameter of a test, marked where it fails or where that has no meaning."""
    marks = []
    if contract in case.known_failures:
        marks.append(pytest.mark.xfail(reason=case.known_failures[contract], strict=True))
    if contract in case.exempt:
        marks.append(pytest.mark.skip(reason=case.exempt[contract]))
    return pytest.param(case, id=case.name, marks=marks)


def pytest_collection_modifyitems(items):
    for item in items:
        marker = item.get_closest_marker("tensorflow")
        if marker and BACKEND != "tensorflow":
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))


@pytest.fixture(autouse=True)
def seeded():
    # What Keras draws its seeds from. Setting TensorFlow's own as well would empty its caches: half
    # a second at the next call of every compiled function.
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """JAX compiles a loop anew whenever it is traced; equal programs need not be."""
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class _TensorFlow:
    name = "tensorflow"

    def jit(self, function):
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)

    def at_once(self, function):
        """`function` in the way that is quickest for one call."""
        return function

    def traced(self, function, shapes, dtypes):
        """`function` as traced for these shapes, in which a length may be None."""
        import tensorflow as tf

        specs = [tf.TensorSpec(*spec) for spec in zip(shapes, dtypes, strict=True)]
        return tf.function(function, input_signature=specs, autograph=False)

    def gradients(self, function, layer, inputs):
        """Of a scalar `function(inputs)`: (by input, by trainable weight) as NumPy arrays."""
        import tensorflow as tf

        inputs = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        with tf.GradientTape() as tape:
            tape.watch(list(inputs.values()))
            result = function(inputs)
        weights = [w.value for w in layer.trainable_variables]
        found = tape.gradient(result, [*inputs.values(), *weights], unconnected_gradients="zero")
        found = [tf.convert_to_tensor(x).numpy() for x in found]
        return dict(zip(inputs, found, strict=False)), found[len(inputs) :]


class _Jax:
    name = "jax"

    def jit(self, function):
        import jax

        return jax.jit(function)

    def traced(self, function, shapes, dtypes):
        return self.jit(function)

    def at_once(self, function):
        return self.jit(function)

    def gradients(self, function, layer, inputs):
        import jax

        def stateless(inputs, values):
            scope = zip(layer.trainable_variables, values, strict=True)
            with keras.StatelessScope(state_mapping=list(scope)):
                return function(inputs)

        values = [w.value for w in layer.trainable_variables]
        inputs = {name: jax.numpy.asarray(value) for name, value in inputs.items()}
        by_input, by_weight = jax.jit(jax.grad(stateless, argnums=(0, 1)))(inputs, values)
        return {k: np.asarray(v) for k, v in by_input.items()}, [np.asarray(v) for v in by_weight]


@pytest.fixture(scope="session")
def backend():
    """What each backend writes in its own way."""
    return {"tensorflow": _TensorFlow, "jax": _Jax}[BACKEND]()


def randomize(layer, seed=1, scale=0.5):
    """Give every weight, biases too, values of its own."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(scale * rng.normal(size=weight.shape))


def named_weights(layer) -> dict[str, np.ndarray]:
    """Weights by their paths below the layer, without the counters in automatic names."""
    return {
        re.sub(r"_score_\d+/", "_score/", weight.path.split("/", 1)[1]): np.asarray(
            keras.ops.convert_to_numpy(weight), "float64"
        )
        for weight in layer.weights
    }


@pytest.fixture
def made():
    """A function: `made(case, dtype)` is the row's layer, built, with random weights."""

    def make(case, dtype="float64", scale=0.5, **kwargs):
        layer = case.create(dtype=dtype, **kwargs)
        case.build(layer)
        randomize(layer, scale=scale)
        return layer

    return make


@pytest.fixture
def weights_of():
    return named_weights


@pytest.fixture(scope="session")
def phrases_file(tmp_path_factory):
    """A function: `phrases_file(count, seed)` is a tab-separated file of generated sentences."""
    from keras_attention.recipes.phrasebook import generate

    def write(count, seed):
        pairs = generate(count, seed=seed)
        path = tmp_path_factory.mktemp("data") / "pairs.tsv"
        rows = zip(pairs.source, pairs.target, strict=True)
        path.write_text("".join(f"{s}\t{t}\n" for s, t in rows), "utf-8")
        return path

    return write


@pytest.fixture
def command_line():
    """A function: `command_line(capture)` gives one that runs a command of `keras-attention`.

    That one gives the exit code, the lines of standard output and the lines of standard error, as
    pytest's `capsys` or `capfd` sees them.
    """
    from keras_attention.recipes import cli

    def captured_by(capture):
        def run(*arguments):
            capture.readouterr()
            try:
                code = cli.main([str(argument) for argument in arguments])
            except SystemExit as stop:  # argparse's own
                code = stop.code
            out, err = capture.readouterr()
            return code, out.splitlines(), err.splitlines()

        return run

    return captured_by
