"""What heads have in common."""

from .. import Mutant

FILE = "keras_attention/heads.py"
TESTS = "tests/test_self_attention.py"

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
