"""`AttentionGRU`: both gates, both places of the reset gate, last state and sequences."""

import numpy as np
from case import DE, DQ, B, Case, T, U
from reference.gru import attention_gru, replaced, scaled, softsign

from keras_attention.attention_gru import AttentionGRU

SHARES = {"replace": (replaced, "rh"), "scale": (scaled, "zrh")}


def between_0_and_1(x):
    return 1.0 / (1.0 + np.exp(-x))


def gru_case(name, options, functions=None, initial_state=False, **changes):
    options = {"units": U, **options}
    share, letters = SHARES[options.get("gate", "replace")]
    sequences = options.get("return_sequences", False)
    more = {"initial_state": (B, options["units"])} if initial_state else {}
    return Case(
        name,
        lambda **kw: AttentionGRU(**options, **kw),
        {"inputs": (B, T, DQ), "gates": (B, T), **more},
        attention_gru(
            share,
            letters,
            options.get("reset_after", True),
            sequences,
            options.get("return_state", False),
            **(functions or {}),
        ),
        key_mask="inputs_mask",
        keys=("inputs", "gates"),
        query_mask="inputs_mask" if sequences else "",
        queries="inputs" if sequences else "",
        weights=0,
        ordered="a recurrence",
        prepare={"gates": between_0_and_1},
        wrong_shapes=(
            {"inputs": (B, DQ)},
            {"gates": (B, T + 1)},
            {"gates": (B, T, 1)},
            {"gates": (B + 1, T)},
            *([{"initial_state": (B, 1, U)}, {"initial_state": (B, DQ)}] if initial_state else []),
        ),
        **changes,
    )


CASES = [
    gru_case("attention_gru", {}),
    gru_case(
        "attention_gru_reset_before_sequences",
        {"reset_after": False, "return_sequences": True},
    ),
    gru_case(
        "attention_gru_scale_sequences_state",
        {"gate": "scale", "return_sequences": True, "return_state": True},
        initial_state=True,
    ),
    gru_case(
        "attention_gru_scale_reset_before",
        {"gate": "scale", "reset_after": False},
        initial_state=True,
        void="the state stays as it was",
    ),
    gru_case(
        "attention_gru_options",
        {
            "units": DE,
            "gate": "scale",
            "return_state": True,
            "activation": "softsign",
            "recurrent_activation": "tanh",
            "use_bias": False,
            "kernel_initializer": "he_normal",
            "recurrent_initializer": "glorot_uniform",
            "bias_initializer": "ones",
            "kernel_regularizer": "l2",
            "recurrent_regularizer": "l1",
            "bias_regularizer": "l2",
            "kernel_constraint": "max_norm",
            "recurrent_constraint": "non_neg",
            "bias_constraint": "max_norm",
        },
        {"f": softsign, "g": np.tanh},
    ),
    gru_case(
        "attention_gru_no_bias_reset_before",
        {"reset_after": False, "use_bias": False, "return_sequences": True},
    ),
]
