"""Stories of a small generated world: people go about and carry things, and are asked for.

| task | question | follows from |
|---|---|---|
| person | where is anna ? | where she went last |
| thing | where is the key ? | who took it, and where that one went last |
| before | where was anna before the park ? | the place before, and the one named |

The last place that a person is told of is not the answer for `before`, and who took a thing is told
in another sentence than where: one look at the story is not enough.
"""

import random

from .babi import Stories, nothing
from .labelled import LabelledCorpus, generated

TASKS = ("person", "thing", "before")
_PEOPLE = "anna ben carla dora emil".split()
_PLACES = "bank bridge garden harbour market park school station".split()
_THINGS = "key lamp map ring".split()
_GO = ("went to", "walked to", "is now at")
_TAKE = ("took", "picked up")


def generate(rows: int, seed: int = 0) -> Stories:
    """Writes stories, each with a question behind it.

    Args:
        rows: how many.
        seed: of the choices; equal seeds give equal stories.
    """
    choose, found, seen = random.Random(seed), nothing(), set()
    while len(found.texts) < rows:
        task = choose.choice(TASKS)
        told = _Told(choose)
        for _ in range(choose.randint(2, 8)):
            told.go_on()
        asked = told.ask(task)
        if asked is None:
            continue
        question, answer, supports = asked
        text = " ".join([*told.sentences, question])
        if text not in seen:
            seen.add(text)
            row = (text, answer, task, tuple(sorted(supports)), len(seen))
            for column, value in zip(found, row, strict=True):
                column.append(value)
    return found


def corpus(
    train: int = 4000, validation: int = 400, test: int = 600, seed: int = 0
) -> LabelledCorpus:
    """Three parts of the given numbers of rows, which share no story."""
    rows = generate(train + validation + test, seed)
    return generated(rows, (train, validation, test), "errands")


class _Told:
    """A story as far as it is told: where all are, since which sentence, and who has what."""

    def __init__(self, choose):
        self._choose = choose
        self.sentences = []
        self._visits = {}  # person: [(place, sentence)]
        self._carried = {}  # thing: (person, sentence)

    def go_on(self):
        choose, number = self._choose, len(self.sentences)
        free = [thing for thing in _THINGS if thing not in self._carried]
        if self._visits and free and choose.random() < 0.3:
            person, thing = choose.choice([*self._visits]), choose.choice(free)
            self._carried[thing] = (person, number)
            self.sentences.append(f"{person} {choose.choice(_TAKE)} the {thing} .")
            return
        person = choose.choice(_PEOPLE)
        visits = self._visits.setdefault(person, [])
        place = choose.choice([p for p in _PLACES if not visits or p != visits[-1][0]])
        visits.append((place, number))
        self.sentences.append(f"{person} {choose.choice(_GO)} the {place} .")

    def ask(self, task):
        """A question, its answer and what it follows from; None where the story has none."""
        choose = self._choose
        if task == "thing":
            if not self._carried:
                return None
            thing = choose.choice([*self._carried])
            person, taken = self._carried[thing]
            place, went = self._visits[person][-1]
            return f"where is the {thing} ?", place, {taken, went}
        if task == "person":
            if not self._visits:
                return None
            person = choose.choice([*self._visits])
            place, went = self._visits[person][-1]
            return f"where is {person} ?", place, {went}
        twice = [person for person, visits in self._visits.items() if len(visits) > 1]
        if not twice:
            return None
        person = choose.choice(twice)
        (place, went), (named, later) = self._visits[person][-2:]
        return f"where was {person} before the {named} ?", place, {went, later}
