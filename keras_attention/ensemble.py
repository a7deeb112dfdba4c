"""Attention over models: whom to trust, row by row or token by token."""

import keras
from keras import ops

from . import masking, normalizers, scores
from .attention import read
from .given import build_given, given_layer, takes
from .kernels import KernelLayer
from .normalizers import widen
from .shapes import check_alike, check_mask


@keras.saving.register_keras_serializable("keras_attention")
class AttentionEnsemble(KernelLayer):
    """Mixes what several models say, or several sets of embeddings, by attention over them.

    Each of the K inputs is projected to a common width, and for each token, or each row of inputs
    without an axis of time, the models are weighed by what they say there:

        x'_k = P_k x_k + b_k
        a = normalizer_k(v . x'_k + b)
        y = sum_k a_k x'_k

    With an `encoder`, a bidirectional LSTM in the paper, `v` reads its states over the whole
    sequence `x'_k` in place of `x'_k`, so that the same word may trust another model elsewhere:
    `a = normalizer_k(v . encoder(x'_k) + b)`.

    Args:
        units: width U of the projections. None projects nothing: all inputs must be of one width.
        normalizer: a name or a callable; see `Attention`. `"sigmoid"` gates each model by itself.
        encoder: a layer of sequences (B, T, U) -> (B, T, E), which sees each `x'_k` by itself;
            None for none. It is given the mask, if its call takes one.
        use_bias: whether to add `b_k` and `b`.
        kernel_initializer: of `P_k` and `v`.
        kernel_regularizer: of `P_k` and `v`.
        kernel_constraint: of `P_k` and `v`.

    Call arguments:
        inputs: a list of K tensors, each (B, T, D_k) or each (B, D_k).
        mask: boolean (B, T), or (B,) of inputs (B, D_k), True = a token; or a list of such masks,
            each of which may be None, as they come from upstream: a token that any of them hides
            is padding and leaves as zeros.
        inputs_mask: the same; by this name Keras hands on the masks of the inputs where there is
            an `attention_mask`.
        attention_mask: boolean (B, T, K), or (B, K) of inputs (B, D_k): which models have
            something to say there, where a set of embeddings lacks a word for example. A T of 1
            stands for all tokens.
        return_attention_scores: whether to return the weights too.
        training: handed on to the normalizer; Keras hands it on to the encoder.

    Returns:
        The mixture, (B, T, U) or (B, U), with the mask of the tokens; with
        `return_attention_scores` the pair of it and the weights, (B, T, K) or (B, K).

    Raises:
        ValueError: for units that are not a positive int, or an encoder that is no layer; in
            `build`, for anything but a list, for inputs that differ in more than their width, and
            in their width too where nothing projects them; in the call, for another number of
            inputs than were built for, and for a mask of the wrong rank or length.

    Example:

    >>> import keras
    >>> from keras_attention import AttentionEnsemble
    >>> words = keras.Input((None,), dtype="int32")
    >>> general = keras.layers.Embedding(100, 32, mask_zero=True)(words)
    >>> medical = keras.layers.Embedding(100, 16, mask_zero=True)(words)
    >>> mixed, weights = AttentionEnsemble(24)([general, medical], return_attention_scores=True)
    >>> mixed.shape, weights.shape
    ((None, None, 24), (None, None, 2))

    Reference:
        Kiela, Wang, Cho, "Dynamic Meta-Embeddings for Improved Sentence Representations", EMNLP
        2018, section 3: dynamic meta-embeddings, and with an encoder contextualized ones.
    """

    def __init__(self, units=None, normalizer="softmax", encoder=None, use_bias=True, **kwargs):
        super().__init__(use_bias=use_bias, **kwargs)
        if not (units is None or scores.is_width(units)):
            raise ValueError(f"units must be a positive int or None. Received: units={units!r}")
        self.units = units
        self.normalizer = normalizers.get(normalizer)
        self.encoder = given_layer(encoder, keras.layers.Layer, "encoder")
        self._widths = None  # of the inputs; known when built
        self._projections = []
        self._score = None
        self.supports_masking = True

    def build(self, inputs_shape):
        shapes = _named(inputs_shape)
        check_alike(shapes, ranks=(2, 3))
        widths = {name: shape[-1] for name, shape in shapes.items()}
        if self.units is None and len(set(widths.values())) > 1:
            raise ValueError(
                "inputs of different widths need to be projected: give the ensemble units. "
                f"Received: inputs_shape={[tuple(shape) for shape in shapes.values()]}"
            )
        self._widths = widths
        *outer, width = next(iter(shapes.values()))
        if self.units is not None:
            self._projections = [
                self.add_dense(f"projection_{k}", width, self.units)
                for k, width in enumerate(widths.values())
            ]
            width = self.units
        if self.encoder is not None:
            build_given(self.encoder, (*outer, width))
            width = self.encoder.compute_output_shape((*outer, width))[-1]
        self._score = self.add_dense("score", width, 1)
        normalizers.build(self.normalizer, (*outer, len(shapes)))
        self.built = True

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        shapes = _named(keras.tree.map_structure(lambda x: tuple(x.shape), inputs))
        if len(shapes) != len(self._widths):
            raise ValueError(
                f"inputs must be the {len(self._widths)} tensors that the layer was built for. "
                f"Received: {len(shapes)} tensors"
            )
        check_alike(shapes, ranks=(2, 3), widths=self._widths)
        outer = inputs[0].shape[:-1]
        mask = inputs_mask if mask is None else mask
        for one in keras.tree.flatten(mask):
            check_mask("mask", one, outer)
        check_mask("attention_mask", attention_mask, (*outer, len(inputs)))

        mask = _joined(mask)  # (B, T) or (B,)
        over_models = masking.combine_masks(masking.over_queries(mask), attention_mask)
        if over_models is not None:
            each = ops.logical_and(over_models, ops.ones((len(inputs),), dtype="bool"))
            inputs = [masking.select(x, ops.take(each, k, axis=-1)) for k, x in enumerate(inputs)]
        if self._projections:
            pairs = zip(self._projections, inputs, strict=True)
            inputs = [project(x) for project, x in pairs]  # K of (B, T, U)
        states = inputs
        if self.encoder is not None:
            states = [self._encode(x, mask) for x in inputs]
        states, values = ops.stack(states, axis=-2), ops.stack(inputs, axis=-2)  # (B, T, K, U)
        ratings = widen(ops.squeeze(self._score(states), -1))  # (B, T, K)
        weights = self.normalizer(ratings, mask=over_models, training=training)
        mixed = ops.squeeze(read(ops.expand_dims(weights, -2), values), -2)  # (B, T, U)
        if return_attention_scores:
            return mixed, ops.cast(weights, self.compute_dtype)
        return mixed

    def _encode(self, x, mask):
        if mask is None:
            return self.encoder(x)
        # Of padding the encoder sees nothing, not even a bias.
        x = masking.select(x, mask)
        if takes(self.encoder, "mask"):
            return self.encoder(x, mask=mask)
        return self.encoder(x)

    def compute_output_spec(self, inputs, return_attention_scores=False, **kwargs):
        *outer, width = inputs[0].shape
        mixed = keras.KerasTensor((*outer, self.units or width), self.compute_dtype)
        weights = keras.KerasTensor((*outer, len(inputs)), self.compute_dtype)
        return (mixed, weights) if return_attention_scores else mixed

    def compute_mask(self, inputs, previous_mask=None):
        return _joined(previous_mask)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "normalizer": keras.saving.serialize_keras_object(self.normalizer),
            "encoder": keras.saving.serialize_keras_object(self.encoder),
        }


def _named(inputs_shape):
    """`{name: shape}` of the shapes of a list of inputs.

    Raises:
        ValueError: if there is but one shape, or none.
    """
    if not inputs_shape or not all(isinstance(shape, (list, tuple)) for shape in inputs_shape):
        raise ValueError(
            "inputs must be a list of tensors, one of each model. "
            f"Received: inputs_shape={inputs_shape}"
        )
    return {f"inputs[{k}]": shape for k, shape in enumerate(inputs_shape)}


def _joined(mask):
    """What all masks of a list allow; None stands for "everything"."""
    return masking.combine_masks(*keras.tree.flatten(mask))
