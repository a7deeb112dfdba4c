"""Models and embeddings against each other."""

from .. import Mutant, tests_of

FILE = "keras_attention/ensemble.py"
TESTS = tests_of("ensemble", "ensemble and (reference or influence)")

MUTANTS = [
    Mutant(FILE, "ops.take(each, k, axis=-1)", "ops.take(each, 0, axis=-1)", TESTS),
    Mutant(FILE, "x = masking.select(x, mask)", "x = x", TESTS),
]
