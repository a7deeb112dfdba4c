"""Memories in several hops."""

from .. import Mutant, tests_of

FILE = "keras_attention/memory.py"
TESTS = tests_of("memory", "memory and reference")

MUTANTS = [
    Mutant(FILE, "1.0 - 2.0 * order]", "1.0 - order]", TESTS),
    Mutant(
        FILE,
        "masking.combine_masks(readable, age < self.temporal)",
        "masking.combine_masks(readable, age <= self.temporal)",
        TESTS,
    ),
    Mutant(
        FILE, "masking.combine_masks(key_mask, value_mask), None", "key_mask, value_mask", TESTS
    ),
    Mutant(
        FILE,
        "return ops.matmul(query, self.maps[0]) + context",
        "return ops.matmul(query + context, self.maps[0])",
        TESTS,
    ),
    Mutant(FILE, "[*range(1, hops + 1)]", "[*range(hops)]", TESTS),
]
