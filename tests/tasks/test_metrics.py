"""Metrics by hand, and compared with the official scripts' definitions."""

import collections
import itertools
import json
import math
import random
import re
import string
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.kinds.spans.squad_files import read_questions
from bert_tf.kinds.tags.conll_files import read_conll
from bert_tf.tasks.metrics import (
    METRICS,
    compute,
    entities,
    entity_scores,
    korquad_v1,
    squad_v1,
    squad_v2,
)

# 3 true and 1 false positive, 2 missed, 5 true negatives.
LABELS = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
CLASSES, GUESSES = [0, 1, 2, 2, 2, 1, 0], [0, 2, 2, 2, 1, 1, 2]
SETS = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]]
GUESSED_SETS = [[1, 0, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
X, X_RANKS = [1.0, 2.0, 4.0, 5.0, 5.0], [1, 2, 3, 4.5, 4.5]
Y, Y_RANKS = [0.5, 4.0, 2.0, 3.0, 9.0], [1, 4, 2, 3, 5]


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("accuracy", LABELS, PREDICTIONS, 8 / 11),
        ("f1", LABELS, PREDICTIONS, 2 * 3 / (2 * 3 + 1 + 2)),
        ("mcc", LABELS, PREDICTIONS, (3 * 5 - 2) / math.sqrt(4 * 5 * 6 * 7)),
        # F1 is 2 TP / (labels + predictions) of a class.
        ("macro_f1", CLASSES, GUESSES, (2 / 3 + 2 / 4 + 4 / 7) / 3),
        ("micro_f1", CLASSES, GUESSES, 4 / 7),
        ("f1", CLASSES, GUESSES, 2 / 4),
        ("exact_match", SETS, GUESSED_SETS, 2 / 5),
        ("micro_f1", SETS, GUESSED_SETS, 2 * 5 / (7 + 7)),
        ("pearson", X, Y, np.corrcoef(X, Y)[0, 1]),
        ("spearman", X, Y, np.corrcoef(X_RANKS, Y_RANKS)[0, 1]),
        # Where libraries warn or would fail.
        ("f1", [0, 0, 0], [0, 0, 0], 0.0),
        ("macro_f1", [0, 0], [0, 0], 1.0),
        ("micro_f1", [[0, 0], [0, 0]], [[0, 0], [0, 0]], 0.0),
        ("mcc", [0, 1, 0], [0, 0, 0], 0.0),
        ("pearson", [1.0, 2.0, 3.0], [2.5, 2.5, 2.5], math.nan),
        ("spearman", [1.0, 2.0], [math.nan, 5.0], math.nan),
    ],
)
def test_metrics_by_hand(name, labels, predictions, expected):
    scores = compute([name], np.array(labels), np.array(predictions))
    assert scores == {name: pytest.approx(expected, nan_ok=True)}
    assert type(scores[name]) is float


def test_invalid_arguments():
    with pytest.raises(InputError, match=r"accuracy, f1, .* 'bleu'"):
        compute(["accuracy", "bleu"], [1], [1])
    with pytest.raises(InputError, match="at least one example"):
        compute(METRICS, [], [])


