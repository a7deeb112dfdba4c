"""Hierarchical attention, one document and one sentence at a time."""

import numpy as np

from reference import below, gru_cell, look


def identity(weights, sequence, readable):
    return sequence


def dense(name, activation=lambda x: x):
    """Each step by itself."""

    def encode(weights, sequence, readable):
        kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
        return np.array([[activation(e) for e in x @ kernel + bias] for x in sequence])

    return encode


def gru(weights, sequence, readable):
    """Cho et al. 2014; a masked step leaves the state as it is."""
    state, states = np.zeros(weights["recurrent_kernel"].shape[0]), []
    for x, real in zip(sequence, readable, strict=True):
        if real:
            (state,) = gru_cell(weights, x, [state])
        states.append(state)
    return np.array(states)


def bidirectional(name):
    """Yang et al. 2016, section 2.2: both directions side by side."""

    def encode(weights, sequence, readable):
        forward = gru(below(weights, f"{name}/forward_{name}/gru_cell"), sequence, readable)
        backward = gru(
            below(weights, f"{name}/backward_{name}/gru_cell"), sequence[::-1], readable[::-1]
        )
        return np.concatenate([forward, backward[::-1]], axis=1)

    return encode


def mean(weights, sequence, readable):
    """A pooling without weights."""
    return sum(x for x, real in zip(sequence, readable, strict=True) if real) / sum(readable), None


def ask(score, normalizer, name):
    """An attention with one query over a sequence: context and weights."""

    def read(weights, query, sequence, readable):
        own = below(weights, f"top_down/{name}")
        alphas, context = look(score, normalizer, own, query, sequence, sequence, readable)
        return context, alphas

    return read


def hierarchy(word_encoder, word_pooling, sentence_encoder, sentence_pooling, top_down=None):
    """Yang et al. 2016, section 2.2; `top_down` as the layer's documentation defines it.

    Encoders are `(weights, sequence, readable) -> sequence`, poolings `-> (vector, weights)`, with
    their weights as below the layer; `top_down` also takes the query.
    """

    def one_document(weights, words, real):
        sentences = [i for i in range(len(words)) if any(real[i])]
        has_words = [any(row) for row in real]
        encoded = {i: word_encoder(weights, words[i], real[i]) for i in sentences}

        def up(found):
            """The states of the sentences; those without words are zeros and are not read."""
            width = len(found[sentences[0]][0].ravel())
            vectors = np.zeros((len(words), width))
            for i in sentences:
                vectors[i] = found[i][0].ravel()
            return sentence_encoder(weights, vectors, has_words)

        found = {
            i: word_pooling(below(weights, "word_pooling"), encoded[i], real[i]) for i in sentences
        }
        states = up(found)
        if top_down:
            found = {i: top_down(weights, states[i], encoded[i], real[i]) for i in sentences}
            states = up(found)
        pooled = sentence_pooling(below(weights, "sentence_pooling"), states, has_words)
        word_weights = [found[i][1] if i in sentences else None for i in range(len(words))]
        return *pooled, word_weights

    def reference(weights, inputs, masks):
        documents = inputs["inputs"]
        real = masks.get("mask", np.ones(documents.shape[:3], bool))
        rows = [
            one_document(weights, words, readable) if readable.any() else None
            for words, readable in zip(documents, real, strict=True)
        ]
        some = next(row for row in rows if row is not None)
        of_a_sentence = np.zeros_like(next(x for x in some[2] if x is not None))
        nothing = (np.zeros_like(some[0]), np.zeros_like(some[1]), [None] * documents.shape[1])
        found = [
            (
                document,
                sentence_weights,
                np.stack([of_a_sentence if x is None else x for x in word_weights]),
            )
            for document, sentence_weights, word_weights in (row or nothing for row in rows)
        ]
        return [np.stack(parts) for parts in zip(*found, strict=True)]

    return reference
