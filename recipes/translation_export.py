"""The artifacts of a run that translates, and what they are compared with."""

import dataclasses
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_attention.export import run_template
from keras_attention.export.conversion import CALIBRATED
from keras_attention.export.inspect import inspect_tflite
from keras_attention.export.onnx import export_onnx
from keras_attention.export.parity import load_tflite
from keras_attention.export.places import replacing
from keras_attention.export.portable import portable
from keras_attention.export.run_template import Translator
from keras_attention.export.saved_model import export_saved_model
from keras_attention.export.signatures import signatures_of
from keras_attention.export.tflite import export_tflite

from . import export_report, metrics
from .batches import to_ids
from .data import Pairs, TextSide, read_texts
from .errors import RunError
from .runs import Run
from .searches import searches, signatures
from .tflite_places import Shapes, default_place, length_files, lengths_of
from .tokenizers import END_ID, PADDING_ID, START_ID
from .translator import decoding_of, load_corpus, model_of, search_function, translate

_CALIBRATED_TEXTS = 100
_FIRST_STEPS = 3  # of each text; all of them are seen in `greedy`


def export(
    run: Run,
    to: str,
    path: Path | None = None,
    *,
    quantize: str | None = None,
    shapes: Shapes = "dynamic",
    texts: Sequence[str] = (),
    verify: bool = True,
) -> Path:
    """Export a run.

    Args:
        run: a loaded run.
        to: `"saved_model"` (strings in and ids in), `"tflite"` (ids in; `run.py` beside it) or
            `"onnx"` (ids in; a folder with one file for each signature).
        path: the folder or file to write; by default inside the run's `export` folder.
        quantize: of a `.tflite`, as `export_tflite` takes it. A file in integers has no signature
            `beam`: sums of log probabilities do not fit into them.
        shapes: of a `.tflite`: `"dynamic"`; `"static"` for one text of the run's `max_length`
            pieces; or a list of such lengths, which makes a folder with a file for each.
        texts: sources that ranges of integers are fitted to, a hundred or so.
        verify: whether to run the artifact on sentences and compare before it gets its name.

    Returns:
        The path written.

    Raises:
        ExportError: when the artifact is not equal to the model, or does not convert.
        RunError: for an unknown kind, or a length that is more than the run's.
    """
    run = in_float32(run)
    if to == "saved_model":
        return _export_saved_model(run, path, verify)
    if to == "tflite":
        return _export_tflite(run, path, quantize, shapes, texts, verify)
    if to == "onnx":
        return _export_onnx(run, path, verify)
    raise RunError(f"to must be saved_model or tflite or onnx. Received: {to!r}")


def in_float32(run: Run) -> Run:
    """The run itself, or one that computes in the precision that its weights are kept in."""
    if run.config.precision == "float32":
        return run
    config = dataclasses.replace(run.config, precision="float32")
    model = model_of(config, run.source.size, run.target.size)
    model.set_weights(run.model.get_weights())
    return dataclasses.replace(run, config=config, model=model)


def _examples(run: Run) -> list[np.ndarray]:
    """Ids to compare an artifact on: batches of several sizes, a padded row, one piece."""
    ids = _drawn(run, (3, 9))
    ids[:, -1] = END_ID
    ids[0, 4], ids[0, 5:] = END_ID, PADDING_ID
    return [ids, ids[1:2, 3:], np.array([[END_ID]], "int32")]


def _drawn(run, shape):
    """Pieces as often as texts have them: a vocabulary begins with what is frequent (Zipf's law).

    Rows of rare pieces alone make states that no text makes, and rounding tells most in those.
    """
    rng = np.random.default_rng(0)
    first = len((PADDING_ID, START_ID, END_ID)) + 1
    ranks = np.exp(rng.uniform(np.log(first), np.log(max(run.source.size, first + 1)), shape))
    return ranks.astype("int32")


