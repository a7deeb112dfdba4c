"""Normalizers of the scores of the readable keys of one query."""

import numpy as np

import reference


def entmax15(scores):
    """Peters, Niculae and Martins 2019, equation 10: max(e / 2 - tau, 0)^2.

    Tau is the one number at which that sums to 1; it is found by bisection.
    """
    halves = [score / 2 for score in scores]
    low, high = max(halves) - 1.0, max(halves)
    for _ in range(200):
        tau = (low + high) / 2
        if sum(max(half - tau, 0.0) ** 2 for half in halves) > 1.0:
            low = tau
        else:
            high = tau
    return [max(half - high, 0.0) ** 2 for half in halves]


def hardmax(scores):
    """All the weight on the best key, the first of equals."""
    best = 0
    for i, score in enumerate(scores):
        if score > scores[best]:
            best = i
    return [float(i == best) for i in range(len(scores))]


def tempered(temperature):
    """Jang, Gu and Poole 2017, equation 2, without the noise."""
    return lambda scores: reference.softmax([score / temperature for score in scores])


def alone(normalizer):
    """A normalizer by itself: scores (B, T, S) to weights (B, T, S)."""
    return lambda weights, inputs, masks: [
        np.array([[normalizer(list(row)) for row in rows] for rows in inputs["scores"]])
    ]
