"""The report of `bert-tf env`, also on broken machines."""

import pytest

from bert_tf import environment
from bert_tf.version import __version__


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Returns the report, with modules of a folder before the installed ones.

    The files are named after the modules.
    """
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    def report(**modules):
        monkeypatch.setattr(
            environment,
            "_DEVICES",
            {n: p for n, p in environment._DEVICES.items() if n in modules},
        )
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return [*environment.report()]

    return report


def test_versions_and_variables(report, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b=2")
    monkeypatch.setenv("HF_TOKEN", "secret")
    lines = report()
    assert lines[0].startswith(f"bert_tf {__version__} in ")
    for start in ("Python 3.", "CPU: ", "NVIDIA GPUs: ", "Packages: "):
        assert sum(line.startswith(start) for line in lines) == 1
    assert any("numpy 2." in line for line in lines)
    assert "XLA_FLAGS=--a=1 --b=2" in lines
    assert not any("secret" in line for line in lines)


def test_broken_frameworks_are_one_line_each(report, monkeypatch):
    monkeypatch.setattr(environment, "_SECONDS", 5.0)
    lines = report(
        tensorflow="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
        jax="import sys\nprint('no CUDA', file=sys.stderr)\nsys.exit(3)",
        torch="class cuda:\n    device_count = int\n",
        keras="import time\ntime.sleep(60)",
    )
    assert "tensorflow: failed with status -4" in lines
    assert "jax: failed with status 3, no CUDA" in lines
    assert "torch: CPU" in lines
    [keras] = [line for line in lines if line.startswith("keras: ")]
    assert keras.endswith("timed out after 5.0 seconds")


def test_the_devices_of_tensorflow():
    program = environment._DEVICES["tensorflow"]
    found = environment._output([environment.sys.executable, "-c", program])
    assert found.startswith("CPU")


def test_a_missing_program_is_named():
    assert environment._output(["nvidia-smj"]).endswith("no program nvidia-smj")