def _export_saved_model(run, path, verify):
    decoding = decoding_of(run, portable)
    search = searches(decoding, run.config)["beam"]
    limit = run.config.max_length

    def translate_text(text):
        ids = to_ids(text, run.source)
        longest = tf.cast(tf.reduce_max(ids.row_lengths()), "int32")
        message = f"a text has more than {limit} pieces, the model takes no more"
        with tf.control_dependencies([tf.debugging.assert_less_equal(longest, limit, message)]):
            source = ids.to_tensor()
        found = search(source)
        tokens = found.tokens[:, 0]
        return {
            "translation": run.target.detokenize(tokens),
            "score": found.scores[:, 0],
            "alignment": found.alignments[:, 0],
            "source_tokens": run.source.pieces(source),
            "target_tokens": run.target.pieces(tokens),
        }

    text = {"text": tf.TensorSpec((None,), tf.string)}
    served = importlib.util.find_spec("tensorflow_serving") is not None
    return export_saved_model(
        {"serving_default": (translate_text, text), **signatures(decoding, run.config)},
        path or run.folder / "export" / "saved_model",
        assets={
            f"{side}.vocabulary.txt": run.folder / f"{side}.vocabulary.txt"
            for side in ("source", "target")
        },
        warmup=_warmup(run) if served else None,
        verify={"greedy": [{"source": ids} for ids in _examples(run)]} if verify else None,
    )


def _warmup(run):
    """Requests of several sizes: texts for the signature that takes text, ids for the others."""
    ids = _examples(run)
    texts = run.source.detokenize(ids[0][:, :4]).numpy()
    # Of a vocabulary of few words, random pieces may spell a text that is too long.
    texts = texts[to_ids(texts, run.source).row_lengths().numpy() <= run.config.max_length]
    requests = {name: [{"source": source} for source in ids] for name in ("encode", "greedy")}
    return {"serving_default": [{"text": texts[:1]}, {"text": texts}], **requests}


def _export_tflite(run, path, quantize, shapes, texts, verify):
    functions = signatures(decoding_of(run, portable), run.config)
    if quantize in CALIBRATED:
        del functions["beam"]
    lengths = lengths_of(run.folder, shapes, run.config.max_length)
    if shapes == "static":
        functions = _of_length(functions, *lengths)
    calls = [compared_calls(run, length) for length in lengths]
    if quantize is not None:
        # A score sums up the steps of a search, and with it what rounding does to each.
        calls = [_calls_by_step(run, [c["source"] for c in found["encode"]]) for found in calls]
    path = Path(path or default_place(run.folder, "translation", quantize, shapes))
    export_tflite(
        functions,
        path,
        quantization=quantize,
        shapes=shapes,
        representative_data=calibration_calls(run, texts) if quantize in CALIBRATED else None,
        metadata=artifact_metadata(run),
        verify={name: [c for found in calls for c in found[name]] for name in calls[0]}
        if verify
        else None,
    )
    program = Path(run_template.__file__).read_text("utf-8")
    with replacing(path.with_name("run.py")) as beside:
        beside.write_text(program, "utf-8")
    return path


def _of_length(functions, length):
    sized = {name: given.with_length(length) for name, given in signatures_of(functions).items()}
    return {name: (given.function, given.arguments) for name, given in sized.items()}


def calibration_texts(run: Run, file: Path | None = None, data_dir=None, report=print) -> list[str]:
    """Sources to fit ranges of integers to: a file's lines, or some that the run was trained on."""
    if file is None:
        return load_corpus(run.config, data_dir, report).sample(_CALIBRATED_TEXTS).source
    return read_texts(file)[:_CALIBRATED_TEXTS]


def calibration_calls(run: Run, texts: Sequence[str]) -> dict[str, list[dict]]:
    """What the signatures are called with while these texts are translated."""
    if not texts:
        raise RunError("ranges of integers are fitted to texts, and there are none")
    ids = to_ids(texts, run.source)[:, : run.config.max_length]
    sources = [ids[row : row + 1].to_tensor().numpy() for row in range(len(texts))]
    padded = ids.to_tensor().numpy()  # see `ADVICE` of export/conversion.py: of one shape
    return {
        "greedy": [{"source": source} for source in sources],
        **_calls_by_step(run, [padded[row : row + 1] for row in range(len(texts))]),
    }


def _calls_by_step(run, sources):
    """What `encode` and `decode_step` are called with in the first steps of translations."""
    functions = signatures_of(signatures(decoding_of(run), run.config))
    encode, step = (functions[name].concrete() for name in ("encode", "decode_step"))
    calls = {"encode": [{"source": source} for source in sources], "decode_step": []}
    for source in sources:
        memory = encode(source=tf.constant(source))
        token = tf.fill([len(source)], START_ID)
        for _ in range(_FIRST_STEPS):
            given = {"token": token, **memory}
            calls["decode_step"].append({name: x.numpy() for name, x in given.items()})
            found = step(**given)
            token = tf.argmax(found["logits"], -1, output_type="int32")
            states = {k.removeprefix("next_"): x for k, x in found.items() if "next_" in k}
            memory = {**memory, **states}
    return calls


