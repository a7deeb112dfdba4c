"""What the papers say, in float64 NumPy: slow, plain, one query and one key at a time.

Nothing here is shared with the library. Weights come as `{name: array}`, where the name is a
variable's path below its layer.
"""

import math

import numpy as np

# --- Scores of one query q (Dq,) and one key k (Dk,) ------------------------------------------


def dot(weights, q, k):
    """Luong et al. 2015, section 3.1, dot: q . k."""
    return sum(q[i] * k[i] for i in range(len(q)))


def scaled_dot(weights, q, k):
    """Vaswani et al. 2017, equation 1: q . k / sqrt(D)."""
    return dot(weights, q, k) / math.sqrt(len(q))


def cosine(scale):
    """Graves et al. 2014, equations 5 and 6: scale * q . k / (|q| |k|), 0 for a zero vector."""

    def score(weights, q, k):
        product = math.sqrt(dot(weights, q, q) * dot(weights, k, k))
        return scale * dot(weights, q, k) / product if product else 0.0

    return score


def general(weights, q, k):
    """Luong et al. 2015, section 3.1, general: q^T W k, with W (Dq, Dk)."""
    w = weights["key/kernel"].T
    return sum(q[i] * w[i, j] * k[j] for i in range(len(q)) for j in range(len(k)))


def additive(weights, q, k):
    """Bahdanau et al. 2015, appendix A.1.2: v^T tanh(W q + U k)."""
    w, u, v = (weights[f"{name}/kernel"] for name in ("query", "key", "score"))
    return sum(v[i, 0] * math.tanh(w[:, i] @ q + u[:, i] @ k) for i in range(len(v)))


def concat(activation, hidden_layers=1):
    """Luong et al. 2015, section 3.1, concat: v^T f(W [q; k] + b), and deeper."""

    def score(weights, q, k):
        kernel = np.concatenate([weights["query/kernel"], weights["key/kernel"]], axis=0)
        hidden = np.concatenate([q, k])
        for layer in range(hidden_layers):
            name = "query" if layer == 0 else f"hidden_{layer - 1}"
            kernel = kernel if layer == 0 else weights[f"{name}/kernel"]
            bias = weights.get(f"{name}/bias", np.zeros(kernel.shape[1]))
            hidden = np.array([activation(x) for x in hidden @ kernel + bias])
        return float(hidden @ weights["score/kernel"][:, 0])

    return score


def relu(x):
    return max(x, 0.0)


# --- Normalizers of the scores of the readable keys of one query --------------------------------


def softmax(scores):
    """Bahdanau et al. 2015, equation 6."""
    terms = [math.exp(score - max(scores)) for score in scores]
    return [term / math.fsum(terms) for term in terms]


def sparsemax(scores):
    """Martins and Astudillo 2016, equation 1: the point of the simplex nearest to the scores.

    It is max(e - tau, 0) for the one tau at which that sums to 1; tau is found by bisection.
    """
    low, high = max(scores) - 1.0, max(scores)
    for _ in range(200):
        tau = (low + high) / 2
        if math.fsum(max(score - tau, 0.0) for score in scores) > 1.0:
            low = tau
        else:
            high = tau
    return [max(score - high, 0.0) for score in scores]


def sigmoid(scores):
    return [logistic(score) for score in scores]


def logistic(x):
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else 0.0  # e^700 is near the largest float


# --- Layers -----------------------------------------------------------------------------------


def below(weights, name):
    """The weights of a sublayer, by their paths below it."""
    return {k[len(name) + 1 :]: v for k, v in weights.items() if k.startswith(f"{name}/")}


def score_layer(score):
    def reference(weights, inputs, masks):
        query, key = inputs["query"], inputs["key"]
        scores = np.zeros((len(query), query.shape[1], key.shape[1]))
        for b in range(scores.shape[0]):
            for t in range(scores.shape[1]):
                for s in range(scores.shape[2]):
                    scores[b, t, s] = score(weights, query[b, t], key[b, s])
        return [scores]

    return reference


