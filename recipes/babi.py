"""Questions about stories, in the format of bAbI's tasks."""

import random
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .data import BadLine, BadLines, DataError, Report, TextSide, held_out, read_lines, text_of
from .labelled import LabelledCorpus, named_files

_FILE = re.compile(r"qa(\d+)_([\w-]+)_(train|test)\.txt")
_FIRST = "en/qa1_single-supporting-fact_train.txt"
_ARCHIVE = "babi_v1-2_en_en-10k.tar.gz"
_FEWEST_TASKS = 19  # of the longer files that of task 3 is not everywhere


class Stories(NamedTuple):
    """Questions with the stories before them, row by row.

    Attributes:
        texts: the story's sentences and, last, the question.
        labels: the answers.
        tasks: the kind of each question.
        supports: of each question the places of the sentences, from 0, that its answer follows
            from.
        stories: which rows ask about one story; they stay in one part.
    """

    texts: list[str]
    labels: list[str]
    tasks: list[str]
    supports: list[tuple[int, ...]]
    stories: list[int]

    def rows(self, indices) -> "Stories":
        """The rows at `indices`, in that order."""
        indices = list(indices)
        return Stories(*([column[i] for i in indices] for column in self))

    def of_tasks(self, tasks: Sequence[str]) -> "Stories":
        """The rows of some tasks."""
        return self.rows(i for i, task in enumerate(self.tasks) if task in tasks)


def nothing() -> Stories:
    """No rows, to be added to."""
    return Stories([], [], [], [], [])


def read_stories(path, lines: Sequence[bytes], task: str, report: Report = print) -> Stories:
    """Reads lines `id sentence` and `id question TAB answer TAB ids of supporting sentences`.

    Ids begin at 1 with each story. What follows a bad line in its story is left out.

    Args:
        path: the name of a file, for messages.
        lines: of that file, in UTF-8.
        task: the kind of its questions.
        report: receives a line for each of the first bad lines, then their number.

    Raises:
        DataError: if no question can be read.
    """
    found, bad = nothing(), BadLines(report)
    story, told, last, broken = -1, {}, 0, False
    for row, line in enumerate(lines, start=1):
        try:
            number, text = _numbered(line)
            if number == 1:
                story, told, last, broken = story + 1, {}, 0, False
            if broken:
                continue
            if number != last + 1:
                raise BadLine(f"the id {number} follows {last}: ids increase by 1")
            last = number
            if "\t" in text:
                question, answer, supports = _question(text, told)
                sentences = list(told.values())
                found.texts.append(" ".join([*sentences, question]))
                found.labels.append(answer)
                found.tasks.append(task)
                found.supports.append(supports)
                found.stories.append(story)
            elif text.endswith("?"):
                raise BadLine("a question without TAB and answer")
            else:
                told[number] = text
        except BadLine as reason:
            bad.add(path, row, reason)
            broken = True
    bad.close(path, len(lines))
    if not found.texts:
        raise DataError(f"{path}: no line reads as id question TAB answer.")
    return found


def _numbered(line):
    number, _, text = text_of(line).strip().partition(" ")
    if not number.isdecimal() or not text.strip():
        raise BadLine("expected an id and a sentence")
    return int(number), text.strip()


def _question(text, told):
    question, answer, *more = (part.strip() for part in text.split("\t"))
    if not answer:
        raise BadLine("no answer")
    places = {number: place for place, number in enumerate(told)}
    supports = more[0].split() if more else []
    for number in supports:
        if not number.isdecimal() or int(number) not in places:
            raise BadLine(f"the supporting id {number!r} is no sentence before the question")
    return question, answer, tuple(places[int(number)] for number in supports)


def load(name: str, data_dir=None, report: Report = print, seed: int = 0) -> LabelledCorpus:
    """Loads bAbI's tasks: `babi`, 1,000 questions each to train on, or `babi-10k`.

    A tenth of the stories of each task is held out for validation.
    """
    wanted = _FIRST if name == "babi" else _ARCHIVE
    [place] = named_files("babi", [wanted], data_dir, "the tasks of bAbI")
    files = _files_of_folder(place.parent) if name == "babi" else _files_of_archive(place)
    tasks = sorted({number for number, part in files if part == "train"})
    if len(tasks) < _FEWEST_TASKS:
        raise DataError(f"{place.parent}: holds {len(tasks)} tasks to train on, of 20.")
    train, validation, test = nothing(), nothing(), nothing()
    for number in tasks:
        stories, tested = (
            read_stories(*files[number, part], str(number), report) for part in ("train", "test")
        )
        parts = (*split(stories, seed), tested)
        for part, more in zip((train, validation, test), parts, strict=True):
            for column, values in zip(part, more, strict=True):
                column.extend(values)
    return LabelledCorpus(train, validation, test, name, TextSide("spaces", "nfkc_lower"))


def split(rows: Stories, seed: int) -> tuple[Stories, Stories]:
    """What is left, and the rows of a tenth of the stories, drawn by chance."""
    stories = sorted(set(rows.stories))
    random.Random(seed).shuffle(stories)
    held = {*stories[: held_out(0.1, len(stories))]}
    places = range(len(rows.texts))
    return tuple(
        rows.rows(i for i in places if (rows.stories[i] in held) == wanted)
        for wanted in (False, True)
    )


def _files_of_folder(folder):
    return {
        (int(found[1]), found[3]): (path, read_lines(path))
        for path in sorted(folder.glob("qa*.txt"))
        if (found := _FILE.fullmatch(path.name))
    }


def _files_of_archive(archive):
    files = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                found = _FILE.fullmatch(Path(member.name).name)
                if found and Path(member.name).parent.name == "en-10k":
                    lines = members.extractfile(member).read().splitlines()
                    files[int(found[1]), found[3]] = (f"{archive}/{member.name}", lines)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive}: cannot be read: {error}.") from None
    return files
