"""Words shaded by how much they were read, in a terminal or on a page of its own."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from keras_attention.export.places import replacing

from .tokenizers import CONTINUATION

SHADES = " ░▒▓█"
_STYLE = (
    "body{font:16px/2 sans-serif;margin:2em;max-width:60em}"
    "span{padding:.15em .25em;border-radius:.2em}"
    "th{text-align:right;padding-right:1em;font-weight:normal;vertical-align:top}"
)


class Shaded(NamedTuple):
    """Pieces of text with what each weighs, and with their own weight among such rows, if any."""

    name: str
    pieces: Sequence[str]
    weights: Sequence[float]
    weight: float | None = None


def shaded(row: dict) -> list[Shaded]:
    """What an answer says that was read: the text once a hop, or each sentence of a document."""
    if "sentences" in row:
        return [
            Shaded(f"{s['weight']:.2f}", s["pieces"], s["weights"], s["weight"])
            for s in row["sentences"]
        ]
    return [
        Shaded(f"hop {i + 1}", row["pieces"], weights) for i, weights in enumerate(row["weights"])
    ]


def as_text(row: Shaded) -> str:
    """The pieces of a row, each before a block as dark as it was read."""
    highest = max([*row.weights, 1e-9])
    # Of weights that are no shares, as in a linear start, some may be negative.
    blocks = (SHADES[max(0, min(int(5 * weight / highest), 4))] for weight in row.weights)
    return " ".join(f"{piece}{block}" for piece, block in zip(row.pieces, blocks, strict=True))


def write_page(path: Path, title: str, rows: Sequence[Shaded]) -> None:
    """Write rows of shaded pieces as a page.

    The darkest word of a row is the one that was read most; what each weighs is its tooltip. A row
    with a weight of its own has it as the shade of its name.
    """
    highest = max([*(row.weight for row in rows if row.weight is not None), 1e-9])
    parts = []
    for row in rows:
        shade = "" if row.weight is None else _shade(row.weight / highest, "40,110,200")
        parts.append(f"<tr><th><span{shade}>{html.escape(row.name)}</span></th><td>{_words(row)}")
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><table>{''.join(parts)}</table>\n"
    )
    with replacing(path) as beside:
        beside.write_text(page, "utf-8")


def _shade(part, colour):
    return f' style="background:rgba({colour},{part:.2f})"'


def _words(row):
    highest = max([*row.weights, 1e-9])
    words = []
    for piece, weight in zip(row.pieces, row.weights, strict=True):
        inside = piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
        text = html.escape(piece.removeprefix(CONTINUATION) if inside else piece)
        word = f'<span{_shade(weight / highest, "220,80,40")} title="{weight:.3f}">{text}</span>'
        words.append(word if inside else f" {word}")
    return "".join(words).strip()