def look(score, normalizer, weights, q, keys, values, readable):
    """Weights (S,) and context (Dv,) of one query over the keys that it may read."""
    alphas, context = np.zeros(len(keys)), np.zeros(values.shape[1])
    positions = [s for s in range(len(keys)) if readable[s]]
    if positions:
        found = normalizer([score(weights, q, keys[s]) for s in positions])
        for s, alpha in zip(positions, found, strict=True):
            alphas[s] = alpha
            context = context + alpha * values[s]
    return alphas, context


def attention(score, normalizer, name, causal=False):
    """Bahdanau et al. 2015, equations 5 and 6: e = score(q, k), a = f(e), c = sum_s a_s v_s."""

    def reference(weights, inputs, masks):
        query, value = inputs["query"], inputs["value"]
        key = inputs.get("key", value)
        one_query = query.ndim == 2
        if one_query:
            query = query[:, None, :]
        batch, queries, keys = len(query), query.shape[1], value.shape[1]
        alphas = np.zeros((batch, queries, keys))
        context = np.zeros((batch, queries, value.shape[2]))
        for b in range(batch):
            for t in range(queries):
                readable = [
                    all(masks[m][b, s] for m in ("value_mask", "key_mask") if m in masks)
                    and ("query_mask" not in masks or masks["query_mask"][b, t])
                    and ("attention_mask" not in masks or masks["attention_mask"][b, t, s])
                    # The last query stands at the last key.
                    and (not causal or s - keys <= t - queries)
                    for s in range(keys)
                ]
                alphas[b, t], context[b, t] = look(
                    score, normalizer, below(weights, name), query[b, t], key[b], value[b], readable
                )
        return [context[:, 0], alphas[:, 0]] if one_query else [context, alphas]

    return reference


def gru_cell(weights, x, states):
    """Cho et al. 2014, with Keras's `reset_after=True`; the gates lie side by side as z, r, h."""
    (h,) = states
    kernel, recurrent = weights["kernel"], weights["recurrent_kernel"]
    bias = weights.get("bias", np.zeros((2, kernel.shape[1])))
    units = len(h)

    def parts(gate):
        columns = slice(gate * units, (gate + 1) * units)
        return (
            x @ kernel[:, columns] + bias[0, columns],
            h @ recurrent[:, columns] + bias[1, columns],
        )

    z = np.array([logistic(v) for v in sum(parts(0))])
    r = np.array([logistic(v) for v in sum(parts(1))])
    from_x, from_h = parts(2)
    candidate = np.tanh(from_x + r * from_h)
    return [z * h + (1.0 - z) * candidate]


def lstm_cell(weights, x, states):
    """Hochreiter and Schmidhuber 1997, with forget gate; the gates side by side as i, f, c, o."""
    h, c = states
    kernel, recurrent = weights["kernel"], weights["recurrent_kernel"]
    units = len(h)
    together = x @ kernel + h @ recurrent + weights.get("bias", 0.0)
    i, f, g, o = (together[n * units : (n + 1) * units] for n in range(4))
    c = np.array([logistic(v) for v in f]) * c + np.array([logistic(v) for v in i]) * np.tanh(g)
    return [np.array([logistic(v) for v in o]) * np.tanh(c), c]


def dense_tanh(weights, x):
    return np.tanh(x @ weights["kernel"] + weights.get("bias", 0.0))


