"""Quantised files: what each kind stores, how near it stays, what cannot be said in one line."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_attention as ka
from keras_attention.export import calibration
from keras_attention.export.inspect import described_by, inspect_tflite
from keras_attention.export.parity import check_parity, run_artifact
from keras_attention.export.tflite import ExportError, export_tflite

pytestmark = [
    pytest.mark.tensorflow("artifacts are made on TensorFlow"),
    pytest.mark.xdist_group("quantization"),  # one worker makes the files, not each
]

V, D = 300, 96
RANDOM = np.random.default_rng(0)
EXAMPLES = [{"ids": RANDOM.integers(0, V, (2, 6)).astype("int32")} for _ in range(16)]


def tagger(batch=None, length=None):
    """Ids with padding, a recurrent layer of Keras, attention of ours."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((length,), batch_size=batch, dtype="int32", name="ids")
    x = layers.Embedding(V, D, mask_zero=True)(ids)
    x = layers.GRU(D, return_sequences=True)(x)
    x = layers.Add()([x, ka.SelfAttention(num_heads=4)(x)])
    return keras.Model(ids, layers.Dense(8, name="tags")(x))


@pytest.fixture(scope="module")
def model():
    return tagger()


@pytest.fixture(scope="module")
def sizes(model, tmp_path_factory):
    """A function: the file of a kind, and its size beside that of float32."""
    folder = tmp_path_factory.mktemp("quantized")
    whole = export_tflite(model, folder / "None.tflite").stat().st_size

    def made(kind):
        path = folder / f"{kind}.tflite"
        if not path.exists():
            examples = EXAMPLES if kind == "int8" else None
            export_tflite(model, path, quantization=kind, representative_data=examples)
        return path, path.stat().st_size / whole

    return made


@pytest.mark.parametrize(
    ("kind", "most", "error"),
    [
        ("float16", 0.6, 2e-3),
        ("dynamic", 0.4, 3e-2),
        ("int8", 0.45, 0.4),
        ("weight_only_int8", 0.55, 3e-2),
        ("weight_only_int4", 0.45, 0.4),
    ],
)
def test_small_and_near_the_model(kind, most, error, model, sizes):
    if kind.startswith("weight_only"):
        pytest.importorskip("ai_edge_quantizer")
    path, size = sizes(kind)
    report = inspect_tflite(path)
    assert size <= most, size  # the operators are a third of the file of float32
    assert described_by(report)["quantization"] == kind
    assert report.flex == report.custom == []
    assert report.signatures["serving_default"]["inputs"] == {"ids": ((None, None), "int32")}
    calls = [*EXAMPLES[:4], {"ids": np.array([[3, 4, 0, 0], [0, 0, 0, 0]])}, {"ids": [[5]]}]
    found = check_parity(model, path, calls, tolerance=error)
    assert found.equal, str(found)


def test_integers_compute_inside_the_loop(sizes):
    path, _ = sizes("int8")
    [body] = [
        counts
        for name, counts in inspect_tflite(path).operators.items()
        if "body" in name and counts["FULLY_CONNECTED"]
    ]
    assert body["QUANTIZE"] or body["DEQUANTIZE"]


def test_masked_scores_leave_the_range_to_the_others(tmp_path):
    """One of -1e38 would be the end of a range of 256 numbers, and all others one number."""
    query = keras.Input((None, 8), name="query")
    keys = keras.Input((None, 8), name="keys")
    mask = keras.Input((None,), dtype="bool", name="mask")
    model = keras.Model(
        [query, keys, mask],
        {"context": ka.Attention("scaled_dot", name="context")(query, keys, key_mask=mask)},
    )
    rows = [
        {
            "query": RANDOM.normal(size=(2, 3, 8)).astype("float32"),
            "keys": RANDOM.normal(size=(2, 5, 8)).astype("float32"),
            "mask": np.arange(5) < np.array([[2], [4]]),
        }
        for _ in range(16)
    ]
    path = export_tflite(
        model, tmp_path / "a.tflite", quantization="int8", representative_data=rows
    )
    report = check_parity(model, path, rows[:4], tolerance=0.1)
    assert report.equal, str(report)
    void = {**rows[0], "mask": np.zeros((2, 5), bool)}
    assert np.all(run_artifact(path, void)["context"] == 0)


def test_integers_that_lose_what_a_layer_read_are_told(tmp_path):
    """A mask inside a layer of Keras is such a number: what is allowed there gets one weight."""
    x, mask = keras.Input((None, 8), name="x"), keras.Input((None, None), dtype="bool", name="mask")
    attention = layers.MultiHeadAttention(2, 4)
    _, weights = attention(x, x, attention_mask=mask, return_attention_scores=True)
    model = keras.Model([x, mask], {"weights": weights})
    causal = np.tri(5, dtype=bool)[None]
    rows = [
        {"x": 3 * RANDOM.normal(size=(1, 5, 8)).astype("float32"), "mask": causal}
        for _ in range(16)
    ]
    with pytest.warns(UserWarning, match="'weights' of .* of its largest value away"):
        export_tflite(
            model,
            tmp_path / "a.tflite",
            quantization="int8",
            representative_data=rows,
            verify=rows[:4],
        )


