"""Attention over models, from Kiela, Wang, Cho 2018."""

import numpy as np

from reference import logistic, softmax


def same(weights, x):
    return x


def dense_sigmoid(weights, x):
    """What stands in for the encoder: one dense layer, token by token."""
    return np.array([logistic(v) for v in x @ weights["encoder/kernel"] + weights["encoder/bias"]])


def ensemble(normalize=softmax, projects=True, encode=same):
    """w = sum_k a_k w'_k with w'_k = P_k w_k + b_k and a = normalize(a . encode(w'_k) + b)."""

    def one_token(weights, said, readable):
        if projects:
            said = [
                x @ weights[f"projection_{k}/kernel"] + weights.get(f"projection_{k}/bias", 0.0)
                for k, x in enumerate(said)
            ]
        places = [k for k in range(len(said)) if readable[k]]
        v, b = weights["score/kernel"][:, 0], weights.get("score/bias", [0.0])[0]
        scores = [float(encode(weights, said[k]) @ v + b) for k in places]
        alphas, mixed = np.zeros(len(said)), np.zeros(said[0].shape)
        for k, alpha in zip(places, normalize(scores) if places else [], strict=True):
            alphas[k] = alpha
            mixed = mixed + alpha * said[k]
        return mixed, alphas

    def reference(weights, inputs, masks):
        said = list(inputs.values())
        outer = said[0].shape[:-1]
        real = np.broadcast_to(masks.get("mask", True), outer)
        readable = np.broadcast_to(masks.get("attention_mask", True), (*outer, len(said)))
        tokens = [
            one_token(weights, [x[place] for x in said], readable[place] & real[place])
            for place in np.ndindex(*outer)
        ]
        return [
            np.reshape(parts, (*outer, parts[0].shape[-1])) for parts in zip(*tokens, strict=True)
        ]

    return reference
