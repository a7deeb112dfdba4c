"""Translation: a recurrent encoder and decoder with attention.

A bidirectional encoder reads the source; a decoder asks it, word by word, what to say next. All
of it is built by the functional API from `keras.layers` and `AttentionDecoder`; what search and
export run (`encode`, `decode_step`) are functions over the same layers.
"""

import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attention import AttentionDecoder, beam_search, greedy_search, padding_mask

from . import data, metrics
from .batches import batches, fed, few_boundaries, filled, to_ids
from .errors import RunError
from .precision import computing_in
from .runs import Run, first_line, load_config
from .streams import PairStream, must_be_streamed
from .tokenizers import END_ID, PADDING_ID, START_ID, Tokenizer
from .training import Trainer
from .translation_options import Config


def build_model(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    attention: str = "additive",
    query: str = "previous",
    input_feeding: bool = True,
    cell: str = "gru",
    layers: int = 1,
    embedding: int = 256,
    encoder_units: int = 128,
    source_in_memory: bool = False,
    units: int = 256,
    dropout: float = 0.3,
    seed: int = 0,
) -> keras.Model:
    """A model of source and target ids, (B, S) and (B, T), to logits (B, T, V).

    The target is what the decoder is fed: the sentence moved by one, beginning with the start
    token. With `source_in_memory` the memory holds the source embeddings beside the states of
    the encoder (Bahdanau's holds the states alone).

    `attention="none"` is the sequence-to-sequence model without attention: its memory is one
    vector, the last states of the encoder, which the decoder is given in every step.

    Example:

    >>> from keras_attention.recipes.translation import build_model
    >>> build_model(50, 40, embedding=8, encoder_units=4, units=8).output.shape
    (None, None, 40)
    """
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    recurrent = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[cell]

    x = embedded = keras.layers.Embedding(
        source_vocabulary_size, embedding, mask_zero=True, name="source_embedding"
    )(source)
    for i in range(layers):
        x = keras.layers.Dropout(dropout, seed=seed + 10 + i)(x)
        x, *states = keras.layers.Bidirectional(
            recurrent(encoder_units, return_sequences=True, return_state=True),
            name=f"encoder_{i}",
        )(x)
    # Of an LSTM the hidden states, of a GRU its only ones: forward first, then backward.
    forward, backward = states[0], states[len(states) // 2]
    encoder_state = keras.layers.Concatenate(name="encoder_state")([forward, backward])
    if attention == "none":
        memory = keras.layers.Reshape((1, 2 * encoder_units), name="memory")(encoder_state)
    else:
        if source_in_memory:
            # The word itself beside what surrounds it: what is looked at and what is looked up
            # are then the same place, and alignments become sharper.
            x = keras.layers.Concatenate(name="annotations")([x, embedded])
        memory = keras.layers.Dropout(dropout, seed=seed + 1, name="memory")(x)

    x = keras.layers.Embedding(
        target_vocabulary_size, embedding, mask_zero=True, name="target_embedding"
    )(target)
    x = keras.layers.Dropout(dropout, seed=seed + 2)(x)
    outputs, _ = AttentionDecoder(
        units,
        # Over a memory of one vector every score gives that vector a weight of 1.
        score="bilinear" if attention == "none" else attention,
        query=query,
        cell=cell,
        num_layers=layers,
        input_feeding=input_feeding,
        dropout=dropout,
        seed=seed + 3,
        name="decoder",
    )(x, memory, encoder_state=encoder_state)
    logits = keras.layers.Dense(target_vocabulary_size, name="logits")(outputs)
    return keras.Model([source, target], logits, name="translation")


def model_of(config: Config, source_size: int, target_size: int) -> keras.Model:
    """The model of a config, for vocabularies of these sizes, in the config's precision."""
    with computing_in(config.precision):
        return build_model(
            source_size,
            target_size,
            attention=config.attention,
            query=config.query,
            input_feeding=config.input_feeding,
            cell=config.cell,
            layers=config.layers,
            embedding=config.embedding,
            encoder_units=config.encoder_units,
            source_in_memory=config.source_in_memory,
            units=config.units,
            dropout=config.dropout,
            seed=config.seed,
        )


# What search and export run.


def encoder_of(model: keras.Model) -> keras.Model:
    """The part of a model that reads the source: ids to memory and encoder state."""
    outputs = [model.get_layer(name).output for name in ("memory", "encoder_state")]
    return keras.Model(model.inputs[0], outputs)


def search_functions(
    model: keras.Model, config: Config, encoder: keras.Model | None = None
) -> dict[str, Callable]:
    """`encode`, `step`, `greedy` and `beam` of a model, as functions of tensors.

    Export gives an `encoder` whose loops a target can hold, in place of `encoder_of(model)`.
    `encode(source)` gives `(states, memory)`, `step(tokens, states, *memory)` gives
    `(logits, states, weights)`: the form that `greedy_search` and `beam_search` take.
    """
    encoder = encoder or encoder_of(model)
    embed, decoder = model.get_layer("target_embedding"), model.get_layer("decoder")
    to_logits = model.get_layer("logits")
    limits = {"start_id": START_ID, "end_id": END_ID, "max_length": config.max_length}

    def encode(source):
        memory, encoder_state = encoder(source)
        if encoder.output[0].shape[1] is None:
            mask = padding_mask(source, PADDING_ID)  # (B, S)
        else:  # the one vector of a model without attention
            mask = ops.ones_like(memory[..., 0], dtype="bool")
        values, keys = decoder.prepare_memory(memory, mask)
        return decoder.initial_state(encoder_state=encoder_state), (values, keys, mask)

    def step(tokens, states, values, keys, mask):
        output, states, weights = decoder.step(embed(tokens), states, values, keys, mask)
        return to_logits(output), states, weights

    def greedy(source):
        return greedy_search(step, *encode(source), **limits)

    def beam(source):
        return beam_search(
            step,
            *encode(source),
            **limits,
            beam_width=config.beam_width,
            length_penalty_weight=config.length_penalty_weight,
        )

    return {"encode": encode, "step": step, "greedy": greedy, "beam": beam}


def forced_weights(model: keras.Model, encoder: keras.Model, source, target):
    """What each target token attends to when the reference is fed in, (B, T, S)."""
    memory, encoder_state = encoder(source)
    *_, weights = model.get_layer("decoder")(
        model.get_layer("target_embedding")(target),
        memory,
        encoder_state=encoder_state,
        memory_mask=padding_mask(source, PADDING_ID),
        return_attention_scores=True,
    )
    return weights


def signatures(
    model: keras.Model, config: Config, encoder: keras.Model | None = None
) -> dict[str, tuple[Callable, dict]]:
    """The functions of an artifact: ids in, ids out, by name; `encoder` as in `search_functions`.

    | signature | takes | gives |
    |---|---|---|
    | encode | source (B, S) | values, keys, mask of 0 and 1, state_0 ... |
    | decode_step | token (B,), values, keys, mask, state_0 ... | logits, weights, next_state_0 |
    | greedy | source (B, S) | tokens (B, L), scores (B,), lengths (B,), alignment (B, L, S) |
    | beam | source (B, S) | the same with the beam's axis after the batch |
    """
    functions = search_functions(model, config, encoder)

    def encoded(source):
        states, (values, keys, mask) = functions["encode"](source)
        # Numbers: LiteRT.js refuses a file that takes or gives booleans.
        return states, (values, keys, ops.cast(mask, "int32"))

    states, memory = encoded(np.array([[END_ID]], "int32"))
    read = dict(zip(("values", "keys", "mask"), memory, strict=True))
    held = {f"state_{i}": state for i, state in enumerate(states)}

    def encode(source):
        states, memory = encoded(source)
        return dict(zip((*read, *held), (*memory, *states), strict=True))

    def decode_step(token, **given):
        states = tuple(given[name] for name in held)
        values, keys, mask = (given[name] for name in read)
        mask = ops.cast(mask, "bool")
        logits, states, weights = functions["step"](token, states, values, keys, mask)
        moved = {f"next_{name}": state for name, state in zip(held, states, strict=True)}
        return {"logits": logits, "weights": weights, **moved}

    def found(search):
        def run(source):
            tokens, scores, lengths, alignment = functions[search](source)
            results = {"tokens": tokens, "scores": scores, "lengths": lengths}
            return {**results, "alignment": alignment}

        return run

    def spec(tensor, *free):
        shape = [None if i in free else size for i, size in enumerate(tensor.shape)]
        return keras.InputSpec(shape=shape, dtype=keras.backend.standardize_dtype(tensor.dtype))

    source = {"source": keras.InputSpec(shape=(None, None), dtype="int32")}
    # Without attention the memory is one vector, whatever the length of the source.
    free = (0,) if config.attention == "none" else (0, 1)
    one_step = {
        "token": keras.InputSpec(shape=(None,), dtype="int32"),
        **{name: spec(tensor, *free) for name, tensor in read.items()},
        **{name: spec(tensor, 0) for name, tensor in held.items()},
    }
    return {
        "encode": (encode, source),
        "decode_step": (decode_step, one_step),
        "greedy": (found("greedy"), source),
        "beam": (found("beam"), source),
    }


# Data.


def load_corpus(
    config: Config, data_dir=None, report: data.Report = print
) -> data.Corpus | PairStream:
    """The sentences that the config names, and how each side's text is handled.

    One file of pairs is read into memory; several, a folder, a pattern or `.tfrecord` files are
    streamed, and one is where the config says so.
    """
    if not (config.pairs or config.source or config.target):
        return data.load(config.data, data_dir, config.limit, report, config.seed)
    default = data.TextSide()
    source_side, target_side = (
        data.TextSide(split or default.split, config.normalize or default.normalize)
        for split in (config.source_split, config.target_split)
    )
    pairs = [config.pairs] if isinstance(config.pairs, str) else config.pairs
    if pairs and (config.stream or must_be_streamed(pairs)):
        if config.limit is not None:
            raise data.DataError("A stream has no limit of rows: name fewer files.")
        return PairStream(pairs, source_side, target_side, seed=config.seed, report=report)
    return data.from_files(
        pairs[0] if pairs else None,
        config.source,
        config.target,
        source_side=source_side,
        target_side=target_side,
        limit=config.limit,
        seed=config.seed,
        report=report,
    )


# Runs.


def load_run(folder: Path) -> Run:
    """Load a run's folder.

    Raises:
        RunError: naming what is missing or broken.
        DataError: naming a vocabulary that is missing or of another run.
    """
    folder = Path(folder)
    config = load_config(folder, "translation", Config)
    path = folder / "model.keras"
    if not path.exists():
        raise RunError(
            f"{folder} holds no model.keras: its training never finished an epoch; "
            "go on with train --resume"
        )
    source, target = (Tokenizer.load(folder, side) for side in ("source", "target"))
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:
        reason = first_line(error) if zipfile.is_zipfile(path) else "truncated, or no such file"
        raise RunError(f"{path} is not a readable model ({reason})") from error
    sizes = [model.get_layer(f"{side}_embedding").input_dim for side in ("source", "target")]
    if sizes != [source.size, target.size]:
        raise RunError(
            f"{path} has vocabularies of {sizes} pieces, the files beside it hold "
            f"{[source.size, target.size]}: they are of another run"
        )
    return Run(config=config, model=model, source=source, target=target, folder=folder)


# Use of a run.


def batch_form(config: Config, compiled: bool) -> dict:
    """How batches are made: in a few shapes where each shape costs a compilation."""
    if not compiled:
        return {}
    return {"boundaries": few_boundaries(config.max_length), "fixed_shapes": True}


def search_function(run: Run, name: str) -> Callable:
    """`greedy` or `beam` of a run, compiled: ids (B, S) to a `SearchResult` of NumPy arrays."""
    function = search_functions(run.model, run.config)[name]
    if keras.backend.backend() == "jax":
        return _search_on_jax(run, function)
    ids = tf.TensorSpec((None, None), "int32")
    compiled = tf.function(function, input_signature=[ids], autograph=False)
    return lambda source: keras.tree.map_structure(lambda x: x.numpy(), compiled(source))


def _search_on_jax(run, function):
    """Compiled for each of a few shapes; sources are filled up to the next one."""
    import jax

    @jax.jit
    def compiled(values, source):
        # The variables are arguments: what a compiled function closes over is constant.
        with keras.StatelessScope(state_mapping=zip(run.model.variables, values, strict=True)):
            return function(source)

    lengths = [boundary - 1 for boundary in few_boundaries(run.config.max_length)]

    def search(source):
        count, longest = source.shape
        rows = 1 << (count - 1).bit_length()
        length = min(x for x in lengths if x >= longest)
        source = tf.pad(source, [[0, 0], [0, length - longest]], constant_values=PADDING_ID)
        source = filled(source, rows, END_ID).numpy()
        found = compiled([v.value for v in run.model.variables], source)
        return keras.tree.map_structure(lambda x: np.asarray(x)[:count], found)

    return search


def translate(run: Run, texts: Sequence[str], search: Callable, batch_size: int = 64) -> list[dict]:
    """Translate texts, in their order.

    Args:
        run: a loaded run.
        texts: what to translate.
        search: of `search_function`.
        batch_size: sentences searched at once, of about one length.

    Returns:
        A dict a text: `translation`, `score` (of the best hypothesis), `source` and `target`
        pieces, and `alignment` (target pieces, source pieces).

    Raises:
        DataError: for a text that is longer than the model's limit.
    """
    ids = to_ids(texts, run.source)
    lengths = ids.row_lengths().numpy()
    limit = run.config.max_length
    if len(lengths) and lengths.max() > limit:
        worst = int(lengths.argmax())
        raise data.DataError(
            f"text {worst + 1} has {lengths[worst]} pieces, the model takes {limit} at most: "
            f"{texts[worst][:40]!r}..."
        )
    results: list[dict] = [{} for _ in texts]
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        source = tf.gather(ids, rows).to_tensor()
        tokens, scores, counts, alignments = search(source)
        if tokens.ndim == 3:  # of a beam, the best
            tokens, scores, counts, alignments = (
                x[:, 0] for x in (tokens, scores, counts, alignments)
            )
        translations = run.target.detokenize(tf.constant(tokens)).numpy()
        for i, row in enumerate(rows):
            count, length = int(counts[i]), int(lengths[row])
            results[row] = {
                "translation": translations[i].decode("utf-8"),
                "score": float(scores[i]),
                "source": _pieces(run.source, source[i, :length]),
                "target": _pieces(run.target, tokens[i, :count]),
                # Without attention there is one vector to look at, and no alignment.
                "alignment": alignments[i, :count, :length].tolist()
                if run.config.attention != "none"
                else None,
            }
    return results


def _pieces(tokenizer: Tokenizer, ids) -> list[str]:
    return [piece.decode("utf-8") for piece in tokenizer.pieces(ids).numpy()]


def evaluate(
    run: Run,
    *,
    data_dir=None,
    limit: int | None = None,
    report: Callable[[str], None] = print,
) -> dict:
    """Measure a run on the test part of its data.

    Returns:
        Perplexity, token accuracy, BLEU and chrF of greedy and of beam search with their
        signatures, exact match, and where gold alignments exist the alignment error rate of the
        forced reference.
    """
    corpus = load_corpus(run.config, data_dir, report)
    test = corpus.test.rows(range(min(limit or len(corpus.test.source), len(corpus.test.source))))
    references = metrics.surface(test.target, corpus.target)
    tokenizer = metrics.bleu_tokenizer(corpus.target)
    source, target = to_ids(test.source, run.source), to_ids(test.target, run.target)
    figures = {"sentences": len(references)}
    form = batch_form(run.config, compiled=keras.backend.backend() == "jax")
    tested = batches(source, target, run.config.batch_size, **form)
    figures |= Trainer(run.model).evaluate(tested)
    for name in ("greedy", "beam"):
        started = time.perf_counter()
        found = translate(run, test.source, search_function(run, name))
        hypotheses = [row["translation"] for row in found]
        bleu, chrf = (
            metrics.bleu(hypotheses, references, tokenizer),
            metrics.chrf(hypotheses, references),
        )
        figures |= {
            f"bleu_{name}": bleu.value,
            f"chrf_{name}": chrf.value,
            f"exact_match_{name}": metrics.exact_match(hypotheses, references),
            f"seconds_{name}": time.perf_counter() - started,
            "bleu_signature": bleu.signature,
            "chrf_signature": chrf.signature,
        }
    figures |= {"bleu": figures["bleu_beam"], "exact_match": figures["exact_match_greedy"]}
    if test.alignments is not None and run.config.attention != "none":
        figures["aer"] = alignment_error_rate(run, test, source, target)
    return figures


def alignment_error_rate(run: Run, pairs: data.Pairs, source, target) -> float:
    """AER of the argmax of attention against gold, the reference being fed in."""
    encoder = encoder_of(run.model)
    predicted = []
    for start in range(0, len(pairs.source), run.config.batch_size):
        rows = slice(start, start + run.config.batch_size)
        padded, forced = source[rows].to_tensor(), fed(target[rows].to_tensor())
        weights = ops.convert_to_numpy(
            forced_weights(run.model, encoder, padded.numpy(), forced.numpy())
        )
        for row, source_ids, target_ids in zip(weights, source[rows], target[rows], strict=True):
            source_pieces = _pieces(run.source, source_ids)
            target_pieces = _pieces(run.target, target_ids)
            row = row[: len(target_pieces), : len(source_pieces)]
            predicted.append(metrics.hard_alignment(row, source_pieces, target_pieces))
    return metrics.alignment_error_rate(predicted, pairs.alignments)
