"""The command `bert-tf`, and how scripts start."""

import os
import re
import signal
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf import command
from bert_tf.command import JOBS
from bert_tf.version import __version__


@pytest.fixture
def lines_of(monkeypatch, capsys):
    """Returns a function that runs the command: status, output, errors."""

    def lines_of(*words):
        monkeypatch.setattr(sys, "argv", ["/bin/bert-tf", *words])
        with pytest.raises(SystemExit) as left:
            command.command()
        return left.value.code, *capsys.readouterr()

    return lines_of


def test_the_command_lists_its_jobs(lines_of):
    jobs = "Name a job: vocabulary, pretraining_data, "
    for words in (["--help"], ["-h"]):
        status, out, err = lines_of(*words)
        assert (status, err) == (0, "")
        listed = [
            line.split()[0] for line in out.splitlines() if line[:1] == " "
        ]
        assert listed == [*JOBS, "env"]
    assert re.search("^  squad +Fine-tunes .* KorQuAD$", out, re.MULTILINE)
    status, out, err = lines_of()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"bert-tf: error: {jobs}")
    assert "Did you mean 'env'?" in lines_of("envv")[2]
    status, _, err = lines_of("clasifier")
    known = "Unknown job 'clasifier'. Did you mean 'classifier'?"
    assert err.startswith(f"bert-tf: error: {known} {jobs}")


def test_a_missing_absl_is_one_line():
    """As for a script that runs outside of `.venv`."""
    outer = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for words in ["run_squad.py"], ["-m", "bert_tf", "squad"]:
        done = subprocess.run(
            # Without site-packages.
            [sys.executable, "-S", *words],
            cwd=ROOT,
            env=outer,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "error: This program needs the package absl-py." in done.stderr
        assert done.stderr.endswith(": . .venv/bin/activate\n")


def test_the_version_and_the_environment_are_printed(lines_of, monkeypatch):
    assert lines_of("--version") == (0, f"bert_tf {__version__}\n", "")
    monkeypatch.setattr(
        command, "describe_environment", lambda: iter(["a", "b"])
    )
    assert lines_of("env") == (0, "a\nb\n", "")


FAST = """
import contextlib, sys
from bert_tf import command
with contextlib.suppress(SystemExit):
    command.command()
sys.exit(str({"absl", "keras", "numpy", "tensorflow"} & {*sys.modules} or ""))
"""


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_the_version_and_help_import_nothing_slow(word):
    done = subprocess.run(
        [sys.executable, "-c", FAST, word], cwd=ROOT, capture_output=True
    )
    assert done.stderr == b"\n"


def test_scripts_are_two_lines():
    for path in ROOT.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.fullmatch(
            r'""".*?See bert_tf/([\w/]+)\.py\.\n?"""\n\n'
            r"from bert_tf import command\n\n"
            r'if __name__ == "__main__":\n'
            r'    command\.run_job\("(\w+)"\)\n',
            text,
            re.DOTALL,
        )
        assert found, path
        assert found[1].replace("/", ".") == JOBS[found[2]][0]


# A module that drops exceptions while it is imported.
SLOW_MODULE = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    pass
"""


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "stopped by SIGTERM"),
    ],
)
def test_a_signal_during_imports_is_one_line(tmp_path, number, line):
    (tmp_path / "tensorflow.py").write_text(SLOW_MODULE)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TF_")},
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    script = str(ROOT / "fill_mask.py")
    # The command line is checked first.
    flag = f"--init_checkpoint={tmp_path}"
    programs = {script: [script, flag]}
    if number == signal.SIGINT:
        words = ["-m", "bert_tf", "fill_mask", flag]
        programs["bert-tf fill_mask"] = words
    for name, words in programs.items():
        with subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "importing\n"
            process.send_signal(number)
            said = process.communicate(timeout=30)[1]
        assert said == f"{name}: error: {line}\n"
        assert process.returncode == 128 + number


# The report of `bert-tf env`, also on broken machines.


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Returns the report, with modules of a folder before the installed ones.

    The files are named after the modules.
    """
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    known = command._DEVICES

    def report(**modules):
        monkeypatch.setattr(
            command, "_DEVICES", {n: known[n] for n in known if n in modules}
        )
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return [*command.describe_environment()]

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
    lines = report(
        tensorflow="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
        jax="import sys\nprint('no CUDA', file=sys.stderr)\nsys.exit(3)",
        torch="class cuda:\n    device_count = int\n",
    )
    assert "tensorflow: failed with status -4" in lines
    assert "jax: failed with status 3, no CUDA" in lines
    assert "torch: CPU" in lines
    monkeypatch.setattr(command, "_SECONDS", 0.1)
    lines = report(keras="import time\ntime.sleep(60)")
    [keras] = [line for line in lines if line.startswith("keras: ")]
    assert keras.endswith("timed out after 0.1 seconds")


@pytest.mark.slow
def test_the_devices_of_tensorflow():
    program = command._DEVICES["tensorflow"]
    found = command._output([sys.executable, "-c", program])
    assert found.startswith("CPU")
