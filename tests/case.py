"""What a row of the table says of a layer configuration, and the sizes that all rows share.

Sizes are pairwise different, so that no axis can stand in for another, and a size is known by its
value: the sizes in `DYNAMIC` are unknown in a graph, all others are widths.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras
import numpy as np

B, T, S, W = 2, 3, 5, 10  # batch, queries, keys, words of a sentence: free
DQ, DK, DV, U, DE = 4, 6, 7, 8, 9  # widths
DYNAMIC = {"B": B, "T": T, "S": S, "W": W}
# Two orders of summation in float64; on JAX Keras's tanh makes float32 of it on its way.
DOUBLE = keras.backend.backend() != "jax"
EXACT = {"rtol": 1e-10, "atol": 1e-12} if DOUBLE else {"rtol": 2e-6, "atol": 2e-6}


class Case(NamedTuple):
    """One layer configuration.

    name: of the row.
    create: (**layer arguments) -> a fresh layer.
    shapes: call argument -> shape of its tensor.
    reference: (weights, inputs, masks) -> the flat list that `outputs` gives.
    key_mask: the call argument that says which keys may be read, "" where there is none. Its
        shape is that of the first of `keys` without the width.
    keys: the call arguments which that mask speaks of.
    query_mask: the call argument that says which queries are real, "" where there is none; in
        self-attention the same as `key_mask`.
    queries: the call argument which that mask speaks of.
    more_masks: further mask arguments -> shape.
    weights: how many tensors at the end of the outputs are attention weights; each has the keys
        in its last axis. A layer with weights takes `return_attention_scores`.
    carries_mask: whether the first output carries the mask of the queries on.
    void: what a row with nothing to read gives: "zero", or why it gives something else.
    sums: what the weights of a row sum to; None where they need not sum to anything.
    ordered: why the order of the keys matters, "" where it does not.
    prepare: call argument -> what is done with its random numbers (into gates for example).
    call: more call arguments.
    wrong_shapes: shapes that the layer must refuse, as changes to `shapes`.
    wide: whether outputs stay in float32 or wider, as scores do for the normalizer.
    tolerance: half precision's, of outputs near 1; larger for a deep computation.
    known_failures: contract -> why it fails; run as a strict xfail.
    exempt: contract -> why it has no meaning for this row.
    """

    name: str
    create: Callable[..., keras.layers.Layer]
    shapes: Mapping[str, tuple]
    reference: Callable
    key_mask: str = ""
    keys: tuple[str, ...] = ()
    query_mask: str = ""
    queries: str = ""
    more_masks: Mapping[str, tuple] = {}
    weights: int = 1
    carries_mask: bool = True
    void: str = "zero"
    sums: float | None = 1.0
    ordered: str = ""
    prepare: Mapping[str, Callable] = {}
    call: Mapping = {}
    wrong_shapes: tuple[Mapping, ...] = ()
    wide: bool = False
    tolerance: Mapping[str, float] = {"float16": 2e-2, "bfloat16": 1e-1}
    known_failures: Mapping[str, str] = {}
    exempt: Mapping[str, str] = {}

    @property
    def has_masks(self) -> bool:
        return bool(self.key_mask)

    def sized(self, shape, **sizes) -> tuple:
        """A shape with other sizes, `S=4` for example."""
        replaced = {DYNAMIC[letter]: size for letter, size in sizes.items()}
        return tuple(replaced.get(size, size) for size in shape)

    def unknown(self, shape) -> tuple:
        """A shape as a graph sees it: None for batch and lengths."""
        return tuple(None if size in DYNAMIC.values() else size for size in shape)

    def inputs(self, dtype="float64", seed=0, **sizes) -> dict[str, np.ndarray]:
        """Random inputs; `sizes` replaces sizes of the table."""
        rng = np.random.default_rng(seed)
        inputs = {}
        for name, shape in self.shapes.items():
            numbers = rng.normal(size=self.sized(shape, **sizes))
            inputs[name] = self.prepare.get(name, lambda x: x)(numbers).astype(dtype)
        return inputs

    def mask_shapes(self) -> dict[str, tuple]:
        """The masks that the row has, and their shapes."""
        shapes = {}
        if self.key_mask:
            shapes[self.key_mask] = self.shapes[self.keys[0]][:-1]
        if self.query_mask:
            shapes[self.query_mask] = self.shapes[self.queries][:-1]
        return {**shapes, **self.more_masks}

    def masks(self, seed=0, **sizes) -> dict[str, np.ndarray]:
        """Masks that hide something, but leave something in every row."""
        rng = np.random.default_rng(seed)
        masks = {}
        for name, shape in self.mask_shapes().items():
            mask = rng.random(self.sized(shape, **sizes)) < 0.5
            mask[..., 1:2] = False
            mask[..., 0] = True
            mask[1:] = mask[1:, ..., ::-1]  # padding on either side
            masks[name] = mask
        return masks

    def build(self, layer) -> None:
        layer.build(**{f"{name}_shape": shape for name, shape in self.shapes.items()})

    def outputs(self, layer, inputs, masks=None, **kwargs) -> list:
        """All that the layer returns, flat; with the weights, where it has them."""
        if self.weights and self.has_masks:
            kwargs = {"return_attention_scores": True, **kwargs}
        return keras.tree.flatten(layer(**inputs, **self.call, **(masks or {}), **kwargs))

    def split(self, outputs) -> tuple[list, list]:
        """The outputs apart from the weights."""
        count = self.weights if self.has_masks else 0
        return list(outputs[: len(outputs) - count]), list(outputs[len(outputs) - count :])
