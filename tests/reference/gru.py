"""Attention-gated recurrent units, one row and one step at a time."""

import numpy as np

from reference import logistic


def softsign(x):
    return x / (1.0 + abs(x))


def replaced(attention, gates):
    """Xiong et al. 2016, equation 11: g h~ + (1 - g) h."""
    return attention


def scaled(attention, gates):
    """Zhou et al. 2019, section 4.3: u' = a u; Keras's z is what is kept, so u = 1 - z."""
    return attention * (1.0 - gates["z"])


def move(weights, x, attention, h, share, letters, reset_after, f=np.tanh, g=logistic):
    """The state after one step; the columns of the kernels stand in the order of `letters`."""
    units = len(h)
    columns = {letter: slice(i * units, (i + 1) * units) for i, letter in enumerate(letters)}
    bias = np.atleast_2d(weights.get("bias", np.zeros(units * len(letters))))
    of_inputs = {c: x @ weights["kernel"][:, n] + bias[0, n] for c, n in columns.items()}

    def of_state(letter, state):
        product = state @ weights["recurrent_kernel"][:, columns[letter]]
        return product + bias[1, columns[letter]] if len(bias) == 2 else product

    gates = {
        c: np.array([g(v) for v in of_inputs[c] + of_state(c, h)]) for c in letters if c != "h"
    }
    r = gates["r"]
    remembered = r * of_state("h", h) if reset_after else of_state("h", r * h)
    candidate = np.array([f(v) for v in of_inputs["h"] + remembered])
    taken = share(attention, gates)
    return taken * candidate + (1.0 - taken) * h


def attention_gru(share, letters, reset_after, sequences=False, state=False, **functions):
    """What `AttentionGRU` returns, of rows in which a masked step does nothing."""

    def reference(weights, inputs, masks):
        x, attention = inputs["inputs"], inputs["gates"]
        units = weights["recurrent_kernel"].shape[0]
        all_states, last = np.zeros((*x.shape[:2], units)), np.zeros((len(x), units))
        for b in range(len(x)):
            h = inputs["initial_state"][b] if "initial_state" in inputs else np.zeros(units)
            for t in range(x.shape[1]):
                if "inputs_mask" in masks and not masks["inputs_mask"][b, t]:
                    continue
                h = move(
                    weights, x[b, t], attention[b, t], h, share, letters, reset_after, **functions
                )
                all_states[b, t] = h
            last[b] = h
        return [all_states if sequences else last, *([last] if state else [])]

    return reference
