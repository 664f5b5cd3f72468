"""What `make test-jax` and `make test-torch` install."""

import os
import pathlib
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

FOLDER = pathlib.Path(__file__).parent
PROJECT = FOLDER.parent.parent / "pyproject.toml"


def requirements(backend: str) -> dict[str, Requirement]:
    """What `BACKEND.txt` asks for, by name."""
    lines = (FOLDER / f"{backend}.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(x) for x in lines if not x.startswith("#")]
    return {requirement.name: requirement for requirement in parsed}


def declared() -> dict[str, Requirement]:
    """What the project asks for, extras included, by name."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    groups = project["dependencies"], *project["optional-dependencies"].values()
    parsed = [Requirement(text) for group in groups for text in group]
    return {requirement.name: requirement for requirement in parsed}


def bounds(requirement: Requirement) -> dict[str, str]:
    """Versions by operators."""
    return {part.operator: part.version for part in requirement.specifier}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_they_ask_for_what_the_project_asks_for(backend):
    known, found = declared(), requirements(backend)
    assert backend in found
    assert "tensorflow" not in found
    for name, requirement in found.items():
        assert requirement == known.get(name, requirement)
        assert bounds(requirement).keys() == {">=", "<"}, name


def test_the_oldest_tensorflow():
    """`make test-tf220` has the oldest that the project allows."""
    known, found = declared(), requirements("tf220")
    for name, requirement in found.items():
        if name.startswith("tensorflow"):
            oldest = bounds(requirement)
            assert oldest[">="] == bounds(known[name])[">="]
            assert oldest["<"] == "2.21"
        else:
            assert requirement == known.get(name, requirement)
            assert bounds(requirement).keys() == {">=", "<"}, name


def test_what_is_installed_meets_them():
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend == "tensorflow":
        pytest.skip("requirements.txt has a test of its own")
    wrong = {
        name: version(name)
        for name, requirement in requirements(backend).items()
        if version(name) not in requirement.specifier
    }
    assert not wrong
