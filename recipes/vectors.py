"""Word vectors, as what an embedding begins with: read from a file, or learned by word2vec."""

from collections.abc import Iterable, Mapping, Sequence
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


def begin_with(
    embedding: keras.layers.Embedding, tokenizer: Tokenizer, vectors: Mapping[str, np.ndarray]
) -> int:
    """Give the pieces that have a vector that one; how many these are."""
    [table] = embedding.get_weights()
    known = [row for row, piece in enumerate(tokenizer.vocabulary) if piece in vectors]
    if known:
        table[known] = [vectors[tokenizer.vocabulary[row]] for row in known]
        embedding.set_weights([table])
    return len(known)


def word2vec(
    texts: Iterable[Sequence[str]], width: int, epochs: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Vectors of pieces that stand near the same pieces (skip-gram with negative sampling).

    One thread computes, so that the same texts give the same vectors.

    Args:
        texts: the pieces of each text.
        width: numbers of a vector.
        epochs: passes over the texts.
        seed: of what is drawn.

    Raises:
        ImportError: when gensim, which computes them, is not installed.

    Reference:
        Mikolov et al., "Distributed Representations of Words and Phrases and their
        Compositionality", NeurIPS 2013.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ImportError(
            "word2vec needs gensim: pip install 'keras-attention-layers[vectors]'"
        ) from error
    found = Word2Vec(
        list(texts),
        vector_size=width,
        sg=1,
        negative=5,
        window=5,
        sample=1e-4,
        min_count=1,
        epochs=epochs,
        workers=1,
        seed=seed,
    ).wv
    return {piece: found[piece] for piece in found.index_to_key}
