"""The alignment heat map and shaded words: what it draws, in which font, and what it refuses."""

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

from keras_attention import plot_attention, plot_words

font_manager = pytest.importorskip("matplotlib.font_manager")

CHINESE = ["早上", "好"]


@pytest.fixture
def fonts(monkeypatch):
    """Matplotlib with the fonts it brings and no others; returns the list to add to."""
    own = [font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    return own


def font_with(characters: str, family: str, path: Path) -> None:
    """Write a TrueType font in which each of `characters` is a square."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    names = {ord(c): f"u{ord(c):04X}" for c in characters}
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in [(100, 800), (900, 800), (900, 0)]:
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    order = [".notdef", *names.values()]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(order)
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys(order, square))
    builder.setupHorizontalMetrics(dict.fromkeys(order, (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    builder.save(path)


def labels(axes) -> tuple[list[str], list[str]]:
    return (
        [label.get_text() for label in axes.get_xticklabels()],
        [label.get_text() for label in axes.get_yticklabels()],
    )


def weights(rows: int, columns: int) -> np.ndarray:
    values = np.random.default_rng(0).random((rows, columns))
    return values / values.sum(-1, keepdims=True)


def test_sources_stand_on_top_and_targets_at_the_left():
    values = weights(2, 3)
    _, axes = plot_attention(values, ["a", "b", "c"], ["x", "y"])
    assert labels(axes) == (["a", "b", "c"], ["x", "y"])
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), values)
    assert axes.get_ylim() == (1.5, -0.5)  # the first target word is the uppermost row
    assert axes.xaxis.get_tick_params()["labeltop"]
    assert not axes.xaxis.get_tick_params()["labelbottom"]


def test_the_grey_scale_is_fixed_whatever_the_weights():
    _, axes = plot_attention([[0.2, 0.3]], ["a", "b"], ["x"])
    assert axes.get_images()[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize(("white", "highest"), [(None, 0.3), (0.25, 0.25)])
def test_the_grey_scale_may_end_at_another_weight(white, highest):
    figure, axes = plot_attention([[0.2, 0.3]] * 3, ["a", "b"], ["x", "y", "z"], white=white)
    assert axes.get_images()[0].get_clim() == (0.0, highest)
    figure.draw_without_rendering()
    bar = axes.child_axes[0]
    ticks = [label.get_text() for label in bar.get_yticklabels()]
    assert ticks == ["0", f"{highest / 2:.2g}", f"{highest:.2g}"]


def test_a_scale_without_width_is_refused():
    with pytest.raises(ValueError, match=r"white must be a weight above 0.*white=0"):
        plot_attention([[1.0]], ["a"], ["x"], white=0)
    _, axes = plot_attention([[0.0]], ["a"], ["x"], white=None)
    assert axes.get_images()[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_format_follows_the_suffix(tmp_path, suffix):
    path = tmp_path / f"alignment.{suffix}"
    plot_attention(weights(2, 3), ["a", "b", "c"], ["x", "y"], path=path, title="a title")
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix.lower()]
    assert path.read_bytes().startswith(head)
    assert list(tmp_path.iterdir()) == [path]  # nothing of the temporary file is left


def test_a_failed_write_keeps_the_picture_that_was_there(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    path = tmp_path / "alignment.png"
    path.write_bytes(b"before")

    def full_disk(self, target, **_):
        Path(target).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(OSError, match="no space"):
        plot_attention([[1.0]], ["a"], ["x"], path=path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 40), (40, 1), (60, 60)])
def test_every_label_has_room(tmp_path, rows, columns):
    sources = [f"Geschwindigkeit{i}" for i in range(columns)]
    figure, axes = plot_attention(
        weights(rows, columns), sources, [f"word{i}" for i in range(rows)], path=tmp_path / "a.png"
    )
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(lower.y1 <= upper.y0 for upper, lower in itertools.pairwise(boxes))
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    assert max(figure.get_size_inches()) < 30


def test_missing_glyphs_are_named_and_drawn_as_code_points(fonts, tmp_path):
    with pytest.warns(
        UserWarning, match="no installed font has 上 好 早: .*fonts-noto-cjk"
    ) as seen:
        _, axes = plot_attention(
            weights(1, 2), CHINESE, ["morning"], path=tmp_path / "a.png", title="早"
        )
    assert len(seen) == 1  # ours alone: Matplotlib met no missing glyph
    assert labels(axes)[0] == ["U+65E9 U+4E0A", "U+597D"]
    assert axes.get_title() == "U+65E9"


def test_a_font_that_has_the_glyphs_is_found_beside_others(fonts, tmp_path):
    font_with("早上", "Two Squares", tmp_path / "two.ttf")
    font_with("早上好", "Three Squares", tmp_path / "three.ttf")
    for name in ("two", "three"):
        font_manager.fontManager.addfont(tmp_path / f"{name}.ttf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Matplotlib warns of each glyph that it lacks
        _, axes = plot_attention(weights(1, 2), CHINESE, ["good"], path=tmp_path / "a.png")
    assert labels(axes)[0] == CHINESE
    families = axes.get_xticklabels()[0].get_fontfamily()
    assert "Three Squares" in families
    assert "Two Squares" not in families


def test_characters_spread_over_two_fonts_use_both(fonts, tmp_path):
    font_with("早上", "Two Squares", tmp_path / "two.ttf")
    font_with("好", "One Square", tmp_path / "one.ttf")
    for name in ("two", "one"):
        font_manager.fontManager.addfont(tmp_path / f"{name}.ttf")
    _, axes = plot_attention(weights(1, 2), CHINESE, ["good"], path=tmp_path / "a.png")
    assert {"Two Squares", "One Square"} < set(axes.get_xticklabels()[0].get_fontfamily())


def test_installed_chinese_font_is_used(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, axes = plot_attention(weights(1, 2), CHINESE, ["good"], path=tmp_path / "a.png")
    if caught:
        assert "fonts-noto-cjk" in str(caught[0].message)
        pytest.skip("no installed font has Chinese glyphs")
    assert labels(axes)[0] == CHINESE


def test_dollar_signs_are_text(tmp_path):
    plot_attention([[1.0]], ["$x_1$"], ["5 $"], path=tmp_path / "a.png", title="$")
    _, axes = plot_attention([[1.0]], ["$x_1$"], ["5 $"])
    assert labels(axes) == ([r"\$x_1\$"], [r"5 \$"])


def test_given_axes_are_drawn_on():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 4))
    left, right = figure.subplots(1, 2)
    assert plot_attention([[1.0]], ["a"], ["x"], ax=right) == (figure, right)
    assert not left.get_images()
    assert tuple(figure.get_size_inches()) == (3, 4)


def test_pyplot_is_left_alone():
    from matplotlib import get_backend, pyplot

    before = get_backend(), pyplot.get_fignums()
    plot_attention([[1.0]], ["a"], ["x"])
    assert (get_backend(), pyplot.get_fignums()) == before


@pytest.mark.parametrize("shape", [(3, 2), (2, 4), (6,), (1, 2, 3)])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(2, 3\)\. Received: weights\.shape="):
        plot_attention(np.zeros(shape), ["a", "b", "c"], ["x", "y"])


def test_empty_matrix_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        plot_attention(np.zeros((0, 1)), ["a"], [])


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf\. Received: path="):
        plot_attention([[1.0]], ["a"], ["x"], path=tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


# Shaded words.


WORDS = [["we", "waited", "long"], [], ["a", "lovely", "film", "."]]
READ = [[0.1, 0.6, 0.3], [], [0.0, 0.9, 0.05, 0.05]]


def of_colour(text):
    return text.get_bbox_patch().get_facecolor()


def test_words_are_as_dark_as_they_were_read_in_their_row():
    _, axes = plot_words(WORDS, READ, row_weights=[0.3, 0.1, 0.6])
    drawn = {text.get_text(): text for text in axes.texts}
    assert list(drawn) == ["0.30", "0.10", "0.60", *itertools.chain(*WORDS)]
    for word, weight in zip(WORDS[0] + WORDS[2], READ[0] + READ[2], strict=True):
        assert of_colour(drawn[word])[3] == pytest.approx(
            weight / (0.6 if word in WORDS[0] else 0.9)
        )
    for name, part in (("0.30", 0.5), ("0.10", 1 / 6), ("0.60", 1.0)):
        assert of_colour(drawn[name])[3] == pytest.approx(part)
    assert of_colour(drawn["we"])[:3] != of_colour(drawn["0.30"])[:3]


def test_rows_stand_one_below_the_other_and_long_ones_go_on():
    words, read = [["word"] * 60, ["end"]], [[0.0] * 60, [1.0]]
    figure, axes = plot_words(words, read, title="a title")
    assert axes.get_ylim()[0] > axes.get_ylim()[1] == 0
    width, height = (float(size) * 72 for size in figure.get_size_inches())
    assert axes.get_xlim() == (0, pytest.approx(width)) and height > 0
    drawn = [text for text in axes.texts if text.get_text()]
    places = [text.get_position() for text in drawn]
    lines = sorted({y for _, y in places})
    assert len(lines) > 4 and lines[-1] < height
    assert drawn[0].get_text() == "a title" and places[0][1] == lines[0]
    assert drawn[-1].get_text() == "end" and places[-1][1] == lines[-1]
    figure.draw_without_rendering()
    boxes = [text.get_window_extent().transformed(axes.transData.inverted()) for text in drawn[1:]]
    for (one, other), (place, following) in zip(
        itertools.pairwise(boxes), itertools.pairwise(places[1:]), strict=True
    ):
        assert one.x1 < other.x0 or place[1] < following[1]  # they do not overlap
        assert one.x1 <= width
    assert all(of_colour(text)[3] == 0 for text in drawn[:-1])  # nothing was read of that row


def test_hops_have_names_and_signs_stay_signs(tmp_path):
    path = tmp_path / "a.svg"
    _, axes = plot_words([["$x$", "y"]], [[1, 0]], row_names=["hop 1"], path=path)
    assert [text.get_text() for text in axes.texts] == ["hop 1", r"\$x\$", "y"]
    assert "<svg" in path.read_text("utf-8")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "read", "more", "says"),
    [
        ([], [], {}, "a vector for each row"),
        ([["a", "b"]], [[1.0]], {}, r"here \[2\]. Received: \[\(1,\)\]"),
        ([["a"]], [[1.0], [1.0]], {}, "a vector for each row"),
        ([["a"]], [[[1.0]]], {}, "a vector for each row"),
        ([["a"]], [[1.0]], {"row_weights": [0.5, 0.5]}, r"of the shape \(2,\)"),
        ([["a"]], [[1.0]], {"row_names": []}, "0 row_names"),
        ([["a"]], [[-1.0]], {}, "of 0 or more"),
        ([["a"]], [[1.0]], {"row_weights": [float("nan")]}, "of 0 or more"),
        ([["a"]], [[1.0]], {"path": "a.gif"}, "must end in .png, .svg or .pdf"),
    ],
)
def test_words_that_cannot_be_drawn_are_refused(words, read, more, says):
    with pytest.raises(ValueError, match=says):
        plot_words(words, read, **more)


def test_a_word_no_font_has_is_named(fonts):
    with pytest.warns(UserWarning, match="CJK"):
        _, axes = plot_words([CHINESE], [[0.5, 0.5]])
    assert "U+65E9" in axes.texts[1].get_text()
