"""Scores: how well a key answers a query."""

from .. import Mutant, contracts

FILE = "keras_attention/scores.py"


def reference_of(name):
    return contracts(f"{name} and reference")


MUTANTS = [
    Mutant(FILE, "query.shape[-1] ** -0.5", "query.shape[-1] ** 0.5", reference_of("scaled_dot")),
    Mutant(FILE, "query.shape[-1] ** -0.5", "query.shape[-2] ** -0.5", reference_of("scaled_dot")),
    Mutant(FILE, "return self.scale * super()", "return super()", reference_of("cosine")),
    Mutant(FILE, "return _unit(widen(key))", "return widen(key)", reference_of("cosine")),
    Mutant(FILE, "nonzero = square > 0", "nonzero = square >= 0", contracts("cosine_of_zero")),
    Mutant(
        FILE,
        "ops.rsqrt(ops.where(nonzero, square, 1.0))",
        "ops.rsqrt(square)",
        contracts("cosine_of_zero"),
    ),
    Mutant(
        FILE,
        '{**super().get_config(), "scale": self.scale}',
        "super().get_config()",
        contracts("cosine and config"),
    ),
    Mutant(
        FILE,
        "self._refuse_different_widths(query_shape, key_shape)\n",
        "pass\n",
        contracts("dot_score and wrong_shapes"),
    ),
    Mutant(
        FILE,
        "        if self.built:\n",
        "        if False:\n",
        "tests/test_known_failures.py -k score_of_two",
    ),
    Mutant(
        FILE,
        "len(shape) != len(query_shape) or shape[-1] is None",
        "shape[-1] is None",
        contracts("score and wrong_shapes"),
    ),
    Mutant(
        FILE,
        "len(query_shape) or shape[-1] is None",
        "len(query_shape)",
        contracts("score and wrong_shapes"),
    ),
    Mutant(
        FILE,
        "hidden = self.activation(query + ops.expand_dims(projected_key, -3))",
        "hidden = query + ops.expand_dims(projected_key, -3)",
        reference_of("additive_score"),
    ),
    Mutant(
        FILE,
        "hidden = self.activation(project(dense, hidden))",
        "hidden = dense(hidden)",
        reference_of("mlp_score_deep"),
    ),
    Mutant(
        FILE,
        "units = key_shape[-1] if self.units is None else self.units",
        "units = query_shape[-1] if self.units is None else self.units",
        reference_of("additive"),
        reason="Only the number of hidden units differs, which the reference reads of the kernel.",
    ),
    Mutant(
        FILE,
        "return widen(ops.squeeze(project(self.score_dense, hidden), -1))",
        "return ops.squeeze(self.score_dense(hidden), -1)",
        contracts("additive_score and dtype"),
    ),
    Mutant(
        FILE,
        "use_bias=normalize, **kwargs)",
        "use_bias=True, **kwargs)",
        reference_of("additive_score"),
    ),
    Mutant(
        FILE,
        "isinstance(width, int) and not isinstance(width, bool)",
        "isinstance(width, int)",
        contracts("wrong_arguments"),
    ),
    Mutant(FILE, "and width > 0", "", contracts("wrong_arguments")),
    Mutant(
        FILE,
        '"activation": keras.activations.serialize(self.activation),',
        "",
        contracts("mlp_score and config"),
    ),
    Mutant(
        FILE,
        "return _positions(projected_key) < self.max_length",
        "return _positions(projected_key) <= self.max_length",
        contracts("location and (reference or masked)"),
    ),
    Mutant(
        FILE,
        "return scores * (widen(self.scale) * length)",
        "return scores * widen(self.scale)",
        contracts("normalized and reference"),
    ),
]
