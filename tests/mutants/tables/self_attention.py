"""Self-attention and its cache."""

from .. import Mutant

FILE = "keras_attention/self_attention.py"
TESTS = "tests/test_self_attention.py"

MUTANTS = [
    Mutant(
        FILE, "key = self.positions(key, start_index=offset)", "key = self.positions(key)", TESTS
    ),
    Mutant(FILE, "[mask(queries, keys, offset=offset) for", "[mask(queries, keys) for", TESTS),
    Mutant(FILE, "allowed, training, offset)", "allowed, training)", TESTS),
]
