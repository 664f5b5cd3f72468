"""Entities: by hand, as conlleval counts them, and of random sentences.

The numbers by hand are those that conlleval.pl prints of the same tags.
"""

import random

import pytest

from bert_tf.errors import InputError
from bert_tf.metrics import (
    Counts,
    Entity,
    count_entities,
    entities,
    entity_scores,
)
from bert_tf.tasks.ner import read_conll

TAGS = ["O", "B-A", "I-A", "B-B-x", "I-B-x", "B", "I"]


def split(text):
    """Sentences of tags: words between spaces, sentences between slashes."""
    return [sentence.split() for sentence in text.split("/")]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("O B-A I-A O", [("A", 1, 3)]),
        ("O I-A I-A O", [("A", 1, 3)]),
        ("I-A", [("A", 0, 1)]),
        ("B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
        ("I-A B-A", [("A", 0, 1), ("A", 1, 2)]),
        ("I-A I-B I-B", [("A", 0, 1), ("B", 1, 3)]),
        ("B-A I-B I-A", [("A", 0, 1), ("B", 1, 2), ("A", 2, 3)]),
        ("B-A O I-A", [("A", 0, 1), ("A", 2, 3)]),
        ("O O B-A", [("A", 2, 3)]),
        ("B-A-b I-A-b I-A", [("A-b", 0, 2), ("A", 2, 3)]),
        ("B I O I I-A", [("", 0, 2), ("", 3, 4), ("A", 4, 5)]),
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == [Entity(*span) for span in expected]


@pytest.mark.parametrize("tag", ["", "X", "o", "B-", "S-PER", "OO", "O-PER"])
def test_other_tags_are_an_error(tag):
    with pytest.raises(ValueError, match="must be O, B-TYPE or I-TYPE"):
        entities(["O", tag])


# Tags, predicted tags; phrases, those found, the correct ones; right tags.
CONLLEVAL = [
    ("O B-A I-A O", "O B-A I-A O", (1, 1, 1), 4 / 4),
    ("O B-A I-A O", "O I-A I-A O", (1, 1, 1), 3 / 4),
    ("O B-A I-A O", "O B-A B-A O", (1, 2, 0), 3 / 4),
    ("B-A B-A", "B-A I-A", (2, 1, 0), 1 / 2),
    ("I-A B-A", "B-A B-A", (2, 2, 2), 1 / 2),
    ("I-A I-B I-B", "B-A B-B I-B", (2, 2, 2), 1 / 3),
    ("I-A I-B", "I-A I-A", (2, 1, 0), 1 / 2),
    ("O O I-A", "O O B-A", (1, 1, 1), 2 / 3),
    ("O O B-A", "O B-A I-A", (1, 1, 0), 1 / 3),
    ("B-A I-A I-A", "B-A I-A O", (1, 1, 0), 2 / 3),
    ("B-A I-A", "B-B I-B", (1, 1, 0), 0 / 2),
    ("B-A I-A", "B-A I-B", (1, 2, 0), 1 / 2),
    ("O O", "O O", (0, 0, 0), 2 / 2),
    ("O O", "B-A O", (0, 1, 0), 1 / 2),
    ("B-A O", "O O", (1, 0, 0), 1 / 2),
    ("I-A / I-A", "I-A / I-A", (2, 2, 2), 2 / 2),
    ("B-A / I-A", "B-A / O", (2, 1, 1), 1 / 2),
    ("B-A-b I-A-b", "B-A I-A", (1, 1, 0), 0 / 2),
    ("B I O B", "B I O I", (2, 2, 2), 3 / 4),
]


@pytest.mark.parametrize(("gold", "predicted", "counts", "right"), CONLLEVAL)
def test_counts_are_those_of_conlleval(gold, predicted, counts, right):
    overall, _ = count_entities(split(gold), split(predicted))
    assert overall == counts
    metrics = entity_scores(split(gold), split(predicted))
    assert metrics["accuracy"] == pytest.approx(right)


def test_scores_by_hand():
    """conlleval prints 60.00, 50.00, 54.55 and 66.67 percent, and so on."""
    gold = split("B-A I-A O B-B / B-B O B-A / B-A B-B I-B O O")
    predicted = split("B-A I-A O B-B / O O B-A / B-B B-A I-A O O")
    metrics = entity_scores(gold, predicted)
    assert list(metrics) == [
        *("precision", "recall", "f1", "accuracy"),
        *("A_precision", "A_recall", "A_f1"),
        *("B_precision", "B_recall", "B_f1"),
    ]
    expected = [3 / 5, 3 / 6, 6 / 11, 8 / 12]
    expected += [2 / 3, 2 / 3, 2 / 3, 1 / 2, 1 / 3, 2 / 5]
    assert list(metrics.values()) == pytest.approx(expected)


def test_types_are_those_of_either_side():
    overall, of_types = count_entities(split("B-Z B-A"), split("B-A B-M"))
    assert overall == (2, 2, 0)
    assert list(of_types) == ["A", "M", "Z"]
    assert of_types == {"A": (1, 1, 0), "M": (0, 1, 0), "Z": (1, 0, 0)}


def test_nothing_found_is_zero():
    assert Counts(0, 0, 0).f1 == Counts(3, 0, 0).f1 == 0.0
    assert Counts(0, 3, 0).recall == Counts(3, 0, 0).precision == 0.0
    metrics = entity_scores(split("O O"), split("O O"))
    assert metrics == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}


