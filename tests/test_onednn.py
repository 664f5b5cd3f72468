"""oneDNN is on where TensorFlow would leave it off, unless a user says no."""

import os
import platform
import subprocess
import sys

import pytest

from bert_tf import onednn

NAME = "TF_ENABLE_ONEDNN_OPTS"


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)


def test_onednn_is_on_before_tensorflow_is_imported():
    onednn.enable()
    assert os.environ[NAME] == "1"


def test_importing_the_package_turns_onednn_on():
    """On x86; the platform of this machine decides."""
    code = f"import os, bert_tf; print(os.environ.get({NAME!r}))"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    is_x86 = os.uname().machine in ("x86_64", "AMD64")
    assert said.strip() == ("1" if is_x86 else "None")


def test_the_users_choice_is_kept(monkeypatch):
    monkeypatch.setenv(NAME, "0")
    onednn.enable()
    assert os.environ[NAME] == "0"


def test_other_cpus_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    onednn.enable()
    assert NAME not in os.environ


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [
        ("flags : fpu avx2 fma", True),
        ("flags : fpu avx2 avx512_vnni", False),
        ("flags : fpu amx_int8 avx2", False),
        ("", False),
    ],
)
def test_a_warning_if_tensorflow_was_imported_first(
    monkeypatch, tmp_path, caplog, flags, is_warned
):
    (tmp_path / "cpuinfo").write_text(f"model name : x\n{flags}\n")
    monkeypatch.setattr(onednn, "_CPU_INFO", str(tmp_path / "cpuinfo"))
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    onednn.enable()
    assert NAME not in os.environ
    assert (f"set {NAME}=1" in caplog.text) == is_warned