def test_examples_are_those_of_the_signatures(model, tmp_path):
    def export(**options):
        export_tflite(model, tmp_path / "a.tflite", **options)

    with pytest.raises(ValueError, match="'int8' needs representative_data"):
        export(quantization="int8")
    with pytest.raises(ValueError, match="representative_data is for quantization in"):
        export(representative_data=EXAMPLES)
    with pytest.raises(ValueError, match=r"takes \['ids'\]. Received: \['tokens'\]"):
        export(quantization="int8", representative_data=[{"tokens": [[1]]}])
    with pytest.raises(ValueError, match="must be int32"):
        export(quantization="int8", representative_data=[{"ids": [[1.5]]}])
    with pytest.raises(ValueError, match="lacks examples of 'more'"):
        spec = {"x": keras.InputSpec(shape=(None, 4), dtype="float32")}
        export(
            quantization="int8",
            signatures={"more": (lambda x: {"y": ops.tanh(x)}, spec)},
            representative_data={"serving_default": EXAMPLES},
        )
    assert not list(tmp_path.iterdir())


def test_examples_of_several_inputs_want_one_size(tmp_path):
    def chosen(values, places):
        return {"found": tf.where(places > 0, tf.tanh(values), values @ tf.ones((4, 4)))}

    arguments = {
        "values": tf.TensorSpec((1, None, 4), tf.float32),
        "places": tf.TensorSpec((1, None, 1), tf.float32),
    }

    def export(*lengths):
        calls = [
            {"values": RANDOM.normal(size=(1, n, 4)), "places": RANDOM.normal(size=(1, n, 1))}
            for n in lengths
        ]
        return export_tflite(
            {"choose": (chosen, arguments)},
            tmp_path / "a.tflite",
            quantization="int8",
            representative_data={"choose": calls},
        )

    # An upgrade that takes them shows here: then the advice can go.
    with pytest.raises(ExportError, match=r"all examples of a signature .* the same sizes"):
        export(3, 10)
    assert export(10, 10).exists()


@pytest.mark.slow
def test_ids_in_16_bits_are_refused_with_what_works(model, tmp_path):
    with pytest.raises(ExportError, match=r"LiteRT#168.*embedded inputs"):
        export_tflite(
            model, tmp_path / "a.tflite", quantization="int16x8", representative_data=EXAMPLES
        )


def test_16_bits_for_floats(tmp_path):
    model = keras.Sequential(
        [keras.Input((None, 8), name="x"), layers.Dense(32, "relu"), layers.Dense(4, name="y")]
    )
    rows = [{"x": RANDOM.normal(size=(1, 5, 8)).astype("float32")} for _ in range(16)]
    path = export_tflite(
        model,
        tmp_path / "a.tflite",
        quantization="int16x8",
        representative_data=rows,
        verify=rows[:4],
    )
    assert run_artifact(path, rows[0])["y"].dtype == "float32"


def test_a_crash_of_the_converter_is_a_message(tmp_path):
    """Calibrating a loop of fixed sizes crashes TensorFlow 2.21, as tensorflow#62281 has it."""
    rows = [{"ids": row["ids"][:1]} for row in EXAMPLES]
    with pytest.raises(ExportError, match=r"crashed .*SIGSEGV.*leave the sizes free") as caught:
        export_tflite(
            tagger(), tmp_path / "a", shapes=[6], quantization="int8", representative_data=rows
        )
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_the_child_process_says_is_what_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="SavedModel"):
        calibration.calibrated(str(tmp_path), "int8", {"f": [{"x": np.zeros(3)}]})


def test_a_search_with_beams_is_refused_in_integers(tmp_path):
    def step(tokens, states, memory):
        return ops.one_hot(tokens, 5), states, ops.zeros((ops.shape(tokens)[0], 1))

    def search(x):
        found = ka.beam_search(step, (x,), (x,), start_id=0, end_id=1, max_length=3, beam_width=2)
        return {"tokens": found.tokens}

    spec = {"x": keras.InputSpec(shape=(None, 4), dtype="float32")}
    rows = [{"x": np.zeros((1, 4), "float32")}]
    with pytest.raises(ValueError, match=r'beam_search.*quantization="dynamic"'):
        export_tflite(
            {"beam": (search, spec)},
            tmp_path / "a.tflite",
            quantization="int8",
            representative_data=rows,
        )
