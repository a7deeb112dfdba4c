"""A small Chinese-English language whose word alignments are known.

A grammar writes both sentences of a pair at once, word by word, so the gold alignment is exact.
Words are spaced on both sides. The target follows from the source alone, yet it is no word-by-word
copy: places and times move behind the verb, questions turn around, `am/is/are`, verbs, plurals and
`a/an` agree, and one Chinese word may stand for several English ones.

Each English word is linked to the one Chinese word that it comes from:

- an article to its measure word (`一只 猫`, a cat), or where there is none to its noun;
- a preposition to `在`, `里` or `上`, but the article behind it to the noun of the place;
- `did not`, `is not` to the negation; the `do` or `are` of a question to `吗`, unless `是`, `会` or
  `有` is there to be turned around;
- `am`, `is`, `are` of an adjective to `很`; `will` to `会`; `there is` to `有`;
- punctuation to punctuation.

A Chinese word may stay without a link, as `吗` does behind `是`.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .data import Corpus, Pairs, TextSide

_WORDS = range(2, 14 + 1)


def generate(rows: int, seed: int = 0) -> Pairs:
    """Writes `rows` sentence pairs with gold alignments; no source and no target occurs twice.

    Args:
        rows: how many pairs.
        seed: of the choices; equal seeds give equal pairs.
    """
    if rows < 0:
        raise ValueError(f"`rows` must not be negative. Received: rows={rows}")
    pairs = Pairs([], [], [])
    sources: set[str] = set()
    targets: set[str] = set()
    for sentence in _sentences(random.Random(seed), patience=100 * rows + 1000):
        if len(pairs.source) >= rows:
            return pairs
        source, target, links = sentence
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            pairs.source.append(source)
            pairs.target.append(target)
            pairs.alignments.append(links)
    raise ValueError(f"The phrasebook holds fewer sentences. Received: rows={rows}")


def corpus(train: int = 8000, validation: int = 500, test: int = 1000, seed: int = 0) -> Corpus:
    """Three parts of the given numbers of rows, which share no sentence of either side.

    The set phrases (`早上 好`) open the training part: they follow from no rule, and no other
    part has them.
    """
    if train < 1:
        raise ValueError(f"`train` must be at least 1. Received: train={train}")
    phrases = [_written(phrase) for phrase in _set_phrases()][:train]
    drawn = generate(train - len(phrases) + validation + test, seed)
    end = len(drawn.source)
    held_out = range(end - validation - test, end)
    learned = drawn.rows(range(held_out.start))
    source, target, links = (list(column) for column in zip(*phrases, strict=True))
    return Corpus(
        Pairs(source + learned.source, target + learned.target, links + learned.alignments),
        drawn.rows(held_out[:validation]),
        drawn.rows(held_out[validation:]),
        "phrasebook",
        TextSide("spaces", "none"),
        TextSide("spaces", "none"),
    )


# How a pair is put together.


class _Word:
    """A Chinese word in its place; its identity is what English words are linked to."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Phrase(NamedTuple):
    """Both sides of a phrase; each English word has the Chinese word that it comes from."""

    chinese: tuple[_Word, ...] = ()
    english: tuple[tuple[str, _Word], ...] = ()


def _say(chinese: str, english: str = "") -> _Phrase:
    """One Chinese word and the English words that it gives, possibly none."""
    word = _Word(chinese)
    return _Phrase((word,), tuple((one, word) for one in english.split()))


def _join(*phrases: _Phrase) -> _Phrase:
    """Phrases that have the same order on both sides."""
    return _reorder(phrases, phrases)


def _reorder(chinese: Sequence[_Phrase], english: Sequence[_Phrase]) -> _Phrase:
    """The Chinese of phrases in one order and their English in another."""
    return _Phrase(
        tuple(word for phrase in chinese for word in phrase.chinese),
        tuple(word for phrase in english for word in phrase.english),
    )


_Row = tuple[str, str, frozenset[tuple[int, int]]]


