"""`bert_tf.errors`: the wording of error messages."""

import pytest

from bert_tf import errors


def test_values_and_files():
    with pytest.raises(ValueError, match="`top_k` must be at least 1; got 0"):
        raise errors.wrong_value("`top_k`", "at least 1", 0)
    errors.require_choice("`head`", "a", ("a", "b"))
    with pytest.raises(ValueError, match="`head` must be one of a or b; got"):
        errors.require_choice("`head`", "c", ("a", "b"))
    error = errors.in_file("train.tsv", "expected 4 columns.", line=17)
    assert str(error) == "train.tsv:17: expected 4 columns."
    assert str(errors.in_file("x.json", "is empty.")) == "x.json: is empty."
    # Control characters of a file, which a terminal would obey.
    assert str(errors.in_file("a\x1b[2J", "\x9b")) == r"a\x1b[2J: \x9b"
    # Keras makes errors of a call bold, in the same class.
    assert str(errors.InputError("\x1b[1mwrong\x1b[0m")).startswith("\x1b")
    assert errors.listed(["\x1b[2J"]) == r"\x1b[2J"
    assert errors.shortened("x" * 100, most=10) == "'xxxxxxxxx..."


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b or c"),
        (range(20), "0, 1, 2, ... (20 in all)"),
    ],
)
def test_lists(names, expected):
    assert errors.listed(names, last="or", most=3) == expected


def test_the_nearest_name_is_suggested_whatever_its_case():
    known = ["CoLA", "MRPC", "SST-2"]
    assert errors.did_you_mean("cols", known) == " Did you mean 'CoLA'?"
    assert errors.did_you_mean("zzz", known) == ""
