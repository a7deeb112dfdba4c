"""Two levels of masks and weights."""

from .. import Mutant, tests_of

FILE = "keras_attention/hierarchical.py"
TESTS = tests_of("hierarchical", "hierarchical and (reference or saving)")

MUTANTS = [
    Mutant(
        FILE,
        "sentence_mask = ops.any(mask, axis=-1)",
        "sentence_mask = ops.all(mask, axis=-1)",
        TESTS,
    ),
    Mutant(
        FILE,
        "arguments[name] = mask if weighs else _never_empty(mask)",
        "arguments[name] = mask",
        TESTS,
    ),
    Mutant(FILE, '{"mask": _never_empty(mask)}', '{"mask": mask}', TESTS),
    Mutant(
        FILE, "tuple(None if x is None else _where_any(mask, x) for x in found)", "found", TESTS
    ),
]
