"""`Attention` with each normalizer, and those by themselves that are layers."""

import reference
from case import DK, DQ, DV, B, Case, S, T, U
from reference import normalizers

import keras_attention as ka
from keras_attention.hard import GumbelSoftmax, SampledAttention
from keras_attention.normalizers import hardmax
from rows.core import attention_case


def alone_case(name, create, normalizer, **exempt):
    return Case(
        name,
        create,
        {"scores": (B, T, S)},
        normalizers.alone(normalizer),
        exempt={"dtype_policy": "weights are as wide as their scores, of any policy", **exempt},
    )


# A fresh copy takes the first key of all queries, for it finds all alike; the one it is compared
# with, of random weights, does not.
ALIKE = {"kernel_initializer": "zeros"}
OPTIONS = {"entropy_weight": 0.2, "baseline_momentum": 0.5, "reward_weight": 0.1, "seed": 3}
BASELINE = {"saving": "its one weight, the baseline, has no part in what comes out"}

CASES = [
    attention_case(
        "attention_dot_entmax15",
        lambda **kw: ka.Attention("dot", "entmax15", **kw),
        reference.dot,
        normalizers.entmax15,
        "dot_score",
        shapes={"query": (B, T, DV), "value": (B, S, DV)},
    ),
    attention_case(
        "attention_bilinear_one_query_entmax15_key",
        lambda **kw: ka.Attention("bilinear", "entmax15", **kw),
        reference.general,
        normalizers.entmax15,
        "bilinear_score",
        shapes={"query": (B, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_bilinear_hardmax_key",
        lambda **kw: ka.Attention(ka.BilinearScore(**ALIKE, **kw), "hardmax", **kw),
        reference.general,
        normalizers.hardmax,
        "bilinear_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_additive_hardmax_causal",
        lambda **kw: ka.Attention(ka.AdditiveScore(U, **ALIKE, **kw), hardmax, **kw),
        reference.additive,
        normalizers.hardmax,
        "additive_score",
        call={"use_causal_mask": True},
    ),
    attention_case(
        "attention_bilinear_gumbel_key",
        lambda **kw: ka.Attention(ka.BilinearScore(**ALIKE, **kw), GumbelSoftmax(**kw), **kw),
        reference.general,
        normalizers.hardmax,
        "bilinear_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_bilinear_gumbel_soft_key",
        lambda **kw: ka.Attention("bilinear", GumbelSoftmax(0.5, hard=False, seed=2, **kw), **kw),
        reference.general,
        normalizers.tempered(0.5),
        "bilinear_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_bilinear_sampled_key",
        lambda **kw: ka.Attention(ka.BilinearScore(**ALIKE, **kw), SampledAttention(**kw), **kw),
        reference.general,
        normalizers.hardmax,
        "bilinear_score",
        shapes={"query": (B, T, DQ), "value": (B, S, DV), "key": (B, S, DK)},
    ),
    attention_case(
        "attention_additive_one_query_sampled",
        lambda **kw: ka.Attention(
            ka.AdditiveScore(**ALIKE, **kw), SampledAttention(**OPTIONS, **kw), **kw
        ),
        reference.additive,
        normalizers.hardmax,
        "additive_score",
        shapes={"query": (B, DQ), "value": (B, S, DV)},
    ),
    alone_case("gumbel_softmax", GumbelSoftmax, normalizers.hardmax),
    alone_case(
        "gumbel_softmax_soft",
        lambda **kw: GumbelSoftmax(0.5, hard=False, seed=2, **kw),
        normalizers.tempered(0.5),
    ),
    alone_case("sampled_attention", SampledAttention, normalizers.hardmax, **BASELINE),
    alone_case(
        "sampled_attention_options",
        lambda **kw: SampledAttention(**OPTIONS, **kw),
        normalizers.hardmax,
        **BASELINE,
    ),
]
