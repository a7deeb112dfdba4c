"""Pictures as the commands draw them: what cannot be drawn is told, and does not stop them."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from keras_attention import plot_attention

from .terminal import news


def draw(weights, columns: Sequence[str], rows: Sequence[str], path: Path, title: str) -> None:
    """`plot_attention`, with its warnings as news."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        plot_attention(weights, columns, rows, path=path, title=title)
    for warning in caught:  # of characters that no font has
        news(str(warning.message))
