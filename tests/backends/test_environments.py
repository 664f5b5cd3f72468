"""The packages that `make test-jax` and the like install and import."""

import importlib.util
import itertools
import os
import pathlib
import subprocess
import sys
import tomllib
from importlib.metadata import version

import keras
import pytest
from packaging.requirements import Requirement

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parent.parent
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


def parsed(lines) -> dict[str, Requirement]:
    """Returns requirements by name."""
    return {r.name: r for r in map(Requirement, lines)}


def requirements(backend: str) -> dict[str, Requirement]:
    """Returns the requirements in `BACKEND.txt`, by name."""
    lines = (FOLDER / f"{backend}.txt").read_text(encoding="utf-8").splitlines()
    return parsed(line for line in lines if not line.startswith("#"))


def bounds(requirement: Requirement) -> dict[str, str]:
    """Versions by operator."""
    return {part.operator: part.version for part in requirement.specifier}


@pytest.mark.parametrize("backend", ["jax", "torch", "tf220"])
def test_requirements_are_those_of_the_project(backend):
    """`make test-tf220` has the oldest TensorFlow that the project allows."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    groups = project["dependencies"], *project["optional-dependencies"].values()
    known, found = parsed(itertools.chain(*groups)), requirements(backend)
    # The compiler is newer than what `tensorflow-tpu` can be imported with.
    del known["libtpu"]
    is_tensorflow = backend == "tf220"
    assert ("tensorflow" if is_tensorflow else backend) in found
    assert ("tensorflow" in found) is is_tensorflow
    for name, requirement in found.items():
        if name.startswith("tensorflow"):
            oldest = bounds(known[name])[">="]
            assert bounds(requirement) == {">=": oldest, "<": "2.21"}
        else:
            assert requirement == known.get(name, requirement)
            assert bounds(requirement).keys() == {">=", "<"}, name


@pytest.mark.skipif(BACKEND == "tensorflow", reason="test_project.py has it")
def test_installed_versions():
    wrong = {
        name: version(name)
        for name, requirement in requirements(BACKEND).items()
        if version(name) not in requirement.specifier
    }
    assert not wrong


IMPORT_ALL = """
import sys
import bert_tf

for name in set(bert_tf.__all__) - {"BertTokenizer"}:
    getattr(bert_tf, name)
print(sorted({"tensorflow", "jax", "torch"} & sys.modules.keys()))
"""


def test_the_backend_is_that_of_the_environment():
    assert keras.config.backend() == BACKEND


@pytest.mark.skipif(BACKEND == "tensorflow", reason="about the others")
def test_public_names_need_no_tensorflow():
    """Except for the tokenizer that is part of a TensorFlow graph."""
    assert importlib.util.find_spec("tensorflow") is None
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == repr([BACKEND])
