"""The packages that `make test-jax` and the like install."""

import os
import pathlib
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

FOLDER = pathlib.Path(__file__).parent
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
PROJECT = FOLDER.parent.parent / "pyproject.toml"


def requirements(backend: str) -> dict[str, Requirement]:
    """The requirements in `BACKEND.txt`, by name."""
    lines = (FOLDER / f"{backend}.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(x) for x in lines if not x.startswith("#")]
    return {requirement.name: requirement for requirement in parsed}


def declared() -> dict[str, Requirement]:
    """The project's requirements, extras included, by name."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    groups = project["dependencies"], *project["optional-dependencies"].values()
    parsed = [Requirement(text) for group in groups for text in group]
    return {requirement.name: requirement for requirement in parsed}


def bounds(requirement: Requirement) -> dict[str, str]:
    """Versions by operator."""
    return {part.operator: part.version for part in requirement.specifier}


@pytest.mark.parametrize("backend", ["jax", "torch", "tf220"])
def test_requirements_are_those_of_the_project(backend):
    """`make test-tf220` has the oldest TensorFlow that the project allows."""
    known, found = declared(), requirements(backend)
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
