"""Passes over facts."""

from .. import Mutant, tests_of

FILE = "keras_attention/episodic.py"
TESTS = tests_of("memory", "episodic and reference")

MUTANTS = [
    Mutant(
        FILE,
        "[product, product_m, distance, distance_m]",
        "[product, distance, product_m, distance_m]",
        TESTS,
    ),
    Mutant(FILE, "_compare(facts, memory)", "_compare(facts, question)", TESTS),
    Mutant(FILE, "mask=facts_mask, training=training", "mask=None, training=training", TESTS),
]
