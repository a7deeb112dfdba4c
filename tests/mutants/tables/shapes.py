"""Refusing wrong shapes."""

from .. import Mutant, contracts

FILE = "keras_attention/shapes.py"
WRONG = contracts("attention_bilinear_key and wrong_shapes")
MASKS = contracts("attention_bilinear_key and wrong_masks or mask_of_one_key")
RANKS = contracts("hierarchical_attention and wrong_shapes")
PAIRS = "tests/test_known_failures.py -k pairs"
EARLY = "tests/test_known_failures.py -k needs_weights"

MUTANTS = [
    Mutant(FILE, "len(shape) not in ranks or shape[-1] is None", "shape[-1] is None", RANKS),
    Mutant(FILE, "len(shape) not in ranks or shape[-1] is None", "len(shape) not in ranks", WRONG),
    Mutant(FILE, "if same_length and len(", "if False and len(", WRONG),
    Mutant(
        FILE,
        "if widths is not None and shape[-1] != widths[name]",
        "if False",
        contracts("built_layer"),
    ),
    Mutant(
        FILE,
        "shape[0] for shape in shapes.values()} - {None}) > 1",
        "shape[0] for shape in shapes.values()} - {None}) > 2",
        contracts("built_layer"),
    ),
    Mutant(FILE, "len(received) == len(shape) and all(", "all(", PAIRS),
    Mutant(FILE, 'if "float" in ', 'if "complex" in ', MASKS),
    Mutant(FILE, "if not layer.built:", "if False:", EARLY),
    Mutant(
        FILE,
        "zip(received, shape, strict=True)",
        "zip(received, shape)",
        MASKS,
        reason="The ranks have been compared before.",
    ),
    Mutant(FILE, "(i == 0 or of_pairs)", "True", MASKS),
    Mutant(FILE, "(i == 0 or of_pairs)", "False", PAIRS),
    Mutant(FILE, "length in (None, wanted)", "True", MASKS),
    Mutant(
        FILE,
        "    check_batches(query=query.shape, value=value.shape, key=key.shape)\n",
        "",
        contracts("built_layer"),
    ),
    Mutant(
        FILE,
        '    check_mask("value_mask", value_mask, value.shape[:2])\n',
        "",
        contracts("attention_bilinear_key and wrong_masks or mask_of_one_key"),
    ),
    Mutant(
        FILE,
        '    check_mask("query_mask", query_mask, query.shape[:2])\n',
        "",
        contracts("attention_bilinear_key and wrong_masks"),
    ),
    Mutant(
        FILE,
        "combine_masks(value_mask, key_mask)",
        "combine_masks(value_mask)",
        contracts("attention_scaled_dot_sparsemax_key and masked"),
    ),
]
