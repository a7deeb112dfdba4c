"""What the commands do with a recipe that classifies texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import classification_export, classifier, export_report
from .classification_training import train
from .classifier import Run, evaluate, load_run
from .data import read_texts
from .errors import UsageError
from .highlight import shaded, write_page
from .pictures import draw_alignment, draw_words
from .sentence_cut import say_what_is_left_out
from .terminal import news

__all__ = ["evaluate", "export", "load_run", "plot", "predict", "train"]

_CALIBRATED_TEXTS = 100


def predict(run: Run, texts: Sequence[str], greedy: bool = False) -> list[dict]:
    """Classify texts; there is no search that could be greedy."""
    if run.config.recipe == "stories":
        say_what_is_left_out(texts, run.config.lines, news)
    return classifier.classify(run, texts)


def export(run: Run, options) -> Path:
    """Export a run as the command was told to."""
    if options.text:
        raise UsageError("--text is for recipes that translate")
    texts = ()
    if options.quantize == "int8":
        if options.calibrate:
            texts = read_texts(options.calibrate)
        else:
            texts = classifier.load_corpus(run.config, options.data_dir, news).train.texts
    path = classification_export.export(
        run,
        options.to,
        options.out,
        quantize=None if options.quantize == "none" else options.quantize,
        shapes=options.shapes,
        texts=texts[:_CALIBRATED_TEXTS],
        verify=not options.no_verify,
    )
    if options.report:
        news(f"measuring {path}")
        test = classifier.load_corpus(run.config, options.data_dir, news).test
        export_report.write(classification_export.measured(run, path, test), options.report)
    return path


def plot(run: Run, text: str, path: Path) -> None:
    """Draw what was read: hops as a heat map, documents and pages as shaded words."""
    [row] = predict(run, [text])
    title = f"{row['label']} ({row['probability']:.2f})"
    if "question" in row:
        title = f"{row['question']}  {title}"
        if not row["pieces"]:
            raise UsageError("the text is a question without a story: nothing was read")
    rows = shaded(row)
    if path.suffix == ".html":
        write_page(path, title, rows)
    elif "sentences" in row:
        draw_words(rows, path, title)
    else:
        weights, names = [row.weights for row in rows], [row.name for row in rows]
        table = (weights, rows[0].pieces, names)
        if "question" in row:  # whole sentences, which are read at the left
            table = (np.transpose(weights), names, rows[0].pieces)
        draw_alignment(*table, path, title, white=None)
