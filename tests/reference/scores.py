"""Scores that know more than a query and a key: where both stand, and in which head."""

import math
from typing import NamedTuple

import numpy as np

import reference


class Place(NamedTuple):
    """Where a pair stands: the key's own position, how far it is behind the query, the head."""

    position: int
    distance: int
    head: int
    heads: int


# --- Scores of one query q (Dq,) and one key k (Dk,) at one place -------------------------------


def content(score):
    """A score to which places do not matter."""
    return lambda weights, q, k, place: score(weights, q, k)


def normalized_additive(weights, q, k):
    """Salimans and Kingma 2016, equation 2: g v^T / |v| tanh(W q + U k + b)."""
    w, u, v = (weights[f"{name}/kernel"] for name in ("query", "key", "score"))
    hidden = [math.tanh(w[:, i] @ q + u[:, i] @ k + b) for i, b in enumerate(weights["query/bias"])]
    length = math.sqrt(sum(x**2 for x in v[:, 0]))
    return weights["scale"] * sum(x * h for x, h in zip(v[:, 0], hidden, strict=True)) / length


def location(max_length):
    """Luong et al. 2015, equation 9: W_a h_t, of which only the first positions exist."""

    def score(weights, q, k, place):
        if place.position >= max_length:
            return -math.inf
        return sum(q[i] * weights["query/kernel"][i, place.position] for i in range(len(q)))

    return score


def multi_dimensional(weights, q, k, place):
    """Wang et al. 2017, equation 1: tanh(q^T W_k v), the K matrices side by side."""
    w = weights["query/kernel"][:, place.head * len(k) : (place.head + 1) * len(k)]
    product = sum(q[i] * w[i, j] * k[j] for i in range(len(q)) for j in range(len(k)))
    return math.tanh(product)


def relative(score, max_distance, name=""):
    """Raffel et al. 2020, section 2.1, with the clipping of Shaw et al. 2018, section 3.2."""

    def biased(weights, q, k, place):
        bias = weights["bias"] if place.heads == 1 else weights["bias"][place.head]
        clipped = max(-max_distance, min(max_distance, place.distance))
        return score(reference.below(weights, name), q, k, place) + bias[clipped + max_distance]

    return biased


def alibi(score, name=""):
    """Press et al. 2022, section 3: - m_h |t - s|."""

    def biased(weights, q, k, place):
        slope = slopes(place.heads)[place.head]
        return score(reference.below(weights, name), q, k, place) - slope * abs(place.distance)

    return biased


def slopes(heads):
    """A geometric sequence that starts at 2^(-8/H), with the same ratio.

    That is of powers of two; the authors' code fills up with every second one of twice as many.
    """
    power = max(2**i for i in range(9) if 2**i <= heads)
    sequence = [2 ** (-8 / power)]
    while len(sequence) < power:
        sequence.append(sequence[-1] * sequence[0])
    if power == heads:
        return sequence
    return sequence + slopes(2 * power)[0::2][: heads - power]


# --- Layers -----------------------------------------------------------------------------------


def matrices(score, weights, query, key, dimensions):
    """Of one row: (1, T, S), or a matrix for each head of (H, T, D), or for each dimension."""
    queries, keys = query.shape[-2], key.shape[-2]
    if query.ndim == 2:
        query, key = (np.repeat(x[None], dimensions or 1, axis=0) for x in (query, key))
    found = np.zeros((len(query), queries, keys))
    for h, t, s in np.ndindex(found.shape):
        # The last query stands at the last key.
        place = Place(s, (s - keys) - (t - queries), h, len(query))
        found[h, t, s] = score(weights, query[h, t], key[h, s], place)
    return found


def score_layer(score, dimensions=None):
    def layer(weights, inputs, masks):
        rows = zip(inputs["query"], inputs["key"], strict=True)
        found = np.stack([matrices(score, weights, q, k, dimensions) for q, k in rows])
        found = np.maximum(found, -1e38)  # what stands in for a key that is not scored
        return [found if dimensions or inputs["query"].ndim == 4 else found[:, 0]]

    return layer


def attention(score, normalizer, name, dimensions=None, causal=False):
    """What `reference.attention` does, with scores that know places and have dimensions."""

    def readable(masks, b, t, s):
        return all(
            masks[mask][b, i]
            for mask, i in (("value_mask", s), ("key_mask", s), ("query_mask", t))
            if mask in masks
        )

    def layer(weights, inputs, masks):
        query, value = inputs["query"], inputs["value"]
        key = inputs.get("key", value)
        one_query = query.ndim == 2
        query = query[:, None] if one_query else query
        contexts, alphas = [], []
        for b in range(len(query)):
            found = matrices(score, reference.below(weights, name), query[b], key[b], dimensions)
            last = found.shape[2] - found.shape[1]  # where the first query stands
            looked = [
                [
                    reference.look(
                        lambda weights, q, e: e,
                        normalizer,
                        None,
                        None,
                        row,
                        value[b],
                        [
                            e > -math.inf
                            and readable(masks, b, t, s)
                            and not (causal and s > t + last)
                            for s, e in enumerate(row)
                        ],
                    )
                    for t, row in enumerate(matrix)
                ]
                for matrix in found
            ]
            alphas.append([[alpha for alpha, _ in rows] for rows in looked])
            contexts.append([[context for _, context in rows] for rows in looked])
        results = [np.array(contexts), np.array(alphas)]  # (B, K, T, ...)
        results = [x[:, :, 0] for x in results] if one_query else results
        return results if dimensions else [x[:, 0] for x in results]

    return layer
