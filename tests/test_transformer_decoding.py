"""A Transformer as an artifact: a cache of fixed length, a prefix at once, one step, searches."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka

pytestmark = [
    pytest.mark.tensorflow("artifacts are made on TensorFlow"),
    pytest.mark.xdist_group("transformer_decoding"),  # one worker makes the files, not each
]
pytest.importorskip("tensorflow")

from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.export.onnx import export_onnx  # noqa: E402
from keras_attention.export.parity import check_parity, load_tflite, run_artifact  # noqa: E402
from keras_attention.export.tflite import export_tflite  # noqa: E402

V, D, LONGEST, PREFIXES = 23, 16, 9, (2, 4)
START, END = 1, 2
RANDOM = np.random.default_rng(0)


class Transformer:
    """A block of an encoder and two of a decoder, and their functions for an artifact."""

    def __init__(self):
        self.embedding, self.head = keras.layers.Embedding(V, D), keras.layers.Dense(V)
        self.positions = ka.SinusoidalPositions()
        self.encoder = [ka.TransformerEncoderBlock(24, num_heads=2)]
        grouped = ka.SelfAttention(4, num_key_value_heads=2, direction="causal")
        self.decoder = [
            ka.TransformerDecoderBlock(24, num_heads=4),
            ka.TransformerDecoderBlock(24, attention=grouped, num_heads=2),
        ]
        ids = ops.ones((1, 3), "int32")
        self.logits(ids, ids)
        layers = (self.embedding, self.head, *self.encoder, *self.decoder)
        for weight in [weight for layer in layers for weight in layer.weights]:
            weight.assign(RANDOM.normal(0, 0.5, weight.shape))

    def memory(self, source):
        mask = ka.padding_mask(source)
        x = self.positions(self.embedding(source))
        for block in self.encoder:
            x = block(x, inputs_mask=mask)
        return x, mask

    def logits(self, source, target):
        """The whole pass (B, T, V), as in training."""
        memory, mask = self.memory(source)
        x = self.positions(self.embedding(target))
        for block in self.decoder:
            x = block(x, memory, memory_mask=mask)
        return self.head(x)

    def read(self, source):
        """What every step reads, by name: the memory's keys and values in each block."""
        memory, mask = self.memory(source)
        found = {"mask": ops.cast(mask, "int32")}
        for i, block in enumerate(self.decoder):
            found[f"keys_{i}"], found[f"values_{i}"] = block.project_memory(memory, mask)
        return found

    def cache(self, batch):
        """What steps hand on, by name."""
        found = {"position": ops.zeros((batch,), "int32")}
        for i, block in enumerate(self.decoder):
            keys, values, readable = block.initial_cache(batch, LONGEST)
            found[f"cache_keys_{i}"], found[f"cache_values_{i}"] = keys, values
            found[f"cached_{i}"] = ops.cast(readable, "int32")
        return found

    def steps(self, tokens, given):
        """Logits (B, T, V) of the next tokens (B, T), and the cache after them."""
        position = given["position"][0]  # one for all rows
        x = self.positions(self.embedding(tokens), start_index=position)
        moved = {"position": given["position"] + ops.shape(tokens)[1]}
        for i, block in enumerate(self.decoder):
            x, (keys, values, readable) = block(
                x,
                projected_memory=(given[f"keys_{i}"], given[f"values_{i}"]),
                memory_mask=ops.cast(given["mask"], "bool"),
                cache=(
                    given[f"cache_keys_{i}"],
                    given[f"cache_values_{i}"],
                    ops.cast(given[f"cached_{i}"], "bool"),
                ),
                cache_index=position,
            )
            moved[f"cache_keys_{i}"], moved[f"cache_values_{i}"] = keys, values
            moved[f"cached_{i}"] = ops.cast(readable, "int32")
        return self.head(x), moved

    def encode(self, source):
        return {**self.read(source), **self.cache(ops.shape(source)[0])}

    def decode_step(self, token, **given):
        logits, moved = self.steps(ops.expand_dims(token, 1), given)
        return {
            "logits": ops.squeeze(logits, 1),
            **{f"next_{name}": value for name, value in moved.items()},
        }

    def prefill(self, tokens, **given):
        """A prefix at once: the logits after its last token, and the cache."""
        logits, moved = self.steps(tokens, given)
        return {
            "logits": logits[:, -1],
            **{f"next_{name}": value for name, value in moved.items()},
        }

    def searched(self, search, **options):
        def run(source):
            read = self.read(source)
            cache = self.cache(ops.shape(source)[0])

            def step(tokens, states, *memory):
                given = dict(zip((*cache, *read), (*states, *memory), strict=True))
                logits, moved = self.steps(ops.expand_dims(tokens, 1), given)
                return ops.squeeze(logits, 1), tuple(moved[name] for name in cache), None

            found = search(
                step,
                tuple(cache.values()),
                tuple(read.values()),
                start_id=START,
                end_id=END,
                max_length=LONGEST,
                **options,
            )
            return {"tokens": found.tokens, "scores": found.scores}

        return run

    def signatures(self):
        source = keras.InputSpec(shape=(None, None), dtype="int32")
        first = self.encode(ops.ones((1, 3), "int32"))
        free = {
            "mask": (0, 1),
            **{f"{kind}_{i}": (0, 2) for kind in ("keys", "values") for i in (0, 1)},
        }
        given = {
            name: keras.InputSpec(
                shape=[
                    None if axis in free.get(name, (0,)) else size
                    for axis, size in enumerate(value.shape)
                ],
                dtype=keras.backend.standardize_dtype(value.dtype),
            )
            for name, value in first.items()
        }
        token = keras.InputSpec(shape=(None,), dtype="int32")
        prefixes = {
            f"prefill_{length}": (
                self.prefill,
                {"tokens": keras.InputSpec(shape=(None, length), dtype="int32"), **given},
            )
            for length in PREFIXES
        }
        return {
            "encode": (self.encode, {"source": source}),
            "decode_step": (self.decode_step, {"token": token, **given}),
            **prefixes,
            "greedy": (self.searched(ka.greedy_search), {"source": source}),
            "beam": (
                self.searched(ka.beam_search, beam_width=3, length_penalty_weight=0.6),
                {"source": source},
            ),
        }


