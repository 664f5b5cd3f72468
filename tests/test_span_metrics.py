"""Scores of answers: by hand, and as the official definitions word by word."""

import collections
import json
import random
import re
import string

import pytest

from bert_tf.errors import InputError
from bert_tf.metrics import (
    korquad_v1,
    normalize_korquad,
    normalize_squad,
    squad_v1,
    squad_v2,
)

# ------------------------------------------------- the definitions, slowly
# Sentence by sentence what the official scripts do, one question at a time.


def slow_normalize(text, korean):
    if korean:
        for mark in "'\"《》<>〈〉()‘’":
            text = text.replace(mark, " ")
    kept = [c for c in text.lower() if c not in string.punctuation]
    text = "".join(kept)
    if not korean:
        text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


def slow_f1(gold, predicted, korean, negative):
    units = [slow_normalize(text, korean).split() for text in (gold, predicted)]
    if korean:
        units = [[c for word in words for c in word] for words in units]
    if negative and not all(units):
        return int(units[0] == units[1])
    shared = 0
    left = list(units[0])
    for unit in units[1]:
        if unit in left:
            left.remove(unit)
            shared += 1
    if not shared:
        return 0
    precision, recall = shared / len(units[1]), shared / len(units[0])
    return 2 * precision * recall / (precision + recall)


def slow_v1(gold, predictions, korean=False):
    """A running sum, as the scripts of SQuAD 1.1 and KorQuAD have it."""
    exact = f1 = 0
    for key, texts in gold.items():
        if key in predictions:
            normal = slow_normalize(predictions[key], korean)
            exact += any(slow_normalize(t, korean) == normal for t in texts)
            f1 += max(
                slow_f1(t, predictions[key], korean, False) for t in texts
            )
    count = len(gold)
    return {"exact_match": 100.0 * exact / count, "f1": 100.0 * f1 / count}


def slow_points_v2(texts, predicted):
    texts = [t for t in texts if slow_normalize(t, False)] or [""]
    normal = slow_normalize(predicted, False)
    return (
        int(any(slow_normalize(t, False) == normal for t in texts)),
        max(slow_f1(t, predicted, False, True) for t in texts),
    )


def slow_threshold(gold, predictions, points, odds):
    score = best = sum(not texts for texts in gold.values())
    threshold = 0.0
    for key in sorted(odds, key=odds.get):
        if gold[key]:
            score += points[key]
        elif predictions[key]:
            score -= 1
        if score > best:
            best, threshold = score, odds[key]
    return 100.0 * best / len(gold), threshold


def slow_v2(gold, predictions, odds):
    """Sums by `sum`, as the script has it: Python 3.12 rounds it differently
    than a running sum, and whole numbers differently than floats."""
    points = {k: slow_points_v2(t, predictions[k]) for k, t in gold.items()}
    scores = {}
    for prefix, wanted in (
        ("", lambda texts: True),
        ("HasAns_", bool),
        ("NoAns_", lambda texts: not texts),
    ):
        chosen = [points[key] for key, texts in gold.items() if wanted(texts)]
        if chosen:
            sums = map(sum, zip(*chosen, strict=True))
            exact, f1 = (100.0 * total / len(chosen) for total in sums)
            scores[f"{prefix}exact"] = exact
            scores[f"{prefix}f1"] = f1
            scores[f"{prefix}total"] = len(chosen)
    for column, name in enumerate(("exact", "f1")):
        of_column = {key: pair[column] for key, pair in points.items()}
        best = slow_threshold(gold, predictions, of_column, odds)
        scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best
    return scores


# -------------------------------------------------------------- random data

WORDS = [
    *("the", "a", "an", "The", "THE", "a.n", "the-end", "cat", "sat,", "..."),
    *("on-mat:", "it's", "'quoted'", "(in)", "(", "U.S.", "1,000", "1000"),
    *("“a”", "‘x’", "—", "–", "ÉTÉ", "été", "Σ.", "ΑΣ", "İ", "ß", "٪"),
    *("《책》", "책은", "〈", "<b>", "\u00a0", "\u3000"),
]


def text_of(rng):
    return rng.choice(["", " ", "  ", "\n"]).join(
        rng.choices(WORDS, k=rng.choice([0, 1, 1, 2, 3, 5]))
    )


def data_of(rng, count, fewest):
    """Gold answers, predictions that are often among them, and tied odds."""
    gold, predictions = {}, {}
    for number in range(count):
        texts = [text_of(rng) for _ in range(rng.randint(fewest, 3))]
        longer = [f"{text} {text_of(rng)}" for text in texts]
        gold[f"q{number}"] = texts
        predictions[f"q{number}"] = rng.choice(
            [*texts, *longer, text_of(rng), ""]
        )
    odds = {key: rng.randint(-3, 3) / 2 for key in rng.sample([*gold], count)}
    return gold, predictions, odds


@pytest.mark.parametrize("seed", range(20))
def test_squad_and_korquad_are_the_definitions(seed):
    gold, predictions, _ = data_of(random.Random(seed), 31, fewest=1)
    """To the last digit: they are compared with published numbers."""
    assert squad_v1(gold, predictions) == slow_v1(gold, predictions)
    expected = slow_v1(gold, predictions, korean=True)
    assert korquad_v1(gold, predictions) == expected


