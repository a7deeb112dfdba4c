"""`EpisodicMemory`: both kinds of episode, the updates of the paper."""

import reference
from case import DK, DQ, B, Case, S, U
from reference import episodic as paper
from reference import memory as updates

from keras_attention.episodic import EpisodicMemory

NORMALIZERS = {"softmax": reference.softmax, "sigmoid": reference.sigmoid}
EPISODES = {"gru": paper.gated, "soft": paper.soft}


def episodic_case(name, options, **changes):
    described = {"hops": 3, "episode": "gru", "update": "relu", "normalizer": "softmax"}
    described |= {k: v for k, v in options.items() if k in described}
    normalizer = NORMALIZERS[described["normalizer"]]
    return Case(
        name,
        lambda **kw: EpisodicMemory(**options, **kw),
        {"facts": (B, S, DQ), "question": (B, DQ)},
        paper.episodic(
            normalizer,
            EPISODES[described["episode"]],
            getattr(updates, f"update_{described['update']}"),
            described["hops"],
        ),
        key_mask="facts_mask",
        keys=("facts",),
        carries_mask=False,
        void="a memory goes on from episodes of zeros",
        sums=None if normalizer is reference.sigmoid else 1.0,
        ordered="" if described["episode"] == "soft" else "an episode knows the order of facts",
        wrong_shapes=(
            {"facts": (B, DQ)},
            {"facts": (B, S, DK)},
            {"question": (B, 1, DQ)},
            {"question": (B + 1, DQ)},
        ),
        **changes,
    )


CASES = [
    episodic_case("episodic", {}),
    episodic_case("episodic_gru", {"hops": 2, "update": "gru", "units": U}),
    episodic_case(
        "episodic_soft_options",
        {
            "hops": 2,
            "episode": "soft",
            "update": "rnn",
            "normalizer": "sigmoid",
            "kernel_initializer": "he_normal",
            "recurrent_initializer": "glorot_uniform",
            "kernel_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "use_bias": False,
        },
    ),
    episodic_case("episodic_soft_linear", {"hops": 1, "episode": "soft", "update": "linear"}),
]