def sources(batch, length):
    found = RANDOM.integers(3, V, (batch, length)).astype("int32")
    found[0, length // 2 + 1 :] = 0
    return {"source": found}


CALLS = [sources(2, 5), sources(1, 1), sources(3, 8)]


@pytest.fixture(scope="module")
def transformer():
    return Transformer()


@pytest.fixture(scope="module")
def path(transformer, tmp_path_factory):
    """One file of all functions; equal to the layers in every runtime, sizes changing."""
    return export_tflite(
        transformer.signatures(),
        tmp_path_factory.mktemp("transformer") / "t.tflite",
        verify={name: CALLS for name in ("encode", "greedy", "beam")},
    )


def moved(found):
    return {name.removeprefix("next_"): x for name, x in found.items() if name != "logits"}


def test_only_built_in_operators_and_a_step_without_a_loop(path):
    report = inspect_tflite(path)
    assert report.flex == report.custom == []
    loops = {name: counts["WHILE"] for name, counts in report.operators.items()}
    assert loops[next(name for name in loops if "decode_step" in name)] == 0
    assert report.totals["WHILE"] == 2  # the searches
    kept = report.signatures["decode_step"]["inputs"]["cache_keys_1"][0]
    assert kept == (None, 2, LONGEST, D // 4)  # two groups; the length is fixed


def test_steps_over_the_cache_are_the_whole_pass(transformer, path):
    """As an app decodes: a state in, a state out, and a word to show at each step."""
    encode, step = load_tflite(path, "encode"), load_tflite(path, "decode_step")
    target = RANDOM.integers(3, V, (2, LONGEST)).astype("int32")
    wanted = np.asarray(transformer.logits(CALLS[0]["source"], target))
    given = encode(CALLS[0])
    read = {name: given[name] for name in given if name.startswith(("keys", "values", "mask"))}
    for t in range(LONGEST):
        found = step({"token": target[:, t], **given})
        np.testing.assert_allclose(found["logits"], wanted[:, t], rtol=0, atol=1e-4)
        given = {**read, **moved(found)}
    assert given["position"].tolist() == [LONGEST, LONGEST]


@pytest.mark.parametrize("length", PREFIXES)
def test_a_prefix_at_once_is_its_steps(length, path):
    encode, step = load_tflite(path, "encode"), load_tflite(path, "decode_step")
    tokens = RANDOM.integers(3, V, (3, length)).astype("int32")
    given = encode(CALLS[2])
    at_once = load_tflite(path, f"prefill_{length}")({"tokens": tokens, **given})
    read = {name: given[name] for name in given if name.startswith(("keys", "values", "mask"))}
    for t in range(length):
        found = step({"token": tokens[:, t], **given})
        given = {**read, **moved(found)}
    for name in found:
        np.testing.assert_allclose(at_once[name], found[name], rtol=0, atol=1e-5, err_msg=name)
    after = [step({"token": tokens[:, 0], **read, **moved(x)})["logits"] for x in (at_once, found)]
    np.testing.assert_allclose(*after, rtol=0, atol=1e-4)


def test_greedy_search_is_the_steps_of_the_best(transformer, path):
    tokens = run_artifact(path, CALLS[2], "greedy")["tokens"]
    fed = np.concatenate([np.full((3, 1), START, "int32"), tokens[:, :-1]], axis=1)
    logits = np.array(transformer.logits(CALLS[2]["source"], fed))
    for row, best in zip(tokens, logits.argmax(-1), strict=True):
        end = list(row).index(END) + 1 if END in row else LONGEST
        np.testing.assert_array_equal(row[:end], best[:end])
        assert np.all(row[end:] == END)


@pytest.mark.slow
def test_in_small_weights(transformer, tmp_path):
    calls = {"greedy": CALLS}
    path = export_tflite(
        {"greedy": transformer.signatures()["greedy"]}, tmp_path / "d", quantization="dynamic"
    )
    report = check_parity(transformer.signatures(), path, calls)
    matched = [d.matched for d in report.differences if d.output == "tokens"]
    assert min(matched) > 0.5  # random weights: the best words are near each other


@pytest.mark.slow
def test_as_onnx(transformer, tmp_path):
    functions = transformer.signatures()
    chosen = {name: functions[name] for name in ("encode", "decode_step", "greedy")}
    calls = {name: CALLS for name in ("encode", "greedy")}
    given = transformer.encode(ops.convert_to_tensor(CALLS[0]["source"]))
    step = {"token": np.array([5, 7]), **{name: np.asarray(x) for name, x in given.items()}}
    export_onnx(chosen, tmp_path / "onnx", verify={**calls, "decode_step": [step]})
