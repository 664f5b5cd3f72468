import dataclasses
import pickle

import pytest

from bert_tf.tasks.questions import Answer, Question

QUESTION = Question("q1", "Who?", "The man.", (Answer("The man", 0),), False)


def test_only_the_texts_must_be_given():
    question = Question("q1", "Who?", "The man.")
    assert question.answers == ()
    assert question.is_impossible is False
    assert question.where == ""


def test_other_processes_can_send_them():
    assert pickle.loads(pickle.dumps(QUESTION)) == QUESTION


def test_they_do_not_change_and_count_by_what_they_say():
    with pytest.raises(dataclasses.FrozenInstanceError):
        QUESTION.context = ""
    assert len({QUESTION, dataclasses.replace(QUESTION)}) == 1
    assert dataclasses.replace(QUESTION, answers=()) != QUESTION
