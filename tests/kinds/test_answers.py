"""Answers chosen from logits, as in the original, and their files."""

import dataclasses
import json
import math
import random
import re

import numpy as np
import pytest
import squad_files

from bert_tf.errors import InputError
from bert_tf.kinds.spans import task as answers_module
from bert_tf.kinds.spans.squad_files import (
    ODDS_WITHOUT_SPAN,
    Question,
    SpanEncoding,
    make_windows,
)
from bert_tf.kinds.spans.task import (
    AnswerRules,
    answer_questions,
    find_answer,
    official_scores,
    require_answers,
    write_answers,
)
from tests import original_span_answers as slow

FIRST = 4  # [CLS], two tokens of a question, [SEP].
CONTEXT = "The U.S.\nhas 50 states."


def question_of(context):
    return Question("q1", "what is", context)


def window_of(context):
    """Returns a window of the whole context, with words as tokens."""
    spans = [m.span() for m in re.finditer(r"\w+|[^\w\s]", context)]
    starts, ends = np.array(spans, np.int32).reshape(-1, 2).T
    return slow.Window(FIRST, starts, ends, np.full(len(starts), True))


def answer(context, starts, ends, null=(0.0, 0.0), window=None, **rules):
    """Finds the answer, given {position: logit} in the order of rank."""
    window = window or window_of(context)
    nothing = np.zeros((1, FIRST + len(window.starts) + 1))
    outputs = slow.outputs_of([window], nothing, nothing)
    for name, best, null_logit in (
        ("start", starts, null[0]),
        ("end", ends, null[1]),
    ):
        outputs[f"{name}_indexes"] = np.array([[*best]], np.int32)
        outputs[f"{name}_logits"] = np.array([[*best.values()]], np.float32)
        outputs[f"null_{name}_logits"] = np.array([null_logit])
    return find_answer(question_of(context), outputs, AnswerRules(**rules))


def texts(found):
    return [entry["text"] for entry in found.nbest]


def test_sorted_marks_are_not_an_empty_answer():
    """NFD sorts marks, so a later token can be an earlier character."""
    window = slow.Window(
        FIRST, np.array([0, 2, 1]), np.array([1, 3, 2]), np.full(3, True)
    )
    found = answer("abc", {5: 9.0, 4: 0.0}, {6: 9.0}, window=window)
    assert texts(found) == ["ab"]


def test_a_list_of_no_answer_only_has_odds():
    """The original crashes if the list has no room for a span."""
    options = {"n_best_size": 1, "with_negative": True}
    found = answer("x", {4: 2.0}, {4: 2.0}, (9.0, 0.0), **options)
    assert (found.text, texts(found), found.null_odds) == ("", [""], 5.0)
    options["null_score_diff_threshold"] = 5.0
    found = answer("x", {4: 2.0}, {4: 2.0}, (9.0, 0.0), **options)
    assert (found.text, texts(found)) == ("x", [""])


@pytest.mark.parametrize("with_negative", [False, True])
def test_a_question_that_has_the_best_starts_is_answered(with_negative):
    """The original crashes with SQuAD 2.0, and answers "empty" otherwise."""
    starts = {1: 9.0, 2: 8.0, 9: 3.0, 4: 2.0, 6: 1.0}
    ends = {2: 9.0, 1: 8.0, 5: 4.0, 6: 2.0, 9: 0.0}
    options = {"n_best_size": 2, "with_negative": with_negative}
    found = answer("a b c d e f", starts, ends, (2.0, 3.0), **options)
    assert (found.text, found.start) == ("a b", 0)
    assert found.null_odds == (-1.0 if with_negative else None)
    total = math.exp(6) + math.exp(5 if with_negative else 4)
    assert texts(found) == ["a b", "" if with_negative else "a b c"]
    chance = pytest.approx(math.exp(6) / total, rel=1e-12)
    assert found.nbest[0]["probability"] == chance


def test_without_a_span_there_is_no_answer():
    options = {"with_negative": True, "null_score_diff_threshold": 1e9}
    found = answer(CONTEXT, {0: 9.0}, {0: 9.0}, (2.5, -1.0), **options)
    assert (found.text, found.null_odds) == ("", ODDS_WITHOUT_SPAN)
    [entry] = found.nbest
    assert (entry["start_logit"], entry["end_logit"]) == (2.5, -1.0)
    [entry] = answer(CONTEXT, {0: 9.0}, {0: 9.0}).nbest
    assert (entry["text"], entry["probability"]) == ("", 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["start", "end", "null"])
def test_logits_must_be_finite(bad, where):
    starts, ends = ({4: 1.0, -1: -np.inf} for _ in range(2))
    null = (bad, 0.0) if where == "null" else (0.0, 0.0)
    if where != "null":
        {"start": starts, "end": ends}[where][5] = bad
    with pytest.raises(InputError, match="question 'q1' are not finite"):
        answer(CONTEXT, starts, ends, null)


LETTERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcde")


