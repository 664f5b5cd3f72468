"""The examples: each runs, and what it reports means something."""

import importlib
import importlib.util
import re
import subprocess
import sys

import pytest
from checkout import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
    )


def output_of(name: str, *arguments: str) -> str:
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


@pytest.fixture(scope="module")
def python_sentences():
    """Returns the module with the data of the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return importlib.import_module("python_sentences")


@pytest.mark.slow
def test_functional_model():
    """Neither the words nor the temperature are enough alone."""
    both, *without = percentages(output_of("functional_model.py"))
    assert both > 90
    assert len(without) == 2
    assert max(without) < both - 15


@pytest.mark.slow
def test_raw_strings():
    output = output_of(
        "raw_strings.py",
        "Round to the nearest integer.",
        "Remove the directory and everything in it.",
    )
    right, frequent = percentages(output)
    assert right > frequent + 30
    assert output.splitlines()[-2:] == [
        "numbers    Round to the nearest integer.",
        "files      Remove the directory and everything in it.",
    ]


@pytest.mark.slow
def test_scikit_learn_features():
    pooled, mean, frequent = percentages(output_of("scikit_learn_features.py"))
    assert min(pooled, mean) > frequent + 10


@pytest.mark.slow
def test_jax_training(monkeypatch):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("no JAX in this environment")
    # `make test-jax` sets this variable; users do not.
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
    output = output_of("jax_training.py")
    right, as_they_are = percentages(output)
    assert right > as_they_are + 5
    assert output.endswith("(on the jax backend)\n")


def test_without_jax_one_line_says_so():
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("JAX in this environment")
    done = run("jax_training.py")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "pip install jax" in line


def test_sentences_are_split_by_subject(python_sentences):
    (texts, subjects), (held_out, expected) = python_sentences.load()
    assert len(texts) == len(subjects)
    assert len(held_out) == len(expected) == len({*texts, *held_out}) // 5
    for index in range(len(python_sentences.SUBJECTS)):
        assert expected.count(index) > 50
