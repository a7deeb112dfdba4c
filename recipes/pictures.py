"""Pictures as the commands draw them: what cannot be drawn is told, and does not stop them."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_attention import plot_attention, plot_words

from .highlight import Shaded
from .terminal import news


def draw_alignment(
    weights, columns: Sequence[str], rows: Sequence[str], path: Path, title: str, **how
) -> None:
    """`plot_attention`, with its warnings as news."""
    with _warnings_as_news():
        plot_attention(weights, columns, rows, path=path, title=title, **how)


def draw_words(rows: Sequence[Shaded], path: Path, title: str) -> None:
    """`plot_words`, with its warnings as news."""
    names, words, weights, of_rows = zip(*rows, strict=True)
    of_rows = None if None in of_rows else of_rows
    with _warnings_as_news():
        plot_words(words, weights, row_weights=of_rows, row_names=names, path=path, title=title)


@contextlib.contextmanager
def _warnings_as_news() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:  # of characters that no font has
        news(str(warning.message))
