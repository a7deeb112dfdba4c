"""Hierarchical attention: without encoders, with recurrent ones, and with a pass down."""

from functools import partial

import keras
import numpy as np
import reference
from case import DV, B, Case, S, U, W
from reference.hierarchical import ask, bidirectional, dense, hierarchy, identity, mean
from reference.pooling import elu, pool_by_features, pool_by_one_query, pool_by_queries

import keras_attention as ka
from keras_attention.hierarchical import HierarchicalAttention
from keras_attention.pooling import AttentionPooling, MultiDimensionalPooling


def hierarchical_case(name, create, parts, **changes):
    def made(**kwargs):
        # The parts have their places, and so their names, in the reference.
        return HierarchicalAttention(**create({"dtype": kwargs.get("dtype")}), **kwargs)

    return Case(
        name,
        made,
        {"inputs": (B, S, W, DV)},
        hierarchy(**parts),
        key_mask="mask",
        keys=("inputs",),
        weights=2,
        wrong_shapes=({"inputs": (B, W, DV)}, {"inputs": (B, 3, S, W, DV)}),
        **changes,
    )


def encoder(name, units, **dtype):
    # Keras's orthogonal initializer has no bfloat16.
    gru = keras.layers.GRU(
        units, return_sequences=True, recurrent_initializer="glorot_uniform", name=name, **dtype
    )
    return keras.layers.Bidirectional(gru, name=name, **dtype)


BY_ONE_QUERY = partial(pool_by_one_query, reference.dot, reference.softmax, "dot_score", np.tanh)

CASES = [
    hierarchical_case(
        "hierarchical_attention",
        lambda dtype: {},
        {
            "word_encoder": identity,
            "word_pooling": BY_ONE_QUERY,
            "sentence_encoder": identity,
            "sentence_pooling": BY_ONE_QUERY,
        },
    ),
    hierarchical_case(
        "hierarchical_attention_gru",
        lambda dtype: {
            "word_encoder": encoder("words", 2, **dtype),
            "word_pooling": AttentionPooling(U, name="word_pooling", **dtype),
            "sentence_encoder": encoder("sentences", 3, **dtype),
            "sentence_pooling": MultiDimensionalPooling(name="sentence_pooling", **dtype),
        },
        {
            "word_encoder": bidirectional("words"),
            "word_pooling": BY_ONE_QUERY,
            "sentence_encoder": bidirectional("sentences"),
            "sentence_pooling": partial(pool_by_features, reference.softmax, elu),
        },
        ordered="a recurrent network reads in order",
        exempt={"tflite": "Keras's recurrent layers convert only where the exporter sees them"},
    ),
    hierarchical_case(
        "hierarchical_attention_hops",
        lambda dtype: {
            "word_encoder": keras.layers.Dense(4, name="words", **dtype),
            "word_pooling": AttentionPooling(hops=3, name="word_pooling", **dtype),
            "sentence_encoder": keras.layers.Dense(U, activation="sigmoid", name="up", **dtype),
            "sentence_pooling": AttentionPooling(hops=4, name="sentence_pooling", **dtype),
        },
        {
            "word_encoder": dense("words"),
            "word_pooling": partial(pool_by_queries, 3, *BY_ONE_QUERY.args),
            "sentence_encoder": dense("up", reference.logistic),
            "sentence_pooling": partial(pool_by_queries, 4, *BY_ONE_QUERY.args),
        },
    ),
    hierarchical_case(
        "hierarchical_attention_top_down",
        lambda dtype: {
            "word_encoder": keras.layers.Dense(6, name="words", **dtype),
            "word_pooling": keras.layers.GlobalAveragePooling1D(name="word_pooling", **dtype),
            "sentence_encoder": keras.layers.Dense(4, name="sentences", **dtype),
            "top_down": "additive",
        },
        {
            "word_encoder": dense("words"),
            "word_pooling": mean,
            "sentence_encoder": dense("sentences"),
            "sentence_pooling": BY_ONE_QUERY,
            "top_down": ask(reference.additive, reference.softmax, "additive_score"),
        },
    ),
    hierarchical_case(
        "hierarchical_attention_top_down_sparsemax",
        lambda dtype: {
            "top_down": ka.Attention(
                ka.BilinearScore(**dtype), "sparsemax", dropout=0.4, name="top_down", **dtype
            ),
        },
        {
            "word_encoder": identity,
            "word_pooling": BY_ONE_QUERY,
            "sentence_encoder": identity,
            "sentence_pooling": BY_ONE_QUERY,
            "top_down": ask(reference.general, reference.sparsemax, "bilinear_score"),
        },
    ),
]
