"""One step, two loops; and which of them runs."""

from .. import Mutant, contracts

FILE = "keras_attention/loops.py"
TARGETS = "keras_attention/targets.py"
LOOPS = "tests/test_recurrent.py -k 'exported_loop'"
TRAINING = "tests/test_known_failures.py -k 'while_training and decoder_luong'"
GRADIENT = contracts("decoder_luong and (gradient or reference)")

MUTANTS = [
    Mutant(FILE, "return index + 1, states, buffers", "return index + 2, states, buffers", LOOPS),
    Mutant(FILE, "buffers: index < length", "buffers: index < length - 1", LOOPS),
    Mutant(FILE, "ops.take(x, index, axis=0)", "ops.take(x, 0 * index, axis=0)", LOOPS),
    Mutant(
        FILE,
        "outputs, states = step(row_inputs, states)",
        "outputs, _ = step(row_inputs, states)",
        LOOPS,
    ),
    Mutant(FILE, "start[axis] = index", "pass", LOOPS),
    Mutant(
        FILE,
        "ops.expand_dims(index + ops.arange(",
        "ops.expand_dims(0 * index + ops.arange(",
        LOOPS,
    ),
    Mutant(
        FILE, "if export_target() is None:\n        return", "if False:\n        return", GRADIENT
    ),
    Mutant(
        FILE,
        "ops.zeros((length, batch, size), dtype",
        "ops.zeros((length, ops.shape(row)[0], size), dtype",
        "tests/test_known_export_failures.py -k runs_no_step",
    ),
    Mutant(FILE, "        start += width\n", "        start = width\n", TRAINING),
    Mutant(
        FILE,
        "return_state=True, dtype=dtype)",
        "return_state=True)",
        contracts("decoder_luong and dtype"),
    ),
    Mutant(
        TARGETS, "        _export.reset(token)", "        pass", "tests/test_recurrent.py -k target"
    ),
    Mutant(TARGETS, "if target not in TARGETS", "if False", "tests/test_recurrent.py -k target"),
]
