"""The files around the code agree with each other."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest
from checkout import ROOT
from packaging.requirements import Requirement

import bert_tf
from bert_tf.version import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(name: str = "requirements.txt") -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_requirements_are_the_projects_dependencies():
    declared = PROJECT["dependencies"] + EXTRAS["tensorflow"] + EXTRAS["dev"]
    assert sorted(requirements()) == sorted(declared)
    for extra in "beam", "spark":
        assert requirements(f"tests/{extra}.txt") == EXTRAS[extra]


def test_only_the_extras_of_backends_bring_tensorflow():
    """Packages `tensorflow*` would add TensorFlow next to `tensorflow-tpu`."""
    groups = {"": PROJECT["dependencies"], **EXTRAS}
    found = {
        extra: {
            name
            for name in (Requirement(text).name for text in group)
            if name.startswith("tensorflow")
        }
        for extra, group in groups.items()
    }
    assert {"jax", "torch", "huggingface", "visualize"} <= found.keys()
    assert found.pop("tensorflow") >= {"tensorflow", "tensorflow-text"}
    assert found.pop("cuda") == {"tensorflow"}
    assert found.pop("tpu") == {"tensorflow-tpu"}
    assert not any(found.values())


def test_extras_with_cuda_have_the_versions_of_their_backends():
    def versions(extra: str) -> dict[str, str]:
        found = map(Requirement, EXTRAS[extra])
        return {each.name: str(each.specifier) for each in found}

    for extra, backend in (("cuda", "tensorflow"), ("jax-cuda", "jax")):
        assert versions(extra).items() <= versions(backend).items()
        assert all(Requirement(text).extras for text in EXTRAS[extra])


def test_the_metadata_is_complete():
    assert PROJECT["urls"]
    assert PROJECT["keywords"]
    # An index refuses the upload: the project owns no name there.
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert (
        f"Programming Language :: Python :: {oldest}"
        in (PROJECT["classifiers"])
    )


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text


def test_install_commands_name_no_package_of_an_index():
    """`pip install bert_tf` would install a stranger's package.

    With `@ git+URL` pip asks the repository.
    """
    tracked = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    tracked += ROOT.glob("bert_tf/**/*.py")
    wrong = [
        path.name
        for path in tracked
        if re.search(
            r"bert[-_]tf\[(?![\w,{}-]+\] @ git\+)|pip install bert",
            path.read_text("utf-8"),
        )
    ]
    assert not wrong


@pytest.mark.slow
def test_the_api_reference_has_every_public_name(tmp_path):
    pytest.importorskip("pdoc")
    command = [sys.executable, "docs/api_reference.py", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    page = (tmp_path / "bert_tf.html").read_text(encoding="utf-8")
    ids = {*re.findall(r'id="([^"]+)"', page)}
    assert {*bert_tf.__all__} <= ids
    # Inherited methods too.
    assert {"BertClassifier.from_pretrained", "TextEmbedder.fit"} <= ids
    assert {*re.findall(r'href="#([^"]+)"', page)} <= ids
    job = (tmp_path / "bert_tf" / "jobs" / "ner.html").read_text("utf-8")
    assert all(f'id="{x}"' in job for x in ("run", "NerConfig"))


@pytest.mark.parametrize("text", requirements())
def test_a_requirement_has_both_bounds_and_is_installed(text):
    """Without an upper bound, a fresh install might bring TensorFlow 3."""
    assert ">=" in text
    assert ",<" in text
    requirement = Requirement(text)
    assert version(requirement.name) in requirement.specifier


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Runs make as from a shell, even inside `make test`."""
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
    assert "Python 3.11 or newer" in done.stderr
    assert "Python 3.9.1" in done.stderr
    assert not (tmp_path / "venv").exists()


@needs_make
def test_make_venv_does_nothing_if_it_is_up_to_date(tmp_path):
    (tmp_path / ".installed").touch()
    done = make("venv", f"PYTHON={sys.executable}", f"VENV={tmp_path}")
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == [tmp_path / ".installed"]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_named_files_exist(name):
    """Relative links, and paths of this project in back quotes."""
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)
    paths = re.findall(
        r"`((?:bert_tf|tests|examples|benchmarks)/[\w/.]+)`", text
    )
    assert not [p for p in links + paths if not (ROOT / p).exists()]