@pytest.mark.parametrize("seed", range(40))
def test_squad_2_is_the_definition(seed):
    gold, predictions, odds = data_of(random.Random(seed), 23, fewest=0)
    scores = squad_v2(gold, predictions, odds)
    expected = slow_v2(gold, predictions, odds)
    assert list(scores) == list(expected)
    assert scores == expected


def test_random_answers_are_of_every_kind():
    """Else the tests above would show little."""
    rng = random.Random(1)
    gold, predictions, _ = data_of(rng, 500, fewest=0)
    kinds = collections.Counter()
    for key, texts in gold.items():
        exact, f1 = slow_points_v2(texts, predictions[key])
        kinds[bool(texts), exact, 0 < f1 < 1] += 1
    assert len(kinds) == 5
    assert min(kinds.values()) > 10


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat,\tsat\n", "cat sat"),
        ("an apple a day", "apple day"),
        ("Theory of another", "theory of another"),
        ("the U.S.-led war", "usled war"),
        # Punctuation goes first, and may leave an article.
        ("a.n, (the) 'A'", ""),
        ("the-end", "theend"),
        # Only ASCII's is punctuation; \b is a border of any script's words.
        ("“a” — ‘b’", "“ ” — ‘b’"),
        ("éa a的", "éa a的"),
        ("ÉTÉ\u00a0\u3000x", "été x"),
        ("", ""),
        ("...", ""),
    ],
)
def test_what_counts_of_an_answer(text, normal):
    assert normalize_squad(text) == normal == slow_normalize(text, False)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("《삼국지》(三國志)", "삼국지 三國志"),
        ("<가>〈나〉'다'\"라\"‘마’", "가 나 다 라 마"),
        ("1,000명.", "1000명"),
        ("the A-Team", "the ateam"),
        ("[가] 「나」", "가 「나」"),
        ("()", ""),
    ],
)
def test_what_counts_of_a_korean_answer(text, normal):
    assert normalize_korquad(text) == normal == slow_normalize(text, True)


def one(metric, texts, predicted):
    scores = metric({"q": texts}, {"q": predicted})
    return tuple(scores.values())[:2]


def test_the_best_of_several_answers_counts():
    texts = ("Denver", "the Denver Broncos", "Broncos of Denver")
    assert one(squad_v1, texts, "Denver Broncos!") == (100, 100)
    assert one(squad_v1, texts, "broncos") == pytest.approx((0, 200 / 3))
    # Exact match and F1 may be those of different answers.
    assert one(squad_v1, ("a", "x y"), "The") == (100, 0)


def test_words_count_as_often_as_they_stand_there():
    precision, recall = 2 / 3, 2 / 4
    f1 = 100 * 2 * precision * recall / (precision + recall)
    scores = one(squad_v1, ("x x y z",), "x x x")
    assert scores == pytest.approx((0, f1))


def test_nothing_against_nothing():
    """1.1's F1 is 0 without a common word; 2.0 has a rule for that."""
    assert one(squad_v1, ("",), "") == (100, 0)
    assert one(squad_v1, ("the",), "...") == (100, 0)
    assert one(korquad_v1, ("()",), "") == (100, 0)
    assert one(squad_v2, (), "") == (100, 100)
    assert one(squad_v2, (), "the...") == (100, 100)
    assert one(squad_v2, ("the", "..."), "") == (100, 100)
    assert one(squad_v2, (), "x") == (0, 0)
    assert one(squad_v2, ("x", "the"), "") == (0, 0)
    assert one(squad_v2, ("x",), "a x") == (100, 100)


def test_korean_answers_share_characters():
    """A particle more: no word in common, two characters of three."""
    scores = one(korquad_v1, ("서울",), "서울에")
    assert scores == pytest.approx((0, 80))
    assert one(squad_v1, ("서울",), "서울에") == (0, 0)
    assert one(korquad_v1, ("서울 대학교",), "서울대학교") == (0, 100)


def test_unanswered_questions_score_nothing(caplog):
    gold = {"q1": ("x",), "q2": ("y",), "q3": (), "q4": ()}
    predictions = {"q1": "x", "q3": "", "elsewhere": "y"}
    scores = squad_v2(gold, predictions, {"q1": -1.0, "q3": 1.0})
    assert scores["exact"] == scores["best_f1"] == 50
    assert scores["HasAns_f1"] == scores["NoAns_f1"] == 50
    assert scores["total"] == 4
    assert "2 of 4 questions have no prediction" in caplog.text
    assert "the first: q2" in caplog.text
    caplog.clear()
    answerable = {"q1": ("x",), "q2": ("y",)}
    for metric in (squad_v1, korquad_v1):
        expected = {"exact_match": 50, "f1": 50}
        assert metric(answerable, predictions) == expected
    assert metric(answerable, {}) == {"exact_match": 0, "f1": 0}