def test_plain_words_give_the_answers_of_the_original():
    """If a word is a token, its alignment and our slice are the same."""
    rng = random.Random(3)
    kinds = {"of all": 0, "span": 0, "null": 0}
    for _ in range(500):
        options = {
            "n_best_size": rng.choice([1, 2, 5, 20]),
            "max_answer_length": rng.choice([1, 3, 30]),
            "with_negative": rng.random() < 0.5,
            "null_score_diff_threshold": rng.choice([-4.0, -2.0, 0.0, 0.5]),
        }
        context = " ".join(rng.choices("abcde", k=rng.randint(3, 13)))
        question = question_of(context)
        sizes = rng.randint(8, 13), rng.randint(1, 5), 2
        encoding = SpanEncoding(LETTERS, True, None, *sizes)
        made = make_windows([question], encoding, with_positions=False)
        mask = made.batch["input_mask"]
        # Many are equal.
        logits = rng.choices(range(-6, 7), k=2 * mask.size)
        logits = np.array(logits, np.float32).reshape(2, *mask.shape) / 4
        logits[:, mask == 0] = -np.inf
        asked = question, np.arange(len(mask)), made, *logits, encoding
        ours, theirs = slow.compare(*asked, **options)
        if theirs is None or theirs.text == "empty":
            kinds["of all"] += 1
            options["n_best_size"] = 1000
            _, theirs = slow.compare(*asked, **options)
            assert ours.best_span == theirs.best_span
            assert ours.text == theirs.text
            assert ours.null_odds == theirs.null_odds
            continue
        kinds["span" if theirs.text else "null"] += 1
        assert ours.text == theirs.text
        assert ours.null_odds == theirs.null_odds
        for entry, expected in zip(ours.nbest, theirs.nbest, strict=True):
            probability = expected["probability"]
            expected["probability"] = pytest.approx(probability, rel=1e-12)
            assert entry == expected
    assert min(kinds.values()) > 20, kinds


LENGTH = 19
ENCODING = SpanEncoding(tuple(squad_files.VOCAB), True, None, LENGTH, 5, 4)
QUESTIONS = squad_files.questions(13, impossible=4)
BLANK = Question("blank", "Where ba?", " \t", where="question 13")
WITH_NEGATIVE = AnswerRules(with_negative=True)


def find_the_word(windows):
    """A perfect model: it finds the token that the question asks for."""
    ids = windows.arrays["input_ids"]
    asked = ids[:, 2:3]  # [CLS] where WORD ? [SEP]
    is_there = (ids == asked) & (np.arange(LENGTH) > 4)
    logits = np.where(is_there, 9.0, -1.0)
    logits[:, 0] = 4.0
    order = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    best = np.take_along_axis(logits, order, axis=1)
    outputs = {}
    for end in ("start", "end"):
        outputs |= {f"{end}_indexes": order, f"{end}_logits": best}
        outputs[f"null_{end}_logits"] = logits[:, 0]
    return outputs


def answered(questions=QUESTIONS, rules=WITH_NEGATIVE):
    return list(answer_questions(questions, ENCODING, find_the_word, rules))


def test_questions_are_answered_in_order(monkeypatch, caplog):
    asked = [*QUESTIONS[:5], BLANK, *QUESTIONS[5:], BLANK]
    expected = answered(asked)
    assert [question for question, _ in expected] == asked
    for question, found in expected:
        assert found.text == "".join(a.text for a in question.answers)
        assert (found.null_odds > 0) == (not question.answers)
    [warning] = [m for m in caplog.messages if "no token" in m]
    assert ": 2; the first: 'blank'" in warning
    monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", 3)
    assert answered(asked) == expected


def test_the_files_are_the_originals(tmp_path):
    answers = answered()
    write_answers(answers, str(tmp_path), True)
    for name, attribute in {
        "predictions": "text",
        "nbest_predictions": "nbest",
        "null_odds": "null_odds",
    }.items():
        content = {q.id: getattr(found, attribute) for q, found in answers}
        text = (tmp_path / f"{name}.json").read_text()
        assert text == json.dumps(content, indent=4) + "\n"


@pytest.mark.parametrize(
    ("threshold", "n_best_size", "exact"),
    [(0.0, 20, 100.0), (-1e9, 20, 100 * 4 / 13), (-1e9, 1, 100 * 4 / 13)],
)
def test_official_scores(threshold, n_best_size, exact):
    """The best threshold is computed from spans even if all answers are ""."""
    answers = answered(rules=AnswerRules(n_best_size, 30, True, threshold))
    scores = official_scores(answers, with_negative=True)
    assert scores["eval_exact"] == pytest.approx(exact)
    assert scores["eval_best_exact"] == scores["eval_best_f1"] == 100.0
    assert (scores["eval_HasAns_total"], scores["eval_NoAns_total"]) == (9, 4)


def test_korean_is_scored_by_characters():
    questions = [q for q in QUESTIONS if q.answers]
    answers = []
    for question, found in answered(questions, AnswerRules()):
        found = dataclasses.replace(found, text=f"{found.text}xx")
        answers.append(answers_module.Answered(question, found))
    words = official_scores(answers, with_negative=False)
    letters = official_scores(answers, with_negative=False, is_korquad=True)
    assert words["eval_f1"] == 0.0
    assert letters["eval_f1"] == pytest.approx(100 * 2 / 3)


def test_questions_to_score_need_answers():
    require_answers(QUESTIONS, with_negative=True)
    unanswered = [Question("q", "Where?", "There.")]
    for with_negative, advice in (
        (True, r'mark it "is_impossible": true\.$'),
        (False, "true and pass `version_2_with_negative`"),
    ):
        with pytest.raises(InputError, match=advice):
            require_answers(unanswered, with_negative)
