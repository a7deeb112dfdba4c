"""Coupled attentions, from Wang, Pan, Dahlmeier, Xiao 2017."""

import math

import numpy as np

from reference import below, logistic

SIDES = ("aspect", "opinion")


def composition(slices, h, u):
    """h^T G_k u of each slice k."""
    return [
        sum(h[d] * tensor[d, e] * u[e] for d in range(len(h)) for e in range(len(u)))
        for tensor in slices
    ]


def gru_of_cho(weights, x, h):
    """Cho et al. 2014: the reset gate before the product; Keras's columns lie as z, r, h."""
    kernel, recurrent = weights["kernel"], weights["recurrent_kernel"]
    bias = weights.get("bias", np.zeros(kernel.shape[1]))
    z, r, new = (slice(gate * len(h), (gate + 1) * len(h)) for gate in range(3))
    from_x = x @ kernel + bias
    keep = np.array([logistic(v) for v in from_x[z] + h @ recurrent[:, z]])
    reset = np.array([logistic(v) for v in from_x[r] + h @ recurrent[:, r]])
    return keep * h + (1.0 - keep) * np.tanh(from_x[new] + (reset * h) @ recurrent[:, new])


def coupled(slices, num_layers, normalize):
    """Equations 1 to 5, the features of all layers summed up."""

    def one_row(weights, tokens, real):
        places = [i for i in range(len(tokens)) if real[i]]
        features = {side: np.zeros((len(tokens), 2 * slices)) for side in SIDES}
        alphas = np.zeros((num_layers, 2, len(tokens)))
        u = {side: weights[f"{side}/prototype"][0] for side in SIDES}
        for layer in range(num_layers):
            following = {}
            for number, side in enumerate(SIDES):
                own = below(weights, side)
                other = SIDES[1 - number]
                r, scores = np.zeros(2 * slices), []
                for i in places:
                    f = composition(own["own_tensor"], tokens[i], u[side])
                    f += composition(own["other_tensor"], tokens[i], u[other])
                    r = gru_of_cho(below(own, "cell"), np.array([math.tanh(v) for v in f]), r)
                    features[side][i] += r
                    scores.append(float(r @ own["score"][:, 0]))
                following[side] = np.tanh(u[side] @ own["update"])
                for i, alpha in zip(places, normalize(scores) if places else [], strict=True):
                    alphas[layer, number, i] = alpha
                    following[side] = following[side] + alpha * tokens[i]
            u = following
        return features["aspect"], features["opinion"], alphas

    def reference(weights, inputs, masks):
        tokens = inputs["inputs"]
        real = masks.get("mask", np.ones(tokens.shape[:2], bool))
        rows = [one_row(weights, tokens[b], real[b]) for b in range(len(tokens))]
        return [np.stack(parts) for parts in zip(*rows, strict=True)]

    return reference
