"""What is done with a model that translates, whichever recipe it is of.

Its data, its run, translating, and the figures of a run.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from . import data, metrics, searches, transformer, translation
from .batches import batches, fed, few_boundaries, filled, to_ids
from .errors import RunError
from .pairs_options import PairsConfig
from .runs import Run, load_config, load_model
from .streams import PairStream, must_be_streamed
from .tokenizers import END_ID, PADDING_ID, Tokenizer
from .training import Trainer

# A recipe has `Config`, `model_of`, `encoder_of`, `decoding` and `forced_weights`.
RECIPES = {module.Config.recipe: module for module in (translation, transformer)}


def model_of(config: PairsConfig, source_size: int, target_size: int) -> keras.Model:
    """The model of a config, for vocabularies of these sizes, in the config's precision."""
    return RECIPES[config.recipe].model_of(config, source_size, target_size)


def decoding_of(run: Run, portable: Callable = lambda encoder: encoder) -> searches.Decoding:
    """How a run's model translates; `portable` makes its encoder one that an artifact can hold."""
    recipe = RECIPES[run.config.recipe]
    return recipe.decoding(run.model, run.config, portable(recipe.encoder_of(run.model)))


# Data.


def load_corpus(
    config: PairsConfig, data_dir=None, report: data.Report = print
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
    config = load_config(folder, (recipe.Config for recipe in RECIPES.values()))
    source, target = (Tokenizer.load(folder, side) for side in ("source", "target"))
    model = load_model(folder)
    sizes = [model.get_layer(f"{side}_embedding").input_dim for side in ("source", "target")]
    if sizes != [source.size, target.size]:
        raise RunError(
            f"{folder} has a model of vocabularies of {sizes} pieces, the files beside it hold "
            f"{[source.size, target.size]}: they are of another run"
        )
    return Run(config=config, model=model, source=source, target=target, folder=folder)


# Use of a run.


def batch_form(config: PairsConfig, compiled: bool) -> dict:
    """How batches are made: in a few shapes where each shape costs a compilation."""
    if not compiled:
        return {}
    return {"boundaries": few_boundaries(config.max_length), "fixed_shapes": True}


def search_function(run: Run, name: str) -> Callable:
    """`greedy` or `beam` of a run, compiled: ids (B, S) to a `SearchResult` of NumPy arrays."""
    function = searches.searches(decoding_of(run), run.config)[name]
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
                "alignment": alignments[i, :count, :length].tolist() if run.config.aligns else None,
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
    if test.alignments is not None and run.config.aligns:
        figures["aer"] = alignment_error_rate(run, test, source, target)
    return figures


def alignment_error_rate(run: Run, pairs: data.Pairs, source, target) -> float:
    """AER of the argmax of attention against gold, the reference being fed in."""
    recipe = RECIPES[run.config.recipe]
    encoder = recipe.encoder_of(run.model)
    predicted = []
    for start in range(0, len(pairs.source), run.config.batch_size):
        rows = slice(start, start + run.config.batch_size)
        padded, forced = source[rows].to_tensor(), fed(target[rows].to_tensor())
        weights = ops.convert_to_numpy(
            recipe.forced_weights(run.model, encoder, padded.numpy(), forced.numpy())
        )
        for row, source_ids, target_ids in zip(weights, source[rows], target[rows], strict=True):
            source_pieces = _pieces(run.source, source_ids)
            target_pieces = _pieces(run.target, target_ids)
            row = row[: len(target_pieces), : len(source_pieces)]
            predicted.append(metrics.hard_alignment(row, source_pieces, target_pieces))
    return metrics.alignment_error_rate(predicted, pairs.alignments)
