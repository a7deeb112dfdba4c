"""What is read only moves forward."""

from .. import Mutant

FILE = "keras_attention/monotonic.py"
TESTS = "tests/test_monotonic.py"

MUTANTS = [
    Mutant(FILE, "_skew(chosen, 1.0)", "_skew(chosen, 0.0)", TESTS),
    Mutant(FILE, "(weights, reached - weights)", "(weights, reached)", TESTS),
    Mutant(FILE, "ops.cumsum(open_keys, axis=-1) < 2", "ops.cumsum(open_keys, axis=-1) < 3", TESTS),
    Mutant(
        FILE,
        "chosen * ops.cumsum(previous, axis=-1)",
        "chosen * ops.max(previous, axis=-1, keepdims=True)",
        TESTS,
    ),
    Mutant(FILE, "if self.hard_inference and not training:", "if self.hard_inference:", TESTS),
    Mutant(FILE, "ops.where(real, chosen, 1.0)", "ops.where(real, chosen, 0.0)", TESTS),
    Mutant(FILE, " + widen(self.bias)", "", TESTS),
    Mutant(FILE, "stddev=self.noise", "stddev=1.0", TESTS),
    Mutant(FILE, "ops.cast(energies > 0,", "ops.cast(energies > 0.5,", TESTS),
]
