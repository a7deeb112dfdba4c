"""Hard attention that can be trained: normalizers that draw.

A drawing normalizer is a layer, for it owns the state of a random generator. It draws in training
alone; whoever holds it asks by `random` whether it is one.
"""

import keras
from keras import ops

from .normalizers import hardmax, masked_scores, softmax, where_readable, widen

register = keras.saving.register_keras_serializable("keras_attention")


class _RandomNormalizer(keras.layers.Layer):
    """Base: scores that are disturbed in training.

    Attributes:
        random: True: it draws in training. A loop in which nothing may be drawn refuses it.
    """

    random = True

    def __init__(self, seed=None, **kwargs):
        # Scores are wider than what the layer around computes in, and stay so.
        super().__init__(autocast=False, **kwargs)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, scores_shape):
        if self.built:
            # Two layers around one would be saved as one, and its weights found only once.
            raise ValueError(
                "a normalizer that draws belongs to one layer: give each layer its own. "
                f"Received: normalizer={self.name!r}, which is already built"
            )
        self.built = True

    def __call__(self, scores, mask=None, training=None):
        # As a function is called; Keras would fill in a mask that is None a second time.
        return super().__call__(scores, mask=mask, training=training)

    def _disturbed(self, scores, mask, training):
        """The scores, 0 where masked; in training with Gumbel noise, `-log(-log(u))`.

        The best of scores so disturbed is a sample of their softmax.
        """
        scores = where_readable(mask, widen(ops.convert_to_tensor(scores)), 0.0)
        if not training:
            return scores
        # Above 0, whose logarithm is infinite, by less than the generator can tell.
        uniform = keras.random.uniform(
            ops.shape(scores), minval=1e-30, dtype=scores.dtype, seed=self.seed_generator
        )
        return scores - ops.log(-ops.log(uniform))

    def compute_mask(self, scores, previous_mask=None):
        return None  # the mask of scores has done its work

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


@register
class GumbelSoftmax(_RandomNormalizer):
    """A sample of the softmax that lets the gradient through.

    In training `a = softmax((e + g) / temperature)` with Gumbel noise `g`; with `hard` the best
    key of it alone, a sample of `softmax(e)`, whose gradient is taken to be that of `a`
    (straight-through). At inference nothing is drawn: the best key, `hardmax(e)`, and without
    `hard` `softmax(e / temperature)`.

    Args:
        temperature: how soft the samples are; towards 0 they become one-hot, and their gradients
            large.
        hard: whether the weights are exactly one-hot.
        seed: of the noise.

    Call arguments:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: whether to draw.

    Returns:
        Weights (..., S) in float32 or wider, each row summing to 1, or all 0 where it has no
        readable key.

    Raises:
        ValueError: in `__init__`, for a temperature that is not above 0; in `build`, when another
            layer has it.

    Example:

    >>> import numpy as np
    >>> from keras_attention import Attention, GumbelSoftmax
    >>> layer = Attention("bilinear", normalizer=GumbelSoftmax(temperature=0.5, seed=1))
    >>> query, value = np.ones((1, 2, 4), "float32"), np.ones((1, 5, 7), "float32")
    >>> context, weights = layer(query, value, return_attention_scores=True, training=True)
    >>> weights.numpy().sum(-1).tolist(), weights.numpy().max(-1).tolist()
    ([[1.0, 1.0]], [[1.0, 1.0]])

    Reference:
        Jang, Gu, Poole, "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017,
        equation 2 and section 2.2; Maddison, Mnih, Teh, "The Concrete Distribution", ICLR 2017.
        The papers anneal the temperature; here it is a constant.
    """

    def __init__(self, temperature=1.0, hard=True, seed=None, **kwargs):
        super().__init__(seed=seed, **kwargs)
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0. Received: temperature={temperature!r}")
        self.temperature = temperature
        self.hard = hard

    def call(self, scores, mask=None, training=None):
        scores = self._disturbed(scores, mask, training)
        if not self.hard:
            return softmax(scores / self.temperature, mask)
        best = hardmax(scores, mask)
        if not training:
            return best
        soft = softmax(scores / self.temperature, mask)
        return best + (soft - ops.stop_gradient(soft))  # exactly `best`: the bracket is 0

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature, "hard": self.hard}


