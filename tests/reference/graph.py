"""Attention over graphs: Tan, Wan, Xiao 2017, and Zhou et al. 2018."""

import numpy as np

from reference import below, softmax


def proportional(edges):
    """W D^{-1}: each edge by its part of the sum; negative ones are none."""
    edges = [max(edge, 0.0) for edge in edges]
    return [edge / sum(edges) if sum(edges) else 0.0 for edge in edges]


def pagerank(score, normalize, weights, q, sentences, damping):
    """Tan et al. 2017: f = (1 - damping) (I - damping P)^{-1} y, without the query's own rank."""
    vertices = [q, *sentences]
    size = len(vertices)
    steps = np.zeros((size, size))
    for j in range(size):
        others = [i for i in range(size) if i != j]
        edges = [score(weights, vertices[j], vertices[i]) for i in others]
        for i, probability in zip(others, normalize(edges), strict=True):
            steps[i, j] = probability
    topic = np.zeros(size)
    topic[0] = 1.0
    ranks = (1.0 - damping) * np.linalg.solve(np.eye(size) - damping * steps, topic)
    return ranks[1:]


def graph(score, name, normalize=softmax, damping=0.9, distraction=True):
    def reference(weights, inputs, masks):
        query, value = inputs["query"], inputs["value"]
        real = masks.get("query_mask", np.ones(query.shape[:2], bool))
        readable = masks.get("value_mask", np.ones(value.shape[:2], bool))
        alphas = np.zeros((*query.shape[:2], value.shape[1]))
        context = np.zeros(query.shape)
        for b in range(len(query)):
            places = [s for s in range(value.shape[1]) if readable[b, s]]
            before = np.zeros(len(places))
            for t in range(query.shape[1]):
                ranks = np.zeros(len(places))
                if real[b, t] and places:
                    ranks = pagerank(
                        score,
                        normalize,
                        below(weights, name),
                        query[b, t],
                        value[b, places],
                        damping,
                    )
                risen = [max(f, 0.0) for f in ranks - before]
                for s, gain in zip(places, risen, strict=True):
                    alphas[b, t, s] = gain / sum(risen) if gain else 0.0
                    context[b, t] += alphas[b, t, s] * value[b, s]
                before = ranks if distraction else before
        return [context, alphas]

    return reference


def neighbourhood(normalize):
    """Zhou et al. 2018, equations 5 to 7."""

    def one_entity(weights, heads, relations, tails, readable):
        w_r, b_r = weights["relation/kernel"].T, weights.get("relation/bias", 0.0)
        w_h, w_t = np.split(weights["ends/kernel"].T, [heads.shape[-1]], axis=1)
        b_ends = weights.get("ends/bias", 0.0)
        alphas = np.zeros(len(heads))
        entity = np.zeros(heads.shape[-1] + tails.shape[-1])
        places = [n for n in range(len(heads)) if readable[n]]
        scores = [
            float((w_r @ relations[n] + b_r) @ np.tanh(w_h @ heads[n] + w_t @ tails[n] + b_ends))
            for n in places
        ]
        for n, alpha in zip(places, normalize(scores) if places else [], strict=True):
            alphas[n] = alpha
            entity += alpha * np.concatenate([heads[n], tails[n]])
        return entity, alphas

    def reference(weights, inputs, masks):
        heads, relations, tails = inputs["heads"], inputs["relations"], inputs["tails"]
        outer = heads.shape[:-2]
        entities = np.zeros((*outer, heads.shape[-1] + tails.shape[-1]))
        alphas = np.zeros(heads.shape[:-1])
        for place in np.ndindex(*outer):
            readable = [
                all(mask[place][n] for mask in masks.values()) for n in range(heads.shape[-2])
            ]
            entities[place], alphas[place] = one_entity(
                weights, heads[place], relations[place], tails[place], readable
            )
        return [entities, alphas]

    return reference
