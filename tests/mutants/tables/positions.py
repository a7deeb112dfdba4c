"""Positions added to inputs, or turned into them."""

from .. import Mutant, tests_of

FILE = "keras_attention/positions.py"
TESTS = tests_of("positions", "positions and reference")

MUTANTS = [
    Mutant(
        FILE, "max_wavelength ** (-(i - i % 2) / width)", "max_wavelength ** (-i / width)", TESTS
    ),
    Mutant(FILE, "last = length - 1", "last = length - 2", TESTS),
    Mutant(FILE, "signs = [-1.0, 1.0]", "signs = [1.0, -1.0]", TESTS),
]
