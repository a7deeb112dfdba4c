"""Reviews of a small generated language, each good or bad by one of its sentences.

Most sentences praise or blame a part, at random, or tell what happened; the one about the whole
(`all in all`, `in the end`) decides, wherever it stands, and its words alone do not tell it from
the others: whether `good` counts depends on how its sentence begins.
"""

import random

from .labelled import Labelled, LabelledCorpus, generated

GOOD = "bright charming clever fine funny good great lovely strong sweet touching warm".split()
BAD = "awful boring clumsy cold dull empty flat loud poor slow weak wooden".split()
_PARTS = "acting camera cast dialogue ending lighting music plot sets sound story title".split()
_WHOLE = ("all in all", "in the end", "taken together", "as a whole", "my verdict :", "in short")
_TOLD = (
    "we saw it on a {day} with {number} friends .",
    "a {job} loses a {thing} and looks for it .",
    "the {job} meets another {job} near the {thing} .",
    "it runs for {number} hours and was made in {number} weeks !",
    "who would have thought of a {thing} ?",
)
_WORDS = {
    "day": "monday tuesday friday sunday".split(),
    "number": "two three five nine".split(),
    "job": "baker doctor judge pilot sailor teacher".split(),
    "thing": "bell boat castle key lamp ring train".split(),
}


def generate(rows: int, seed: int = 0) -> Labelled:
    """Writes `rows` reviews with their labels, good or bad.

    Args:
        rows: how many.
        seed: of the choices; equal seeds give equal reviews.
    """
    choose = random.Random(seed)
    found, seen = Labelled([], []), set()
    while len(found.texts) < rows:
        label = choose.choice(("good", "bad"))
        text = _review(choose, label)
        if text not in seen:
            seen.add(text)
            found.texts.append(text)
            found.labels.append(label)
    return found


def corpus(
    train: int = 1500, validation: int = 250, test: int = 400, seed: int = 0
) -> LabelledCorpus:
    """Three parts of the given numbers of rows, which share no review."""
    rows = generate(train + validation + test, seed)
    return generated(rows, (train, validation, test), "reviews")


def _review(choose, label):
    sentences = []
    for _ in range(choose.randint(1, 3)):
        word = choose.choice(GOOD + BAD)
        sentences.append(f"the {choose.choice(_PARTS)} was {word} .")
    for _ in range(choose.randint(1, 4)):
        chosen = {name: choose.choice(words) for name, words in _WORDS.items()}
        sentences.append(choose.choice(_TOLD).format(**chosen))
    word = choose.choice(GOOD if label == "good" else BAD)
    sentences.append(f"{choose.choice(_WHOLE)} it was {word} .")
    choose.shuffle(sentences)
    return " ".join(sentences)
