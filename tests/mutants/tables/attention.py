"""`Attention`: score, mask, normalise, read."""

from .. import Mutant, contracts

FILE = "keras_attention/attention.py"
BILINEAR = "attention_bilinear_key"
MASKS = contracts(f"{BILINEAR} and (masks or masked or padd)")

MUTANTS = [
    Mutant(FILE, "            masking.over_queries(query_mask),\n", "", MASKS),
    Mutant(FILE, "            masking.over_keys(readable),\n", "", MASKS),
    Mutant(FILE, "            attention_mask,\n", "", "tests/test_known_failures.py -k pairs"),
    Mutant(FILE, "offset=keys - queries", "offset=0", contracts("causal and (reference or cache)")),
    Mutant(FILE, "ops.any(mask, axis=-2)", "ops.all(mask, axis=-2)", MASKS),
    Mutant(
        FILE,
        "masking.select(key, readable), masking.select(value, readable)",
        "masking.select(key, readable), value",
        MASKS,
    ),
    Mutant(
        FILE,
        "masking.select(key, readable), masking.select(value, readable)",
        "key, masking.select(value, readable)",
        MASKS,
    ),
    Mutant(
        FILE,
        "query = masking.select(query, query_mask)",
        "pass",
        MASKS,
    ),
    Mutant(
        FILE,
        "read(self._dropout(weights, training=training), value)",
        "read(weights, value)",
        contracts("before_dropout"),
    ),
    Mutant(
        FILE,
        "        context = read(self._dropout(weights, training=training), value)",
        "        weights = self._dropout(weights, training=training)\n"
        "        context = read(weights, value)",
        contracts("before_dropout"),
    ),
    Mutant(
        FILE,
        "keras.layers.Dropout(dropout, seed=seed,",
        "keras.layers.Dropout(dropout,",
        contracts("before_dropout"),
    ),
    Mutant(
        FILE,
        "return context, ops.cast(weights, self.compute_dtype)",
        "return context, weights",
        contracts(f"{BILINEAR} and dtype"),
    ),
    Mutant(
        FILE,
        "return previous_mask if self.score.dimensions is None else None",
        "return None",
        contracts(f"{BILINEAR} and upstream"),
    ),
    Mutant(
        FILE,
        "return previous_mask if self.score.dimensions is None else None",
        "return previous_mask",
        contracts("dimension and upstream"),
    ),
    Mutant(
        FILE,
        "(*shape[:-1], value.shape[-1])",
        "(*shape[:-1], query.shape[-1])",
        contracts(f"{BILINEAR} and symbolic"),
    ),
    Mutant(FILE, '            "dropout": self.dropout,\n', "", contracts(f"{BILINEAR} and config")),
    Mutant(FILE, '            "seed": self.seed,\n', "", contracts(f"{BILINEAR} and config")),
    Mutant(FILE, "key = value if key is None else key", "key = value", contracts(BILINEAR)),
    Mutant(
        FILE,
        '("query_mask", "value_mask", "key_mask")',
        '("query_mask", "key_mask")',
        contracts("list_form"),
        reason="Masks of keys and of values mean the same: what may not be read.",
    ),
    Mutant(
        FILE,
        '("query_mask", "value_mask", "key_mask")',
        '("value_mask", "query_mask")',
        contracts("list_form"),
    ),
    Mutant(
        FILE,
        "query, value, key = (*query, None)[:3]",
        "query, value = query[:2]",
        contracts("list_form"),
    ),
    Mutant(
        FILE,
        'check_mask("attention_mask", attention_mask, (*query.shape[:2], value.shape[1]))',
        "",
        "tests/test_known_failures.py -k pairs",
    ),
    Mutant(
        FILE,
        "            self.add_loss(self.weights_regularizer(weights, mask))\n",
        "            pass\n",
        "tests/test_regularizers.py",
    ),
    Mutant(
        FILE, "query_mask = ops.expand_dims(query_mask, 1)", "pass", contracts("one_query_a_row")
    ),
    Mutant(
        FILE,
        "mask = masking.combine_masks(mask, score.readable(projected_key))",
        "mask = masking.combine_masks(mask)",
        contracts("location and (reference or masked)"),
    ),
]
