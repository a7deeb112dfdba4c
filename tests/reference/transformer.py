"""Transformer blocks over one row of the batch after the other."""

import math

import numpy as np

from . import below, logistic
from .self_attention import dense, may_read, padded_to_zero


def layer_norm(weights, x, epsilon):
    """Ba et al. 2016, equations 3 and 4, over the features of each position."""
    found = []
    for row in x:
        mean = math.fsum(row) / len(row)
        variance = math.fsum((value - mean) ** 2 for value in row) / len(row)
        normal = (row - mean) / math.sqrt(variance + epsilon)
        found.append(weights["gamma"] * normal + weights["beta"])
    return np.stack(found)


def silu(x):
    """Hendrycks and Gimpel 2016, section 2: x times the logistic function of x."""
    return x * logistic(x)


class Block:
    """Vaswani et al. 2017, section 3.1; `first`: Xiong et al. 2020, figure 1 (b).

    attention, cross_attention: `Heads`, without the latter an encoder.
    pattern: what the self-attention may read.
    activation: of one number.
    """

    def __init__(self, attention, activation, epsilon, first, pattern=None, cross_attention=None):
        self.attention, self.cross_attention = attention, cross_attention
        self.activation, self.epsilon, self.first = activation, epsilon, first
        self.pattern = may_read(**(pattern or {}))

    def around(self, weights, i, function, x):
        """One sublayer with its residual connection, and the weights that it has."""
        norm = below(weights, f"norm_{i}")
        if self.first:
            output, alphas = function(layer_norm(norm, x, self.epsilon))
            return x + output, alphas
        output, alphas = function(x)
        return layer_norm(norm, x + output, self.epsilon), alphas

    def feed_forward(self, weights, x):
        hidden = np.vectorize(self.activation)(dense(below(weights, "hidden"), x))
        return dense(below(weights, "output"), hidden), None

    def row(self, weights, x, real, memory, readable):
        def attention(x):
            return self.attention(
                below(weights, "attention"),
                x,
                x,
                lambda t, s: self.pattern(t, s) and real[t] and real[s],
            )

        def cross_attention(x):
            return self.cross_attention(
                below(weights, "cross_attention"), x, memory, lambda t, s: real[t] and readable[s]
            )

        x = padded_to_zero(x, real)
        sublayers = [attention, *([cross_attention] if self.cross_attention else [])]
        weights_found = []
        for i, sublayer in enumerate(sublayers):
            x, alphas = self.around(weights, i, sublayer, x)
            weights_found.append(alphas)
        x, _ = self.around(weights, len(sublayers), lambda x: self.feed_forward(weights, x), x)
        return [padded_to_zero(x, real), *weights_found]

    def __call__(self, weights, inputs, masks):
        rows = []
        for b, x in enumerate(inputs["inputs"]):
            real = np.ones(len(x), bool)
            for name in ("mask", "inputs_mask"):
                real = masks[name][b] if name in masks else real
            memory, readable = None, None
            if "memory" in inputs:
                memory = inputs["memory"][b]
                readable = masks.get("memory_mask", np.ones(inputs["memory"].shape[:2], bool))[b]
                memory = padded_to_zero(memory, readable)
            rows.append(self.row(weights, x, real, memory, readable))
        return [np.stack(x) for x in zip(*rows, strict=True)]
