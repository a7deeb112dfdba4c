"""Attention pooling, one step and one feature at a time."""

import numpy as np

from reference import below, look


def hidden_layer(weights, name, activation, x):
    kernel = weights[f"{name}/kernel"]
    bias = weights.get(f"{name}/bias", np.zeros(kernel.shape[1]))
    return np.array(
        [
            activation(sum(x[i] * kernel[i, j] for i in range(len(x))) + bias[j])
            for j in range(kernel.shape[1])
        ]
    )


def elu(x):
    return x if x > 0 else np.expm1(x)


def pool_by_queries(hops, score, normalizer, name, activation, weights, sequence, readable):
    """Lin et al. 2017, equations 6 and 7, one hop at a time: contexts (r, D) and weights (r, S)."""
    hidden = [hidden_layer(weights, "hidden", activation, h) for h in sequence]
    found = [
        look(
            score, normalizer, below(weights, name), weights["query"][r], hidden, sequence, readable
        )
        for r in range(hops)
    ]
    return np.stack([context for _, context in found]), np.stack([alphas for alphas, _ in found])


def pool_by_one_query(*arguments):
    """Yang et al. 2016, equations 5 to 7: context (D,) and weights (S,)."""
    context, alphas = pool_by_queries(1, *arguments)
    return context[0], alphas[0]


def pool_by_features(normalizer, activation, weights, sequence, readable):
    """Shen et al. 2018, section 3.2, source2token: context (D,) and weights (D, S)."""
    scores = [
        hidden_layer(weights, "scores", lambda e: e, hidden_layer(weights, "hidden", activation, x))
        for x in sequence
    ]
    width = sequence.shape[1]
    context, alphas = np.zeros(width), np.zeros((width, len(sequence)))
    positions = [s for s in range(len(sequence)) if readable[s]]
    for d in range(width if positions else 0):
        found = normalizer([scores[s][d] for s in positions])
        for s, alpha in zip(positions, found, strict=True):
            alphas[d, s] = alpha
            context[d] += alpha * sequence[s, d]
    return context, alphas


def pooling(pool):
    """A reference for rows, of `pool(weights, sequence (S, D), readable (S,))`."""

    def reference(weights, inputs, masks):
        sequences = inputs["inputs"]
        readable = masks.get("mask", np.ones(sequences.shape[:2], bool))
        found = [pool(weights, x, real) for x, real in zip(sequences, readable, strict=True)]
        return [np.stack(parts) for parts in zip(*found, strict=True)]

    return reference
