import dataclasses

import pytest

from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import HEADS, PROBLEM_TYPES, Pretrained


def test_what_is_not_told_is_none():
    pretrained = Pretrained("there", weights={})
    rest = dataclasses.asdict(pretrained).keys() - {"path", "weights"}
    assert {getattr(pretrained, name) for name in rest} == {None}


@pytest.mark.parametrize("head", HEADS)
def test_takes_every_head(head):
    assert Pretrained("there", weights={}, head=head).head == head


def test_refuses_another_head():
    with pytest.raises(InputError, match=r"Received: 'tail' \(in there\)"):
        Pretrained("there", weights={}, head="tail")


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_takes_every_type_of_problem(problem_type):
    made = Pretrained("there", weights={}, problem_type=problem_type)
    assert made.problem_type == problem_type


def test_refuses_another_type_of_problem():
    with pytest.raises(InputError, match=r"as problem_type. Received: 'tail'"):
        Pretrained("there", weights={}, problem_type="tail")


def test_what_it_was_trained_with_as_far_as_is_known():
    assert Pretrained("there", weights={}).trained_with == {}
    known = {"max_seq_length": 7, "version_2_with_negative": False}
    assert Pretrained("there", weights={}, **known).trained_with == known
