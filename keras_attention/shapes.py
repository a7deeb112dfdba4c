"""Refusing tensors and masks of wrong shapes, with the same words in every layer."""

from keras import ops


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


def check_mask(name, mask, shape):
    """Refuse a mask whose rank or known lengths are not those of `shape`.

    A length of 1 stands for all where that can be meant: of the batch, and of an attention mask.
    """
    if mask is None:
        return
    received = tuple(ops.convert_to_tensor(mask).shape)
    fits = len(received) == len(shape) and all(
        length in (None, wanted) or wanted is None or (length == 1 and (i == 0 or len(shape) == 3))
        for i, (length, wanted) in enumerate(zip(received, shape, strict=True))
    )
    if not fits:
        letters = ("batch", "queries", "keys") if len(shape) == 3 else ("batch", name[:-5])
        hint = " A mask of keys (batch, keys) goes to value_mask." if len(shape) == 3 else ""
        raise ValueError(
            f"{name} must have shape ({', '.join(letters)}) = {shape}.{hint} "
            f"Received: {name}.shape={received}"
        )
