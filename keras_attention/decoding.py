"""Search: from a step that scores the next token to whole sequences.

Both searches take the decoder as a function and everything it reads as arguments, so they are
pure functions of tensors: they run eagerly, in a graph, under XLA, and convert to TFLite. Loops
end when every row has ended, or at `max_length`. What a row gets does not depend on the other
rows of its batch.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from .loops import write_row
from .normalizers import wide_dtype, widen
from .scores import is_width
from .targets import is_calibrated

# Of continuations that cannot be: low enough to lose against all others, small enough that sums
# of it stay finite in float32.
IMPOSSIBLE = -1e9


class SearchResult(NamedTuple):
    """What a search found; beams are sorted, best first.

    tokens: int32, (B, L), of a beam search (B, K, L); after the end token, end tokens.
    scores: log probability, of a beam search over its length penalty; (B,) or (B, K).
    lengths: int32, number of tokens including the end token; (B,) or (B, K).
    alignments: what each emitted token attended to, (B, L, S) or (B, K, L, S); zeros after the
        end; None when the step returns no weights.
    """

    tokens: object
    scores: object
    lengths: object
    alignments: object


def greedy_search(
    step: Callable,
    states,
    memory=(),
    *,
    start_id: int,
    end_id: int,
    max_length: int,
) -> SearchResult:
    """The most probable token, one step after the other.

    Args:
        step: function `(tokens (B,), states, *memory) -> (logits (B, V), states, weights)`, where
            `weights` is (B, S) or None.
        states: a tuple of tensors with the batch first, before the first step.
        memory: a tuple of tensors with the batch first, which every step reads; None in it is
            handed on.
        start_id: the token that the first step is given.
        end_id: the token that ends a row.
        max_length: most tokens to emit, the end token included.

    Returns:
        A `SearchResult` of tokens (B, L), scores (B,), lengths (B,) and alignments (B, L, S).

    Raises:
        ValueError: if `max_length` is not a positive int, if `states` or `memory` is not a tuple,
            or if the step returns something else than is said above.

    Example:

    >>> from keras import ops
    >>> from keras_attention import greedy_search
    >>> def count_up(tokens, states):  # after n comes n + 1
    ...     return 9.0 * ops.one_hot(tokens + 1, 5), states, None
    >>> found = greedy_search(
    ...     count_up, (ops.zeros((1, 1)),), start_id=0, end_id=4, max_length=6
    ... )
    >>> found.tokens.numpy().tolist(), found.lengths.numpy().tolist()
    ([[1, 2, 3, 4, 4, 4]], [4])
    """
    states, memory = _checked(states, memory, max_length=max_length)
    batch = ops.shape(states[0])[0]
    tokens = ops.full((batch,), start_id, dtype="int32")
    logits, weights = _first(step, tokens, states, memory, end_id)
    history = _History(max_length, batch, end_id, weights)

    def body(index, tokens, states, scores, done, buffers):
        logits, states, weights = step(tokens, states, *memory)
        logits = widen(logits)
        # Not argmax: that of Keras on TensorFlow looks at the sign bit of zeros, for which TFLite
        # has no built-in operator.
        best, chosen = ops.top_k(logits, 1)  # (B, 1)
        # Its log probability alone: that of every token takes TFLite as long as a matrix product.
        log_probabilities = -ops.log(ops.sum(ops.exp(logits - best), axis=-1))  # (B,)
        scores = scores + ops.where(done, 0.0, log_probabilities)
        tokens = ops.where(done, end_id, ops.cast(ops.squeeze(chosen, 1), "int32"))
        buffers = history.write(buffers, index, tokens, weights, done)
        states = tuple(states)
        return index + 1, tokens, states, scores, ops.logical_or(done, tokens == end_id), buffers

    _, _, _, scores, _, buffers = ops.while_loop(
        lambda index, tokens, states, scores, done, buffers: _goes_on(index, max_length, done),
        body,
        (
            ops.convert_to_tensor(0, "int32"),
            tokens,
            states,
            ops.zeros((batch,), dtype=wide_dtype(logits.dtype)),
            ops.zeros((batch,), dtype="bool"),
            history.buffers,
        ),
    )
    tokens, alignments = history.read(buffers)
    return SearchResult(tokens, scores, _lengths(tokens, end_id, max_length), alignments)


def beam_search(
    step: Callable,
    states,
    memory=(),
    *,
    start_id: int,
    end_id: int,
    max_length: int,
    beam_width: int = 5,
    length_penalty_weight: float = 0.0,
) -> SearchResult:
    """The best of `beam_width` hypotheses that are followed side by side.

    A hypothesis y of n tokens, the end token included, is ranked by

        log p(y) / ((5 + n) / 6) ** length_penalty_weight

    with its own n, in the search and at its end. A hypothesis that has ended keeps its place and
    its score until better ones push it out. States, memory and alignments follow their
    hypothesis; the caller tiles nothing.

    Args:
        step: as in `greedy_search`; it is called on B x beam_width rows.
        states: as in `greedy_search`, for B rows.
        memory: as in `greedy_search`, for B rows.
        start_id: the token that the first step is given.
        end_id: the token that ends a hypothesis.
        max_length: most tokens to emit, the end token included.
        beam_width: number of hypotheses K.
        length_penalty_weight: 0 ranks by probability, which favours short ones; larger values
            favour long ones.

    Returns:
        A `SearchResult` of tokens (B, K, L), scores (B, K), lengths (B, K) and alignments
        (B, K, L, S), best first. Where fewer than K sequences exist, the places left over have
        scores of about -1e9 over their length penalty.

    Raises:
        ValueError: if `max_length` or `beam_width` is not a positive int, if `states` or `memory`
            is not a tuple, or if the step returns something else than is said above; and while an
            artifact is traced that computes in integers.

    Example:

    >>> from keras import ops
    >>> from keras_attention import beam_search
    >>> def count_up(tokens, states):
    ...     return 9.0 * ops.one_hot(tokens + 1, 5), states, None
    >>> found = beam_search(
    ...     count_up, (ops.zeros((1, 1)),), start_id=0, end_id=4, max_length=6, beam_width=2
    ... )
    >>> found.tokens[0, 0].numpy().tolist()
    [1, 2, 3, 4, 4, 4]

    Reference:
        Wu et al., "Google's Neural Machine Translation System", 2016, equation 14 (the length
        penalty).
    """
    if is_calibrated():
        raise ValueError(
            "beam_search adds up log probabilities, which integers of 8 bits cannot tell apart: "
            'use quantization="dynamic", or greedy_search'
        )
    states, memory = _checked(states, memory, max_length=max_length, beam_width=beam_width)
    batch = ops.shape(states[0])[0]
    states = tuple(_tile(state, beam_width) for state in states)
    memory = tuple(None if part is None else _tile(part, beam_width) for part in memory)
    rows = batch * beam_width
    tokens = ops.full((rows,), start_id, dtype="int32")
    logits, weights = _first(step, tokens, states, memory, end_id)
    vocabulary = logits.shape[-1]
    history = _History(max_length, rows, end_id, weights)
    first_of_beam = ops.expand_dims(ops.arange(batch, dtype="int32") * beam_width, 1)  # (B, 1)
    # All hypotheses of a sentence start alike: only the first may have children at first.
    start_scores = ops.where(ops.arange(beam_width) == 0, 0.0, IMPOSSIBLE)
    only_end = ops.expand_dims(ops.where(ops.arange(vocabulary) == end_id, 0.0, IMPOSSIBLE), 0)

    def ranked(scores, lengths):
        penalty = ((5.0 + ops.cast(lengths, scores.dtype)) / 6.0) ** length_penalty_weight
        return scores / penalty

    def body(index, tokens, states, scores, lengths, done, buffers):
        logits, states, weights = step(tokens, states, *memory)
        log_probabilities = ops.log_softmax(widen(logits), axis=-1)  # (B K, V)
        ended = ops.expand_dims(done, 1)  # (B K, 1)
        log_probabilities = ops.where(ended, ops.cast(only_end, scores.dtype), log_probabilities)
        candidates = ops.expand_dims(scores, 1) + log_probabilities  # (B K, V)
        candidate_lengths = lengths + ops.cast(ops.logical_not(done), "int32")  # (B K,)
        ranking = ranked(candidates, ops.expand_dims(candidate_lengths, 1))
        ranking = ops.reshape(ranking, (batch, beam_width * vocabulary))
        _, chosen = ops.top_k(ranking, beam_width)  # (B, K)
        chosen = ops.cast(chosen, "int32")
        parents = ops.reshape(first_of_beam + chosen // vocabulary, (rows,))
        tokens = ops.reshape(chosen % vocabulary, (rows,))
        flat = parents * vocabulary + tokens
        scores = ops.take(ops.reshape(candidates, (rows * vocabulary,)), flat, axis=0)
        lengths = ops.take(candidate_lengths, parents, axis=0)
        was_done = ops.take(done, parents, axis=0)
        states = tuple(ops.take(state, parents, axis=0) for state in states)
        weights = None if weights is None else ops.take(weights, parents, axis=0)
        buffers = tuple(ops.take(buffer, parents, axis=1) for buffer in buffers)
        buffers = history.write(buffers, index, tokens, weights, was_done)
        done = ops.logical_or(was_done, tokens == end_id)
        return index + 1, tokens, states, scores, lengths, done, buffers

    _, _, _, scores, lengths, _, buffers = ops.while_loop(
        lambda index, tokens, states, scores, lengths, done, buffers: _goes_on(
            index, max_length, done
        ),
        body,
        (
            ops.convert_to_tensor(0, "int32"),
            tokens,
            states,
            ops.tile(ops.cast(start_scores, wide_dtype(logits.dtype)), (batch,)),
            ops.zeros((rows,), dtype="int32"),
            ops.zeros((rows,), dtype="bool"),
            history.buffers,
        ),
    )
    tokens, alignments = history.read(buffers)
    scores = ops.reshape(ranked(scores, lengths), (batch, beam_width))
    tokens = ops.reshape(tokens, (batch, beam_width, max_length))
    lengths = ops.reshape(lengths, (batch, beam_width))
    if alignments is not None:
        keys = ops.shape(alignments)[-1]
        alignments = ops.reshape(alignments, (batch, beam_width, max_length, keys))
    return SearchResult(tokens, scores, lengths, alignments)


class _History:
    """Buffers of what was emitted, time first: a loop in TFLite can only write whole rows."""

    def __init__(self, max_length, rows, end_id, weights):
        self.buffers = (ops.full((max_length, rows), end_id, dtype="int32"),)
        if weights is not None:
            shape = (max_length, rows, ops.shape(weights)[-1])
            self.buffers += (ops.zeros(shape, dtype=weights.dtype),)

    def write(self, buffers, index, tokens, weights, done):
        written = (write_row(buffers[0], index, tokens),)
        if weights is not None:
            weights = ops.where(ops.expand_dims(done, 1), 0.0, weights)
            written += (write_row(buffers[1], index, weights),)
        return written

    def read(self, buffers):
        tokens = ops.swapaxes(buffers[0], 0, 1)  # (B, L)
        return tokens, ops.swapaxes(buffers[1], 0, 1) if len(buffers) > 1 else None


def _goes_on(index, max_length, done):
    return ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))


def _tile(tensor, beam_width):
    """(B, ...) to (B K, ...), the K copies of a row side by side."""
    shape = ops.shape(tensor)
    copies = ops.tile(ops.expand_dims(tensor, 1), (1, beam_width, *[1] * (len(shape) - 1)))
    return ops.reshape(copies, (shape[0] * beam_width, *shape[1:]))


def _lengths(tokens, end_id, max_length):
    """Number of tokens up to and including the first end token."""
    before = ops.sum(ops.cast(ops.cumsum(ops.cast(tokens == end_id, "int32"), 1) == 0, "int32"), 1)
    return ops.minimum(before + 1, max_length)


def _checked(states, memory, **counts):
    """States and memory as tuples."""
    for name, count in counts.items():
        if not is_width(count):
            raise ValueError(f"{name} must be a positive int. Received: {name}={count!r}")
    for name, given in (("states", states), ("memory", memory)):
        if not isinstance(given, tuple | list):
            raise ValueError(
                f"{name} must be a tuple of tensors. "
                f"Received: {name} of type {type(given).__name__}"
            )
    if not states:
        raise ValueError(
            "states must hold at least one tensor: its first axis is the batch. "
            f"Received: states={states!r}"
        )
    return tuple(states), tuple(memory)


def _first(step, tokens, states, memory, end_id):
    """Logits and weights of a step, for their shapes and types alone; refuses a wrong step."""
    returned = step(tokens, states, *memory)
    if not (isinstance(returned, tuple | list) and len(returned) == 3):
        raise ValueError(
            "step must return (logits, states, weights), with None for weights it does not have. "
            f"Received: {len(returned) if isinstance(returned, tuple | list) else 1} values"
        )
    logits, moved, weights = returned
    if len(logits.shape) != 2 or logits.shape[-1] is None:
        raise ValueError(
            "step must return logits of shape (batch, vocabulary) with a known vocabulary. "
            f"Received: logits.shape={tuple(logits.shape)}"
        )
    if not isinstance(moved, tuple | list) or len(moved) != len(states):
        raise ValueError(
            f"step must return as many states as it is given, a tuple of {len(states)}. "
            f"Received: {len(moved) if isinstance(moved, tuple | list) else type(moved).__name__}"
        )
    if not 0 <= end_id < logits.shape[-1]:
        raise ValueError(
            f"end_id must be a token of the vocabulary of {logits.shape[-1]}. "
            f"Received: end_id={end_id}"
        )
    return logits, weights
