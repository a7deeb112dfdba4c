"""Hard attention that learns."""

from .. import Mutant

FILE = "keras_attention/hard.py"
TESTS = "tests/test_hard.py"

MUTANTS = [
    Mutant(
        FILE,
        "return best + (soft - ops.stop_gradient(soft))",
        "return best + ops.stop_gradient(soft - soft)",
        TESTS,
    ),
    Mutant(
        FILE,
        "self.reward_weight * (reward - baseline)",
        "self.reward_weight * (reward - average)",
        TESTS,
    ),
    Mutant(
        FILE,
        "return scores - ops.log(-ops.log(uniform))",
        "return scores + ops.log(-ops.log(uniform))",
        TESTS,
    ),
]
