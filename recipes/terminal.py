"""What commands print: news and progress on standard error, results on standard output."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator

from .highlight import SHADES, as_text, shaded


def show(text: str, row: dict, alignment: bool, only: bool = False) -> None:
    """Print the answer to a text, and what was read for it, if wanted and known."""
    of_text = "label" in row
    answer = f"{row['label']}  {row['probability']:.3f}" if of_text else row["translation"]
    print(answer if only else f"{text}  ->  {answer}")
    if alignment and of_text:
        for line in shaded(row):
            print(f"  {line.name}  {as_text(line)}")
    if not alignment or row.get("alignment") is None:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    table.add_column("")
    for piece in row["source"]:
        table.add_column(piece, justify="center")
    for piece, weights in zip(row["target"], row["alignment"], strict=True):
        table.add_row(piece, *(SHADES[min(int(w * 5), 4)] * 2 for w in weights))
    Console(highlight=False, markup=False).print(table)


def print_figures(figures: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures, ensure_ascii=False, default=float))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {_short(v)}" for k, v in value.items())
        print(f"{name:<22} {_short(value)}")


def _short(value) -> str:
    if isinstance(value, int | str):
        return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)
    return f"{value:.4g}"


def news(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(total: int, description: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error with the loss and the speed; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(description, total=total, news="")

        def advance(loss=None, tokens_per_second=None):
            news = "" if loss is None else f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s"
            bar.update(task, advance=1, news=news)

        yield advance
