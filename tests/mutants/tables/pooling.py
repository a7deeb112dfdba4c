"""A sequence as a vector."""

from .. import Mutant, tests_of

FILE = "keras_attention/pooling.py"
TESTS = tests_of("pooling", "pooling and (reference or config)")

MUTANTS = [
    Mutant(
        FILE,
        "hidden = self.activation(self._hidden(inputs))",
        "hidden = self._hidden(inputs)",
        TESTS,
    ),
    Mutant(FILE, "(self.hops or 1, units)", "(1, units)", TESTS),
    Mutant(
        FILE, "self.weights_regularizer(weights, mask)", "self.weights_regularizer(weights)", TESTS
    ),
]