def test_libraries_are_imported_on_first_use():
    program = (
        "import sys, bert_tf.tasks.metrics\n"
        "assert not {'sklearn', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def slow_normalize(text, korean):
    if korean:
        for mark in "'\"《》<>〈〉()‘’":
            text = text.replace(mark, " ")
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    if not korean:
        text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


def slow_points(texts, predicted, korean=False, negative=False):
    """Returns exact match and F1 of a question."""

    def units(text):
        words = slow_normalize(text, korean).split()
        return [*"".join(words)] if korean else words

    def f1(text):
        left, found = units(text), units(predicted)
        if negative and not (left and found):
            return int(left == found)
        size, shared = len(left), 0
        for unit in found:
            if unit in left:
                left.remove(unit)
                shared += 1
        if not shared:
            return 0
        precision, recall = shared / len(found), shared / size
        return 2 * precision * recall / (precision + recall)

    if negative:
        texts = [text for text in texts if units(text)] or [""]
    normal = slow_normalize(predicted, korean)
    is_exact = any(slow_normalize(text, korean) == normal for text in texts)
    return int(is_exact), max(map(f1, texts))


def slow_v1(gold, predictions, korean=False):
    exact = f1 = 0  # A running sum, as in the scripts.
    for key, texts in gold.items():
        points = slow_points(texts, predictions[key], korean)
        exact, f1 = exact + points[0], f1 + points[1]
    percent = 100.0 * exact / len(gold), 100.0 * f1 / len(gold)
    return dict(zip(("exact_match", "f1"), percent, strict=True))


def slow_v2(gold, points, predictions, odds):
    """Adds with `sum`, like the script: Python 3.12 rounds it differently."""
    scores = {}
    for prefix, kinds in (("", "01"), ("HasAns_", "1"), ("NoAns_", "0")):
        chosen = [points[k] for k in gold if str(int(bool(gold[k]))) in kinds]
        exact, f1 = (
            100.0 * sum(column) / len(chosen)
            for column in zip(*chosen, strict=True)
        )
        values = {"exact": exact, "f1": f1, "total": len(chosen)}
        scores |= {f"{prefix}{name}": value for name, value in values.items()}
    for column, name in enumerate(("exact", "f1")):
        score = best = sum(not texts for texts in gold.values())
        threshold = 0.0
        for key in sorted(odds, key=odds.get):
            if gold[key]:
                score += points[key][column]
            elif predictions[key]:
                score -= 1
            if score > best:
                best, threshold = score, odds[key]
        scores[f"best_{name}"] = 100.0 * best / len(gold)
        scores[f"best_{name}_thresh"] = threshold
    return scores


WORDS = [
    *("the", "a", "an", "The", "THE", "a.n", "the-end", "cat", "sat,", "..."),
    *("on-mat:", "it's", "'quoted'", "(in)", "(", "U.S.", "1,000", "1000"),
    *("“a”", "‘x’", "—", "–", "ÉTÉ", "été", "Σ.", "ΑΣ", "İ", "ß", "٪"),
    *("《책》", "책은", "〈", "<b>", "\u00a0", "\u3000"),
]


def random_answers(rng, count, fewest):
    """Returns gold answers, similar predictions, and odds with ties."""

    def random_text():
        words = rng.choices(WORDS, k=rng.choice([0, 1, 1, 2, 3, 5]))
        return rng.choice(["", " ", "  ", "\n"]).join(words)

    gold, predictions = {}, {}
    for number in range(count):
        texts = [random_text() for _ in range(rng.randint(fewest, 3))]
        longer = [f"{text} {random_text()}" for text in texts]
        gold[f"q{number}"] = texts
        choices = [*texts, *longer, random_text(), ""]
        predictions[f"q{number}"] = rng.choice(choices)
    odds = {key: rng.randint(-3, 3) / 2 for key in rng.sample([*gold], count)}
    return gold, predictions, odds


def test_scores_of_answers_equal_the_definitions():
    """To the last digit, because they are compared with published numbers."""
    for seed in range(40):
        rng = random.Random(seed)
        gold, predictions, odds = random_answers(rng, 23, fewest=0)
        points = {
            key: slow_points(texts, predictions[key], negative=True)
            for key, texts in gold.items()
        }
        found = squad_v2(gold, predictions, odds)
        expected = slow_v2(gold, points, predictions, odds)
        assert [*found.items()] == [*expected.items()]
        gold, predictions, _ = random_answers(rng, 31, fewest=1)
        assert squad_v1(gold, predictions) == slow_v1(gold, predictions)
        expected = slow_v1(gold, predictions, korean=True)
        assert korquad_v1(gold, predictions) == expected


@pytest.mark.parametrize(
    ("metric", "texts", "predicted", "exact", "f1"),
    [
        (squad_v1, ("Denver", "the Denver Broncos"), "Denver Broncos!", 1, 1),
        (squad_v1, ("Denver", "Broncos of Denver"), "broncos", 0, 1 / 2),
        # Exact match and F1 may come from different answers.
        (squad_v1, ("a", "x y"), "The", 1, 0),
        # F1 is over multisets: precision 2 / 3, recall 2 / 4.
        (squad_v1, ("x x y z",), "x x x", 0, 4 / 7),
        # Without a common word, F1 is 0 in 1.1; 2.0 has a rule for this.
        (squad_v1, ("the",), "...", 1, 0),
        (squad_v2, (), "the...", 1, 1),
        (squad_v2, ("the", "..."), "", 1, 1),
        (squad_v2, (), "x", 0, 0),
        # One more particle: no common word, but two characters of three.
        (korquad_v1, ("서울",), "서울에", 0, 4 / 5),
        (squad_v1, ("서울",), "서울에", 0, 0),
        (korquad_v1, ("서울 대학교",), "서울대학교", 0, 1),
    ],
)
def test_answers_by_hand(metric, texts, predicted, exact, f1):
    scores = metric({"q": texts}, {"q": predicted})
    found = tuple(scores.values())[:2]
    assert found == pytest.approx((100 * exact, 100 * f1))
    if metric is squad_v2:
        kind = "HasAns" if texts else "NoAns"
        total = ("exact", "f1", "total")
        assert [*scores] == [*total, *(f"{kind}_{name}" for name in total)]


def test_a_best_threshold_that_answers_no_question():
    """The official script reports 0.0 if it is best to answer no question."""
    gold = {"q1": (), "q2": (), "q3": ("y",), "q4": ()}
    predictions = {"q1": "x", "q2": "w", "q3": "y", "q4": "v"}
    odds = {"q1": -6.0, "q2": -5.0, "q3": -4.0, "q4": 0.0}
    scores = squad_v2(gold, predictions, odds)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (75, 0)
    assert squad_v2(gold, dict.fromkeys(gold, ""))["f1"] == 75


def test_published_predictions_have_their_published_scores(shared_data):
    """The original's answers with BERT-Tiny, on all 10,570 questions."""
    path = shared_data / "squad" / "dev-v1.1.json"
    questions = read_questions(
        str(path), with_negative=False, needs_answers=True
    )
    gold = {x.id: [answer.text for answer in x.answers] for x in questions}
    path = shared_data / "google_bert_outputs" / "squad" / "predictions.json"
    predictions = json.loads(path.read_text(encoding="utf-8"))
    scores = squad_v1(gold, predictions)
    expected = {"exact_match": 37.777, "f1": 50.627}
    assert scores == pytest.approx(expected, abs=5e-4)
    assert len(gold) == 10570


def split(text):
    """Splits sentences at slashes and their tags at spaces."""
    return [sentence.split() for sentence in text.split("/")]


def scores_of(gold, predicted, correct, prefix=""):
    """Returns the scores from numbers of entities."""
    return {
        f"{prefix}precision": correct / (predicted or 1),
        f"{prefix}recall": correct / (gold or 1),
        f"{prefix}f1": 2 * correct / (gold + predicted or 1),
    }


# What conlleval.pl prints: gold, predicted and correct entities, and accuracy.
@pytest.mark.parametrize(
    ("gold", "predicted", "counts", "accuracy"),
    [
        ("O B-A I-A O", "O I-A I-A O", (1, 1, 1), 3 / 4),
        ("O B-A I-A O", "O B-A B-A O", (1, 2, 0), 3 / 4),
        ("I-A B-A", "B-A B-A", (2, 2, 2), 1 / 2),
        ("I-A I-B", "I-A I-A", (2, 1, 0), 1 / 2),
        ("B-A I-A", "B-A I-B", (1, 2, 0), 1 / 2),
        ("O O", "O O", (0, 0, 0), 2 / 2),
        ("B-A O", "O O", (1, 0, 0), 1 / 2),
        ("I-A / I-A", "I-A / I-A", (2, 2, 2), 2 / 2),
        ("B I O B", "B I O I", (2, 2, 2), 3 / 4),
    ],
)
def test_counts_are_those_of_conlleval(gold, predicted, counts, accuracy):
    metrics = entity_scores(split(gold), split(predicted))
    assert metrics["accuracy"] == pytest.approx(accuracy)
    assert metrics.items() >= scores_of(*counts).items()


def test_names_of_entity_scores():
    metrics = entity_scores(split("B-B I-A"), split("B-B I-A"))
    assert list(metrics) == [
        *("precision", "recall", "f1", "accuracy"),
        *("A_precision", "A_recall", "A_f1"),
        *("B_precision", "B_recall", "B_f1"),
    ]
    # Entities without a type only have the overall score.
    assert len(entity_scores([["B"]], [["B"]])) == 4


@pytest.mark.parametrize("tag", ["", "o", "B-", "S-PER", "O-PER"])
def test_invalid_tags(tag):
    with pytest.raises(ValueError, match="must be O, B-TYPE or I-TYPE"):
        entities(["O", tag])
    with pytest.raises(InputError, match="at least one word"):
        entity_scores([], [])


def slow_entities(tags):
    """Returns (type, begin, end) from the borders that conlleval defines."""
    pairs = [("O", ""), *(tag.partition("-")[::2] for tag in tags), ("O", "")]
    found, begin = set(), 0
    for n, (last, this) in enumerate(itertools.pairwise(pairs)):
        (before, kind), (mark, other) = last, this
        ends = mark in "BO" or kind != other
        if before != "O" and ends:
            found.add((kind, begin, n))
        if mark == "B" or (mark != "O" and (before == "O" or ends)):
            begin = n
    return found


@pytest.mark.parametrize("num_tags", [3, 7])
def test_entities_of_random_tags(num_tags):
    draw = random.Random(num_tags)
    tags = ["O", "B-A", "I-A", "B-B-x", "I-B-x", "B", "I"][:num_tags]
    gold = [draw.choices(tags, k=draw.randrange(9)) for _ in range(999)]
    predicted = [
        [t if draw.random() < 0.7 else draw.choice(tags) for t in sentence]
        for sentence in gold
    ]
    metrics = entity_scores(gold, predicted)
    sets = [
        (slow_entities(x), slow_entities(y))
        for x, y in zip(gold, predicted, strict=True)
    ]
    for kind in (None, "A", "B-x")[: num_tags // 2]:
        counts = np.zeros(3, int)
        for x, y in sets:
            counts += [
                sum(kind in (None, e[0]) for e in part)
                for part in (x, y, x & y)
            ]
        prefix = "" if kind is None else f"{kind}_"
        assert metrics.items() >= scores_of(*counts, prefix).items()
        assert 0 < counts[2] < counts[0]


def test_entities_of_the_official_file(shared_data):
    file = read_conll(str(shared_data / "conll2003" / "eng.testa"))
    tags = [sentence.tags for sentence in file.sentences]
    numbers = collections.Counter(
        e.type for sentence in tags for e in entities(sentence)
    )
    assert numbers == {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}
    assert {*entity_scores(tags, tags).values()} == {1.0}
