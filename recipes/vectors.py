"""Word vectors that were trained elsewhere, as what an embedding begins with."""

from pathlib import Path

import keras
import numpy as np

from .data import DataError, read_lines
from .tokenizers import Tokenizer


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """Reads a text file with a word and its numbers a line, as word2vec and GloVe write it.

    A first line of two whole numbers, how many words and how wide, is passed over.

    Raises:
        DataError: naming the line that is not of that form, or of another width than the others.
    """
    found: dict[str, np.ndarray] = {}
    width = None
    for number, line in enumerate(read_lines(path), start=1):
        word, *numbers = line.decode("utf-8", errors="replace").rstrip().split(" ")
        if number == 1 and len(numbers) == 1:
            continue
        try:
            vector = np.array(numbers, "float32")
        except ValueError:
            raise DataError(f"{path}:{number}: expected a word and its numbers.") from None
        if not len(vector) or not np.isfinite(vector).all():
            raise DataError(f"{path}:{number}: expected a word and its numbers.")
        width = width or len(vector)
        if len(vector) != width:
            raise DataError(
                f"{path}:{number}: {len(vector)} numbers, and the lines before have {width}."
            )
        found[word] = vector
    if not found:
        raise DataError(f"{path}: holds no word vectors.")
    return found


def vectors_of(path: Path, width: int) -> dict[str, np.ndarray]:
    """As `read_vectors`, of that width."""
    vectors = read_vectors(path)
    found = len(next(iter(vectors.values())))
    if found != width:
        raise DataError(f"{path} has vectors of {found} numbers: train with --embedding {found}")
    return vectors


def begin_with(embedding: keras.layers.Embedding, tokenizer: Tokenizer, path: Path) -> int:
    """Give the pieces that have a vector in a file that one; how many these are.

    Raises:
        DataError: when the vectors are of another width than the embedding, or none is of a piece.
    """
    vectors = vectors_of(path, embedding.output_dim)
    [table] = embedding.get_weights()
    known = [row for row, piece in enumerate(tokenizer.vocabulary) if piece in vectors]
    if not known:
        raise DataError(f"{path} has a vector for none of the {tokenizer.size} pieces")
    table[known] = [vectors[tokenizer.vocabulary[row]] for row in known]
    embedding.set_weights([table])
    return len(known)
