"""Coupled attentions: two that learn from one another, over the same tokens."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import read
from .kernels import KernelLayer, fresh
from .loops import run_steps
from .normalizers import widen
from .shapes import check_mask, check_shapes


class _Side(KernelLayer):
    """One of the two attentions: its prototype, its tensors, its cell and its score."""

    def __init__(self, slices, **kwargs):
        super().__init__(**kwargs)
        self.slices = slices
        self.prototype = None
        self.own_tensor = None
        self.other_tensor = None
        self.score = None
        self.update = None
        self._cell = keras.layers.GRUCell(
            2 * slices,
            reset_after=False,
            recurrent_initializer=fresh(self.kernel_initializer),
            recurrent_regularizer=self.kernel_regularizer,
            recurrent_constraint=self.kernel_constraint,
            name="cell",
            **self.kernel_arguments(),
        )

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        self.prototype = self.add_kernel("prototype", (1, width))
        self.own_tensor = self.add_kernel("own_tensor", (self.slices, width, width))
        self.other_tensor = self.add_kernel("other_tensor", (self.slices, width, width))
        self.score = self.add_kernel("score", (2 * self.slices, 1))
        self.update = self.add_kernel("update", (width, width))
        self._cell.build((None, 2 * self.slices))
        self.built = True

    def compose(self, inputs, own, other):
        """`tanh([h^T G u; h^T D u'])`, with prototypes (B or 1, D): (B, S, 2K)."""
        parts = [
            # The prototypes first: they are fewer than the tokens.
            ops.matmul(widen(inputs), ops.einsum("kde,be->bdk", widen(tensor), widen(prototype)))
            for tensor, prototype in ((self.own_tensor, own), (self.other_tensor, other))
        ]
        return self._computed(ops.tanh(ops.concatenate(parts, axis=-1)))

    def move(self, composed, state):
        """One step of the GRU, `r_i` of `r_{i-1}`: (B, 2K)."""
        return self._computed(self._cell(composed, [state])[0])

    def rate(self, features):
        """`e_i = v . r_i`, of all tokens: (B, 1, S)."""
        return ops.swapaxes(ops.matmul(widen(features), widen(self.score)), -1, -2)

    def learn(self, prototype, weights, inputs):
        """The next prototype, `tanh(V u) + sum_i a_i h_i`: (B, D)."""
        moved = self._computed(ops.tanh(ops.matmul(prototype, self.update)))
        return moved + ops.squeeze(read(weights, inputs), 1)

    def _computed(self, x):
        # Keras's tanh makes float64 float32 on JAX, and what a loop carries must keep its type.
        return ops.cast(x, self.compute_dtype)


@keras.saving.register_keras_serializable("keras_attention")
class CoupledAttention(KernelLayer):
    """Two attentions over the same tokens, each of which learns from what the other has found.

    Made for the extraction of two kinds of words that point at each other: the aspects of a
    thing ("battery") and the opinions on them ("lasts"). Each attention has a prototype `u` of
    what it looks for. In every layer each token is compared with both prototypes, with the own
    one by a tensor `G` and with the other one by a tensor `D`, of K slices each, so that the
    words which one attention has found tell the other where to look:

        f_i = tanh([h_i^T G u; h_i^T D u'])
        r_i = GRU(f_i, r_{i-1})
        a_i = softmax_i(v . r_i)
        u  <- tanh(V u) + sum_i a_i h_i

    where `u'` is the prototype of the other attention. `G`, `D`, the GRU, `v` and `V` are the
    same in all layers, and are each attention's own. What leaves are the features `r_i`, summed
    over the layers: one classifier on each tells the tokens of either kind.

    Args:
        slices: number K of slices of each tensor; features are of width 2K.
        num_layers: how often the tokens are read, at least 2. What the last layer attends to is
            seen in its weights only.
        normalizer: a name or a callable; see `Attention`.
        use_bias: whether the GRU adds biases.
        kernel_initializer: of every kernel, the first prototypes among them.
        kernel_regularizer: of every kernel.
        kernel_constraint: of every kernel.

    Call arguments:
        inputs: the tokens, (B, S, D).
        mask: boolean (B, S), True = a token. Others are not read, and leave as zeros.
        return_attention_scores: whether to return the weights too.
        training: handed on to the normalizer.

    Returns:
        `(aspect, opinion)`, the features (B, S, 2K) of either kind, or with
        `return_attention_scores` `(aspect, opinion, weights)`: weights (B, L, 2, S) of each
        layer, those of the aspects first.

    Raises:
        ValueError: for a size that is not a positive int or less than two layers; in `build`,
            for a wrong rank or an unknown width; in the call, for a mask of the wrong rank or
            length.

    Example:

    >>> import numpy as np
    >>> from keras_attention import CoupledAttention
    >>> tokens = np.ones((2, 5, 16), "float32")
    >>> aspect, opinion, weights = CoupledAttention(4)(tokens, return_attention_scores=True)
    >>> aspect.shape.as_list(), opinion.shape.as_list(), weights.shape.as_list()
    ([2, 5, 8], [2, 5, 8], [2, 2, 2, 5])

    Reference:
        Wang, Pan, Dahlmeier, Xiao, "Coupled Multi-Layer Attentions for Co-Extraction of Aspect
        and Opinion Terms", AAAI 2017, equations 1 to 5. The sum over the layers is that of the
        authors' program. There the GRU begins at a learned state, here at zeros, and there
        kernels are dropped out, here nothing is.
    """

    def __init__(self, slices=20, num_layers=2, normalizer="softmax", **kwargs):
        super().__init__(**kwargs)
        if not scores.is_width(slices):
            raise ValueError(f"slices must be a positive int. Received: slices={slices!r}")
        if not scores.is_width(num_layers) or num_layers < 2:
            raise ValueError(
                "num_layers must be an int of 2 or more: what one layer attends to is what the "
                f"next one knows. Received: num_layers={num_layers!r}"
            )
        self.slices = slices
        self.num_layers = num_layers
        self.normalizer = normalizers.get(normalizer)
        self._widths = None  # of the inputs; known when built
        self._aspect = _Side(slices, name="aspect", **self.kernel_arguments())
        self._opinion = _Side(slices, name="opinion", **self.kernel_arguments())
        self.supports_masking = True

    def build(self, inputs_shape):
        check_shapes({"inputs": (inputs_shape, (3,))})
        self._widths = {"inputs": inputs_shape[-1]}
        self._aspect.build(inputs_shape)
        self._opinion.build(inputs_shape)
        normalizers.build(self.normalizer, (inputs_shape[0], 1, inputs_shape[1]))
        self.built = True

    def call(self, inputs, mask=None, return_attention_scores=False, training=None):
        check_shapes({"inputs": (inputs.shape, (3,))}, self._widths)
        check_mask("mask", mask, inputs.shape[:2])
        if mask is not None:
            mask = ops.cast(mask, "bool")
            inputs = masking.select(inputs, mask)
        sides, over_tokens = (self._aspect, self._opinion), masking.over_keys(mask)
        aspect, opinion = (side.prototype for side in sides)
        features, weights = [], []
        for layer in range(self.num_layers):
            if layer:
                aspect = self._aspect.learn(aspect, weights[-1][0], inputs)
                opinion = self._opinion.learn(opinion, weights[-1][1], inputs)
            composed = (
                self._aspect.compose(inputs, aspect, opinion),
                self._opinion.compose(inputs, opinion, aspect),
            )
            features.append(self._run(composed, mask))
            ratings = (side.rate(found) for side, found in zip(sides, features[-1], strict=True))
            weights.append(
                [self.normalizer(e, mask=over_tokens, training=training) for e in ratings]
            )
        outputs = tuple(sum(layers) for layers in zip(*features, strict=True))  # (B, S, 2K)
        if return_attention_scores:
            weights = ops.stack([ops.concatenate(found, axis=1) for found in weights], axis=1)
            return *outputs, ops.cast(weights, self.compute_dtype)  # (B, L, 2, S)
        return outputs

    def _run(self, composed, mask):
        """Both GRUs over the tokens, in one loop; a masked token leaves the states as they are."""
        sequences = list(composed)
        if mask is not None:
            sequences.append(masking.over_queries(ops.cast(mask, self.compute_dtype)))  # (B, S, 1)

        def step(row, states):
            (aspect, opinion, *real), (of_aspect, of_opinion) = row, states
            moved = (self._aspect.move(aspect, of_aspect), self._opinion.move(opinion, of_opinion))
            if not real:
                return moved, moved
            real = real[0] > 0
            outputs = tuple(ops.where(real, new, 0.0) for new in moved)
            return outputs, tuple(
                ops.where(real, new, old) for new, old in zip(moved, states, strict=True)
            )

        zeros = ops.zeros((ops.shape(composed[0])[0], 2 * self.slices), dtype=self.compute_dtype)
        return run_steps(step, sequences, (zeros, zeros))[0]

    def compute_output_spec(self, inputs, return_attention_scores=False, **kwargs):
        batch, length, _ = inputs.shape
        features = keras.KerasTensor((batch, length, 2 * self.slices), self.compute_dtype)
        weights = keras.KerasTensor((batch, self.num_layers, 2, length), self.compute_dtype)
        another = keras.KerasTensor(features.shape, self.compute_dtype)
        return (features, another, weights) if return_attention_scores else (features, another)

    def compute_mask(self, inputs, previous_mask=None):
        return None if previous_mask is None else (previous_mask, previous_mask)

    def get_config(self):
        return {
            **super().get_config(),
            "slices": self.slices,
            "num_layers": self.num_layers,
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
        }
