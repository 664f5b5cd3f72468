"""Tests of the error that the user can mend."""

import pytest

from bert_tf.errors import InputError


def test_an_input_error_is_a_value_error_with_its_message():
    with pytest.raises(ValueError, match=r"^expected a. Received: b$"):
        raise InputError("expected a. Received: b")
