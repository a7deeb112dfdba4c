"""Penalties on weights."""

from .. import Mutant

FILE = "keras_attention/regularizers.py"
TESTS = "tests/test_regularizers.py"

MUTANTS = [
    Mutant(FILE, '.bind("weights", "mask")', '.bind("weights")', TESTS),
    Mutant(FILE, "wanted = reads * ops.eye(", "wanted = ops.eye(", TESTS),
    Mutant(FILE, "ops.where(ops.any(mask, axis=-2), missing, 0.0)", "missing", TESTS),
    Mutant(FILE, "ops.cumsum(weights, axis=-2) - weights", "ops.cumsum(weights, axis=-2)", TESTS),
    Mutant(FILE, "ops.log(ops.where(weights > 0, weights, 1.0))", "ops.log(weights)", TESTS),
    Mutant(
        FILE, "self.weight * ops.sum(penalties) / count", "self.weight * ops.sum(penalties)", TESTS
    ),
]