def _written(phrase: _Phrase) -> _Row:
    """Source, target and links of a whole sentence."""
    place = {id(word): i for i, word in enumerate(phrase.chinese)}
    return (
        " ".join(word.text for word in phrase.chinese),
        " ".join(text for text, _ in phrase.english),
        frozenset((place[id(word)], j) for j, (_, word) in enumerate(phrase.english)),
    )


# Agreement and forms.


class _Person(NamedTuple):
    """What a subject asks of its verb and of the noun it is called."""

    form: int  # 0: I; 1: he, she, a cat; 2: you, we, they, cats
    plural: bool = False


_HE = _Person(1)
_THEY = _Person(2, plural=True)
_PRESENT_BE = ("am", "is", "are")
_PAST_BE = ("was", "was", "were")
_DO = ("do", "does", "do")
_HAVE = ("have", "has", "have")

_SPELT_WITH_A_VOWEL_BUT_A = ("uniform", "useful")
_SPELT_WITHOUT_BUT_AN = ("honest",)


def _article(following: str) -> str:
    """`a` or `an`, by the sound that follows."""
    vowel = following[0] in "aeiou" and following not in _SPELT_WITH_A_VOWEL_BUT_A
    return "an" if vowel or following in _SPELT_WITHOUT_BUT_AN else "a"


# The words.


class _Noun(NamedTuple):
    chinese: str
    english: str
    plural: str
    measure: str
    kind: str


class _Verb(NamedTuple):
    chinese: str
    forms: tuple[str, str, str]  # as _PRESENT_BE
    past: str
    kinds: tuple[str, ...]


class _Subject(NamedTuple):
    phrase: _Phrase
    person: _Person


def _nouns(kind: str, measure: str, words: str) -> list[_Noun]:
    """Nouns from `chinese english` or `chinese english/plural`, comma-separated."""
    nouns = []
    for entry in words.split(","):
        chinese, forms = entry.split()
        english, _, plural = forms.partition("/")
        nouns.append(_Noun(chinese, english, plural or english + "s", measure, kind))
    return nouns


def _verbs(words: str) -> list[_Verb]:
    """Verbs from lines `chinese base third past kind ...`."""
    verbs = []
    for line in words.strip().splitlines():
        chinese, base, third, past, *kinds = line.split()
        verbs.append(_Verb(chinese, (base, third, base), past, tuple(kinds)))
    return verbs


def _glossary(words: str) -> list[tuple[str, str]]:
    """Pairs from `chinese english words`, comma-separated."""
    return [tuple(entry.split(maxsplit=1)) for entry in words.split(",")]


_NOUNS = [
    *_nouns(
        "person",
        "名",
        "演员 actor,医生 doctor,老师 teacher,学生 student,工程师 engineer,艺术家 artist,护士 nurse,"
        "农民 farmer,歌手 singer",
    ),
    *_nouns("animal", "只", "猫 cat,狗 dog,鸟 bird,大象 elephant,猴子 monkey,绵羊 sheep/sheep"),
    *_nouns("text", "本", "书 book,小说 novel,词典 dictionary/dictionaries,杂志 magazine"),
    *_nouns("vehicle", "辆", "汽车 car,自行车 bicycle,公交车 bus/buses,救护车 ambulance"),
    *_nouns("food", "个", "苹果 apple,橙子 orange,鸡蛋 egg,蛋糕 cake"),
    *_nouns("thing", "把", "雨伞 umbrella,椅子 chair,钥匙 key"),
    *_nouns("thing", "件", "外套 coat,衬衫 shirt,制服 uniform"),
]
_RELATIVES = _nouns("person", "名", "姐姐 sister,哥哥 brother,妈妈 mother,爸爸 father,朋友 friend")
_DRINKS = _glossary("茶 tea,咖啡 coffee,水 water,牛奶 milk")
_NAMES = _glossary("汤姆 Tom,玛丽 Mary,安娜 Anna,约翰 John")

