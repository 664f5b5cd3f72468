import dataclasses
import json

import numpy as np
import pytest
import squad_files

from bert_tf.errors import InputError
from bert_tf.tasks import answers as answers_module
from bert_tf.tasks.answers import AnswerRules
from bert_tf.tasks.questions import Question, SpanEncoding

LENGTH = 19
ENCODING = SpanEncoding(
    tuple(squad_files.VOCAB),
    True,
    None,
    LENGTH,
    doc_stride=5,
    max_query_length=4,
)
QUESTIONS = squad_files.questions(13, impossible=4)
BLANK = Question("blank", "Where ba?", " \t", where="question 13")
WITH_NEGATIVE = AnswerRules(with_negative=True)


def find_the_word(windows):
    """A model that knows: the piece that the question asks for, if any."""
    ids = windows.arrays["input_ids"]
    asked = ids[:, 2:3]  # [CLS] where WORD ? [SEP]
    is_there = (ids == asked) & (np.arange(LENGTH) > 4)
    logits = np.where(is_there, 9.0, -1.0)
    logits[:, 0] = 4.0
    order = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    best = np.take_along_axis(logits, order, axis=1)
    return {
        "start_places": order,
        "start_logits": best,
        "end_places": order,
        "end_logits": best,
        "null_start_logits": logits[:, 0],
        "null_end_logits": logits[:, 0],
    }


def answer(questions=QUESTIONS, rules=WITH_NEGATIVE, predict=find_the_word):
    return list(answers_module.answer(questions, ENCODING, predict, rules))


def test_every_question_is_answered_in_order():
    answers = answer([*QUESTIONS[:5], BLANK, *QUESTIONS[5:]])
    ids = [question.id for question, _ in answers]
    assert ids == [*(f"q{n}" for n in range(5)), "blank", *ids[6:]]
    for question, found in answers:
        assert found.text == "".join(a.text for a in question.answers)
        assert (found.null_odds > 0) == (not question.answers)


@pytest.mark.parametrize("at_a_time", [1, 3, 13])
def test_it_does_not_show_how_many_come_at_a_time(monkeypatch, at_a_time):
    expected = answer()
    monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", at_a_time)
    assert answer() == expected


def test_the_model_sees_few_windows_at_a_time(monkeypatch):
    sizes = []

    def predict(windows):
        sizes.append(len(windows))
        return find_the_word(windows)

    monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", 2)
    stream = answers_module.answer(QUESTIONS, ENCODING, predict, WITH_NEGATIVE)
    next(stream)
    assert len(sizes) == 1
    assert len(list(stream)) == 12
    assert len(sizes) > 6


def test_nothing_to_tokenize_is_answered_without_the_model():
    def predict(windows):
        raise AssertionError("there is no window")

    [answered] = answer([BLANK], predict=predict)
    assert answered.found.text == ""
    assert answered.found.nbest[0]["probability"] == 1.0


def test_what_is_left_out_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(answers_module, "_WINDOWS_AT_A_TIME", 1)
    answer([BLANK, dataclasses.replace(BLANK, id="more")])
    [warning] = [m for m in caplog.messages if "no window" in m]
    assert ": 2; the first: 'blank'" in warning


def test_the_files_are_the_originals(tmp_path):
    answers = answer()
    passed = answers_module.written(answers, str(tmp_path), with_negative=True)
    assert list(passed) == answers
    for name, value in {
        "predictions": lambda found: found.text,
        "nbest_predictions": lambda found: found.nbest,
        "null_odds": lambda found: found.null_odds,
    }.items():
        content = {question.id: value(found) for question, found in answers}
        text = (tmp_path / f"{name}.json").read_text()
        assert text == json.dumps(content, indent=4) + "\n"


def test_without_negatives_there_are_no_odds(tmp_path):
    answers = answer(rules=AnswerRules())
    assert (
        list(answers_module.written(answers, str(tmp_path), False)) == answers
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"predictions.json", "nbest_predictions.json"}


def test_what_fails_leaves_no_file(tmp_path):
    def predict(windows):
        kept = find_the_word(windows)
        return {**kept, "start_logits": kept["start_logits"] * np.nan}

    stream = answers_module.answer(QUESTIONS, ENCODING, predict, WITH_NEGATIVE)
    with pytest.raises(InputError, match="'q0'"):
        list(answers_module.written(stream, str(tmp_path), True))
    assert not list(tmp_path.iterdir())


def test_scores_of_a_model_that_knows():
    scores = answers_module.score(answer(), with_negative=True)
    assert scores["eval_exact"] == scores["eval_f1"] == 100.0
    assert scores["eval_best_f1"] == 100.0
    assert (scores["eval_HasAns_total"], scores["eval_NoAns_total"]) == (9, 4)


@pytest.mark.parametrize("n_best_size", [1, 20])
def test_the_best_threshold_is_that_of_the_spans(n_best_size):
    """Though all answers are "", as the threshold of the rules wants it."""
    rules = AnswerRules(
        n_best_size=n_best_size,
        with_negative=True,
        null_score_diff_threshold=-1e9,
    )
    answers = answer(rules=rules)
    assert {found.text for _, found in answers} == {""}
    scores = answers_module.score(answers, with_negative=True)
    assert scores["eval_exact"] == pytest.approx(100 * 4 / 13)
    assert scores["eval_best_exact"] == 100.0


def test_korean_is_scored_by_its_characters():
    questions = [q for q in QUESTIONS if q.answers]
    answers = [
        answered._replace(
            found=dataclasses.replace(answered.found, text=f"{text}xx")
        )
        for answered in answer(questions, AnswerRules())
        for text in [answered.found.text]
    ]
    words = answers_module.score(answers, with_negative=False)
    letters = answers_module.score(
        answers, with_negative=False, is_korquad=True
    )
    assert words["eval_f1"] == 0.0
    assert letters["eval_f1"] == pytest.approx(100 * 2 / 3)
    assert letters.keys() == {"eval_f1", "eval_exact_match"}


def test_the_metrics_that_steer_are_scored():
    for with_negative in (False, True):
        asked = QUESTIONS if with_negative else QUESTIONS[1:4]
        answers = answer(asked, AnswerRules(with_negative=with_negative))
        scores = answers_module.score(answers, with_negative)
        assert {*answers_module.metric_names(with_negative)} <= scores.keys()


def test_a_question_that_cannot_be_scored():
    answers_module.require_answers(QUESTIONS, with_negative=True)
    with pytest.raises(InputError, match=r"none to 'q0' \(question 0\)"):
        answers_module.require_answers(QUESTIONS, with_negative=False)


@pytest.mark.parametrize("name", ["n_best_size", "max_answer_length"])
def test_rules_that_allow_nothing(name):
    with pytest.raises(InputError, match=f"--{name} of 1 up"):
        AnswerRules(**{name: 0})
