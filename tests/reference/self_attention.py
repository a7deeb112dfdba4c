"""Attention with heads, one head, one query and one key at a time."""

import numpy as np

from . import below, dot


def dense(weights, x):
    """Each row of x (T, D) times the kernel, plus the bias where there is one."""
    return np.stack([row @ weights["kernel"] + weights.get("bias", 0.0) for row in x])


# --- Scores of one query and one key in head h, the key `distance` behind the query -------------


def content(score, name):
    """A score of `reference`, to which head and distance do not matter."""
    return lambda weights, q, k, h, distance: score(below(weights, name), q, k)


def alibi(score, slopes):
    """Press et al. 2022, section 3: score - m_h |t - s|."""
    return lambda weights, q, k, h, distance: (
        score(weights, q, k, h, distance) - slopes[h] * abs(distance)
    )


def relative(score, name, furthest):
    """Raffel et al. 2020, section 2.1, clipped: score + b_h[s - t]."""

    def found(weights, q, k, h, distance):
        clipped = max(-furthest, min(furthest, distance))
        return score(weights, q, k, h, distance) + weights[f"{name}/bias"][h, furthest + clipped]

    return found


def tensor(name):
    """Wang et al. 2017, equation 1: tanh(q^T W_h k)."""

    def found(weights, q, k, h, distance):
        kernel = weights[f"{name}/query/kernel"]  # the matrices side by side
        matrix = kernel[:, h * len(k) : (h + 1) * len(k)]
        return np.tanh(dot(weights, q @ matrix, k))

    return found


# --- What a query at t may read -----------------------------------------------------------------

DIRECTIONS = {
    None: lambda t, s: True,
    "causal": lambda t, s: s <= t,
    "forward": lambda t, s: s < t,
    "backward": lambda t, s: s > t,
    "no_diagonal": lambda t, s: s != t,
}


# --- Layers -------------------------------------------------------------------------------------


class Heads:
    """Vaswani et al. 2017, section 3.2.2, over one row of the batch.

    score: of one query and one key, as above.
    normalizer: of `reference`.
    heads, groups: how many; head h reads the keys and values of group h // (heads / groups).
    place: what places a query or a key (d,) at its position, or None.
    whole: whether the score sees the queries and keys of all heads at once.
    """

    def __init__(self, score, normalizer, heads, groups=None, place=None, whole=False):
        self.score, self.normalizer = score, normalizer
        self.heads, self.groups = heads, groups or heads
        self.place, self.whole = place, whole

    def __call__(self, weights, query, memory, may_read):
        """The output (T, U), and the weights (H, T, S)."""
        q, k = dense(below(weights, "query"), query), dense(below(weights, "key"), memory)
        v = dense(below(weights, "value"), memory)
        alphas = np.zeros((self.heads, len(q), len(k)))
        contexts = []
        for h in range(self.heads):
            group = h // (self.heads // self.groups)
            queries = q if self.whole else np.split(q, self.heads, axis=1)[h]
            keys = k if self.whole else np.split(k, self.groups, axis=1)[group]
            values = np.split(v, self.groups, axis=1)[group]
            if self.place:
                queries = [self.place({}, x, t) for t, x in enumerate(queries)]
                keys = [self.place({}, x, s) for s, x in enumerate(keys)]
            context = np.zeros((len(q), values.shape[1]))
            for t in range(len(q)):
                readable = [s for s in range(len(k)) if may_read(t, s)]
                found = [self.score(weights, queries[t], keys[s], h, s - t) for s in readable]
                for s, alpha in zip(readable, self.normalizer(found) if found else [], strict=True):
                    alphas[h, t, s] = alpha
                    context[t] += alpha * values[s]
            contexts.append(context)
        together = np.concatenate(contexts, axis=1)
        return dense(below(weights, "output"), together) if "output/kernel" in weights else (
            together
        ), alphas


def may_read(direction=None, window=None):
    """(t, s) -> whether direction and window allow it."""
    return lambda t, s: DIRECTIONS[direction](t, s) and (window is None or abs(s - t) <= window)


def padded_to_zero(x, real):
    """Where a row of x is padding it may hold anything, and counts for nothing."""
    return np.where(real[:, None], x, 0.0)


def self_attention(heads, direction=None, window=None):
    pattern = may_read(direction, window)

    def reference(weights, inputs, masks):
        outputs, alphas = [], []
        for b, x in enumerate(inputs["inputs"]):
            real = masks["mask"][b] if "mask" in masks else np.ones(len(x), bool)
            allowed = masks["attention_mask"][b] if "attention_mask" in masks else None

            def readable(t, s, real=real, allowed=allowed):
                return pattern(t, s) and real[t] and real[s] and (allowed is None or allowed[t, s])

            x = padded_to_zero(x, real)
            output, alpha = heads(weights, x, x, readable)
            outputs.append(padded_to_zero(output, real))
            alphas.append(alpha)
        return [np.stack(outputs), np.stack(alphas)]

    return reference
