"""What the commands do with a recipe that translates."""

from collections.abc import Sequence
from pathlib import Path

from . import export_report, translation_export, translation_text, translator
from .errors import UsageError
from .pictures import draw_alignment
from .runs import Run
from .terminal import news
from .translation_training import train
from .translator import evaluate, load_run

__all__ = ["evaluate", "export", "load_run", "plot", "predict", "train"]

_REPORTED_SENTENCES = 200


def predict(run: Run, texts: Sequence[str], greedy: bool = False) -> list[dict]:
    """Translate texts."""
    search = translator.search_function(run, "greedy" if greedy else "beam")
    return translator.translate(run, texts, search)


def export(run: Run, options) -> Path:
    """Export a run as the command was told to."""
    given = {
        "quantize": None if options.quantize == "none" else options.quantize,
        "shapes": options.shapes,
        "verify": not options.no_verify,
    }
    if options.text:
        return translation_text.export(run, options.out, **given)
    if options.quantize == "int8":
        given["texts"] = translation_export.calibration_texts(
            run, options.calibrate, options.data_dir, news
        )
    path = translation_export.export(run, options.to, options.out, **given)
    if options.report:
        news(f"measuring {path}")
        corpus = translator.load_corpus(run.config, options.data_dir, news)
        count = min(len(corpus.test.source), _REPORTED_SENTENCES)
        report = translation_export.measured(
            run, path, corpus.test.rows(range(count)), corpus.target
        )
        export_report.write(report, options.report)
    return path


def plot(run: Run, text: str, path: Path) -> None:
    """Draw the alignment of a translation."""
    if path.suffix == ".html":
        raise UsageError("an alignment is drawn as .png, .svg or .pdf")
    [row] = predict(run, [text])
    if row["alignment"] is None:
        raise UsageError(f"{run.folder} was trained without attention: it has no alignment")
    draw_alignment(row["alignment"], row["source"], row["target"], path, row["translation"])
