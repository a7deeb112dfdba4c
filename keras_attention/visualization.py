"""Pictures of attention weights."""

import itertools
import os
import tempfile
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.34  # inches a cell, so that a label of 9 points fits beside its neighbours
LABEL_POINTS = 9.0
LINE_POINTS = 18.0  # from a line of words to the next
GAP_POINTS = 7.0  # between words
PAGE_POINTS = 560.0  # where a line of words ends
BLUE, ORANGE = (0.35, 0.6, 0.9), (0.95, 0.6, 0.3)
PICTURES = (".png", ".svg", ".pdf")  # suffixes that can be written


def plot_attention(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    path: str | os.PathLike | None = None,
    title: str | None = None,
    white: float | None = 1.0,
    ax: "Axes | None" = None,
) -> "tuple[Figure, Axes]":
    """Draw an alignment: which source tokens each target token read.

    The heat map has the form of Bahdanau's figure: source tokens along the top, target tokens down
    the left, and the grey value of cell `(t, s)` is the weight `weights[t, s]` in [0, 1] that
    target token t gave to source token s, black for 0 and white for `white`. The figure grows with
    the number of tokens, and the labels stay readable up to about 60 a side.

    Labels are drawn in an installed font that has their glyphs; Chinese, Japanese and Korean need
    one that Matplotlib does not bring. Where no font has a character, one warning names it and
    what to install, and its label shows the code point (`U+65E9`) instead of an empty box.

    Needs Matplotlib (`pip install 'keras-attention-layers[plot]'`). No window is opened, and
    neither the backend nor pyplot's current figure is touched.

    Args:
        weights: `(T, S)`, T target by S source tokens, anything that NumPy reads.
        source_tokens: S strings.
        target_tokens: T strings.
        path: where to write the picture, as PNG, SVG or PDF by its suffix. It is written beside
            and then renamed, so that a reader never finds half a file.
        title: drawn above the picture.
        white: the weight that is drawn white, as are larger ones. None takes the largest there is,
            for weights that are spread over many tokens.
        ax: Matplotlib axes to draw on; its figure keeps its size. By default a new figure.

    Returns:
        `(figure, axes)`.

    Raises:
        ValueError: if the shape of `weights` is not `(T, S)`, `white` is not above 0, or `path`
            has another suffix.

    Example:

    >>> from keras_attention import plot_attention
    >>> weights = [[0.9, 0.1], [0.2, 0.8]]
    >>> figure, axes = plot_attention(weights, ["guten", "Morgen"], ["good", "morning"])
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['guten', 'Morgen']

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), figure 3.
    """
    import numpy as np
    from matplotlib.figure import Figure

    weights = np.asarray(weights, dtype="float64")
    source_tokens = [str(token) for token in source_tokens]
    target_tokens = [str(token) for token in target_tokens]
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected or not weights.size:
        raise ValueError(
            "weights must have the shape (target tokens, source tokens), both at least 1: here "
            f"{expected}. Received: weights.shape={weights.shape}"
        )
    if white is not None and not white > 0:
        raise ValueError(f"white must be a weight above 0, or None. Received: white={white!r}")
    _check_suffix(path)
    families, missing = _fonts([*source_tokens, *target_tokens, title or ""])
    sources = [_label(token, missing) for token in source_tokens]
    targets = [_label(token, missing) for token in target_tokens]

    if ax is None:
        figure = Figure(figsize=_figure_size(sources, targets), layout="constrained")
        ax = figure.add_subplot()
    else:
        figure = ax.figure
    white = float(white if white is not None else weights.max() or 1.0)
    image = ax.imshow(weights, cmap="gray", vmin=0.0, vmax=white, interpolation="nearest")

    rows, columns = weights.shape
    style = {"family": families, "fontsize": LABEL_POINTS}
    ax.set_xticks(range(columns), sources, rotation=_rotation(sources), **style)
    ax.set_yticks(range(rows), targets, **style)
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for label in ax.get_xticklabels():
        label.set(ha="center", va="bottom")
    # A thin line between cells: neighbours with equal weights stay countable.
    ax.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
    ax.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
    ax.grid(which="minor", color="0.35", linewidth=0.4)
    ax.tick_params(which="minor", length=0)
    # The bar is measured in cells, beside the upper rows: the same at every size of matrix.
    height = min(rows, 10) / rows
    bar_axes = ax.inset_axes((1 + 0.5 / columns, 1 - height, 0.5 / columns, height))
    ticks = np.linspace(0, white, 2 if rows < 3 else 3)
    bar = figure.colorbar(image, cax=bar_axes, ticks=ticks, format="{x:.2g}")
    bar.ax.tick_params(labelsize=LABEL_POINTS - 1, labelfontfamily=families[0], width=0.4)
    bar.outline.set_linewidth(0.4)
    if title:
        ax.set_title(_label(title, missing), family=families, fontsize=LABEL_POINTS + 2, pad=10)

    if path is not None:
        _save(figure, Path(path))
    return figure, ax


