"""Scores alone, `Attention` with each score and normalizer, and decoders."""

import numpy as np
import reference
from case import DE, DK, DQ, DV, B, Case, S, T, U

import keras_attention as ka


def scores(**shapes):
    return {"query": (B, T, DQ), "key": (B, S, DK), **shapes}


def score_case(name, create, reference_score, wrong_shapes=(), **shapes):
    return Case(
        name,
        create,
        scores(**shapes),
        reference.score_layer(reference_score),
        wrong_shapes=(
            {"query": (B, DQ)},
            {"key": (B, T, S, DK)},
            *wrong_shapes,
        ),
        wide=True,
    )


def attention_case(name, create, reference_score, normalizer, path, **changes):
    shapes = changes.pop("shapes", {"query": (B, T, DQ), "value": (B, S, DV)})
    rank_3 = len(shapes["query"]) == 3
    return Case(
        name,
        create,
        shapes,
        reference.attention(
            reference_score, normalizer, path, causal="use_causal_mask" in changes.get("call", {})
        ),
        key_mask=changes.pop("key_mask", "value_mask"),
        keys=("value", "key") if "key" in shapes else ("value",),
        query_mask="query_mask" if rank_3 else "",
        queries="query" if rank_3 else "",
        wrong_shapes=(
            {"query": (B, T, S, DQ)},
            {"value": (B, DV)},
            *changes.pop("wrong_shapes", ()),
            *([{"key": (B, S + 1, shapes["key"][-1])}] if "key" in shapes else []),
        ),
        ordered="a causal mask knows positions" if changes.get("call") else "",
        sums=None if normalizer is reference.sigmoid else 1.0,
        **changes,
    )


def decoder_case(name, reference_score, normalizer, path, options, **changes):
    options = {"units": U, **options}
    described = {"query": "previous", "cell": "gru", "num_layers": 1, "input_feeding": True}
    described |= {k: v for k, v in options.items() if k in described}
    width = changes.pop("memory_width", DV)
    more = changes.pop("shapes", {})

    def create(**kwargs):
        made = {k: v() if isinstance(v, type) else v for k, v in options.items()}
        return ka.AttentionDecoder(**made, **kwargs)

    return Case(
        name,
        create,
        {"inputs": (B, T, DQ), "memory": (B, S, width), **more},
        reference.decoder(reference_score, normalizer, path, options["units"], **described),
        key_mask="memory_mask",
        keys=("memory",),
        query_mask="inputs_mask",
        queries="inputs",
        wrong_shapes=(
            {"inputs": (B, DQ)},
            {"memory": (B, T, S, width)},
            *([{"encoder_state": (B, 1, DE)}] if more else []),
        ),
        void="a decoder moves on from a context of zeros",
        sums=None if normalizer is reference.sigmoid else 1.0,
        **changes,
    )


SEEDED = {
    "kernel_initializer": "he_normal",
    "kernel_regularizer": "l2",
    "kernel_constraint": "max_norm",
}
ONE_WIDTH = ({"key": (B, S, DQ + 1)},)