def test_no_warning_where_all_is_answered(caplog):
    squad_v1({"q": ("x",)}, {"q": ""})
    assert not caplog.records


def test_kinds_of_questions_that_there_are_not_are_left_out():
    assert list(squad_v2({"q": ("x",)}, {"q": "x"})) == [
        *("exact", "f1", "total"),
        *("HasAns_exact", "HasAns_f1", "HasAns_total"),
    ]
    assert list(squad_v2({"q": ()}, {"q": "x"}, {"q": 0.5})) == [
        *("exact", "f1", "total"),
        *("NoAns_exact", "NoAns_f1", "NoAns_total"),
        *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    ]


def test_the_threshold_that_would_have_been_best():
    gold = {"q1": ("x",), "q2": (), "q3": ("y z",), "q4": ()}
    predictions = {"q1": "x", "q2": "w", "q3": "y", "q4": "v"}
    odds = {"q4": 9.0, "q3": 0.5, "q2": 0.25, "q1": -3.5}
    scores = squad_v2(gold, predictions, odds)
    assert (scores["exact"], scores["total"]) == (25, 4)
    # Up to q1: three are right. q2 loses one, q3 gains 2/3 of it back.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, -3.5)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (75, -3.5)
    odds["q2"] = 4.0
    scores = squad_v2(gold, predictions, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, -3.5)
    assert scores["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
    assert scores["best_f1_thresh"] == 0.5


def test_nothing_is_better_than_to_answer_nothing():
    scores = squad_v2(
        {"q1": (), "q2": ()}, {"q1": "x", "q2": ""}, {"q1": 5, "q2": -5}
    )
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, 0)
    assert (scores["NoAns_f1"], scores["f1"]) == (50, 50)


def test_a_best_threshold_that_gives_other_answers_is_warned_of(caplog):
    """The official script says 0.0 where it is best to answer nothing."""
    gold = {"q1": (), "q2": (), "q3": ("y",), "q4": ()}
    predictions = {"q1": "x", "q2": "w", "q3": "y", "q4": "v"}
    odds = {"q1": -6.0, "q2": -5.0, "q3": -4.0, "q4": 0.0}

    def f1_at(threshold):
        kept = {
            k: t if odds[k] <= threshold else "" for k, t in predictions.items()
        }
        return squad_v2(gold, kept)["f1"]

    scores = squad_v2(gold, predictions, odds)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (75, 0)
    assert f1_at(0.0) == 25
    [warning] = caplog.messages
    assert "F1, 75.0" in warning
    assert "would be 25.0" in warning
    [advised] = re.findall("--null_score_diff_threshold=([-e0-9]+)", warning)
    assert f1_at(float(advised)) == scores["best_f1"]
    caplog.clear()
    # No question is answered with this 0.0 either.
    assert squad_v2({"q": ()}, {"q": "x"}, {"q": 0.5})["best_f1_thresh"] == 0
    assert not caplog.messages


@pytest.mark.parametrize(
    ("order", "best", "threshold"), [("ab", 100, 2.0), ("ba", 50, 0.0)]
)
def test_equal_odds_come_in_their_order(order, best, threshold):
    """No threshold parts them, but the official script does."""
    gold = {"a": ("x",), "b": ()}
    predictions = {"a": "x", "b": "y"}
    scores = squad_v2(gold, predictions, dict.fromkeys(order, 2.0))
    found = scores["best_exact"], scores["best_exact_thresh"]
    assert found == (best, threshold)


@pytest.mark.parametrize("metric", [squad_v1, squad_v2, korquad_v1])
def test_no_question_is_an_error(metric):
    with pytest.raises(InputError, match="at least one question"):
        metric({}, {"q": "x"})


@pytest.mark.parametrize("metric", [squad_v1, korquad_v1])
def test_a_question_without_gold_is_named(metric):
    with pytest.raises(InputError, match=r"'q2'.*SQuAD 2\.0"):
        metric({"q1": ("x",), "q2": ()}, {"q1": "x"})


@pytest.mark.parametrize("odds", [{"q1": 1.0}, {"q1": 1.0, "q2": float("nan")}])
def test_odds_that_are_missing_are_named(odds):
    with pytest.raises(InputError, match=r"'q2' must .* got (None|nan)"):
        squad_v2({"q1": (), "q2": ()}, {"q1": "", "q2": ""}, odds)


def test_the_published_predictions_score_what_they_scored(shared_data):
    """BERT-Tiny's answers by the original, on the 10,570 questions."""
    path = shared_data / "squad" / "dev-v1.1.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    gold = {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    path = shared_data / "google_bert_outputs" / "squad" / "predictions.json"
    predictions = json.loads(path.read_text(encoding="utf-8"))
    scores = squad_v1(gold, predictions)
    assert scores == pytest.approx(
        {"exact_match": 37.777, "f1": 50.627}, abs=5e-4
    )
    assert scores == slow_v1(gold, predictions)
    both = squad_v2(gold, predictions)
    assert both["HasAns_total"] == len(gold) == 10570
    assert both["exact"] == pytest.approx(scores["exact_match"])
    assert both["f1"] == pytest.approx(scores["f1"])
