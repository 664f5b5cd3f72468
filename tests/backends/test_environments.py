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


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_they_ask_for_what_the_project_asks_for(backend):
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    declared = [
        Requirement(text)
        for group in (
            project["dependencies"],
            *project["optional-dependencies"].values(),
        )
        for text in group
    ]
    known = {requirement.name: requirement for requirement in declared}
    found = requirements(backend)
    assert backend in found
    assert "tensorflow" not in found
    for name, requirement in found.items():
        assert requirement == known.get(name, requirement)
        bounds = {specifier.operator for specifier in requirement.specifier}
        assert bounds == {">=", "<"}, name


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
