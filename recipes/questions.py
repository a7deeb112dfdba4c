"""Questions of a small generated language, each of a kind that a few of its words decide.

What is asked for follows from the question words (`who`, `when`, `in which city`), which stand
among names, things and adjectives that decide nothing; `which` and `how` decide only together with
the word behind them.
"""

import random
from collections.abc import Iterator

from .labelled import Labelled, LabelledCorpus, generated

KINDS = {
    "person": ("who", "what man", "which woman", "by whom"),
    "place": ("where", "in which city", "in what country", "which river"),
    "time": ("when", "in what year", "on which day", "how early"),
    "number": ("how many times", "how much", "what number", "how often"),
    "reason": ("why", "for what reason", "how come", "what made it that"),
    "thing": ("what", "which tool", "what kind of thing", "with what"),
}
_NAMES = "anna ben carla dora emil frida hugo ida karl lena mira otto".split()
_THINGS = "bridge clock garden house letter map piano ship song table tower wheel".split()
_ADJECTIVES = "big blue cheap golden heavy old quiet red strange small tall young".split()
_VERBS = "built bought carried drew found lost moved opened painted repaired sold wrote".split()
_TAILS = ("", "at last", "once more", "for the city", "in a year", "with a friend", "that day")


def generate(rows: int, seed: int = 0) -> Labelled:
    """Writes `rows` questions with their kinds; no question occurs twice.

    Args:
        rows: how many.
        seed: of the choices; equal seeds give equal questions.
    """
    found = Labelled([], [])
    for text, kind in _questions(random.Random(seed), patience=100 * rows + 1000):
        if len(found.texts) >= rows:
            return found
        found.texts.append(text)
        found.labels.append(kind)
    raise ValueError(f"There are fewer questions. Received: rows={rows}")


def corpus(
    train: int = 2000, validation: int = 300, test: int = 500, seed: int = 0
) -> LabelledCorpus:
    """Three parts of the given numbers of rows, which share no question."""
    rows = generate(train + validation + test, seed)
    return generated(rows, (train, validation, test), "questions")


def _questions(choose: random.Random, patience: int) -> Iterator[tuple[str, str]]:
    seen = set()
    for _ in range(patience):
        kind = choose.choice(list(KINDS))
        words = [
            choose.choice(KINDS[kind]),
            "did",
            choose.choice(_NAMES),
            *_optional(choose, "and", choose.choice(_NAMES)),
            "say",
            *_optional(choose, "that", choose.choice(_NAMES)),
            choose.choice(_VERBS),
            "the",
            *_optional(choose, choose.choice(_ADJECTIVES)),
            choose.choice(_ADJECTIVES),
            choose.choice(_THINGS),
            choose.choice(_TAILS),
            "?",
        ]
        if choose.random() < 0.3:  # the question at the end: its place decides nothing
            question, *rest, mark = words
            words = [*rest, question, mark]
        text = " ".join(filter(None, words))
        if text not in seen:
            seen.add(text)
            yield text, kind


def _optional(choose, *words):
    return words if choose.random() < 0.5 else ()
