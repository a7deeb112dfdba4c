"""Hierarchical attention: words make sentences, sentences make a document."""

import math

import keras
from keras import ops

from . import masking
from .attention import Attention
from .given import revived, takes
from .pooling import AttentionPooling
from .shapes import check_mask, check_shapes


@keras.saving.register_keras_serializable("keras_attention")
class HierarchicalAttention(keras.layers.Layer):
    """Reads a document in two levels: words make sentences, sentences make the document.

    Each level is an encoder and a pooling, the same for all sentences:

        h_iw = word_encoder(x_i)_w            s_i = word_pooling(h_i)
        g_i  = sentence_encoder(s)_i          d   = sentence_pooling(g)

    With `top_down` what is above steers what is read below. After that first pass up, each
    sentence asks its own words once more, from its place in the document; what it reads then is
    what goes up:

        s'_i = top_down(query=g_i, value=h_i)
        g'_i = sentence_encoder(s')_i         d   = sentence_pooling(g')

    The levels need not be sentences and words: with words of characters below, the context of a
    word steers which of its characters are read.

    Masks are boolean, True = may be read. A sentence without words is not read: its vector is
    zeros and its weights are exactly 0, so that neither padding words nor padding sentences change
    the document. A document of nothing else gives zeros. Encoders are never handed a sequence in
    which everything is masked, which recurrent kernels of GPUs refuse: of such a one the first
    step counts, and what comes of it is dropped.

    Args:
        word_encoder: a layer of (N, W, D) to (N, W, V), which is told the mask if its call takes
            one; `keras.layers.Bidirectional(keras.layers.GRU(64, return_sequences=True))` for
            example. One that takes none reads zeros in the padding. None hands the words on.
        word_pooling: a layer of (N, W, V) to (N, V), which is told the mask if its call takes one;
            None is `AttentionPooling()`. What several hops read is put side by side.
        sentence_encoder: as `word_encoder`, of the sentences (B, S, V).
        sentence_pooling: as `word_pooling`, of the sentences; of several hops the axis is kept.
        top_down: what a sentence asks its words with: an `Attention`, or the score of one
            (`"additive"` for example). None leaves that pass out.

    Call arguments:
        inputs: embedded words (B, S, W, D).
        mask: boolean (B, S, W).
        return_attention_scores: whether to return the weights too.
        training: handed on to the layers inside.

    Returns:
        The document (B, V); with `return_attention_scores` the three of it, the weights of the
        sentences (B, S) and those of the words in their sentences (B, S, W), which with
        `top_down` are those of the second pass. Weights of poolings with hops keep their axis,
        (B, r, S) and (B, S, r, W).

    Raises:
        ValueError: in `__init__`, for a layer that stands in two places; in `build`, for a wrong
            rank or width of the inputs or of what a layer gives; in the call, for a mask of the
            wrong rank or length, or when weights are asked of a pooling that has none.

    Example:

    >>> import keras
    >>> from keras_attention import HierarchicalAttention
    >>> def encoder():
    ...     return keras.layers.Bidirectional(keras.layers.GRU(8, return_sequences=True))
    >>> tokens = keras.Input((None, None), dtype="int32")
    >>> words = keras.layers.Embedding(100, 12, mask_zero=True)(tokens)
    >>> layer = HierarchicalAttention(encoder(), sentence_encoder=encoder())
    >>> document, of_sentences, of_words = layer(words, return_attention_scores=True)
    >>> document.shape, of_sentences.shape, of_words.shape
    ((None, 16), (None, None), (None, None, None))

    Reference:
        Yang et al., "Hierarchical Attention Networks for Document Classification", NAACL 2016,
        section 2.2. `top_down` is this library's own form of the context-aware attention of Remy,
        Tixier, Vazirgiannis, "Bidirectional Context-Aware Hierarchical Attention Network for
        Document Understanding", 2019: there too the context of a sentence is a term in the tanh of
        its words' attention, as in `top_down="additive"`, but that context is made of the
        sentences before and behind it, read one by one, and there is no second pass.
    """

    def __init__(
        self,
        word_encoder=None,
        word_pooling=None,
        sentence_encoder=None,
        sentence_pooling=None,
        top_down=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.word_encoder = self._part("word_encoder", word_encoder, _as_they_are)
        self.word_pooling = self._part("word_pooling", word_pooling, AttentionPooling)
        self.sentence_encoder = self._part("sentence_encoder", sentence_encoder, _as_they_are)
        self.sentence_pooling = self._part("sentence_pooling", sentence_pooling, AttentionPooling)
        self.top_down = None if top_down is None else self._attention(revived(top_down))
        parts = [self.word_encoder, self.word_pooling, self.sentence_encoder, self.sentence_pooling]
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError(
                "each place needs a layer of its own. "
                f"Received: {', '.join(part.name for part in parts)}"
            )
        self._widths = None  # of the inputs; known when built
        self._sentence_width = None
        self.supports_masking = True

    def _part(self, name, given, default):
        """The layer for a place: the one that is given, as itself or as its config."""
        layer = default(name=name, dtype=self.dtype_policy) if given is None else revived(given)
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"{name} must be a layer or None. Received: {name}={given!r}")
        if isinstance(layer, keras.Model):
            layer.supports_masking = True  # its layers get the mask, but Keras warns they do not
        return layer

    def _attention(self, given):
        if isinstance(given, Attention):
            return given
        return Attention(given, name="top_down", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        check_shapes({"inputs": (inputs_shape, (4,))})
        _, sentences, words, width = inputs_shape
        self._widths = {"inputs": width}
        encoded = self._built("word_encoder", (None, words, width))  # (N, W, V)
        vectors = self._built("word_pooling", encoded)  # (N, V)
        self._sentence_width = math.prod(vectors[1:])
        states = self._built("sentence_encoder", (None, sentences, self._sentence_width))
        if self.top_down is not None:
            read = self._built("top_down", (None, states[-1]), encoded)
            if math.prod(read[1:]) != self._sentence_width:
                raise ValueError(
                    "top_down must read vectors as wide as those of word_pooling. Received: "
                    f"{math.prod(read[1:])} and {self._sentence_width}"
                )
        self._built("sentence_pooling", states)
        self.built = True

    def _built(self, name, *shapes):
        """Build the layer of a place, and tell the shape of what it gives."""
        layer = getattr(self, name)
        if not layer.built:  # a model with an input is, and so is an encoder trained elsewhere
            layer.build(*shapes)
        specs = [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
        shape = getattr(layer.compute_output_spec(*specs), "shape", ())
        if name.endswith("encoder"):
            fits, wanted = len(shape) == 3, "a sequence (batch, length, width)"
            wanted += ", as recurrent layers do with return_sequences=True"
        else:
            fits, wanted = len(shape) > 1 and None not in shape[1:], "vectors of known width"
        if not fits:
            raise ValueError(
                f"{name} must give {wanted}. Received: {layer.name!r}, which gives {tuple(shape)}"
            )
        return shape

    def call(self, inputs, mask=None, return_attention_scores=False, training=None):
        check_shapes({"inputs": (inputs.shape, (4,))}, self._widths)
        check_mask("mask", mask, inputs.shape[:3])
        self._refuse_missing_weights(return_attention_scores)
        batch, sentences, words, width = ops.shape(inputs)
        word_mask = sentence_mask = None
        if mask is not None:
            mask = ops.broadcast_to(ops.cast(mask, "bool"), (batch, sentences, words))
            # Selected away, so that NaN in padding reaches neither the result nor a gradient.
            inputs = masking.select(inputs, mask)
            word_mask = ops.reshape(mask, (-1, words))  # (B*S, W)
            sentence_mask = ops.any(mask, axis=-1)  # (B, S)
        encoded = _encode(
            self.word_encoder, ops.reshape(inputs, (-1, words, width)), word_mask
        )  # (B*S, W, V)

        def up(vectors):
            vectors = ops.reshape(vectors, (batch, sentences, self._sentence_width))  # (B, S, V)
            return _encode(self.sentence_encoder, vectors, sentence_mask)

        ask = return_attention_scores
        vectors, word_weights = _pool(
            self.word_pooling, (encoded,), word_mask, ask and self.top_down is None
        )
        states = up(vectors)
        if self.top_down is not None:
            queries = ops.reshape(states, (-1, states.shape[-1]))  # (B*S, U)
            vectors, word_weights = _pool(self.top_down, (queries, encoded), word_mask, ask)
            states = up(vectors)
        document, sentence_weights = _pool(self.sentence_pooling, (states,), sentence_mask, ask)
        if not return_attention_scores:
            return document
        word_weights = ops.reshape(word_weights, (-1, sentences, *ops.shape(word_weights)[1:]))
        return document, sentence_weights, word_weights

    def _readers(self):
        """The layers whose weights are told: of the sentences, and of the words."""
        return self.sentence_pooling, self.word_pooling if self.top_down is None else self.top_down

    def _refuse_missing_weights(self, return_attention_scores):
        for layer in self._readers() if return_attention_scores else ():
            if not takes(layer, "return_attention_scores"):
                raise ValueError(
                    "weights can be returned of poolings that have some, as AttentionPooling has. "
                    f"Received: return_attention_scores=True with {layer.name!r} "
                    f"({type(layer).__name__})"
                )

    def compute_output_spec(self, inputs, mask=None, return_attention_scores=False, training=None):
        self._refuse_missing_weights(return_attention_scores)
        flag = {"return_attention_scores": True} if return_attention_scores else {}
        batch, sentences, words, width = inputs.shape
        encoded, states = (
            encoder.compute_output_spec(keras.KerasTensor(shape, self.compute_dtype))
            for encoder, shape in (
                (self.word_encoder, (None, words, width)),
                (self.sentence_encoder, (batch, sentences, self._sentence_width)),
            )
        )
        found = self.sentence_pooling.compute_output_spec(states, **flag)
        if not return_attention_scores:
            return found
        query = keras.KerasTensor((None, states.shape[-1]), self.compute_dtype)
        asked = (encoded,) if self.top_down is None else (query, encoded)
        _, weights = self._readers()[1].compute_output_spec(*asked, **flag)
        shape = (batch, sentences, *weights.shape[1:])
        return *found, keras.KerasTensor(shape, weights.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None  # the axes on which it lay are gone

    def get_config(self):
        places = ("word_encoder", "word_pooling", "sentence_encoder", "sentence_pooling")
        config = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in places}
        top_down = self.top_down and keras.saving.serialize_keras_object(self.top_down)
        return {**super().get_config(), **config, "top_down": top_down}


def _as_they_are(**kwargs):
    """The encoder that hands on what it gets; Keras's `Identity` refuses to save a dtype policy."""
    return keras.layers.Activation("linear", **kwargs)


def _encode(encoder, x, mask):
    """Sequences (N, L, D) encoded; masked steps leave as zeros."""
    if mask is None:
        return encoder(x)
    arguments = {"mask": _never_empty(mask)} if takes(encoder, "mask") else {}
    return masking.select(encoder(x, **arguments), mask)


def _pool(pooling, inputs, mask, weigh):
    """What is read of sequences, and its weights or None; zeros of those with nothing to read."""
    weighs = takes(pooling, "return_attention_scores")
    arguments = {"return_attention_scores": True} if weigh else {}
    for name in ("mask", "value_mask"):
        if mask is not None and takes(pooling, name):
            # A layer with weights knows of such sequences, and its penalty on them leaves those
            # out; of others, Keras's mean for example, the gradient would be NaN.
            arguments[name] = mask if weighs else _never_empty(mask)
    found = pooling(*inputs, **arguments)
    found = found if weigh else (found, None)
    if mask is None:
        return found
    return tuple(None if x is None else _where_any(mask, x) for x in found)


def _where_any(mask, x):
    """`x` (N, ...) where a row of the mask (N, L) allows reading something, else 0."""
    real = ops.any(mask, axis=-1)
    for _ in range(len(x.shape) - 1):
        real = ops.expand_dims(real, -1)
    return ops.where(real, x, ops.zeros((), dtype=x.dtype))


def _never_empty(mask):
    """The mask (N, L) with the first step readable in a row where nothing is."""
    first = ops.equal(ops.arange(ops.shape(mask)[-1]), 0)  # (L,)
    empty = ops.logical_not(ops.any(mask, axis=-1, keepdims=True))
    return ops.logical_or(mask, ops.logical_and(empty, first))
