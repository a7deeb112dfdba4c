"""Refusing what a layer cannot take, with the same words in every layer."""

import keras
from keras import ops

from .masking import combine_masks


def check_shapes(shapes, widths=None, same_length=False):
    """Refuse inputs of a wrong rank, of no known width, or of other widths than were built for.

    Args:
        shapes: `{name: (shape, ranks that are right)}`.
        widths: `{name: width}` of what was built, None before that.
        same_length: whether all have one length.
    """
    for name, (shape, ranks) in shapes.items():
        if len(shape) not in ranks or shape[-1] is None:
            forms = {
                2: "(batch, width)",
                3: "(batch, length, width)",
                4: "(batch, outer length, length, width)",
            }
            raise ValueError(
                f"{name} must have shape {' or '.join(forms[rank] for rank in ranks)} with a known "
                f"width. Received: {name}_shape={tuple(shape)}"
            )
        if widths is not None and shape[-1] != widths[name]:
            raise ValueError(
                f"{name} must have the width {widths[name]} that the layer was built for. "
                f"Received: {name}_shape={tuple(shape)}"
            )
    if same_length and len({shape[1] for shape, _ in shapes.values()} - {None}) > 1:
        received = ", ".join(f"{name}_shape={tuple(s)}" for name, (s, _) in shapes.items())
        raise ValueError(f"{' and '.join(shapes)} must have one length. Received: {received}")


def check_batches(**shapes):
    """Refuse inputs of different known batch sizes, which would broadcast or fail far inside."""
    if len({shape[0] for shape in shapes.values()} - {None}) > 1:
        received = ", ".join(f"{name}_shape={tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"all inputs must have one batch size. Received: {received}")


def check_alike(shapes, ranks, widths=None):
    """Refuse inputs of wrong shapes, or that differ in anything but the width.

    Args:
        shapes: `{name: shape}`.
        ranks: ranks that are right.
        widths: `{name: width}` of what was built, None before that.
    """
    check_shapes({name: (shape, ranks) for name, shape in shapes.items()}, widths)
    outer = [shape[:-1] for shape in shapes.values()]
    alike = len({len(shape) for shape in outer}) == 1 and all(
        len(set(sizes) - {None}) <= 1 for sizes in zip(*outer, strict=True)
    )
    if not alike:
        received = ", ".join(f"{name}_shape={tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"{' and '.join(shapes)} may differ in their widths alone. Received: {received}"
        )


def check_mask(name, mask, shape):
    """Refuse a mask whose rank or known lengths are not those of `shape`.

    A length of 1 stands for all where that can be meant: of the batch, and in an attention mask.
    """
    if mask is None:
        return
    mask = ops.convert_to_tensor(mask)
    if "float" in keras.backend.standardize_dtype(mask.dtype):
        raise ValueError(
            f"{name} must be boolean, True = may be read. What is added to scores elsewhere, 0 or "
            f"a large negative number, is `bias == 0` here. Received: {name}.dtype={mask.dtype}"
        )
    received = tuple(mask.shape)
    of_pairs = name == "attention_mask"
    fits = len(received) == len(shape) and all(
        length in (None, wanted) or wanted is None or (length == 1 and (i == 0 or of_pairs))
        for i, (length, wanted) in enumerate(zip(received, shape, strict=True))
    )
    if not fits:
        letters = "batch, queries, keys" if of_pairs else "as its tensor without the width"
        hint = " A mask of keys (batch, keys) goes to the argument for that." if of_pairs else ""
        raise ValueError(
            f"{name} must have shape ({letters}) = {shape}.{hint} Received: {name}.shape={received}"
        )


def check_built(layer, needed_by):
    """Refuse a method that reads weights of a layer that has none yet."""
    if not layer.built:
        raise ValueError(
            f"build the layer, or call it once, before its {needed_by}. "
            f"Received: {layer.name!r}, not built"
        )


def widths_of(query_shape, value_shape, key_shape, ranks):
    """The widths of query, value and key, whose shapes are checked; `ranks` are the query's."""
    check_shapes({"query": (query_shape, ranks)})
    check_shapes({"value": (value_shape, (3,)), "key": (key_shape, (3,))}, same_length=True)
    return {"query": query_shape[-1], "key": key_shape[-1], "value": value_shape[-1]}


def checked_masks(widths, query, value, key, query_mask, value_mask, key_mask):
    """Boolean masks of the queries (B, T) and of the keys (B, S), or None, all shapes checked."""
    check_shapes({"query": (query.shape, (3,))}, widths)
    check_shapes({"value": (value.shape, (3,)), "key": (key.shape, (3,))}, widths, same_length=True)
    check_batches(query=query.shape, value=value.shape, key=key.shape)
    check_mask("query_mask", query_mask, query.shape[:2])
    check_mask("value_mask", value_mask, value.shape[:2])
    check_mask("key_mask", key_mask, key.shape[:2])
    return combine_masks(query_mask), combine_masks(value_mask, key_mask)
