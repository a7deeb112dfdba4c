"""Scores of several dimensions and of positions, alone and in `Attention`."""

import reference
from case import DK, DQ, DV, B, Case, S, T, U
from reference.scores import (
    alibi,
    attention,
    content,
    location,
    multi_dimensional,
    normalized_additive,
    relative,
    score_layer,
)

import keras_attention as ka
from keras_attention.positional_scores import AlibiScore, RelativePositionScore
from keras_attention.scores import AdditiveScore, LocationScore, MultiDimensionalScore
from rows.core import ONE_WIDTH, SEEDED

H = 6  # heads; no power of two
K = 11  # dimensions
HEADS = {"query": (B, H, T, DQ), "key": (B, H, S, DQ)}
BIASED = {
    "bias_initializer": "ones",
    "bias_regularizer": "l2",
    "bias_constraint": "non_neg",
}
POSITIONS = "scores know positions"


def score_case(name, create, score, dimensions=None, wrong_shapes=(), **shapes):
    shapes = {"query": (B, T, DQ), "key": (B, S, DK), **shapes}
    return Case(
        name,
        create,
        shapes,
        score_layer(score, dimensions),
        wrong_shapes=({"query": (B, DQ)}, {"key": (B, 3, *shapes["key"])}, *wrong_shapes),
        wide=True,
    )


def attention_case(name, create, score, path, normalizer=reference.softmax, **changes):
    shapes = changes.pop("shapes", {"query": (B, T, DQ), "value": (B, S, DV)})
    rank_3 = len(shapes["query"]) == 3
    dimensions = changes.pop("dimensions", None)
    return Case(
        name,
        create,
        shapes,
        attention(score, normalizer, path, dimensions, causal="call" in changes),
        key_mask="value_mask",
        keys=("value", "key") if "key" in shapes else ("value",),
        query_mask="query_mask" if rank_3 else "",
        queries="query" if rank_3 else "",
        carries_mask=dimensions is None,
        wrong_shapes=({"query": (B, T, S, DQ)}, {"value": (B, DV)}),
        sums=None if normalizer is reference.sigmoid else 1.0,
        **changes,
    )


CASES = [
    # Scores alone.
    score_case(
        "additive_score_normalized",
        lambda **kw: AdditiveScore(normalize=True, **kw),
        content(normalized_additive),
    ),
    score_case(
        "additive_score_normalized_options",
        lambda **kw: AdditiveScore(U, normalize=True, **SEEDED, **kw),
        content(normalized_additive),
    ),
    score_case("location_score", lambda **kw: LocationScore(9, **kw), location(9)),
    score_case(
        "location_score_options", lambda **kw: LocationScore(6, **SEEDED, **kw), location(6)
    ),
    score_case(
        "multi_dimensional_score",
        lambda **kw: MultiDimensionalScore(K, **kw),
        multi_dimensional,
        K,
        ({"query": (B, H, T, DQ), "key": (B, H, S, DK)},),
    ),
    score_case(
        "multi_dimensional_score_options",
        lambda **kw: MultiDimensionalScore(1, **SEEDED, **kw),
        multi_dimensional,
        1,
    ),
    score_case(
        "relative_position_score",
        RelativePositionScore,
        relative(content(reference.scaled_dot), 16),
        wrong_shapes=ONE_WIDTH,
        key=(B, S, DQ),
    ),
    score_case(
        "relative_position_score_options",
        lambda **kw: RelativePositionScore("bilinear", max_distance=2, **BIASED, **kw),
        relative(content(reference.general), 2, "bilinear_score"),
    ),
    score_case(
        "relative_position_score_heads",
        lambda **kw: RelativePositionScore("dot", max_distance=1, **kw),
        relative(content(reference.dot), 1),
        **HEADS,
    ),
    score_case(
        "alibi_score",
        AlibiScore,
        alibi(content(reference.scaled_dot)),
        wrong_shapes=ONE_WIDTH,
        key=(B, S, DQ),
    ),
    score_case(
        "alibi_score_additive_heads",
        lambda **kw: AlibiScore("additive", **kw),
        alibi(content(reference.additive), "additive_score"),
        **HEADS,
    ),
    score_case(
        "positional_scores_nested",
        lambda **kw: RelativePositionScore(
            AlibiScore(MultiDimensionalScore(K, **kw), **kw), max_distance=3, **kw
        ),
        relative(alibi(multi_dimensional, "multi_dimensional_score"), 3, "alibi_score"),
        K,
    ),
    # In `Attention`.
    attention_case(
        "attention_additive_normalized",
        lambda **kw: ka.Attention(AdditiveScore(U, normalize=True, **kw), **kw),
        content(normalized_additive),
        "additive_score",
    ),
    attention_case(
        "attention_location_sigmoid",
        lambda **kw: ka.Attention(LocationScore(3, **kw), "sigmoid", **kw),
        location(3),
        "location_score",
        reference.sigmoid,
        ordered=POSITIONS,
    ),
    attention_case(
        "attention_location_longer_key",
        lambda **kw: ka.Attention(LocationScore(9, **kw), **kw),
        location(9),
        "location_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
        ordered=POSITIONS,
    ),
    attention_case(
        "attention_multi_dimensional",
        lambda **kw: ka.Attention(MultiDimensionalScore(K, **kw), dropout=0.3, **kw),
        multi_dimensional,
        "multi_dimensional_score",
        dimensions=K,
    ),
    attention_case(
        "attention_multi_dimensional_one_query_sigmoid",
        lambda **kw: ka.Attention(MultiDimensionalScore(9, **kw), "sigmoid", **kw),
        multi_dimensional,
        "multi_dimensional_score",
        reference.sigmoid,
        shapes={"query": (B, DQ), "value": (B, S, DV), "key": (B, S, DK)},
        dimensions=9,
    ),
    attention_case(
        "attention_relative_causal",
        lambda **kw: ka.Attention(RelativePositionScore("additive", 2, **kw), **kw),
        relative(content(reference.additive), 2, "additive_score"),
        "relative_position_score",
        call={"use_causal_mask": True},
        ordered=POSITIONS,
    ),
    attention_case(
        "attention_relative_location",
        lambda **kw: ka.Attention(RelativePositionScore(LocationScore(4, **kw), 1, **kw), **kw),
        relative(location(4), 1, "location_score"),
        "relative_position_score",
        ordered=POSITIONS,
    ),
    attention_case(
        "attention_alibi",
        lambda **kw: ka.Attention("alibi", **kw),
        alibi(content(reference.scaled_dot)),
        "alibi_score",
        shapes={"query": (B, T, DV), "value": (B, S, DV)},
        ordered=POSITIONS,
    ),
    attention_case(
        "attention_alibi_one_query_multi_dimensional",
        lambda **kw: ka.Attention(AlibiScore(MultiDimensionalScore(9, **kw), **kw), **kw),
        alibi(multi_dimensional, "multi_dimensional_score"),
        "alibi_score",
        shapes={"query": (B, DQ), "value": (B, S, DV)},
        dimensions=9,
        ordered=POSITIONS,
    ),
]
