"""Blocks."""

from .. import Mutant, tests_of

FILE = "keras_attention/transformer.py"
TESTS = tests_of("transformer", "transformer and (reference or masks or padded)")

MUTANTS = [
    Mutant(
        FILE, "return x if self.normalize_first else norm(x), more", "return norm(x), more", TESTS
    ),
    Mutant(FILE, "query_mask=inputs_mask,", "query_mask=None,", TESTS),
]