CASES = [
    # Scores alone.
    score_case("dot_score", ka.DotScore, reference.dot, ONE_WIDTH, key=(B, S, DQ)),
    score_case(
        "scaled_dot_score", ka.ScaledDotScore, reference.scaled_dot, ONE_WIDTH, key=(B, S, DQ)
    ),
    score_case("cosine_score", ka.CosineScore, reference.cosine(1.0), ONE_WIDTH, key=(B, S, DQ)),
    score_case(
        "cosine_score_sharp",
        lambda **kw: ka.CosineScore(scale=3.0, **kw),
        reference.cosine(3.0),
        ONE_WIDTH,
        key=(B, S, DQ),
    ),
    score_case("bilinear_score", ka.BilinearScore, reference.general),
    score_case(
        "bilinear_score_options", lambda **kw: ka.BilinearScore(**SEEDED, **kw), reference.general
    ),
    score_case("additive_score", ka.AdditiveScore, reference.additive),
    score_case(
        "additive_score_options",
        lambda **kw: ka.AdditiveScore(U, **SEEDED, **kw),
        reference.additive,
    ),
    score_case("mlp_score", ka.MLPScore, reference.concat(np.tanh)),
    score_case(
        "mlp_score_deep",
        lambda **kw: ka.MLPScore((U, 9, 3), activation="sigmoid", **SEEDED, **kw),
        reference.concat(reference.logistic, 3),
    ),
    score_case(
        "mlp_score_no_bias",
        lambda **kw: ka.MLPScore(U, use_bias=False, **kw),
        reference.concat(np.tanh),
    ),
    # Attention: every score, every normalizer, queries of rank 2 and 3, keys apart from values.
    attention_case(
        "attention_dot",
        ka.Attention,
        reference.dot,
        reference.softmax,
        "dot_score",
        shapes={"query": (B, T, DV), "value": (B, S, DV)},
        wrong_shapes=({"query": (B, T, DQ)},),
    ),
    attention_case(
        "attention_scaled_dot_sparsemax_key",
        lambda **kw: ka.Attention("scaled_dot", "sparsemax", **kw),
        reference.scaled_dot,
        reference.sparsemax,
        "scaled_dot_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DQ)},
        key_mask="key_mask",
        wrong_shapes=({"key": (B, S, DK)},),
    ),
    attention_case(
        "attention_cosine_sigmoid",
        lambda **kw: ka.Attention(ka.CosineScore(2.0, **kw), "sigmoid", **kw),
        reference.cosine(2.0),
        reference.sigmoid,
        "cosine_score",
        shapes={"query": (B, T, DV), "value": (B, S, DV)},
    ),
    attention_case(
        "attention_bilinear_key",
        lambda **kw: ka.Attention("bilinear", dropout=0.4, seed=7, **kw),
        reference.general,
        reference.softmax,
        "bilinear_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_bilinear_one_query_sparsemax",
        lambda **kw: ka.Attention("general", ka.sparsemax, **kw),
        reference.general,
        reference.sparsemax,
        "bilinear_score",
        shapes={"query": (B, DQ), "value": (B, S, DV)},
    ),
    attention_case(
        "attention_additive",
        lambda **kw: ka.Attention(ka.AdditiveScore(U, **kw), **kw),
        reference.additive,
        reference.softmax,
        "additive_score",
    ),
    attention_case(
        "attention_additive_causal",
        lambda **kw: ka.Attention("additive", **kw),
        reference.additive,
        reference.softmax,
        "additive_score",
        call={"use_causal_mask": True},
    ),
    attention_case(
        "attention_additive_one_query_key",
        lambda **kw: ka.Attention("additive", **kw),
        reference.additive,
        reference.softmax,
        "additive_score",
        shapes={"query": (B, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_mlp_sparsemax",
        lambda **kw: ka.Attention(ka.MLPScore((U, 3), "sigmoid", **kw), "sparsemax", **kw),
        reference.concat(reference.logistic, 2),
        reference.sparsemax,
        "mlp_score",
    ),
    # Decoders.
    decoder_case(
        "decoder_bahdanau",
        reference.additive,
        reference.softmax,
        "additive_score",
        {},
        shapes={"encoder_state": (B, DE)},
    ),
    decoder_case(
        "decoder_luong",
        reference.general,
        reference.softmax,
        "bilinear_score",
        {"score": "bilinear", "query": "current", "dropout": 0.4, "seed": 5},
        shapes={"encoder_state": (B, DE)},
    ),
    decoder_case(
        "decoder_lstm_previous_two_layers",
        reference.dot,
        reference.sparsemax,
        "dot_score",
        {
            "score": "dot",
            "normalizer": "sparsemax",
            "cell": "lstm",
            "num_layers": 2,
            "input_feeding": False,
        },
        memory_width=U,
        shapes={"encoder_state": (B, DE)},
    ),
    decoder_case(
        "decoder_lstm_current_two_layers",
        reference.additive,
        reference.softmax,
        "additive_score",
        {"query": "current", "cell": "lstm", "num_layers": 2},
    ),
    decoder_case(
        "decoder_gru_no_feeding",
        reference.concat(np.tanh),
        reference.sigmoid,
        "mlp_score",
        {"score": "mlp", "normalizer": "sigmoid", "query": "current", "input_feeding": False},
    ),
    decoder_case(
        "decoder_options",
        reference.cosine(1.0),
        reference.softmax,
        "cosine_score",
        {
            "score": "cosine",
            "num_layers": 2,
            "kernel_initializer": "he_normal",
            "recurrent_initializer": "glorot_uniform",
            "kernel_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "use_bias": False,
        },
        memory_width=U,
    ),
]
