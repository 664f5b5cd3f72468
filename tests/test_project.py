"""The files around the code: they agree with each other."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(name: str = "requirements.txt") -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group()


def test_requirements_are_the_projects_dependencies():
    project = PROJECT["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert sorted(requirements()) == sorted(declared)


def test_beam_is_tested_as_the_extra_asks_for_it():
    extras = PROJECT["project"]["optional-dependencies"]
    assert requirements("tests/beam.txt") == extras["beam"]


def test_every_requirement_has_both_bounds():
    """The original had no upper one: a fresh install brought TensorFlow 2."""
    loose = [r for r in requirements() if ">=" not in r or ",<" not in r]
    assert not loose


def test_what_is_installed_meets_the_requirements():
    from importlib.metadata import version

    from packaging.requirements import Requirement

    wrong = {
        text: version(name_of(text))
        for text in requirements()
        if version(name_of(text)) not in Requirement(text).specifier
    }
    assert not wrong


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Runs make as from a shell, though `make test` may be around us."""
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k not in outer},
        capture_output=True,
        text=True,
    )


@needs_make
def test_make_alone_lists_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    listed = [line.split()[0] for line in make().stdout.splitlines() if line]
    assert sorted(targets) == sorted(listed)
    assert {"venv", "test", "test-slow", "lint", "demo"} <= set(targets)


@needs_make
def test_make_venv_refuses_an_old_python(tmp_path):
    """With a stand-in that says it is too old, as `python3.9 -c` would."""
    old = tmp_path / "python3.9"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n'
    )
    old.chmod(0o755)
    done = make("venv", f"PYTHON={old}", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "expected Python 3.11 or newer" in done.stderr
    assert "Received: Python 3.9.1" in done.stderr
    assert not (tmp_path / "venv").exists()


@needs_make
def test_make_venv_is_idle_when_nothing_changed(tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".installed").touch()
    done = make("venv", f"PYTHON={sys.executable}", f"VENV={venv}")
    assert done.returncode == 0
    assert list(venv.iterdir()) == [venv / ".installed"]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_the_documents_name_files_that_exist(name):
    """Relative links, and paths in back quotes that look like ours."""
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)
    paths = re.findall(
        r"`((?:bert_tf|tests|examples|benchmarks)/[\w/.]+)`", text
    )
    missing = [p for p in links + paths if not (ROOT / p).exists()]
    assert not missing