def plot_words(
    words: Sequence[Sequence[str]],
    weights: Sequence[Any],
    *,
    row_weights: Any = None,
    row_names: Sequence[str] | None = None,
    path: str | os.PathLike | None = None,
    title: str | None = None,
) -> "tuple[Figure, Axes]":
    """Draw a text with its words shaded by how much each was read.

    The form of the pictures of hierarchical attention: a row for each sentence, its words in
    orange, the darkest the one that was read most of its row, and in blue before them what the row
    weighs among the rows, the darkest the one that was read most. Long rows go on in the next line.
    The rows may as well be one text as several hops of attention read it.

    Fonts, files and Matplotlib as in `plot_attention`.

    Args:
        words: a list of strings for each of N rows, which may have different lengths.
        weights: N vectors of as many weights as the row has words, 0 or more.
        row_weights: `(N,)` weights of the rows, 0 or more; None: they have none.
        row_names: N strings; by default `row_weights` with two places, or nothing.
        path: where to write the picture, as PNG, SVG or PDF by its suffix.
        title: drawn above the picture.

    Returns:
        `(figure, axes)`.

    Raises:
        ValueError: if the numbers of words, weights and rows do not agree, a weight is negative or
            not finite, or `path` has another suffix.

    Example:

    >>> from keras_attention import plot_words
    >>> words = [["we", "waited", "long"], ["a", "lovely", "film"]]
    >>> weights = [[0.1, 0.6, 0.3], [0.0, 0.9, 0.1]]
    >>> figure, axes = plot_words(words, weights, row_weights=[0.2, 0.8])
    >>> [text.get_text() for text in axes.texts][:4]
    ['0.20', '0.80', 'we', 'waited']

    Reference:
        Yang et al., "Hierarchical Attention Networks for Document Classification", NAACL 2016,
        figure 5.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    words = [[str(word) for word in row] for row in words]
    weights = [np.asarray(row, dtype="float64") for row in weights]
    if not words or [(len(row),) for row in words] != [row.shape for row in weights]:
        raise ValueError(
            "weights must hold a vector for each row, with a weight for each of its words: here "
            f"{[len(row) for row in words]}. Received: {[row.shape for row in weights]}"
        )
    of_rows = np.zeros(len(words)) if row_weights is None else np.asarray(row_weights, "float64")
    if row_names is None:
        row_names = ["" if row_weights is None else f"{weight:.2f}" for weight in of_rows]
    if of_rows.shape != (len(words),) or len(row_names) != len(words):
        raise ValueError(
            f"row_weights and row_names must be of the {len(words)} rows. Received: "
            f"row_weights of the shape {of_rows.shape}, {len(row_names)} row_names"
        )
    if any((row < 0).any() or not np.isfinite(row).all() for row in (*weights, of_rows)):
        raise ValueError("weights and row_weights must be finite numbers of 0 or more.")
    _check_suffix(path)
    families, missing = _fonts([*itertools.chain(*words), *row_names, title or ""])

    figure = Figure()
    renderer = FigureCanvasAgg(figure).get_renderer()
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()

    def boxed(text, colour=(0, 0, 0, 0), size=LABEL_POINTS):
        """A text that has no place yet, and its width in points."""
        box = {"boxstyle": "round,pad=0.2", "facecolor": colour, "edgecolor": "none"}
        style = {"family": families, "fontsize": size, "va": "center", "bbox": box}
        drawn = ax.text(0, 0, _label(text, missing), **style)
        return drawn, drawn.get_window_extent(renderer).width * 72 / figure.dpi

    # Places are in points from the top left corner.
    y = 0.5 * LINE_POINTS
    if title:
        boxed(title, size=LABEL_POINTS + 2)[0].set_position((0, y))
        y += 1.5 * LINE_POINTS
    names = [
        boxed(name, _shade(weight, of_rows, BLUE))
        for name, weight in zip(row_names, of_rows, strict=True)
    ]
    left = max(width for _, width in names) + GAP_POINTS
    for (name, _), row, row_weight in zip(names, words, weights, strict=True):
        name.set_position((0, y))
        x = left
        for word, weight in zip(row, row_weight, strict=True):
            drawn, width = boxed(word, _shade(weight, row_weight, ORANGE))
            if x > left and x + width > PAGE_POINTS:
                x, y = left, y + LINE_POINTS
            drawn.set_position((x, y))
            x += width + GAP_POINTS
        y += LINE_POINTS
    figure.set_size_inches(PAGE_POINTS / 72, y / 72)
    ax.set(xlim=(0, PAGE_POINTS), ylim=(y, 0))
    if path is not None:
        _save(figure, Path(path))
    return figure, ax


def _shade(weight, among, colour):
    """The colour, as opaque as the weight is large among others."""
    return (*colour, weight / max(among.max(), 1e-9))


def _check_suffix(path) -> None:
    if path is not None and Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"path must end in .png, .svg or .pdf. Received: path={str(path)!r}")


def _figure_size(sources: list[str], targets: list[str]) -> tuple[float, float]:
    """Inches: a square for each cell and one for the colour bar, room for labels and a title."""
    cell = max(CELL, 1.0 / max(len(sources), len(targets)))  # a single cell is not a dot
    character = LABEL_POINTS * 0.6 / 72
    across = max(_columns(target) for target in targets) * character
    above = character * (max(map(_columns, sources)) if _rotation(sources) else 2)
    return (len(sources) + 1) * cell + across + 0.9, len(targets) * cell + above + 0.8


def _rotation(labels: list[str]) -> int:
    """Upright labels where each fits over its own cell, else turned by a quarter."""
    return 0 if max(map(_columns, labels)) * LABEL_POINTS * 0.6 / 72 <= CELL * 0.95 else 90


def _columns(text: str) -> int:
    """Width in the columns of a terminal: an ideograph takes two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _label(text: str, missing: set[str]) -> str:
    """`text` with code points for what no font draws, and nothing that Matplotlib reads as math."""
    escaped = "".join(f" U+{ord(c):04X} " if c in missing else c for c in text)
    return " ".join(escaped.split()).replace("$", r"\$")