_ADJECTIVES = {
    "person": _glossary("年轻的 young,老 old,诚实的 honest,有名的 famous,友好的 friendly"),
    "animal": _glossary("小 small,大 big,老 old,友好的 friendly,黑色的 black,白色的 white"),
    "text": _glossary("新 new,旧 old,有用的 useful,有趣的 interesting,便宜的 cheap"),
    "vehicle": _glossary("新 new,旧 old,昂贵的 expensive,红色的 red,黑色的 black,小 small"),
    "food": _glossary("大 big,小 small,新鲜的 fresh"),
    "thing": _glossary("新 new,旧 old,昂贵的 expensive,红色的 red,白色的 white,便宜的 cheap"),
    "drink": _glossary("热 hot,冷 cold"),
}
_FEELINGS = _glossary("高兴 happy,累 tired,忙 busy,饿 hungry,生气 angry,难过 sad")

_VERBS = _verbs(
    """
    看见 see sees saw person animal text vehicle food thing
    喜欢 like likes liked person animal text vehicle food thing drink
    买 buy buys bought text vehicle food thing drink
    卖 sell sells sold animal text vehicle food thing drink
    找到 find finds found person animal text vehicle thing
    画 draw draws drew animal vehicle food thing
    读 read reads read text
    写 write writes wrote text
    吃 eat eats ate food
    喝 drink drinks drank drink
    帮助 help helps helped person
    认识 know knows knew person
    喂 feed feeds fed animal
    修 repair repairs repaired vehicle thing
    """
)

_SUBJECT_PRONOUNS = [
    ("我", "I", _Person(0)),
    ("你", "you", _Person(2)),
    ("他", "he", _HE),
    ("她", "she", _HE),
    ("我们", "we", _THEY),
    ("你们", "you", _THEY),
    ("他们", "they", _THEY),
]
_OBJECT_PRONOUNS = _glossary("我 me,你 you,他 him,她 her,我们 us,他们 them")
_POSSESSIVES = _glossary("我的 my,你的 your,他的 his,她的 her,我们的 our,他们的 their")

_NUMBERS = _glossary("两 two,三 three,五 five")
_POINTERS = _glossary("这 this,那 that")
_PLURALS = _glossary("这些 these,那些 those,很多 many")

_PAST_TIMES = _glossary("昨天 yesterday,上周 last week,去年 last year,昨晚 last night")
_FUTURE_TIMES = _glossary("明天 tomorrow,下周 next week,明年 next year,今晚 tonight")
_USUAL_TIMES = _glossary("每天 every day,每年 every year,早上 in the morning,晚上 in the evening")
_ADVERBS = _glossary("经常 often,总是 always,有时 sometimes")

# 在 is always `at`, 里 `in` and 上 `on`: what is read for a preposition is then the word that it is
# linked to.
_PLACES = _glossary(
    "学校 school,家 home,车站 the station,机场 the airport,公园 the park,图书馆 the library,"
    "办公室 the office"
)
_GOALS = _glossary(
    "学校 school,车站 the station,公园 the park,花园 the garden,北京 Beijing,伦敦 London"
)
_INSIDES = _glossary("公园 the park,花园 the garden,图书馆 the library,办公室 the office")
_SURFACES = _glossary("桌子 the table,床 the bed,屋顶 the roof")

_GREETINGS = (("早上", "morning"), ("下午", "afternoon"), ("晚上", "evening"))


def _set_phrases() -> list[_Phrase]:
    """Greetings without a name."""
    good = [_good(*part_of_day) for part_of_day in _GREETINGS]
    return [*good, _join(_say("谢谢", "thank"), _say("你", "you"))]


def _good(chinese: str, english: str) -> _Phrase:
    """`早上 好`, good morning: the other way round."""
    part_of_day, good = _say(chinese, english), _say("好", "good")
    return _reorder([part_of_day, good], [good, part_of_day])


