"""Ranks in a graph, and triples."""

from .. import Mutant, tests_of

FILE = "keras_attention/graph.py"
TESTS = tests_of("graph", "(graph or neighbourhood) and (reference or influence or leaks)")

MUTANTS = [
    Mutant(FILE, 'direction="no_diagonal"', 'direction="forward"', TESTS),
    Mutant(FILE, "self.damping**2 * returns", "self.damping * returns", TESTS),
    Mutant(FILE, "range(factors - 1)", "range(factors - 2)", TESTS),
    Mutant(
        FILE,
        "masking.select(ends, mask), masking.select(relations, mask)",
        "masking.select(ends, mask), relations",
        TESTS,
    ),
]
