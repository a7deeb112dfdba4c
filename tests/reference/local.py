"""Luong, Pham and Manning 2015, section 3.2, one query and one key at a time."""

import math

import numpy as np

from reference import below, logistic


def local(score, normalizer, name, window, predictive=False, start=0):
    """Equations 9 and 10, positions from 0; local-m without the Gaussian.

    A key is read where |s - p| <= window, by the weights among the readable keys there.
    """

    def center(weights, q, t, length):
        if not predictive:
            return start + t
        hidden = [math.tanh(x) for x in q @ weights["predictor/kernel"]]
        v = weights["position/kernel"][:, 0]
        return length * logistic(sum(x * y for x, y in zip(hidden, v, strict=True)))

    def one_query(weights, q, t, keys, values, readable):
        alphas, context = np.zeros(len(keys)), np.zeros(values.shape[1])
        length = max([s + 1 for s in range(len(keys)) if readable[s]], default=0)
        p = center(weights, q, t, length)
        seen = [s for s in range(len(keys)) if readable[s] and p - window <= s <= p + window]
        if seen:
            found = normalizer([score(below(weights, name), q, keys[s]) for s in seen])
            for s, alpha in zip(seen, found, strict=True):
                if predictive:
                    sigma = window / 2
                    alpha *= math.exp(-((s - p) ** 2) / (2 * sigma**2))
                alphas[s] = alpha
                context = context + alpha * values[s]
        return context, alphas

    def reference(weights, inputs, masks):
        query, value = inputs["query"], inputs["value"]
        key = inputs.get("key", value)
        queries = query[:, None] if query.ndim == 2 else query
        batch, length = queries.shape[:2]
        contexts = np.zeros((batch, length, value.shape[2]))
        alphas = np.zeros((batch, length, value.shape[1]))
        for b in range(batch):
            readable = [
                all(masks[name][b, s] for name in ("value_mask", "key_mask") if name in masks)
                for s in range(value.shape[1])
            ]
            for t in range(length):
                if "query_mask" not in masks or masks["query_mask"][b, t]:
                    contexts[b, t], alphas[b, t] = one_query(
                        weights, queries[b, t], t, key[b], value[b], readable
                    )
        return [contexts[:, 0], alphas[:, 0]] if query.ndim == 2 else [contexts, alphas]

    return reference
