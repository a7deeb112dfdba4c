"""Two attentions that learn from one another."""

from .. import Mutant, tests_of

FILE = "keras_attention/coupled.py"
TESTS = tests_of("coupled", "coupled and (reference or influence)")

MUTANTS = [
    Mutant(FILE, "reset_after=False,", "reset_after=True,", TESTS),
    Mutant(FILE, '"kde,be->bdk"', '"ked,be->bdk"', TESTS),
    Mutant(FILE, "sum(layers) for layers", "layers[-1] for layers", TESTS),
    Mutant(FILE, "ops.where(real, new, old) for new", "new for new", TESTS),
]
