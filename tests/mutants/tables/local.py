"""Windows of keys."""

from .. import Mutant

FILE = "keras_attention/local.py"
TESTS = "tests/test_local.py"

MUTANTS = [
    Mutant(
        FILE,
        "slots = ops.arange(2 * self.window + 1, dtype",
        "slots = ops.arange(2 * self.window + (self.window == 0), dtype",
        TESTS,
    ),
    Mutant(
        FILE, "ops.abs(distance) <= self.window,", "ops.abs(distance) < self.window + 1,", TESTS
    ),
    Mutant(FILE, "ops.exp(-2.0 *", "ops.exp(-0.5 *", TESTS),
    Mutant(
        FILE,
        "ops.max(ends, axis=-1, keepdims=True)",
        'ops.sum(ops.cast(readable, "int32"), axis=-1, keepdims=True)',
        TESTS,
    ),
    Mutant(FILE, 'ops.cast(start_index, "int32")', "0", TESTS),
    Mutant(
        FILE,
        "dtype = normalizers.wide_dtype(self.compute_dtype)",
        "dtype = self.compute_dtype",
        TESTS,
    ),
    Mutant(
        FILE,
        "self.weights_regularizer(weights, _spread(mask, first, keys))",
        "self.weights_regularizer(weights, None)",
        TESTS,
    ),
]
