"""Memories that are read in hops, one row and one slot at a time."""

import numpy as np

from reference import below, gru_cell, look, relu


def position_weights(words, depth):
    """Sukhbaatar et al. 2015, section 4.1: l_kj = (1 - j/J) - (k/d)(1 - 2j/J), (J, d)."""
    return np.array(
        [
            [(1 - j / words) - (k / depth) * (1 - 2 * j / words) for k in range(1, depth + 1)]
            for j in range(1, words + 1)
        ]
    )


def sentence(words):
    """sum_j l_j * w_j over the words that are there."""
    if not len(words):
        return np.zeros(words.shape[1])
    return np.sum(position_weights(*words.shape) * words, axis=0)


def unweighted(scores):
    """Sukhbaatar et al. 2015, section 4.2: a linear start has no softmax."""
    return scores


# --- How a query q goes on after it has read o; `first` is the query before the first hop. -----


def update_sum(weights, q, o, first, hop):
    """Sukhbaatar et al. 2015, equation 4: u^{k+1} = u^k + o^k."""
    return q + o


def update_linear(weights, q, o, first, hop):
    """Miller et al. 2016, section 3.2: q_{j+1} = R_j (q + o)."""
    return (q + o) @ weights[f"update/hop_{hop}"]


def update_rnn(weights, q, o, first, hop):
    """Sukhbaatar et al. 2015, section 2.2: u^{k+1} = H u^k + o^k."""
    return q @ weights["update/map"] + o


def update_relu(weights, q, o, first, hop):
    """Xiong et al. 2016, equation 13: m^t = ReLU(W^t [m^{t-1}; c^t; q] + b)."""
    kernel = weights[f"update/hop_{hop}/kernel"]
    bias = weights.get(f"update/hop_{hop}/bias", np.zeros(kernel.shape[1]))
    return np.array([relu(x) for x in np.concatenate([q, o, first]) @ kernel + bias])


def update_gru(weights, q, o, first, hop):
    """Xiong et al. 2016, equation 12: m^t = GRU(c^t, m^{t-1})."""
    return gru_cell(below(weights, "update/gru"), o, [q])[0]


def memory(score, path, normalizer, update, hops, tying="layerwise", temporal=None):
    """What `KeyValueMemory` returns.

    Miller et al. 2016, section 3.2; Sukhbaatar et al. 2015, sections 2 and 4.1.
    """

    def projected(weights, x, view):
        kernel = weights.get(f"view_{view}/kernel")
        return x if kernel is None else x @ kernel

    def slot(weights, x, real, view):
        """A x of one slot, or sum_j l_j * A x_j of its words."""
        seen = projected(weights, x, view)
        return seen if x.ndim == 1 else sentence(seen[real])

    def views(hop):
        return (hop, hop + 1) if tying == "adjacent" else (1, 2)

    def reference(weights, inputs, masks):
        outputs, alphas = [], []
        for b, query in enumerate(inputs["query"]):
            key = inputs["key"][b]
            value = inputs["value"][b] if "value" in inputs else key
            given = {name: masks[name][b] for name in masks}
            key_real = given.get("key_mask", np.ones(key.shape[:-1], bool))
            value_real = given.get(
                "value_mask", np.ones(value.shape[:-1], bool) if "value" in inputs else key_real
            )
            asked = given.get("query_mask", np.ones(query.shape[:-1], bool))
            readable = [s for s in range(len(key)) if np.any(key_real[s]) and np.any(value_real[s])]
            if temporal is not None:
                readable = readable[-temporal:]
            age = {s: len(readable) - 1 - i for i, s in enumerate(readable)}
            q = first = slot(weights, query, asked, 0)
            rows = []
            for hop in range(hops):
                a, c = views(hop)
                keys, values = [], []
                for s in range(len(key)):
                    m = slot(weights, key[s], key_real[s], a)
                    v = slot(weights, value[s], value_real[s], c)
                    if s in age and temporal is not None:
                        m = m + weights[f"view_{a}/temporal"][age[s]]
                        v = v + weights[f"view_{c}/temporal"][age[s]]
                    keys.append(m)
                    values.append(v)
                alpha, o = look(
                    score,
                    normalizer,
                    below(weights, path),
                    q,
                    keys,
                    np.array(values),
                    [s in readable for s in range(len(key))],
                )
                q = update(weights, q, o, first, hop)
                rows.append(alpha)
            outputs.append(q)
            alphas.append(rows)
        return [np.array(outputs), np.array(alphas)]

    return reference
