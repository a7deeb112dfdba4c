"""Masks: what may be read, and selecting it."""

from .. import Mutant, contracts

FILE = "keras_attention/masking.py"
TESTS = "tests/test_masking.py"
DIRECTIONS = contracts("self_attention and reference")

MUTANTS = [
    Mutant(FILE, "ops.not_equal(tokens, pad_id)", "ops.equal(tokens, pad_id)", TESTS),
    Mutant(FILE, "pad_id: int = 0", "pad_id: int = 1", TESTS),
    Mutant(
        FILE, "distances(queries, keys, offset) <= 0", "distances(queries, keys, 0) <= 0", TESTS
    ),
    Mutant(FILE, "(queries, keys, offset) <= 0", "(queries, keys, offset) < 0", TESTS),
    Mutant(FILE, "keys = queries if keys is None else keys", "keys = queries", TESTS),
    Mutant(FILE, "key_positions - query_positions", "query_positions - key_positions", TESTS),
    Mutant(FILE, '"int32"), 1) + offset', '"int32"), 1) - offset', TESTS),
    Mutant(FILE, "ops.logical_and(combined, mask)", "ops.logical_or(combined, mask)", TESTS),
    Mutant(FILE, 'mask = ops.cast(mask, "bool")', "mask = ops.convert_to_tensor(mask)", TESTS),
    Mutant(
        FILE,
        "ops.where(over_queries(mask), tensor, ops.zeros((), dtype=tensor.dtype))",
        "tensor * ops.cast(over_queries(mask), tensor.dtype)",
        TESTS,
    ),
    Mutant(
        FILE,
        "ops.expand_dims(mask, -2)",
        "ops.expand_dims(mask, -1)",
        contracts("attention_dot and masked_keys"),
    ),
    Mutant(
        FILE,
        "ops.expand_dims(mask, -1)",
        "ops.expand_dims(mask, -2)",
        contracts("attention_dot and masked_keys"),
    ),
    Mutant(FILE, "offset)) <= window", "offset)) < window", DIRECTIONS),
    Mutant(FILE, "ops.abs(distances(", "ops.negative(distances(", DIRECTIONS),
    Mutant(FILE, '"forward": ops.less,', '"forward": ops.less_equal,', DIRECTIONS),
    Mutant(FILE, '"backward": ops.greater,', '"backward": ops.greater_equal,', DIRECTIONS),
    Mutant(FILE, '"no_diagonal": ops.not_equal', '"no_diagonal": ops.less', DIRECTIONS),
]