def _export_onnx(run, path, verify):
    return export_onnx(
        signatures(decoding_of(run, portable), run.config),
        path or run.folder / "export" / "onnx",
        metadata=artifact_metadata(run),
        verify=compared_calls(run) if verify else None,
    )


def compared_calls(run: Run, length: int | None = None) -> dict[str, list[dict]]:
    """What an artifact is compared on; of one length where it takes no other."""
    examples = _examples(run)
    if length is not None:
        piece = examples[-1]
        full = np.concatenate([_drawn(run, (1, length - 1)), piece], axis=1)
        padded = np.pad(piece, ((0, 0), (0, length - 1)), constant_values=PADDING_ID)
        examples = [full, padded.astype("int32")]
    return {name: [{"source": ids} for ids in examples] for name in ("encode", "greedy")}


def artifact_metadata(run: Run) -> dict[str, str]:
    """The texts that travel inside an artifact: limits, special ids and both vocabularies."""
    sides = {"source": run.source, "target": run.target}
    facts = {
        "recipe": run.config.recipe,
        "start_id": START_ID,
        "end_id": END_ID,
        "pad_id": PADDING_ID,
        "max_source_length": run.config.max_length,
        "max_target_length": run.config.max_length,
        **{
            side: {"split": tokenizer.split, "normalize": tokenizer.normalize}
            for side, tokenizer in sides.items()
        },
    }
    vocabularies = {
        f"{side}_vocabulary.txt": "".join(f"{piece}\n" for piece in tokenizer.vocabulary)
        for side, tokenizer in sides.items()
    }
    return {"translation.json": json.dumps(facts, indent=1), **vocabularies}


def measured(run: Run, path: Path, pairs: Pairs, side: TextSide, *, seconds: float = 2.0) -> dict:
    """What a `.tflite`, or a folder of length buckets, is worth: see `export_report.measured`.

    Args:
        run: what was exported.
        path: the file or folder.
        pairs: sentences to translate by both, one at a time; those that are too long for the file
            are left out.
        side: how the target's text is scored.
        seconds: how long each signature is timed.

    Returns:
        The report; its `task` has BLEU of model and file, and how many sentences are equal.
    """
    biggest = inspect_tflite(length_files(path)[-1])
    calls = compared_calls(run, biggest.signatures["encode"]["inputs"]["source"][0][1])
    functions = signatures(decoding_of(run), run.config)
    task = _task(run, path, pairs, side)
    return export_report.measured(path, functions, calls, task, seconds=seconds)


def _task(run, path, pairs, side):
    translator = Translator(path)
    ids = [[*translator.source.encode(text), translator.end] for text in pairs.source]
    rows = [row for row, found in enumerate(ids) if len(found) <= translator.limit]
    if not rows:
        raise RunError(f"no sentence of the test part is short enough for {path}")
    pairs = pairs.rows(rows)
    of_file = [translator.target.decode(translator.translate(ids[row])[0]) for row in rows]
    found = translate(run, pairs.source, search_function(run, "greedy"))
    of_model = [row["translation"] for row in found]
    references, tokenizer = metrics.surface(pairs.target, side), metrics.bleu_tokenizer(side)
    scores = {
        name: metrics.bleu(texts, references, tokenizer)
        for name, texts in (("model", of_model), ("file", of_file))
    }
    return {
        "sentences": len(rows),
        "sentences_equal": sum(one == other for one, other in zip(of_model, of_file, strict=True)),
        "bleu_model": scores["model"].value,
        "bleu_file": scores["file"].value,
        "bleu_signature": scores["file"].signature,
    }


def token_match(run: Run, path: Path, texts: Sequence[str], batch_size: int = 50) -> dict:
    """How many sentences an exported `.tflite` decodes to the very tokens of the model.

    Returns:
        `sentences`, `equal`, and `rows`: the places in `texts` of those that differ.
    """
    search, artifact = search_function(run, "greedy"), load_tflite(path, "greedy")
    ids = to_ids(texts, run.source)
    order = np.argsort(ids.row_lengths().numpy(), kind="stable")
    differing = []
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        source = tf.gather(ids, rows).to_tensor()
        mine, its = search(source).tokens, artifact({"source": source.numpy()})["tokens"]
        differing += [
            int(row) for row, same in zip(rows, (mine == its).all(1), strict=True) if not same
        ]
    return {
        "sentences": len(texts),
        "equal": len(texts) - len(differing),
        "rows": sorted(differing),
    }
