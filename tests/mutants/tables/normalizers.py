"""Normalizers: from scores to weights."""

from .. import Mutant, contracts

FILE = "keras_attention/normalizers.py"
TESTS = "tests/test_normalizers.py"

MUTANTS = [
    Mutant(FILE, "and _knows_masks(normalizer):", ":", TESTS),
    Mutant(FILE, "and not isinstance(normalizer, type)", "", TESTS),
    Mutant(FILE, "MASKED_SCORE = -1e38", "MASKED_SCORE = -1e4", TESTS),
    Mutant(FILE, "MASKED_SCORE = -1e38", "MASKED_SCORE = -1.0", TESTS),
    Mutant(FILE, " if is_calibrated() else MASKED_SCORE", " if False else MASKED_SCORE", TESTS),
    Mutant(FILE, "keepdims=True) - 16.0 if", "keepdims=True) - 0.5 if", TESTS),
    Mutant(
        FILE,
        'return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"',
        'return "float32"',
        TESTS,
    ),
    Mutant(FILE, "return ops.cast(x, wide_dtype(x.dtype))", "return x", TESTS),
    Mutant(FILE, "    if mask is None:\n        return x\n", "", TESTS),
    Mutant(
        FILE,
        "return where_readable(mask, _softmax(scores), 0.0)",
        "return _softmax(scores)",
        TESTS,
    ),
    Mutant(
        FILE,
        "return 1.0 + 0.0 * scores if",
        "return 0.0 * scores if",
        contracts("a_single_key"),
    ),
    Mutant(
        FILE,
        "if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)",
        "if scores.shape[-1] == 1 else ops.exp(scores) / ops.sum(ops.exp(scores), -1, True)",
        TESTS,
    ),
    Mutant(FILE, "keepdims=True), -1.0)", "keepdims=True), -0.5)", TESTS),
    Mutant(FILE, "1.0 + rank * descending", "1.0 + descending", TESTS),
    Mutant(FILE, "(total - 1.0) / size", "(total - 0.9) / size", TESTS),
    Mutant(
        FILE, "ops.flip(ops.sort(scores, axis=-1), axis=-1)", "ops.sort(scores, axis=-1)", TESTS
    ),
    Mutant(
        FILE,
        "1.0 + rank * descending > ops.cumsum",
        "1.0 + rank * descending >= ops.cumsum",
        TESTS,
        reason="A key on the edge of the support has weight 0 whether it is counted or not.",
    ),
    Mutant(
        FILE,
        "return where_readable(mask, ops.sigmoid(scores), 0.0)",
        "return ops.sigmoid(scores)",
        TESTS,
    ),
    Mutant(
        FILE,
        ", 0.0)\n    return where_readable(mask, ops.sigmoid(scores)",
        ", 99.0)\n    return where_readable(mask, ops.sigmoid(scores)",
        TESTS,
        reason="The sigmoid of a masked score is selected away, and so is its gradient.",
    ),
    Mutant(FILE, '"sparsemax": sparsemax,', '"sparsemax": softmax,', TESTS),
    Mutant(FILE, "    halves = scores / 2.0", "    halves = scores / 1.0", TESTS),
    Mutant(
        FILE,
        "tau = mean - ops.sqrt((1.0 - spread) / size)",
        "tau = mean - ops.sqrt(1.0 / size)",
        TESTS,
    ),
]