def test_entities_without_a_type_have_the_overall_score_alone():
    assert list(entity_scores(split("B I"), split("B I"))) == [
        *("precision", "recall", "f1", "accuracy"),
    ]


def test_what_does_not_belong_together():
    with pytest.raises(InputError, match="at least one word"):
        entity_scores([], [])
    with pytest.raises(ValueError, match="zip"):
        entity_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="zip"):
        entity_scores([["O", "O"]], [["O"]])


# conlleval once more, tag by tag as the script goes.


def ends(previous, tag):
    (before, kind), (mark, other) = parts(previous), parts(tag)
    return (before in "BI" and mark in "BO") or (
        before != "O" and kind != other
    )


def starts(previous, tag):
    (before, kind), (mark, other) = parts(previous), parts(tag)
    return (
        (mark == "B")
        or (before == "O" and mark == "I")
        or (mark != "O" and kind != other)
    )


def parts(tag):
    mark, _, kind = tag.partition("-")
    return mark, kind


def conlleval(gold, predicted):
    """Phrases, found ones and correct ones, all in one pass over all words."""
    border = [("O", "O")]
    pairs = [
        pair
        for sentences in zip(gold, predicted, strict=True)
        for pair in [*zip(*sentences, strict=True), *border]
    ]
    phrases = found = correct = 0
    is_correct = False
    for (last, guess_before), (tag, guess) in zip(
        border + pairs, pairs, strict=False
    ):
        ended, guess_ended = ends(last, tag), ends(guess_before, guess)
        if is_correct and ended and guess_ended:
            correct += 1
        kinds_differ = parts(tag)[1] != parts(guess)[1]
        if ended or guess_ended or kinds_differ:
            is_correct = False
        started, guess_started = starts(last, tag), starts(guess_before, guess)
        if started and guess_started and not kinds_differ:
            is_correct = True
        phrases += started
        found += guess_started
    return phrases, found, correct


@pytest.mark.parametrize("num_tags", [3, 5, 7])
def test_random_sentences_count_as_in_conlleval(num_tags):
    draw = random.Random(num_tags)
    tags = TAGS[:num_tags]
    gold = [draw.choices(tags, k=draw.randrange(9)) for _ in range(1999)]
    predicted = [
        [t if draw.random() < 0.7 else draw.choice(tags) for t in sentence]
        for sentence in gold
    ]
    overall, of_types = count_entities(gold, predicted)
    assert overall == conlleval(gold, predicted)
    assert overall == tuple(map(sum, zip(*of_types.values(), strict=True)))
    assert 0 < overall.correct < overall.gold


def test_the_official_numbers_of_entities(shared_data):
    file = read_conll(str(shared_data / "conll2003" / "eng.testa"))
    tags = [sentence.tags for sentence in file.sentences]
    overall, of_types = count_entities(tags, tags)
    numbers = {kind: counts.gold for kind, counts in of_types.items()}
    assert numbers == {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}
    assert overall == (5942, 5942, 5942)
