"""`bert_tf.errors`: the wording of error messages."""

import importlib.metadata
import json
from unittest import mock

import pytest
import tensorflow as tf

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


def test_lists_and_the_nearest_name():
    for names, expected in (
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b or c"),
        (range(20), "0, 1, 2, ... (20 in all)"),
    ):
        assert errors.listed(names, last="or", most=3) == expected
    known = ["CoLA", "MRPC", "SST-2"]
    assert errors.did_you_mean("cols", known) == " Did you mean 'CoLA'?"
    assert errors.did_you_mean("zzz", known) == ""


def lacking(module: str) -> None:
    with errors.tensorflow_required("An export"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (
            {"url": "https://host/name", "vcs_info": {"vcs": "git"}},
            "Run: pip install 'bert_tf[beam] @ git+https://host/name'",
        ),
        (
            {"url": "file:///bert_tf", "dir_info": {"editable": True}},
            "Run, in the checkout of bert_tf: pip install '.[beam]'",
        ),
    ],
)
def test_without_a_checkout_the_url_is_installed(origin, expected, monkeypatch):
    found = mock.Mock(read_text=lambda name: json.dumps(origin))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    message = str(errors.missing("Beam", "apache_beam", "beam"))
    assert message == f"Beam needs the package apache_beam. {expected}"


def test_companions_match_tensorflows_release_without_dependencies():
    """Their dependency `tensorflow` must not join `tensorflow-tpu`."""
    release = tf.__version__.rpartition(".")[0]
    for module, error, message in (
        ("tensorflow", errors.InputError, r"pip install '\.\[tensorflow\]'$"),
        (
            "tensorflow_text",
            errors.InputError,
            rf"--no-deps 'tensorflow-text=={release}\.\*'$",
        ),
        ("tensorflow_serving.apis", errors.InputError, "-serving-api=="),
        # A bug.
        ("bert_tf.nothing", ModuleNotFoundError, "No module"),
    ):
        with pytest.raises(error, match=message):
            lacking(module)