@register
class SampledAttention(_RandomNormalizer):
    """Hard attention: one key is sampled, and the scores learn by REINFORCE.

    In training a key `s ~ softmax(e)` is drawn and has all the weight; no gradient goes through
    the draw. What the scores learn from is said apart, in the loss:

        loss = -log p(y | s) + surrogate(log_probability(e, s), log p(y | s), entropy(e))

    whose gradient is, but for its sign, the paper's

        d log p(y | s) / dW + reward_weight (log p(y | s) - b) d log p(s) / dW
                            + entropy_weight dH(s) / dW

    with the moving average `b` of what was earned before. At inference the best key is read, of
    which the paper says nothing.

    Args:
        entropy_weight: `lambda_e`, how much an undecided softmax is worth.
        baseline_momentum: how much of `b` stays: `b_k = 0.9 b_{k-1} + 0.1 log p(y | s_k)` with
            the paper's 0.9.
        reward_weight: `lambda_r`.
        seed: of the draws.

    Call arguments:
        scores: (..., S).
        mask: boolean, broadcasts to the scores; True = may be read.
        training: whether to sample.

    Returns:
        Weights (..., S) in float32 or wider, one of each row 1, or none where it has no readable
        key.

    Raises:
        ValueError: in `__init__`, for a momentum outside of [0, 1]; in `build`, when another
            layer has it; in `surrogate`, for an entropy that is weighed but not given.

    Example:

    A model that learns which of its keys to look at. `fit` needs nothing more.

    >>> import keras, numpy as np
    >>> from keras import ops
    >>> from keras_attention import Attention, SampledAttention
    >>> sampled = SampledAttention(entropy_weight=0.01, seed=1)
    >>> class Reader(keras.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.attention = Attention("bilinear", normalizer=sampled)
    ...         self.head = keras.layers.Dense(3)
    ...
    ...     def call(self, inputs, training=None):
    ...         query, memory = inputs
    ...         context, weights = self.attention(
    ...             query, memory, return_attention_scores=True, training=training
    ...         )
    ...         return self.head(context), weights
    ...
    ...     def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
    ...         (query, memory), (logits, weights) = x, y_pred
    ...         reward = -keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    ...         if not training:
    ...             return -ops.mean(reward)
    ...         scores = self.attention.score(query, memory)
    ...         chosen = sampled.log_probability(scores, weights)
    ...         return sampled.surrogate(chosen, reward, sampled.entropy(scores)) - ops.mean(reward)
    >>> model = Reader()
    >>> model.compile("adam")
    >>> query, memory = np.ones((8, 2, 4), "float32"), np.ones((8, 5, 7), "float32")
    >>> history = model.fit((query, memory), np.ones((8, 2)), verbose=0)
    >>> bool(np.isfinite(history.history["loss"]).all())
    True

    Reference:
        Xu et al., "Show, Attend and Tell: Neural Image Caption Generation with Visual Attention",
        ICML 2015, section 4.1, equations 10 to 13, with one sample a row (repeat the rows of a
        batch for more). There a sample is replaced by its expectation half of the time; here it
        never is.
    """

    def __init__(
        self, entropy_weight=0.0, baseline_momentum=0.9, reward_weight=1.0, seed=None, **kwargs
    ):
        super().__init__(seed=seed, **kwargs)
        if not 0 <= baseline_momentum <= 1:
            raise ValueError(
                "baseline_momentum must lie in [0, 1]. "
                f"Received: baseline_momentum={baseline_momentum!r}"
            )
        self.entropy_weight = entropy_weight
        self.baseline_momentum = baseline_momentum
        self.reward_weight = reward_weight
        # Made here, so that a layer that does not build its normalizer has it all the same.
        self.baseline = self.add_weight(
            name="baseline",
            shape=(),
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation="mean",
        )

    def call(self, scores, mask=None, training=None):
        return hardmax(self._disturbed(scores, mask, training), mask)

    def log_probability(self, scores, weights, mask=None):
        """`log p(s)` of the keys that were sampled.

        Args:
            scores: (..., S), those that the weights were drawn from.
            weights: (..., S), one-hot, as the layer gave them.
            mask: boolean, broadcasts to the scores; True = may be read.

        Returns:
            (...), in float32 or wider; 0 where there was nothing to read.
        """
        found = self._log_softmax(scores, mask)
        return ops.sum(ops.cast(weights, found.dtype) * found, axis=-1)

    def entropy(self, scores, mask=None):
        """`H(s)` of the softmax that is sampled from, (...); 0 where there is nothing to read."""
        return -ops.sum(softmax(scores, mask) * self._log_softmax(scores, mask), axis=-1)

    def _log_softmax(self, scores, mask):
        """The logarithm of the softmax over what may be read; finite elsewhere."""
        return ops.log_softmax(masked_scores(scores, mask), axis=-1)

    def surrogate(self, log_probability, reward, entropy=None):
        """A loss whose gradient is that of REINFORCE; moves the baseline on.

        Args:
            log_probability: of the samples, (B, ...).
            reward: what came of them, `log p(y | s)`: one of each row, (B,), or of each sample.
                No gradient reaches it from here. Axes that it lacks are summed up.
            entropy: of what was sampled from, in the shape of `log_probability`.

        Returns:
            The mean over the rewards, a scalar, to be added to the loss of what was read.
        """
        if self.entropy_weight and entropy is None:
            raise ValueError(
                "an entropy is needed where it is weighed. "
                f"Received: entropy=None, entropy_weight={self.entropy_weight}"
            )
        reward = ops.stop_gradient(widen(ops.convert_to_tensor(reward)))
        baseline = ops.cast(self.baseline, reward.dtype)  # of the samples before: no bias
        average = baseline + (1.0 - self.baseline_momentum) * (ops.mean(reward) - baseline)
        self.baseline.assign(average)
        advantage = self.reward_weight * (reward - baseline)
        gain = advantage * _summed(log_probability, len(reward.shape))
        if entropy is not None:
            gain = gain + self.entropy_weight * _summed(entropy, len(reward.shape))
        return -ops.mean(gain)

    def get_config(self):
        return {
            **super().get_config(),
            "entropy_weight": self.entropy_weight,
            "baseline_momentum": self.baseline_momentum,
            "reward_weight": self.reward_weight,
        }


def _summed(x, rank):
    """The sum over all axes behind the first `rank`."""
    return ops.sum(x, axis=tuple(range(rank, len(x.shape))))
