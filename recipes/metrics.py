"""What a translation and an alignment are measured by.

The figures of surface text come from sacrebleu with its signature, without which they cannot be
compared. Alignment error rate follows Och and Ney (2003), "A Systematic Comparison of Various
Statistical Alignment Models".
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from .data import TextSide
from .tokenizers import CONTINUATION, END, PADDING, START, normalized, words

Alignment = Collection[tuple[int, int]]


class Score(NamedTuple):
    """A figure, and the signature that says how it was computed."""

    value: float
    signature: str


def bleu_tokenizer(side: TextSide) -> str:
    """sacrebleu's tokenizer for this text: none where the text is tokenised already."""
    if side.normalize == "none":
        return "none"
    return "zh" if side.split == "characters" else "13a"


def surface(texts: Sequence[str], side: TextSide) -> list[str]:
    """References as a translation is written: normalised, single spaces."""
    joint = "" if side.split == "characters" else " "
    return [joint.join(words(normalized(text, side.normalize), side.split)) for text in texts]


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "none",
    lowercase: bool = True,
) -> Score:
    """Corpus BLEU, 0 to 100, by sacrebleu.

    Args:
        hypotheses: the translations.
        references: one reference a translation.
        tokenize: sacrebleu's tokenizer; `"none"` for text that is tokenised already, `"13a"` for
            plain text.
        lowercase: whether case is ignored.
    """
    from sacrebleu.metrics import BLEU

    # force: sacrebleu otherwise warns about text that is tokenised already, which ours may be.
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    return _corpus_score(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = True) -> Score:
    """Corpus chrF2, 0 to 100, by sacrebleu: character n-grams, so no tokenizer matters."""
    from sacrebleu.metrics import CHRF

    return _corpus_score(CHRF(lowercase=lowercase), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of translations that equal their reference, 0 to 1."""
    _check_rows(hypotheses, references)
    matches = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    return matches / len(references)


def alignment_error_rate(
    predicted: Sequence[Alignment],
    sure: Sequence[Alignment],
    possible: Sequence[Alignment] | None = None,
) -> float:
    """1 - (|A n S| + |A n P|) / (|A| + |S|) over the corpus; 0 is perfect.

    Args:
        predicted: A, the links of each sentence pair.
        sure: S, the links that must be there.
        possible: P, the links that may be there; the sure ones are always among them.
    """
    possible = sure if possible is None else possible
    _check_rows(predicted, sure)
    _check_rows(possible, sure)
    found = total = 0
    for links, must, may in zip(predicted, sure, possible, strict=True):
        links, must = set(links), set(must)
        found += len(links & must) + len(links & (must | set(may)))
        total += len(links) + len(must)
    return 1 - found / total if total else 0.0


def hard_alignment(
    weights: np.ndarray, source_pieces: Sequence[str], target_pieces: Sequence[str]
) -> frozenset[tuple[int, int]]:
    """The word alignment that attention weights say: for each target piece, its argmax.

    Pieces are merged into words first: one that continues a word counts as that word. Start, end
    and padding belong to no word and are left out on both sides, so that the argmax is over words.

    Args:
        weights: (T, S); row t belongs to the step that emits target piece t.
        source_pieces: S pieces, as `Tokenizer.pieces` gives them.
        target_pieces: T pieces.

    Returns:
        Pairs (source word, target word), 0-based.
    """
    weights = np.asarray(weights)
    if weights.shape != (len(target_pieces), len(source_pieces)):
        raise ValueError(
            "`weights` must have a row for each target piece and a column for each source piece. "
            f"Received: weights.shape={weights.shape}, {len(target_pieces)} target and "
            f"{len(source_pieces)} source pieces"
        )
    source_words = _words(source_pieces)
    target_words = _words(target_pieces)
    columns = [s for s, word in enumerate(source_words) if word is not None]
    if not columns:
        return frozenset()
    best = np.argmax(weights[:, columns], axis=1)
    return frozenset(
        (source_words[columns[best[t]]], word)
        for t, word in enumerate(target_words)
        if word is not None
    )


def _words(pieces: Sequence[str]) -> list[int | None]:
    """The number of the word that each piece belongs to; None for special pieces."""
    words: list[int | None] = []
    last = -1
    for piece in pieces:
        if piece in (PADDING, START, END):
            words.append(None)
            continue
        if last < 0 or not (piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)):
            last += 1
        words.append(last)
    return words


def _corpus_score(metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check_rows(hypotheses, references)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.score, str(metric.get_signature()))


def _check_rows(one: Sequence, other: Sequence) -> None:
    if len(one) != len(other) or not len(other):
        raise ValueError(
            "Both sides must have the same number of rows, at least 1. "
            f"Received: {len(one)} and {len(other)}"
        )
