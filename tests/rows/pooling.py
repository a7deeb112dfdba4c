"""Attention pooling by learned queries, and feature by feature."""

from functools import partial

import numpy as np
import reference
from case import DV, B, Case, S, U
from reference.pooling import (
    elu,
    pool_by_features,
    pool_by_one_query,
    pool_by_queries,
    pooling,
)

import keras_attention as ka
from keras_attention.pooling import AttentionPooling, MultiDimensionalPooling
from keras_attention.regularizers import DiversityPenalty, EntropyPenalty
from rows.core import SEEDED


def pooling_case(name, create, pool, **changes):
    return Case(
        name,
        create,
        {"inputs": (B, S, DV)},
        pooling(pool),
        key_mask="mask",
        keys=("inputs",),
        wrong_shapes=({"inputs": (B, DV)}, {"inputs": (B, 3, S, DV)}),
        **changes,
    )


CASES = [
    pooling_case(
        "attention_pooling",
        AttentionPooling,
        partial(pool_by_one_query, reference.dot, reference.softmax, "dot_score", np.tanh),
    ),
    pooling_case(
        "attention_pooling_hops",
        lambda **kw: AttentionPooling(
            U,
            hops=4,
            activation="sigmoid",
            use_bias=False,
            normalizer="sparsemax",
            dropout=0.4,
            weights_regularizer=DiversityPenalty(0.3),
            seed=7,
            **SEEDED,
            **kw,
        ),
        partial(
            pool_by_queries, 4, reference.dot, reference.sparsemax, "dot_score", reference.logistic
        ),
    ),
    pooling_case(
        "attention_pooling_additive_hops",
        lambda **kw: AttentionPooling(6, 4, "linear", ka.AdditiveScore(U, **kw), **kw),
        partial(
            pool_by_queries, 4, reference.additive, reference.softmax, "additive_score", lambda x: x
        ),
    ),
    pooling_case(
        "attention_pooling_cosine_sigmoid",
        lambda **kw: AttentionPooling(score="cosine", normalizer="sigmoid", **kw),
        partial(
            pool_by_one_query, reference.cosine(1.0), reference.sigmoid, "cosine_score", np.tanh
        ),
        sums=None,
    ),
    pooling_case(
        "multi_dimensional_pooling",
        MultiDimensionalPooling,
        partial(pool_by_features, reference.softmax, elu),
    ),
    pooling_case(
        "multi_dimensional_pooling_options",
        lambda **kw: MultiDimensionalPooling(
            U,
            activation="sigmoid",
            use_bias=False,
            normalizer="sparsemax",
            dropout=0.4,
            weights_regularizer=EntropyPenalty(0.3),
            seed=7,
            **SEEDED,
            **kw,
        ),
        partial(pool_by_features, reference.sparsemax, reference.logistic),
    ),
]
