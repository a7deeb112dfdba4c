"""Positions, one number at a time."""

import math

import numpy as np


def angle(position, feature, width, max_wavelength):
    """Vaswani et al. 2017, section 3.5, and Su et al. 2021, equation 15: p / w^(2i/D)."""
    i = feature // 2
    return position / max_wavelength ** (2 * i / width)


def sine_or_cosine(max_wavelength):
    """Vaswani et al. 2017, section 3.5: what is added to one input x (D,)."""

    def place(weights, x, position):
        added = np.zeros(len(x))
        for feature in range(len(x)):
            function = math.cos if feature % 2 else math.sin
            added[feature] = function(angle(position, feature, len(x), max_wavelength))
        return x + added

    return place


def learned(weights, x, position):
    """Gehring et al. 2017, section 3.1: a vector for each position."""
    return x + weights["embeddings"][int(position)]


def turned(max_wavelength):
    """Su et al. 2021, equation 15: each pair of features times its matrix of rotation."""

    def place(weights, x, position):
        found = np.zeros(len(x))
        for i in range(0, len(x), 2):
            a = angle(position, i, len(x), max_wavelength)
            rotation = np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
            found[i : i + 2] = rotation @ x[i : i + 2]
        return found

    return place


def layer(place, start_index=0):
    """Every input of (B, T, D), or of (B, H, T, D), at its position."""

    def reference(weights, inputs, masks):
        x = inputs["inputs"]
        found = np.zeros(x.shape)
        for index in np.ndindex(x.shape[:-1]):
            b, t = index[0], index[-1]
            position = inputs["positions"][b, t] if "positions" in inputs else start_index + t
            found[index] = place(weights, x[index], position)
        return [found]

    return reference
