"""Gates of attention."""

from .. import Mutant, tests_of

FILE = "keras_attention/attention_gru.py"
TESTS = tests_of("attention_gru", "attention_gru and (reference or influence or leaks)")

MUTANTS = [
    Mutant(
        FILE,
        "lambda attention, update: attention * (1.0 - update)",
        "lambda attention, update: attention * update",
        TESTS,
    ),
    Mutant(
        FILE,
        "ops.matmul(reset * state, candidate_kernel)",
        "reset * ops.matmul(state, candidate_kernel)",
        TESTS,
    ),
    Mutant(
        FILE,
        "inputs, gates = (masking.select(x, inputs_mask) for x in (inputs, gates))",
        "inputs = masking.select(inputs, inputs_mask)",
        TESTS,
    ),
    Mutant(
        FILE,
        "            outputs = masking.select(sequence, inputs_mask)",
        "            outputs = sequence",
        TESTS,
    ),
]
