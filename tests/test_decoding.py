"""Greedy and beam search against brute force, over a small random recurrent network."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

import keras_attention as ka

START, END = 0, 1
B, U, S = 3, 4, 5
# The library and the reference sum in different orders, in float64.
EXACT = {"rtol": 1e-9, "atol": 1e-9}


class Network:
    """Logits of the next token, which depend on all tokens so far and on a memory of its own."""

    def __init__(self, vocabulary, seed=0, sharpness=2.0, end_bias=0.0):
        rng = np.random.default_rng(seed)
        self.recurrent = rng.normal(size=(U, U))
        self.embedding = rng.normal(size=(vocabulary, U))
        self.output = sharpness * rng.normal(size=(U, vocabulary))
        self.bias = np.where(np.arange(vocabulary) == END, end_bias, 0.0)
        self.states = rng.normal(size=(B, U))
        self.memory = rng.normal(size=(B, S, U))
        self.mask = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], bool)
        self.calls = 0

    def step(self, tokens, states, memory, mask, nothing=None):
        self.calls += 1
        assert nothing is None
        (state,) = states
        state = ops.matmul(state, self.recurrent) + ops.take(self.embedding, tokens, 0)
        state = state / (1 + ops.abs(state))  # not tanh: Keras's is of float32 on JAX
        scores = ops.squeeze(ops.matmul(memory, ops.expand_dims(state, 2)), 2)
        weights = ka.softmax(scores, mask)
        read = ops.squeeze(ops.matmul(ops.expand_dims(weights, 1), memory), 1)
        return ops.matmul(state + read, self.output) + self.bias, (state,), weights

    def plain_step(self, row):
        def step(token, state):
            state = state @ self.recurrent + self.embedding[token]
            state = state / (1 + np.abs(state))
            readable = np.flatnonzero(self.mask[row])
            weights = np.zeros(S)
            weights[readable] = reference.softmax(list(self.memory[row][readable] @ state))
            logits = (state + weights @ self.memory[row]) @ self.output + self.bias
            return np.log(reference.softmax(list(logits))), state, weights

        return step

    def search(self, search, rows=slice(None), **kwargs):
        given = (self.states[rows], self.memory[rows], self.mask[rows])
        states, memory, mask = map(ops.convert_to_tensor, given)
        arguments = {"start_id": START, "end_id": END, **kwargs}
        return arrays(search(self.step, (states,), (memory, mask, None), **arguments))


def arrays(found):
    return ka.decoding.SearchResult(
        *(None if x is None else ops.convert_to_numpy(x) for x in found)
    )


def assert_found(found, row, expected, max_length):
    """`found`'s places hold the expected hypotheses, in order."""
    for place, (score, tokens, alignments) in enumerate(expected):
        length = len(tokens)
        assert found.lengths[row, place] == length
        np.testing.assert_array_equal(
            found.tokens[row, place], tokens + [END] * (max_length - length)
        )
        np.testing.assert_allclose(found.scores[row, place], score, **EXACT)
        np.testing.assert_allclose(found.alignments[row, place, :length], alignments, **EXACT)
        assert np.all(found.alignments[row, place, length:] == 0)


def assert_same(actual, expected, **tolerance):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, **(tolerance or EXACT))


@pytest.mark.parametrize("length_penalty_weight", [0.0, 0.7, 2.0])
def test_a_wide_beam_is_brute_force(length_penalty_weight):
    vocabulary, max_length = 3, 3
    network = Network(vocabulary)
    found = network.search(
        ka.beam_search,
        max_length=max_length,
        beam_width=vocabulary**max_length,
        length_penalty_weight=length_penalty_weight,
    )
    orders = set()
    for row in range(B):
        expected = reference.all_hypotheses(
            network.plain_step(row),
            network.states[row],
            START,
            END,
            max_length,
            length_penalty_weight,
        )
        assert len(expected) == 15
        assert_found(found, row, expected, max_length)
        # A beam wider than there are sequences says so in the score.
        assert np.all(found.scores[row, 15:] < -1e8)
        orders.add(tuple(map(len, (tokens for _, tokens, _ in expected))))
    assert len(orders) > 1


