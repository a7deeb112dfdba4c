"""What heads have in common."""

from .. import Mutant, tests_of

FILE = "keras_attention/heads.py"
TESTS = tests_of("self_attention", "self_attention and reference")

MUTANTS = [
    Mutant(
        FILE,
        "projected_key = ops.repeat(projected_key, repeats, axis=1)",
        "projected_key = ops.tile(projected_key, (1, repeats, 1, 1))",
        TESTS,
    ),
    Mutant(
        FILE,
        "readable = None if mask is None else ops.any(mask, axis=-2)",
        "readable = memory_mask",
        TESTS,
    ),
]
