"""Files that read text: strings in, by TensorFlow Text's operators, and the model's own answers."""

import keras
import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow("artifacts are made on TensorFlow"),
    pytest.mark.xdist_group("text"),  # one worker makes the files, not each
]
tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
pytest.importorskip("ai_edge_litert")

from keras_attention.export.errors import ArtifactError, ExportError, ParityError  # noqa: E402
from keras_attention.export.inspect import inspect_tflite  # noqa: E402
from keras_attention.export.parity import load_tflite  # noqa: E402
from keras_attention.export.text_tflite import (  # noqa: E402
    export_text_tflite,
    load_text_tflite,
)
from keras_attention.recipes import translation, translation_text, translator  # noqa: E402
from keras_attention.recipes.batches import to_ids  # noqa: E402
from keras_attention.recipes.errors import RunError  # noqa: E402
from keras_attention.recipes.runs import Run, write_config  # noqa: E402
from keras_attention.recipes.tokenizers import SPECIAL, Tokenizer  # noqa: E402
from keras_attention.recipes.translation_options import Config  # noqa: E402

PIECES = [
    "a",
    "ein",
    "mann",
    "schl",
    "##ä",
    "##ft",
    "##.",
    "hund",
    "##e",
    "早",
    "##上",
    "😀",
    "ж",
    "##ж",
    "##a",
]
SOURCE = (*SPECIAL, *PIECES)
TARGET = (*SPECIAL, "a", "man", "sle", "##ep", "##s", "##.", "dog", "早")
TEXTS = [
    "ein mann schläft.",
    "",
    "   ",
    "hunde hund ein a mann",
    "ein zebra schläft.",  # unknown words
    "schläfz",
    "  ein\tmann\nhund\x00a\r\v\f ",
    "a\u3000ein a\u2028a\u00a0a",  # spaces that do not cut
    "##ft ## [START] [PAD] [END] [UNK] a",
    "早上 😀 ж早",
    "😀",
    "e\u0301in",
    "aa a",
    100 * "ж",  # as long as a word may be
    101 * "ж" + " ein",
    "mann " + 300 * "ä" + " hund",
    101 * "a" + " a",
    "a " * 9,
    "ein",
    "mann. hund. 早上.",
]


