"""Episodes of facts, one row and one fact at a time."""

import numpy as np

from reference import below
from reference.gru import move, replaced


def gated(weights, facts, gates):
    """Xiong et al. 2016, equation 11: the last state of the attention-gated unit."""
    h = np.zeros(facts.shape[1])
    for f, g in zip(facts, gates, strict=True):
        h = move(below(weights, "episode"), f, g, h, replaced, "rh", reset_after=True)
    return h


def soft(weights, facts, gates):
    """Xiong et al. 2016, section 3.3, soft attention: c = sum_i g_i f_i."""
    return sum((g * f for f, g in zip(facts, gates, strict=True)), np.zeros(facts.shape[1]))


def episodic(normalizer, episode, update, hops):
    """Xiong et al. 2016, equations 8 to 13."""

    def dense(weights, name, x):
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)

    def gate(weights, f, q, m):
        z = np.concatenate([f * q, f * m, abs(f - q), abs(f - m)])
        return dense(weights, "gate", np.tanh(dense(weights, "hidden", z)))[0]

    def reference(weights, inputs, masks):
        outputs, all_gates = [], []
        for b, q in enumerate(inputs["question"]):
            facts, m, rows = inputs["facts"][b], q, []
            real = masks["facts_mask"][b] if "facts_mask" in masks else np.ones(len(facts), bool)
            for hop in range(hops):
                gates = np.zeros(len(facts))
                if real.any():
                    gates[real] = normalizer([gate(weights, f, q, m) for f in facts[real]])
                m = update(weights, m, episode(weights, facts[real], gates[real]), q, hop)
                rows.append(gates)
            outputs.append(m)
            all_gates.append(rows)
        return [np.array(outputs), np.array(all_gates)]

    return reference
