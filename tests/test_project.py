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
    brings = {
        extra
        for extra, group in groups.items()
        if any(text.startswith("tensorflow") for text in group)
    }
    assert brings == {"tensorflow", "cuda", "tpu"}


def test_extras_with_cuda_have_the_versions_of_their_backends():
    def versions(extra: str) -> dict[str, str]:
        found = map(Requirement, EXTRAS[extra])
        return {each.name: str(each.specifier) for each in found}

    for extra, backend in (("cuda", "tensorflow"), ("jax-cuda", "jax")):
        assert versions(extra).items() <= versions(backend).items()
        assert all(Requirement(text).extras for text in EXTRAS[extra])


def test_the_project_is_not_uploaded():
    """It owns no name in an index, which refuses this classifier."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


def test_the_version_is_in_the_citation_and_the_changelog():
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{__version__}]" in text


def test_install_commands_name_no_package_of_an_index():
    """`pip install bert_tf` would install a stranger's package.

    With `@ git+URL` pip asks the repository.
    """
    wrong = r"bert[-_]tf\[(?![\w,{}-]+\] @ git\+)|pip install bert"
    for pattern in ("*.md", "docs/**/*.md", "bert_tf/**/*.py"):
        for path in ROOT.glob(pattern):
            assert not re.search(wrong, path.read_text("utf-8")), path


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


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_alone_lists_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    # As from a shell, even inside `make test`.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    shell = {k: v for k, v in os.environ.items() if k not in outer}
    output = subprocess.check_output(["make"], cwd=ROOT, env=shell, text=True)
    listed = [line.split()[0] for line in output.splitlines() if line]
    assert sorted(targets) == sorted(listed)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_named_files_exist(name):
    """Relative links, and paths of this project in back quotes."""
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)
    folders = "bert_tf|tests|examples|benchmarks"
    paths = re.findall(rf"`((?:{folders})/[\w/.]+)`", text)
    assert not [p for p in links + paths if not (ROOT / p).exists()]
