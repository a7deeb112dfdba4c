"""Figures of translations and alignments, against values worked out by hand."""

import numpy as np
import pytest

from keras_attention.recipes import metrics


def test_bleu_of_equal_text_is_100_and_carries_the_signature():
    sentences = ["the cat sat on the mat", "a dog barked at the old man"]
    score = metrics.bleu(sentences, sentences)
    assert score.value == pytest.approx(100)
    assert score.signature.startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:")


def test_bleu_equals_the_formula_on_one_sentence():
    # Precisions 5/6, 3/5, 2/4, 1/3; equal lengths, so no brevity penalty.
    score = metrics.bleu(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_case_counts_only_when_asked():
    one, other = ["I saw Tom at home today"], ["i saw tom at home today"]
    assert metrics.bleu(one, other).value == pytest.approx(100)
    assert metrics.bleu(one, other, lowercase=False).value < 100
    assert metrics.chrf(one, other).value == pytest.approx(100)
    assert metrics.chrf(one, other, lowercase=False).value < 100


def test_exact_match_is_a_share():
    assert metrics.exact_match(["a b", "c", "d", "e"], ["a b", "c", "x", "e"]) == 0.75


def test_alignment_error_rate_by_hand():
    predicted = [{(0, 0), (1, 1)}, {(2, 0)}]
    sure = [{(0, 0)}, {(1, 0)}]
    # |A n S| = 1, |A n P| = 1, |A| = 3, |S| = 2
    assert metrics.alignment_error_rate(predicted, sure) == pytest.approx(1 - 2 / 5)
    # A possible link is no error, and the sure ones need not be repeated among them.
    possible = [{(1, 1)}, set()]
    assert metrics.alignment_error_rate(predicted, sure, possible) == pytest.approx(1 - 3 / 5)


def test_alignment_error_rate_is_0_for_the_gold_and_1_for_nothing_right():
    gold = [frozenset({(0, 1), (1, 0)})]
    assert metrics.alignment_error_rate(gold, gold) == 0
    assert metrics.alignment_error_rate([{(0, 0)}], gold) == 1
    assert metrics.alignment_error_rate([set()], [set()]) == 0


def test_rows_that_do_not_match_are_refused():
    for metric in (metrics.bleu, metrics.chrf, metrics.exact_match, metrics.alignment_error_rate):
        with pytest.raises(ValueError, match="2 and 1"):
            metric(["a", "b"], ["a"])
        with pytest.raises(ValueError, match="at least 1"):
            metric([], [])


def test_pieces_are_merged_into_words_before_they_are_aligned():
    source = ["sch", "##nee", "mann", "[END]"]
    target = ["snow", "##man", "stands", "##.", "[END]"]
    weights = np.zeros((5, 4))
    weights[[0, 1, 2, 3, 4], [0, 2, 1, 2, 3]] = 1
    assert metrics.hard_alignment(weights, source, target) == {(0, 0), (1, 0), (0, 1), (1, 1)}


def test_special_pieces_take_no_part_on_either_side():
    source = ["[START]", "a", "b", "[END]", "[PAD]"]
    target = ["x", "[END]", "[PAD]"]
    # The end holds most of the weight; among words, b does.
    weights = np.array([[0.1, 0.1, 0.2, 0.5, 0.1], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    assert metrics.hard_alignment(weights, source, target) == {(1, 0)}
    assert metrics.hard_alignment(weights, ["[END]"] * 5, target) == frozenset()


def test_a_word_written_as_number_signs_is_a_word():
    assert metrics.hard_alignment(np.eye(2), ["a", "##"], ["x", "y"]) == {(0, 0), (1, 1)}


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"weights\.shape=\(2, 3\)"):
        metrics.hard_alignment(np.ones((2, 3)), ["a", "b"], ["x", "y", "z"])