def decoder(score, normalizer, name, units, query, cell, num_layers, input_feeding):
    """A recurrent network that reads a memory in every step.

    "previous": Bahdanau et al. 2015, appendix A.2.2; "current": Luong et al. 2015, section 3.1
    and equation 5; input feeding: their section 3.3.
    """
    run_cell, per_layer = {"gru": (gru_cell, 1), "lstm": (lstm_cell, 2)}[cell]

    def move(weights, x, states):
        moved = []
        for layer in range(num_layers):
            own = states[layer * per_layer : (layer + 1) * per_layer]
            new = run_cell(below(weights, f"cell_{layer}"), x, own)
            moved += new
            x = new[0]
        return moved

    def one_row(weights, inputs, memory, states, fed, real, readable):
        outputs, alphas = np.zeros((len(inputs), units)), np.zeros((len(inputs), len(memory)))
        top = (num_layers - 1) * per_layer

        def ask(h):
            return look(score, normalizer, below(weights, name), h, memory, memory, readable)

        for t, x in enumerate(inputs):
            if not real[t]:
                continue
            if query == "previous":
                alpha, context = ask(states[top])
                states = move(weights, np.concatenate([x, context, fed]), states)
                seen = np.concatenate([x, context, states[top]])
            else:
                states = move(weights, np.concatenate([x, fed]), states)
                alpha, context = ask(states[top])
                seen = np.concatenate([context, states[top]])
            output = dense_tanh(below(weights, "readout"), seen)
            fed = output if input_feeding else fed
            outputs[t], alphas[t] = output, alpha
        return outputs, [*states, *([fed] if input_feeding else [])], alphas

    def reference(weights, inputs, masks):
        rows = []
        for b in range(len(inputs["inputs"])):
            if "initial_state" in inputs:
                states = [state[b] for state in inputs["initial_state"]]
                states, last = (states[:-1], states[-1]) if input_feeding else (states, None)
            elif "encoder_state" in inputs:
                states = [
                    dense_tanh(below(weights, f"bridge_{i}"), inputs["encoder_state"][b])
                    for i in range(num_layers * per_layer)
                ]
                last = np.zeros(units)
            else:
                states, last = [np.zeros(units)] * (num_layers * per_layer), np.zeros(units)
            rows.append(
                one_row(
                    weights,
                    inputs["inputs"][b],
                    inputs["memory"][b],
                    states,
                    last if input_feeding else np.zeros(0),
                    masks["inputs_mask"][b] if "inputs_mask" in masks else [True] * 99,
                    masks["memory_mask"][b] if "memory_mask" in masks else [True] * 99,
                )
            )
        outputs, states, alphas = zip(*rows, strict=True)
        return [np.stack(outputs), *map(np.stack, zip(*states, strict=True)), np.stack(alphas)]

    return reference


# --- Search -------------------------------------------------------------------------------------


def all_hypotheses(step, state, start_id, end_id, max_length, length_penalty_weight):
    """Every sequence that ends with its only end token, or has `max_length` tokens; best first.

    Args:
        step: function of one token and one state to the log probabilities (V,) of the next token,
            the next state and the alignment (S,).

    Returns:
        A list of `(score, tokens, alignments)`.
    """
    found = []

    def extend(tokens, log_probability, alignments, state):
        if tokens and (tokens[-1] == end_id or len(tokens) == max_length):
            penalty = ((5 + len(tokens)) / 6) ** length_penalty_weight
            found.append((log_probability / penalty, tokens, alignments))
            return
        log_probabilities, next_state, alignment = step(tokens[-1] if tokens else start_id, state)
        for token, step_log_probability in enumerate(log_probabilities):
            extend(
                [*tokens, token],
                log_probability + step_log_probability,
                [*alignments, alignment],
                next_state,
            )

    extend([], 0.0, [], state)
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def beam(step, state, start_id, end_id, max_length, length_penalty_weight, beam_width):
    """Lists of hypotheses, the best `beam_width` of all continuations kept in each step."""
    hypotheses = [(0.0, 0.0, [], [], state)]  # score, log probability, tokens, alignments, state
    for _ in range(max_length):
        continued = []
        for hypothesis in hypotheses:
            _, log_probability, tokens, alignments, state = hypothesis
            if tokens and tokens[-1] == end_id:
                continued.append(hypothesis)
                continue
            steps, next_state, alignment = step(tokens[-1] if tokens else start_id, state)
            for token, step_log_probability in enumerate(steps):
                total = log_probability + step_log_probability
                penalty = ((5 + len(tokens) + 1) / 6) ** length_penalty_weight
                continued.append(
                    (
                        total / penalty,
                        total,
                        [*tokens, token],
                        [*alignments, alignment],
                        next_state,
                    )
                )
        hypotheses = sorted(continued, key=lambda hypothesis: -hypothesis[0])[:beam_width]
    return [(score, tokens, alignments) for score, _, tokens, alignments, _ in hypotheses]
