"""Errors for missing packages."""

import pytest
import tensorflow as tf

from bert_tf import packages


def lacking(module: str) -> None:
    with packages.tensorflow_required("An export"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def test_names_the_extra_with_tensorflow():
    with pytest.raises(
        packages.MissingPackageError,
        match=r"^An export needs .*: pip install '\.\[tensorflow\]'$",
    ):
        lacking("tensorflow")


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