def _sentences(rng: random.Random, patience: int) -> Iterator[_Row]:
    """Drawn sentences of a good length, repeats among them; ends after `patience` draws."""
    writer = _Writer(rng)
    for _ in range(patience):
        row = _written(writer.sentence())
        if all(len(side.split()) in _WORDS for side in row[:2]):
            yield row


class _Writer:
    """Draws sentences; each method writes one kind of phrase."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def sentence(self) -> _Phrase:
        kinds = {
            self._action: 47,
            self._identity: 13,
            self._feeling: 12,
            self._existence: 9,
            self._possession: 9,
            self._journey: 7,
            self._greeting: 3,
        }
        (write,) = self._rng.choices(list(kinds), kinds.values())
        return write()

    # Sentences.

    def _greeting(self) -> _Phrase:
        """早上 好 ， 汤姆: good morning , Tom"""
        opening = self._rng.choice(
            [*_set_phrases(), _say("你好", "hello"), _say("再见", "goodbye")]
        )
        whom = self._rng.choice([*_NAMES, *((noun.chinese, noun.english) for noun in _NOUNS[:9])])
        return _join(opening, _say("，", ","), _say(*whom))

    def _identity(self) -> _Phrase:
        """我 是 一名 演员: I am an actor"""
        subject = self._someone()
        past = self._chance(0.2)
        time = self._time(_PAST_TIMES[1:3]) if past else _Phrase()
        be = (_PAST_BE if past else _PRESENT_BE)[subject.person.form]
        called = self._noun_of("person")
        if subject.person.plural:
            noun = self._described(called, plural=True)
        elif self._chance(0.5):
            noun = self._counted_one(called)
        else:
            noun = self._described(called, article=True)
        match self._mood():
            case "question":
                verb, ma, mark = _say("是", be), _say("吗"), _say("？", "?")
                return _reorder(
                    [subject.phrase, time, verb, noun, ma, mark],
                    [verb, subject.phrase, noun, time, ma, mark],
                )
            case "negation":
                verb = _say("不是", f"{be} not")
            case _:
                verb = _say("是", be)
        return _reorder([subject.phrase, time, verb, noun], [subject.phrase, verb, noun, time])

    def _feeling(self) -> _Phrase:
        """她 昨天 很 累: she was tired yesterday"""
        subject = self._someone() if self._chance(0.8) else self._creature()
        past = self._chance(0.3)
        time = self._time(_PAST_TIMES) if past else _Phrase()
        be = (_PAST_BE if past else _PRESENT_BE)[subject.person.form]
        feeling = _say(*self._rng.choice(_FEELINGS))
        match self._mood():
            case "question":
                ma, mark = _say("吗", be), _say("？", "?")
                return _reorder(
                    [subject.phrase, time, feeling, ma, mark],
                    [ma, subject.phrase, feeling, time, mark],
                )
            case "negation":
                verb = _say("不", f"{be} not")
            case _:
                verb = _say("很", be)
        return _reorder(
            [subject.phrase, time, verb, feeling], [subject.phrase, verb, feeling, time]
        )

    def _existence(self) -> _Phrase:
        """公园 里 有 一只 猫: there is a cat in the park"""
        if self._chance(0.6):
            side = _say("里", "in")
            place = _say(*self._rng.choice(_INSIDES))
            noun = self._noun_of(self._rng.choice(("person", "animal", "vehicle", "thing")))
        else:
            side = _say("上", "on")
            place = _say(*self._rng.choice(_SURFACES))
            noun = self._noun_of(self._rng.choice(("animal", "text", "food", "thing")))
        what = self._rng.choice((self._counted_one, self._counted_many))(noun)
        be = "is" if what.chinese[0].text.startswith("一") else "are"
        if self._mood() == "question":
            verb, ma, mark = _say("有", f"{be} there"), _say("吗"), _say("？", "?")
            return _reorder(
                [place, side, verb, what, ma, mark], [verb, what, side, place, ma, mark]
            )
        verb = _say("有", f"there {be}")
        return _reorder([place, side, verb, what], [verb, what, side, place])

    def _possession(self) -> _Phrase:
        """他 有 一本 书: he has a book"""
        subject = self._someone()
        noun = self._noun_of(self._rng.choice(("animal", "text", "vehicle", "thing")))
        what = self._rng.choice((self._counted_one, self._counted_many, self._described))(noun)
        do, have = _DO[subject.person.form], _HAVE[subject.person.form]
        match self._mood():
            case "question":
                verb, ma, mark = _say("有", "have"), _say("吗", do), _say("？", "?")
                return _reorder(
                    [subject.phrase, verb, what, ma, mark], [ma, subject.phrase, verb, what, mark]
                )
            case "negation":
                verb = _say("没有", f"{do} not have")
            case _:
                verb = _say("有", have)
        return _join(subject.phrase, verb, what)

    def _journey(self) -> _Phrase:
        """我们 昨天 去 公园: we went to the park yesterday"""
        go = _Verb("去", ("go to", "goes to", "go to"), "went to", ())
        goal = _say(*self._rng.choice(_GOALS))
        return self._clause(self._someone(), go, goal, _Phrase(), self._mood())

    def _action(self) -> _Phrase:
        """我 昨天 在 学校 看见 一只 猫: I saw a cat at school yesterday"""
        verb = self._rng.choice(_VERBS)
        what = self._object(verb)
        place = self._at_place() if self._chance(0.35) else _Phrase()
        if self._chance(0.12):
            return self._clause(_Subject(_say("谁", "who"), _HE), verb, what, place, "who")
        subject = self._creature() if verb.chinese == "看见" and self._chance(0.2) else None
        return self._clause(subject or self._someone(), verb, what, place, self._mood())

    def _clause(
        self, subject: _Subject, verb: _Verb, what: _Phrase, place: _Phrase, mood: str
    ) -> _Phrase:
        """Subject, time, negation or will, place, verb and object, as the two languages order them.

        The tense is in the time alone, and in 会 and 没.
        """
        (tense,) = self._rng.choices(("present", "past", "future"), (4, 4, 2))
        base = verb.forms[0]
        form = verb.forms[subject.person.form]
        do = _DO[subject.person.form]
        time = adverb = modal = ma = mark = _Phrase()
        match tense:
            case "past":
                time, form, do = self._time(_PAST_TIMES), verb.past, "did"
            case "future":
                time, form = self._time(_FUTURE_TIMES), base
                modal = _say("不会", "will not") if mood == "negation" else _say("会", "will")
            case "present" if self._chance(0.3):
                time = self._time(_USUAL_TIMES)
            case "present" if mood == "statement" and self._chance(0.4):
                adverb = _say(*self._rng.choice(_ADVERBS))
        if mood in ("negation", "question"):
            form = base
        if mood == "negation" and tense != "future":
            modal = _say("没" if tense == "past" else "不", f"{do} not")
        if mood == "question":
            ma = _say("吗") if tense == "future" else _say("吗", do)
        if mood in ("question", "who"):
            mark = _say("？", "?")
        said = _say(verb.chinese, form)
        opening = [time, subject.phrase] if self._chance(0.3) else [subject.phrase, time]
        chinese = [*opening, adverb, modal, place, said, what, ma, mark]
        if mood == "question":
            english = [modal, ma, subject.phrase, said, what, place, time, mark]
        else:
            english = [subject.phrase, modal, adverb, said, what, place, time, mark]
        return _reorder(chinese, english)

    # Parts of sentences.

    def _someone(self) -> _Subject:
        (kind,) = self._rng.choices(("pronoun", "name", "relative", "person"), (55, 18, 15, 12))
        match kind:
            case "pronoun":
                chinese, english, person = self._rng.choice(_SUBJECT_PRONOUNS)
                return _Subject(_say(chinese, english), person)
            case "name":
                return _Subject(_say(*self._rng.choice(_NAMES)), _HE)
            case "relative":
                return _Subject(self._owned(self._rng.choice(_RELATIVES)), _HE)
            case _:
                return self._determined(self._noun_of("person"))

    def _creature(self) -> _Subject:
        return self._determined(self._noun_of("animal"))

    def _determined(self, noun: _Noun) -> _Subject:
        """This doctor, or these doctors."""
        if self._chance(0.6):
            return _Subject(self._pointed_at(noun), _HE)
        return _Subject(self._counted_many(noun), _THEY)

    def _object(self, verb: _Verb) -> _Phrase:
        kind = self._rng.choice(verb.kinds)
        if kind == "drink":
            return self._drink()
        if kind == "person" and self._chance(0.5):
            if self._chance(0.6):
                return _say(*self._rng.choice(_OBJECT_PRONOUNS))
            return self._owned(self._rng.choice(_RELATIVES))
        write = self._rng.choices(
            (
                self._counted_one,
                self._counted_many,
                self._pointed_at,
                self._owned,
                self._described,
            ),
            (35, 25, 15, 15, 10),
        )[0]
        return write(self._noun_of(kind))

    def _drink(self) -> _Phrase:
        """一杯 热 茶: a cup of hot tea"""
        cups = _say("一杯", "a cup of"), _say("两杯", "two cups of"), _say("这杯", "this cup of")
        cup = self._rng.choice([_Phrase(), *cups])
        return _join(cup, self._adjective("drink"), _say(*self._rng.choice(_DRINKS)))

    def _described(self, noun: _Noun, plural: bool = True, article: bool = False) -> _Phrase:
        """旧 书: old books; with its article the noun is one: 老 医生, an old doctor"""
        adjective = self._adjective(noun.kind)
        one = _say(noun.chinese, noun.english if article or not plural else noun.plural)
        chinese = _join(adjective, one)
        if not article:
            return chinese
        return chinese._replace(
            english=((_article(chinese.english[0][0]), one.chinese[0]), *chinese.english)
        )

    def _counted_one(self, noun: _Noun) -> _Phrase:
        """一名 年轻的 医生: a young doctor"""
        what = self._described(noun, plural=False)
        return _join(_say(f"一{noun.measure}", _article(what.english[0][0])), what)

    def _counted_many(self, noun: _Noun) -> _Phrase:
        """三只 猫: three cats; 很多 猫: many cats"""
        if self._chance(0.6):
            chinese, english = self._rng.choice(_NUMBERS)
            count = _say(chinese + noun.measure, english)
        else:
            count = _say(*self._rng.choice(_PLURALS))
        return _join(count, self._described(noun))

    def _pointed_at(self, noun: _Noun) -> _Phrase:
        """这本 书: this book"""
        chinese, english = self._rng.choice(_POINTERS)
        return _join(_say(chinese + noun.measure, english), self._described(noun, plural=False))

    def _owned(self, noun: _Noun) -> _Phrase:
        """我的 猫: my cat; 汤姆 的 猫: Tom 's cat"""
        if self._chance(0.7):
            owner = _say(*self._rng.choice(_POSSESSIVES))
        else:
            owner = _join(_say(*self._rng.choice(_NAMES)), _say("的", "'s"))
        return _join(owner, self._described(noun, plural=False))

    def _adjective(self, kind: str) -> _Phrase:
        return _say(*self._rng.choice(_ADJECTIVES[kind])) if self._chance(0.3) else _Phrase()

    def _at_place(self) -> _Phrase:
        """在 公园: at the park"""
        return _join(_say("在", "at"), _say(*self._rng.choice(_PLACES)))

    def _time(self, times: list[tuple[str, str]]) -> _Phrase:
        return _say(*self._rng.choice(times))

    def _noun_of(self, kind: str) -> _Noun:
        return self._rng.choice([noun for noun in _NOUNS if noun.kind == kind])

    def _mood(self) -> str:
        return self._rng.choices(("statement", "negation", "question"), (60, 20, 20))[0]

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability
