"""Terms of the distance."""

from .. import Mutant, tests_of

FILE = "keras_attention/positional_scores.py"
TESTS = tests_of("positional_scores", "(alibi or relative) and reference")

MUTANTS = [
    Mutant(
        FILE,
        "offset = keys - queries if offset is None else offset",
        "offset = 0 if offset is None else offset",
        TESTS,
    ),
    Mutant(
        FILE,
        "further = range(1, 2 * (heads - power), 2)",
        "further = range(1, heads - power + 1)",
        TESTS,
    ),
]
