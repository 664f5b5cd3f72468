"""Errors for missing packages."""

import importlib.metadata
import json

import pytest
import tensorflow as tf

from bert_tf.base import packages


def lacking(module: str) -> None:
    with packages.tensorflow_required("An export"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def test_names_the_extra_with_tensorflow():
    with pytest.raises(
        packages.MissingPackageError,
        match=r"^An export needs .*: pip install '\.\[tensorflow\]'$",
    ):
        lacking("tensorflow")


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
        (None, "Run, in the checkout of bert_tf: pip install '.[beam]'"),
    ],
)
def test_without_a_checkout_the_url_is_installed(origin, expected, monkeypatch):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return origin and json.dumps(origin)

    monkeypatch.setattr(
        importlib.metadata, "distribution", lambda name: Distribution()
    )
    message = str(packages.missing("Beam", "apache_beam", "beam"))
    assert message == f"Beam needs the package apache_beam. {expected}"


def test_companions_match_tensorflows_release_without_dependencies():
    """Their dependency `tensorflow` must not join `tensorflow-tpu`."""
    release = tf.__version__.rpartition(".")[0]
    with pytest.raises(
        packages.MissingPackageError,
        match=rf"--no-deps 'tensorflow-text=={release}\.\*'$",
    ):
        lacking("tensorflow_text")
    with pytest.raises(packages.MissingPackageError, match="-serving-api=="):
        lacking("tensorflow_serving.apis")


def test_other_modules_that_are_missing_are_bugs():
    with pytest.raises(ModuleNotFoundError):
        lacking("bert_tf.nothing")
