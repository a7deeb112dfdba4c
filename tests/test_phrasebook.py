"""The generated language: a function of the source, with alignments that are exact."""

import pytest

from keras_attention.recipes import phrasebook

ROWS = phrasebook.generate(6000, seed=3)
TRANSLATION = dict(zip(ROWS.source, ROWS.target, strict=True))


def row_with(*words: str) -> tuple[list[str], list[str], frozenset[tuple[int, int]]]:
    """The first row whose source holds all of the words."""
    for source, target, links in zip(*ROWS, strict=True):
        if set(words) <= set(source.split()):
            return source.split(), target.split(), links
    raise AssertionError(f"no generated source holds {words}")


def linked(source: list[str], target: list[str], links, english: str) -> set[str]:
    """The source words that an English word is linked to."""
    return {source[i] for i, j in links if target[j] == english}


def test_equal_seeds_give_equal_pairs_and_other_seeds_give_others():
    assert phrasebook.generate(50, seed=7) == phrasebook.generate(50, seed=7)
    assert phrasebook.generate(50, seed=7) != phrasebook.generate(50, seed=8)


def test_no_sentence_occurs_twice():
    assert len(ROWS.source) == len(set(ROWS.source)) == len(set(ROWS.target)) == 6000


def test_the_target_and_its_links_follow_from_the_source():
    translations = {}
    for seed in range(5):
        for source, target, links in zip(*phrasebook.generate(3000, seed), strict=True):
            assert translations.setdefault(source, (target, links)) == (target, links)


def test_sentences_have_2_to_14_words_on_both_sides():
    lengths = {len(sentence.split()) for sentence in ROWS.source + ROWS.target}
    assert min(lengths) >= 2
    assert max(lengths) <= 14


def test_both_vocabularies_are_small():
    for side in (ROWS.source, ROWS.target):
        assert 150 <= len({word for sentence in side for word in sentence.split()}) <= 250


def test_every_target_word_has_one_link_inside_the_sentence():
    for source, target, links in zip(*ROWS, strict=True):
        assert sorted(j for _, j in links) == list(range(len(target.split())))
        assert all(0 <= i < len(source.split()) for i, _ in links)


def test_times_and_places_move_behind_the_verb():
    source, target, links = row_with("昨天", "在", "看见")
    assert source.index("昨天") < source.index("看见")
    assert source.index("在") < source.index("看见")
    assert target[-1] == "yesterday"
    assert linked(source, target, links, "yesterday") == {"昨天"}
    assert not any(abs(i - j) > 14 for i, j in links)
    assert any(i != j for i, j in links)


@pytest.mark.parametrize(
    ("word", "article"),
    [
        ("actor", "an"),
        ("doctor", "a"),
        ("elephant", "an"),
        ("old", "an"),
        ("honest", "an"),
        ("useful", "a"),
        ("uniform", "a"),
        ("umbrella", "an"),
    ],
)
def test_articles_agree_with_the_sound_that_follows(word, article):
    before = {
        target.split()[j - 1]
        for target in ROWS.target
        for j, other in enumerate(target.split())
        if j and other == word
    }
    assert before & {"a", "an"} == {article}


def test_an_article_comes_from_the_measure_word_or_else_from_the_noun():
    with_measure = without_measure = 0
    for source, target, links in zip(*ROWS, strict=True):
        chinese, english = source.split(), target.split()
        for i, j in links:
            if english[j] in ("a", "an"):
                measured = chinese[i].startswith("一")
                with_measure += measured
                without_measure += not measured
                if not measured:  # the noun, which has its own English word too
                    assert sum(other == i for other, _ in links) == 2
    assert with_measure > 100
    assert without_measure > 100


@pytest.mark.parametrize(
    ("subject", "form"), [("I", "am"), ("he", "is"), ("Tom", "is"), ("you", "are"), ("they", "are")]
)
def test_am_is_are_agree_with_the_subject(subject, form):
    seen = {
        target.split()[1]
        for target in ROWS.target
        if target.split()[0] == subject and target.split()[1] in ("am", "is", "are")
    }
    assert seen == {form}


def test_plural_subjects_are_called_by_plural_nouns_without_article():
    calls = [target.split()[2:] for target in ROWS.target if target.startswith("we are ")]
    assert ["doctors"] in calls
    assert not any({"a", "an"} & set(call) for call in calls)


def test_negation_gives_do_support_that_is_linked_to_it():
    source, target, links = row_with("没", "吃")
    assert "did not eat" in " ".join(target)
    assert linked(source, target, links, "did") == linked(source, target, links, "not") == {"没"}


def test_questions_turn_around():
    source, target, links = row_with("是", "吗")
    assert target[0] in ("am", "is", "are", "was", "were")
    assert linked(source, target, links, target[0]) == {"是"}
    assert linked(source, target, links, "?") == {"？"}
    source, target, links = row_with("谁", "？")
    assert target[0] == "who"
    assert linked(source, target, links, "?") == {"？"}
    source, target, links = row_with("读", "吗", "昨天")
    assert target[0] == "did"
    assert linked(source, target, links, "did") == {"吗"}


def test_parts_share_no_sentence_and_have_the_sizes_asked_for():
    corpus = phrasebook.corpus(300, 40, 50, seed=2)
    parts = [corpus.train, corpus.validation, corpus.test]
    assert [len(part.source) for part in parts] == [300, 40, 50]
    assert [len(part.alignments) for part in parts] == [300, 40, 50]
    for side in ("source", "target"):
        together = [sentence for part in parts for sentence in getattr(part, side)]
        assert len(together) == len(set(together))
    assert parts[0].source[0] == "早上 好"
    assert parts[0].target[0] == "good morning"
    assert parts[0].alignments[0] == {(0, 1), (1, 0)}


def test_what_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="rows=-1"):
        phrasebook.generate(-1)
    with pytest.raises(ValueError, match="train=0"):
        phrasebook.corpus(train=0)
    assert phrasebook.generate(0) == ([], [], [])