def test_length_penalty_changes_the_order():
    network = Network(3, seed=1, end_bias=1.0)
    best = [
        network.search(ka.beam_search, max_length=4, beam_width=9, length_penalty_weight=weight)
        for weight in (0.0, 3.0)
    ]
    assert best[1].lengths[:, 0].sum() > best[0].lengths[:, 0].sum()


@pytest.mark.parametrize("beam_width", [1, 2, 4])
@pytest.mark.parametrize("length_penalty_weight", [0.0, 1.0])
def test_beam_search_keeps_the_best_continuations(beam_width, length_penalty_weight):
    """States, scores, tokens and alignments follow their hypothesis when beams change places."""
    network, max_length = Network(6, seed=2, end_bias=0.5), 6
    options = {"max_length": max_length, "length_penalty_weight": length_penalty_weight}
    found = network.search(ka.beam_search, beam_width=beam_width, **options)
    for row in range(B):
        expected = reference.beam(
            network.plain_step(row),
            network.states[row],
            START,
            END,
            beam_width=beam_width,
            **options,
        )
        assert_found(found, row, expected, max_length)
    assert len(set(found.lengths.ravel())) > 1 or beam_width == 1


def test_greedy_search_takes_the_most_probable_token():
    network, max_length = Network(6, seed=2, end_bias=0.5), 6
    found = network.search(ka.greedy_search, max_length=max_length)
    for row in range(B):
        (expected,) = reference.beam(
            network.plain_step(row), network.states[row], START, END, max_length, 0.0, 1
        )
        as_beam = ka.decoding.SearchResult(*(x[:, None] for x in found))
        assert_found(as_beam, row, [expected], max_length)
    beam = network.search(ka.beam_search, max_length=max_length, beam_width=1)
    assert_same(found, [x[:, 0] for x in beam])


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_a_row_does_not_depend_on_its_batch(search):
    network = Network(6, seed=2, end_bias=0.5)
    together = network.search(search, max_length=7)
    for row in range(B):
        alone = network.search(search, slice(row, row + 1), max_length=7)
        assert_same([x[0] for x in alone], [x[row] for x in together])


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_the_search_ends_when_all_have_ended(search):
    options = {} if search is ka.greedy_search else {"beam_width": 2}
    # So likely an end that no other continuation is kept after the second step.
    network = Network(4, end_bias=12.0)
    short = network.search(search, max_length=3, **options)
    network.calls = 0
    found = network.search(search, max_length=50, **options)
    if keras.backend.backend() == "tensorflow":  # eager: a call is a step; the first is for shapes
        assert network.calls <= 4
    assert np.all(found.tokens[..., 3:] == END)
    assert np.all(found.alignments[..., 3:, :] == 0)
    cut = found._replace(tokens=found.tokens[..., :3], alignments=found.alignments[..., :3, :])
    assert_same(cut, short)


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_the_search_is_cut_at_max_length(search):
    found = Network(4, end_bias=-50.0).search(search, max_length=3)
    best = (slice(None),) if search is ka.greedy_search else (slice(None), 0)
    assert np.all(found.lengths[best] == 3)
    assert np.all(found.tokens[best] != END)
    assert np.all(found.scores[best] > -50)
    np.testing.assert_allclose(found.alignments[best].sum(-1), 1.0)


def test_an_ended_hypothesis_keeps_its_place():
    """After the end nothing counts, however likely the step would make it."""

    def step(tokens, states):
        (position,) = states
        # First: end or 2 alike; afterwards only 2, also after an end.
        first, later = map(ops.convert_to_tensor, ([[-50.0, 0.5, 0.0]], [[-50.0, -50.0, 0.0]]))
        logits = ops.where(position == 0, first, later)
        return logits, (position + 1,), None

    found = arrays(
        ka.beam_search(
            step, (ops.zeros((1, 1)),), start_id=START, end_id=END, max_length=4, beam_width=2
        )
    )
    assert found.tokens.tolist() == [[[END] * 4, [2] * 4]]
    assert found.lengths.tolist() == [[1, 4]]
    # Softmax of .5 and 0, in float32.
    np.testing.assert_allclose(found.scores, [[-0.474077, -0.974077]], rtol=1e-5)
    assert found.alignments is None


def test_impossible_tokens():
    """A step may forbid tokens with a logit of minus infinity."""

    def step(tokens, states):
        return ops.convert_to_tensor([[-np.inf, 0.0, 1.0]] * tokens.shape[0]), states, None

    found = arrays(
        ka.beam_search(
            step, (ops.zeros((1, 1)),), start_id=START, end_id=END, max_length=2, beam_width=3
        )
    )
    assert found.tokens.tolist() == [[[2, 2], [END, END], [2, END]]]
    assert np.isfinite(found.scores).all()


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_half_precision_logits(search):
    """Scores are summed in float32."""
    logits = np.array([[1.0, -2.0, 0.5]], "float16")

    def step(tokens, states):
        rows = ops.shape(tokens)[0]
        return ops.tile(ops.convert_to_tensor(logits), (rows, 1)), states, None

    states = (ops.zeros((1, 1), dtype="float16"),)
    found = search(step, states, start_id=START, end_id=END, max_length=4)
    assert keras.backend.standardize_dtype(found.scores.dtype) == "float32"
    expected = 4 * np.log(reference.softmax([1.0, -2.0, 0.5])[0])
    np.testing.assert_allclose(np.ravel(arrays(found).scores)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_compiled_search(search, backend):
    network = Network(6, seed=2, end_bias=0.5)

    def function(states, memory, mask):
        found = search(
            network.step, (states,), (memory, mask), start_id=START, end_id=END, max_length=5
        )
        return tuple(found)

    given = [ops.convert_to_tensor(x) for x in (network.states, network.memory, network.mask)]
    expected = arrays(function(*given))
    assert_same(arrays(backend.jit(function)(*given)), expected)
    shapes = [(None, *[None] * (len(x.shape) - 2), x.shape[-1]) for x in given[:2]]
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in given]
    traced = backend.traced(function, [*shapes, (None, None)], dtypes)
    assert_same(arrays(traced(*given)), expected)


@pytest.mark.parametrize("target", ["tflite", "onnx", "saved_model"])
def test_search_is_the_same_in_every_exported_form(target):
    network = Network(6, seed=2, end_bias=0.5)
    for search in (ka.greedy_search, ka.beam_search):
        expected = network.search(search, max_length=5)
        with ka.exporting(target):
            assert_same(network.search(search, max_length=5), expected)


def test_an_artifact_of_integers_has_no_search_with_beams():
    network = Network(6, seed=2, end_bias=0.5)
    expected = network.search(ka.greedy_search, max_length=5)
    with ka.exporting("tflite", calibrated=True):
        found = network.search(ka.greedy_search, max_length=5)
        np.testing.assert_array_equal(np.asarray(found.tokens), np.asarray(expected.tokens))
        # Masked keys weigh exp(-16) before they are set to 0.
        np.testing.assert_allclose(np.asarray(found.scores), np.asarray(expected.scores), 1e-5)
        with pytest.raises(ValueError, match=r"integers of 8 bits.*greedy_search"):
            network.search(ka.beam_search, max_length=5)


@pytest.mark.parametrize("query, cell", [("previous", "gru"), ("current", "lstm")])
def test_alignments_are_those_of_the_returned_tokens(query, cell):
    """Reading the found tokens again, as in training, gives their alignments and scores."""
    vocabulary, width, max_length, beam_width = 7, 3, 5, 3
    decoder = ka.AttentionDecoder(8, query=query, cell=cell, dtype="float64")
    rng = np.random.default_rng(3)
    embedding, output = rng.normal(size=(vocabulary, width)), rng.normal(size=(8, vocabulary))
    memory, state = rng.normal(size=(2, S, 6)), rng.normal(size=(2, 9))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    decoder(np.zeros((2, 1, width)), memory, state)
    for weight in decoder.weights:
        weight.assign(rng.normal(size=weight.shape))

    def step(tokens, states, values, keys, mask):
        hidden, states, weights = decoder.step(
            ops.take(embedding, tokens, axis=0), states, values, keys, mask
        )
        return 3 * ops.matmul(hidden, output), states, weights

    found = arrays(
        ka.beam_search(
            step,
            decoder.initial_state(encoder_state=ops.convert_to_tensor(state)),
            (*decoder.prepare_memory(ops.convert_to_tensor(memory), mask), mask),
            start_id=START,
            end_id=END,
            max_length=max_length,
            beam_width=beam_width,
        )
    )
    for place in range(beam_width):
        tokens = found.tokens[:, place]
        fed = np.concatenate([np.full((2, 1), START), tokens[:, :-1]], axis=1)
        hidden, _, weights = decoder(
            embedding[fed],
            memory,
            state,
            memory_mask=mask,
            return_attention_scores=True,
        )
        hidden, weights = ops.convert_to_numpy(hidden), ops.convert_to_numpy(weights)
        emitted = np.arange(max_length) < found.lengths[:, place, None]
        np.testing.assert_allclose(
            found.alignments[:, place], np.where(emitted[..., None], weights, 0.0), **EXACT
        )
        logits = 3 * hidden @ output
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_probabilities, tokens[..., None], -1)[..., 0]
        np.testing.assert_allclose(
            found.scores[:, place], np.where(emitted, chosen, 0.0).sum(1), **EXACT
        )


@pytest.mark.parametrize(
    "change, name",
    [
        ({"max_length": 0}, "max_length"),
        ({"beam_width": 0}, "beam_width"),
        ({"max_length": 3.5}, "max_length"),
        ({"beam_width": True}, "beam_width"),
        ({"states": ()}, "states"),
        ({"states": {"h": 1}}, "states"),
        ({"memory": None}, "memory"),
    ],
)
def test_wrong_arguments(change, name):
    arguments = {"states": (ops.zeros((1, 1)),), "max_length": 3, **change}
    searches = [ka.beam_search] if name == "beam_width" else [ka.beam_search, ka.greedy_search]
    for search in searches:
        with pytest.raises(ValueError, match=f"Received: {name}"):
            search(lambda *_: None, start_id=START, end_id=END, **arguments)


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda logits, states: (logits, states), r"logits, states, weights.*Received: 2 values"),
        (lambda logits, states: logits, "Received: 1 values"),
        (lambda logits, states: (logits[:, None], states, None), r"logits\.shape=\(1, 1, 12\)"),
        (lambda logits, states: (logits, (), None), "a tuple of 1. Received: 0"),
        (lambda logits, states: (logits, states[0], None), "a tuple of 1. Received: "),
        (lambda logits, states: (logits[:, :1], states, None), f"Received: end_id={END}"),
    ],
)
def test_a_wrong_step_is_refused(returned, message):
    logits = ops.ones((1, 12))
    for search in (ka.beam_search, ka.greedy_search):
        with pytest.raises(ValueError, match=message):
            search(
                lambda tokens, states: returned(logits, states),
                (ops.zeros((1, 1)),),
                start_id=START,
                end_id=END,
                max_length=3,
                **({"beam_width": 1} if search is ka.beam_search else {}),
            )


def test_states_as_a_list():
    def step(tokens, states):
        return ops.one_hot(tokens + 1, 12), list(states), None

    found = ka.greedy_search(step, [ops.zeros((1, 1))], start_id=START, end_id=END, max_length=3)
    assert found.tokens.shape == (1, 3)
