"""What is said of a text beside its label: what was read of it, by a model or by its file."""

import numpy as np

from .tokenizers import CONTINUATION, END


def _of_sentence(pieces: list[str], weights: np.ndarray) -> dict:
    """The pieces of a sentence, and what each hop read, (R, T)."""
    return {"pieces": pieces, "weights": weights[:, : len(pieces)].tolist()}


def _of_document(pieces: list[list[str]], of_sentences: np.ndarray, of_words: np.ndarray) -> dict:
    """Its sentences, and what was read of each, (S,) and (S, W)."""
    return {
        "sentences": [
            {"pieces": words, "weight": float(weight), "weights": weights[: len(words)].tolist()}
            for words, weight, weights in zip(pieces, of_sentences, of_words, strict=False)
        ]
    }


def _of_story(pieces: list[list[str]], weights: np.ndarray) -> dict:
    """The question, the sentences before it, and what each hop read of these, (K, S)."""
    question, *story = map(_joined, pieces)
    return {"question": question, **_of_sentence(story, weights)}


def _joined(pieces):
    """The words of pieces, as they stand in a text."""
    words = " ".join(piece for piece in pieces if piece != END)
    return words.replace(f" {CONTINUATION}", "")


# By recipe: a function of the pieces and of what was read, in which padding stands behind.
TOLD = {"sentences": _of_sentence, "documents": _of_document, "stories": _of_story}
