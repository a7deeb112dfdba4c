"""From a model that is read and asked step by step to searches and the functions of an artifact."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attention import beam_search, greedy_search

from .tokenizers import END_ID, START_ID


class Decoding(NamedTuple):
    """How a model translates, as functions of tensors.

    encode: ids (B, S) -> `(states, memory)`: what steps hand on, and what every step reads, each
        tensors by name with the batch first.
    step: `(tokens (B,), states, memory)` -> `(logits (B, V), states, weights)`; the weights over
        the source (B, S), or None.
    """

    encode: Callable
    step: Callable


def searches(decoding: Decoding, config) -> dict[str, Callable]:
    """`greedy` and `beam`: functions of ids (B, S) that give a `SearchResult`.

    Args:
        decoding: of the model.
        config: gives `max_length`, `beam_width` and `length_penalty_weight`.
    """

    def searching(search, **options):
        def run(source):
            states, memory = decoding.encode(source)

            def step(tokens, held, *read):
                logits, moved, weights = decoding.step(
                    tokens,
                    dict(zip(states, held, strict=True)),
                    dict(zip(memory, read, strict=True)),
                )
                return logits, tuple(moved[name] for name in states), weights

            return search(
                step,
                tuple(states.values()),
                tuple(memory.values()),
                start_id=START_ID,
                end_id=END_ID,
                max_length=config.max_length,
                **options,
            )

        return run

    return {
        "greedy": searching(greedy_search),
        "beam": searching(
            beam_search,
            beam_width=config.beam_width,
            length_penalty_weight=config.length_penalty_weight,
        ),
    }


def signatures(decoding: Decoding, config) -> dict[str, tuple[Callable, dict]]:
    """The functions of an artifact: ids in, ids out, by name.

    | signature | takes | gives |
    |---|---|---|
    | encode | source (B, S) | the memory and the first states, by their names |
    | decode_step | token (B,), memory, states | logits, weights (B, S), next_ and each state |
    | greedy | source (B, S) | tokens (B, L), scores (B,), lengths (B,), alignment (B, L, S) |
    | beam | source (B, S) | the same with the beam's axis after the batch |
    """
    # Of two sizes: what differs between them is what may.
    few, more = (decoding.encode(np.full(shape, END_ID, "int32")) for shape in ((1, 1), (2, 3)))
    (states, memory), (more_states, more_memory) = few, more
    booleans = {
        name
        for name, tensor in {**states, **memory}.items()
        if keras.backend.standardize_dtype(tensor.dtype) == "bool"
    }

    # Numbers: LiteRT.js refuses a file that takes or gives booleans.
    def outward(tensors):
        return {k: ops.cast(x, "int32") if k in booleans else x for k, x in tensors.items()}

    def inward(tensors, names):
        return {
            name: ops.cast(tensors[name], "bool") if name in booleans else tensors[name]
            for name in names
        }

    def encode(source):
        states, memory = decoding.encode(source)
        return outward({**memory, **states})

    def decode_step(token, **given):
        logits, moved, weights = decoding.step(token, inward(given, states), inward(given, memory))
        moved = {f"next_{name}": state for name, state in outward(moved).items()}
        return {"logits": logits, "weights": weights, **moved}

    def found(search):
        def run(source):
            tokens, scores, lengths, alignment = search(source)
            results = {"tokens": tokens, "scores": scores, "lengths": lengths}
            return {**results, "alignment": alignment}

        return run

    def spec(one, other):
        sizes = zip(one.shape, other.shape, strict=True)
        shape = [size if size == another else None for size, another in sizes]
        return keras.InputSpec(shape=shape, dtype=keras.backend.standardize_dtype(one.dtype))

    source = {"source": keras.InputSpec(shape=(None, None), dtype="int32")}
    one, other = outward({**memory, **states}), outward({**more_memory, **more_states})
    given = {name: spec(one[name], other[name]) for name in one}
    token = {"token": keras.InputSpec(shape=(None,), dtype="int32")}
    return {
        "encode": (encode, source),
        "decode_step": (decode_step, {**token, **given}),
        **{name: (found(search), source) for name, search in searches(decoding, config).items()},
    }
