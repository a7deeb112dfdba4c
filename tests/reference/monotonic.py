"""Raffel et al. 2017, sections 2.2 and 2.3, one query and one key at a time."""

import numpy as np

from reference import below, logistic


def expected(p, before):
    """Equation 9: the probability that each key is read, `before` that of the query before."""
    keys = len(p)
    return [
        p[j] * sum(before[k] * np.prod([1.0 - p[m] for m in range(k, j)]) for k in range(j + 1))
        for j in range(keys)
    ]


def decided(p, before):
    """Section 2.2, each decision taken as it is more probable."""
    weights = [0.0] * len(p)
    start = next((j for j in range(len(p)) if before[j] > 0), len(p))
    for j in range(start, len(p)):
        if p[j] > 0.5:
            weights[j] = 1.0
            break
    return weights


def monotonic(score, name, follow):
    """Equations 11 and 12; `follow` leads from the weights of one query to the next."""

    def one_row(weights, queries, keys, values, real, readable):
        contexts, alphas = (np.zeros((len(queries), n)) for n in (values.shape[1], len(keys)))
        last = [1.0] + [0.0] * (len(keys) - 1)
        for t, q in enumerate(queries):
            if not real[t]:
                continue
            p = [
                logistic(score(below(weights, name), q, keys[s]) + weights["bias"])
                if readable[s]
                else 0.0
                for s in range(len(keys))
            ]
            last = follow(p, last)
            alphas[t] = last
            for s in range(len(keys)):
                if readable[s]:
                    contexts[t] += last[s] * values[s]
        return contexts, alphas

    def reference(weights, inputs, masks):
        query, value = inputs["query"], inputs["value"]
        key = inputs.get("key", value)
        rows = []
        for b in range(len(query)):
            readable = [
                all(masks[name][b, s] for name in ("value_mask", "key_mask") if name in masks)
                for s in range(value.shape[1])
            ]
            real = masks["query_mask"][b] if "query_mask" in masks else [True] * len(query[b])
            rows.append(one_row(weights, query[b], key[b], value[b], real, readable))
        return [np.stack(x) for x in zip(*rows, strict=True)]

    return reference
