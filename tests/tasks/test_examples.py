"""The one thing that every reader of texts gives."""

import dataclasses

import pytest

from bert_tf.tasks.examples import PROBLEMS, Example


def test_a_text_alone_is_enough():
    example = Example("7", "It rains.")
    assert (example.text_b, example.choices, example.label) == (None, (), None)


def test_an_example_stays_as_it_was_read():
    example = Example("7", "It rains.", label="yes")
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.label = "no"


def test_the_problems_are_those_that_files_can_name():
    assert set(PROBLEMS) == {
        "single_label",
        "multi_label",
        "regression",
        "multiple_choice",
    }