def _fonts(texts: Sequence[str]) -> tuple[list[str], set[str]]:
    """Font families that draw the texts, and the characters none has, of which a warning tells."""
    families, missing = _fonts_for("".join(texts))
    if missing:
        warnings.warn(
            f"no installed font has {_listed(missing)}: code points are drawn instead; "
            f"install {_font_package(missing)}",
            stacklevel=3,
        )
    return families, missing


def _fonts_for(text: str) -> tuple[list[str], set[str]]:
    """Font families that together draw `text`, preferred first, and the characters none has."""
    from matplotlib import font_manager, rcParams

    # Control, format and space characters have no glyph of their own.
    needed = {c for c in text if not c.isspace() and unicodedata.category(c)[0] != "C"}
    default = font_manager.FontProperties(family=rcParams["font.family"])
    families = [default.get_name()]
    needed -= _glyphs(font_manager.findfont(default), needed)
    if not needed:
        return families, set()
    regular: dict[str, str] = {}
    for entry in font_manager.fontManager.ttflist:
        # Last Resort has a box for every character: the very thing to avoid.
        if entry.style == "normal" and not entry.name.startswith(("Last Resort", "STIX", "cm")):
            weight = entry.weight if isinstance(entry.weight, int) else 400
            if entry.name not in regular or weight == 400:
                regular[entry.name] = entry.fname
    while needed and regular:
        covered = {name: _glyphs(file, needed) for name, file in regular.items()}
        name = max(sorted(covered), key=lambda name: len(covered[name]))
        if not covered[name]:
            break
        families.append(name)
        needed -= covered[name]
        regular = {name: file for name, file in regular.items() if covered[name]}
    return families, needed


def _glyphs(file: str, characters: set[str]) -> set[str]:
    """Those of `characters` that the font file has a glyph for."""
    from matplotlib.ft2font import FT2Font

    try:
        charmap = FT2Font(file).get_charmap()
    except (OSError, RuntimeError):  # listed in Matplotlib's cache, removed or unreadable since
        return set()
    return {c for c in characters if ord(c) in charmap}


def _listed(characters: set[str]) -> str:
    """The first characters, few enough for one line."""
    listed = sorted(characters)
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return " ".join(listed[:12]) + more


def _font_package(missing: set[str]) -> str:
    """Whose fonts draw these characters, named as on Debian and Ubuntu."""
    if any(unicodedata.east_asian_width(c) in "WF" for c in missing):
        return "a CJK font, such as the package fonts-noto-cjk"
    return "a font for this script, such as the package fonts-noto"


def _save(figure: "Figure", path: Path) -> None:
    """Write the picture beside `path`, then rename."""
    handle, beside = tempfile.mkstemp(suffix=path.suffix, prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    try:
        figure.savefig(beside, dpi=150, facecolor="white", bbox_inches="tight", pad_inches=0.1)
        Path(beside).chmod(0o644)
        Path(beside).replace(path)
    finally:
        Path(beside).unlink(missing_ok=True)