def run_of(folder, **settings):
    """A run whose model was never trained; its answers are as good to compare as any."""
    keras.utils.set_random_seed(0)
    source = Tokenizer(SOURCE, settings.pop("split", "spaces"), settings.pop("normalize", "none"))
    target = Tokenizer(TARGET, "spaces", "none")
    config = Config(max_length=7, embedding=6, encoder_units=5, units=8, beam_width=2, **settings)
    model = translation.model_of(config, source.size, target.size)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return Run(config, model, source, target, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def path(run):
    return translation_text.export(run)


def test_texts_have_the_ids_and_the_answers_of_the_model(run, path):
    assert len(TEXTS) == 20
    tokenize, translate = (load_text_tflite(path, name) for name in ("tokenize", "translate"))
    greedy = translator.search_function(run, "greedy")
    for texts in (TEXTS, [""], TEXTS[:1], TEXTS[13:16], TEXTS):
        ids = to_ids(texts, run.source).to_tensor()
        np.testing.assert_array_equal(tokenize({"text": texts})["source"], ids)
        found, wanted = translate({"text": texts}), greedy(ids)
        np.testing.assert_array_equal(found["tokens"], wanted.tokens)
        np.testing.assert_array_equal(found["lengths"], wanted.lengths)
        # Two float32 runtimes that sum in different orders.
        np.testing.assert_allclose(found["alignment"], wanted.alignments, atol=1e-5)
        joined = [b"".join(row).decode().removeprefix(" ") for row in found["pieces"]]
        assert joined == [x.decode() for x in run.target.detokenize(wanted.tokens).numpy()]
    assert len(set(joined)) > 5  # so that equality says something


@pytest.mark.parametrize("split", ["spaces", "characters"])
def test_the_graph_cuts_as_the_tokenizer_does(split):
    tokenizer = Tokenizer(SOURCE, split, "none")
    read = tf.function(
        translation_text.reader(tokenizer), input_signature=[tf.TensorSpec((None,), tf.string)]
    )
    for texts in (TEXTS, ["", ""], TEXTS[7:9]):
        wanted = to_ids(texts, tokenizer).to_tensor()
        np.testing.assert_array_equal(read(tf.constant(texts)), wanted)


def test_words_come_one_by_one_from_a_text(run, path):
    step = load_text_tflite(path, "decode_step")
    source = load_text_tflite(path, "tokenize")({"text": TEXTS[:2]})
    memory = load_text_tflite(path, "encode")(source)
    token, tokens = np.array([1, 1], "int32"), []
    for _ in range(run.config.max_length):
        found = step({"token": token, **memory})
        token = found["logits"].argmax(-1).astype("int32")
        tokens.append(token)
        memory |= {k.removeprefix("next_"): v for k, v in found.items() if k.startswith("next_")}
    wanted = load_text_tflite(path, "translate")({"text": TEXTS[:2]})
    for row, length in enumerate(wanted["lengths"]):
        found = np.stack(tokens, 1)[row, :length]
        np.testing.assert_array_equal(found, wanted["tokens"][row, :length])


def test_its_operators_are_named(path):
    report = inspect_tflite(path)
    assert report.flex == []
    assert report.custom == [
        "FastWordpieceTokenizeWithOffsets",
        "TFText>ByteSplitByOffsets",
        "TFText>ByteSplitWithOffsets",
    ]
    assert report.signatures["translate"]["inputs"] == {"text": ((None,), "string")}
    assert "translation.json" in report.metadata
    with pytest.raises(ArtifactError, match="not built in: FastWordpiece"):
        load_tflite(path, "translate")
    with pytest.raises(ValueError, match="has the signatures decode_step, encode, tokenize"):
        load_text_tflite(path, "beam")


@pytest.mark.parametrize(
    "settings, options, message",
    [
        ({"normalize": "nfkc"}, {}, r"normalises its text \(nfkc\).*no kernel.*without --text"),
        ({"normalize": "nfkc_lower"}, {}, r"normalises its text \(nfkc_lower\)"),
        ({}, {"quantize": "int8"}, "none, float16 or dynamic, not int8"),
        ({}, {"shapes": [8, 16]}, "dynamic shapes"),
    ],
)
def test_what_has_no_such_file_is_refused_with_the_reason(tmp_path, settings, options, message):
    run = run_of(tmp_path, **settings)
    with pytest.raises(RunError, match=message) as caught:
        translation_text.export(run, **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def lower(text):
    return {"lower": tf.strings.lower(text)}


def test_an_operator_without_a_kernel_is_named(tmp_path):
    spec = {"text": tf.TensorSpec((None,), tf.string)}
    with pytest.raises(ExportError, match=r"without a kernel in TFLite: \w*StringLower"):
        export_text_tflite({"f": (lower, spec)}, tmp_path / "a.tflite")
    with pytest.raises(ValueError, match="quantization must be one of"):
        export_text_tflite({"f": (lower, spec)}, tmp_path / "a.tflite", quantization="int8")
    assert not list(tmp_path.iterdir())


def test_a_file_that_differs_is_not_left_behind(tmp_path):
    calls = []

    def counted(x):
        calls.append(x)
        return {"y": x + len(calls)}  # another function each time it is traced

    spec = {"x": tf.TensorSpec((None,), tf.int32)}
    with pytest.raises(ParityError, match="'f': y does not equal"):
        export_text_tflite(
            {"f": (counted, spec)}, tmp_path / "a.tflite", verify={"f": [{"x": np.array([1, 2])}]}
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command(run, command_line, capsys, tmp_path):
    said = command_line(capsys)
    write_config(run.folder, run.config)
    for name in ("source", "target"):
        getattr(run, name).save(run.folder, name)
    run.model.save(run.folder / "model.keras")
    out = tmp_path / "small.tflite"
    arguments = ["export", run.folder, "--to", "tflite", "--text"]
    code, lines, _ = said(*arguments, "--quantize", "dynamic", "--out", out)
    assert (code, lines) == (0, [str(out)])
    found = load_text_tflite(out, "tokenize")({"text": TEXTS})
    np.testing.assert_array_equal(found["source"], to_ids(TEXTS, run.source).to_tensor())
    translated = load_text_tflite(out, "translate")({"text": TEXTS})
    assert translated["pieces"].shape == (len(TEXTS), run.config.max_length)
    code, _, errors = said("predict", out, "ein mann")
    assert code == 1 and errors[-1].endswith("it runs by load_text_tflite")
    code, _, errors = said("export", run.folder, "--to", "onnx", "--text")
    assert code == 2 and errors[-1].endswith("--text is for --to tflite, without --report")
    code, _, errors = said(*arguments, "--shapes", "8,16")
    assert code == 1 and "dynamic shapes" in errors[-1]
