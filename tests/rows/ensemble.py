"""Attention over models."""

import keras
import reference
from case import DE, DK, DQ, DV, B, Case, T, U
from reference.ensemble import dense_sigmoid, ensemble

from keras_attention.ensemble import AttentionEnsemble

MODELS = 4


class ListCase(Case):
    """A case whose tensors are one list, `inputs`."""

    def build(self, layer):
        layer.build(list(self.shapes.values()))

    def outputs(self, layer, inputs, masks=None, **kwargs):
        listed = [inputs[name] for name in self.shapes]
        others = {name: x for name, x in inputs.items() if name not in self.shapes}
        return super().outputs(layer, {"inputs": listed, **others}, masks, **kwargs)


def ensemble_case(name, create, outer, widths, expected, more_masks):
    return ListCase(
        name,
        create,
        {f"model_{k}": (*outer, width) for k, width in enumerate(widths)},
        expected,
        more_masks=more_masks,
        call={"return_attention_scores": True},
        exempt={"wrong_shapes": "its inputs are one list, refused in a test of their own"},
    )


def encoder(**kwargs):
    return keras.layers.Dense(5, activation="sigmoid", name="encoder", **kwargs)


CASES = [
    ensemble_case(
        "ensemble",
        lambda **kw: AttentionEnsemble(U, **kw),
        (B, T),
        (DQ, DK, DV, DE),
        ensemble(),
        {"mask": (B, T), "attention_mask": (B, T, MODELS)},
    ),
    ensemble_case(
        "ensemble_of_vectors",
        lambda **kw: AttentionEnsemble(
            normalizer="sigmoid",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer="l2",
            kernel_constraint="max_norm",
            **kw,
        ),
        (B,),
        (DV,) * MODELS,
        ensemble(reference.sigmoid, projects=False),
        {"attention_mask": (B, MODELS)},
    ),
    ensemble_case(
        "ensemble_encoded",
        lambda **kw: AttentionEnsemble(DK, "sparsemax", encoder(dtype=kw.get("dtype")), **kw),
        (B, T),
        (DE, DV, DQ, DQ),
        ensemble(reference.sparsemax, encode=dense_sigmoid),
        {"mask": (B, T), "attention_mask": (B, 1, MODELS)},
    ),
]
