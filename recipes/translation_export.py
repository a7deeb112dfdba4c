"""The artifacts of a translation run, and what they are compared with."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_attention.export import run_template
from keras_attention.export.onnx import export_onnx
from keras_attention.export.parity import load_tflite
from keras_attention.export.portable import portable
from keras_attention.export.saved_model import export_saved_model
from keras_attention.export.tflite import export_tflite

from .batches import to_ids
from .errors import RunError
from .files import replacing
from .runs import Run
from .tokenizers import END_ID, PADDING_ID, START_ID
from .translation import encoder_of, model_of, search_function, search_functions, signatures


def export(run: Run, to: str, path: Path | None = None, *, quantize=None, verify=True) -> Path:
    """Export a run.

    Args:
        run: a loaded run.
        to: `"saved_model"` (strings in and ids in), `"tflite"` (ids in; `run.py` beside it) or
            `"onnx"` (ids in; a folder with one file for each signature).
        path: the folder or file to write; by default inside the run's `export` folder.
        quantize: of a `.tflite`: None, `"dynamic"` or `"float16"`.
        verify: whether to run the artifact on sentences and compare before it gets its name.

    Returns:
        The path written.

    Raises:
        ExportError: when the artifact is not equal to the model, or does not convert.
        RunError: for an unknown kind.
    """
    run = _in_float32(run)
    if to == "saved_model":
        return _export_saved_model(run, path, verify)
    if to == "tflite":
        return _export_tflite(run, path, quantize, verify)
    if to == "onnx":
        return _export_onnx(run, path, verify)
    raise RunError(f"to must be saved_model or tflite or onnx. Received: {to!r}")


def _in_float32(run: Run) -> Run:
    """The run itself, or one that computes in the precision that its weights are kept in."""
    if run.config.precision == "float32":
        return run
    config = dataclasses.replace(run.config, precision="float32")
    model = model_of(config, run.source.size, run.target.size)
    model.set_weights(run.model.get_weights())
    return dataclasses.replace(run, config=config, model=model)


def _examples(run: Run) -> list[np.ndarray]:
    """Ids to compare an artifact on: batches of several sizes, a padded row, one piece."""
    rng = np.random.default_rng(0)
    first = len((PADDING_ID, START_ID, END_ID)) + 1
    ids = rng.integers(first, max(run.source.size, first + 1), (3, 9)).astype("int32")
    ids[:, -1] = END_ID
    ids[0, 4], ids[0, 5:] = END_ID, PADDING_ID
    return [ids, ids[1:2, 3:], np.array([[END_ID]], "int32")]


def _export_saved_model(run, path, verify):
    encoder = portable(encoder_of(run.model))
    search = search_functions(run.model, run.config, encoder)["beam"]
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
    return export_saved_model(
        {"serving_default": (translate_text, text), **signatures(run.model, run.config, encoder)},
        path or run.folder / "export" / "saved_model",
        assets={
            f"{side}.vocabulary.txt": run.folder / f"{side}.vocabulary.txt"
            for side in ("source", "target")
        },
        verify={"greedy": [{"source": ids} for ids in _examples(run)]} if verify else None,
    )


def _export_tflite(run, path, quantize, verify):
    folder = "tflite" if quantize is None else f"tflite-{quantize}"
    path = Path(path or run.folder / "export" / folder / "translation.tflite")
    path.parent.mkdir(parents=True, exist_ok=True)
    export_tflite(
        signatures(run.model, run.config, portable(encoder_of(run.model))),
        path,
        quantization=quantize,
        metadata=artifact_metadata(run),
        verify=_calls(run) if verify else None,
    )
    program = Path(run_template.__file__).read_text("utf-8")
    with replacing(path.with_name("run.py")) as beside:
        beside.write_text(program, "utf-8")
    return path


def _export_onnx(run, path, verify):
    return export_onnx(
        signatures(run.model, run.config, portable(encoder_of(run.model))),
        path or run.folder / "export" / "onnx",
        metadata=artifact_metadata(run),
        verify=_calls(run) if verify else None,
    )


def _calls(run):
    return {name: [{"source": ids} for ids in _examples(run)] for name in ("encode", "greedy")}


def artifact_metadata(run: Run) -> dict[str, str]:
    """The texts that travel inside an artifact: limits, special ids and both vocabularies."""
    sides = {"source": run.source, "target": run.target}
    facts = {
        "recipe": "translation",
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
