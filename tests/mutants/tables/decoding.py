"""Greedy and beam search."""

from .. import Mutant

FILE = "keras_attention/decoding.py"
TESTS = "tests/test_decoding.py"
GREEDY = f"{TESTS} -k 'greedy or ends or half'"
BEAM = f"{TESTS} -k 'brute or best_continuations or ended or place'"

MUTANTS = [
    Mutant(FILE, "    if is_calibrated():\n", "    if False:\n", f"{TESTS} -k integers"),
    Mutant(FILE, "ops.where(done, 0.0, log_probabilities)", "log_probabilities", GREEDY),
    Mutant(FILE, "ops.exp(logits - best), axis=-1)", "ops.exp(logits), axis=-1)", GREEDY),
    Mutant(
        FILE,
        "tokens = ops.where(done, end_id, ",
        "tokens = ops.where(done, tokens, ",
        GREEDY,
        reason="What follows an end token is the end token, which the row holds already.",
    ),
    Mutant(
        FILE,
        "((5.0 + ops.cast(lengths, scores.dtype)) / 6.0)",
        "((6.0 + ops.cast(lengths, scores.dtype)) / 6.0)",
        BEAM,
    ),
    Mutant(
        FILE,
        "ops.where(ops.arange(beam_width) == 0, 0.0, IMPOSSIBLE)",
        "ops.zeros((beam_width,))",
        BEAM,
    ),
    Mutant(
        FILE,
        "log_probabilities = ops.where(ended, ops.cast(only_end, scores.dtype), log_probabilities)",
        "pass",
        BEAM,
    ),
    Mutant(
        FILE,
        'candidate_lengths = lengths + ops.cast(ops.logical_not(done), "int32")',
        "candidate_lengths = lengths + 1",
        BEAM,
    ),
    Mutant(
        FILE,
        "states = tuple(ops.take(state, parents, axis=0) for state in states)",
        "states = tuple(states)",
        BEAM,
    ),
    Mutant(
        FILE,
        "weights = None if weights is None else ops.take(weights, parents, axis=0)",
        "weights = weights",
        BEAM,
    ),
    Mutant(
        FILE,
        "buffers = tuple(ops.take(buffer, parents, axis=1) for buffer in buffers)",
        "buffers = tuple(buffers)",
        BEAM,
    ),
    Mutant(
        FILE,
        "lengths = ops.take(candidate_lengths, parents, axis=0)",
        "lengths = candidate_lengths",
        BEAM,
    ),
    Mutant(FILE, "was_done = ops.take(done, parents, axis=0)", "was_done = done", BEAM),
    Mutant(
        FILE,
        "done = ops.logical_or(was_done, tokens == end_id)",
        "done = tokens == end_id",
        BEAM,
        reason="A hypothesis that has ended goes on with end tokens alone.",
    ),
    Mutant(
        FILE,
        "ops.logical_not(ops.all(done))",
        "ops.logical_not(ops.any(done))",
        f"{TESTS} -k 'best_continuations or greedy_search_takes'",
    ),
    Mutant(
        FILE,
        "ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))",
        "index < max_length",
        f"{TESTS} -k ends_when",
    ),
    Mutant(
        FILE,
        "return ops.minimum(before + 1, max_length)",
        "return before + 1",
        f"{TESTS} -k cut_at",
    ),
    Mutant(
        FILE,
        "return ops.minimum(before + 1, max_length)",
        "return ops.minimum(before, max_length)",
        GREEDY,
    ),
    Mutant(FILE, "weights = ops.where(ops.expand_dims(done, 1), 0.0, weights)", "pass", BEAM),
    Mutant(
        FILE,
        "ops.tile(ops.expand_dims(tensor, 1), (1, beam_width,",
        "ops.tile(ops.expand_dims(tensor, 0), (beam_width, 1,",
        BEAM,
    ),
    Mutant(FILE, "first_of_beam + chosen // vocabulary", "chosen // vocabulary", BEAM),
    Mutant(
        FILE,
        "tokens = ops.reshape(chosen % vocabulary, (rows,))",
        "tokens = ops.reshape(chosen // beam_width, (rows,))",
        BEAM,
    ),
    Mutant(
        FILE,
        "_, chosen = ops.top_k(ranking, beam_width)",
        "_, chosen = ops.top_k(ops.reshape(candidates, ops.shape(ranking)), beam_width)",
        BEAM,
    ),
    Mutant(
        FILE,
        "scores = ops.reshape(ranked(scores, lengths), (batch, beam_width))",
        "scores = ops.reshape(scores, (batch, beam_width))",
        BEAM,
    ),
    Mutant(FILE, "IMPOSSIBLE = -1e9", "IMPOSSIBLE = -1.0", f"{TESTS} -k 'impossible or brute'"),
    Mutant(FILE, "if not is_width(count):", "if count < 1:", f"{TESTS} -k wrong"),
    Mutant(FILE, "and len(returned) == 3)", ")", f"{TESTS} -k wrong"),
    Mutant(FILE, "or len(moved) != len(states)", "", f"{TESTS} -k wrong"),
    Mutant(
        FILE, "    if not 0 <= end_id < logits.shape[-1]:\n", "    if False:\n", f"{TESTS} -k wrong"
    ),
    Mutant(FILE, "    if not states:\n", "    if False:\n", f"{TESTS} -k wrong"),
]
