"""The command `bert-tf`, and how scripts start."""

import os
import re
import signal
import subprocess
import sys

import pytest
from checkout import ROOT, python

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
    status, out, err = lines_of("--help")
    assert (status, err) == (0, "")
    assert re.findall("^  ([a-z_]+)", out, re.MULTILINE) == [*JOBS, "env"]
    assert re.search("^  squad +Fine-tunes .* KorQuAD$", out, re.MULTILINE)
    status, out, err = lines_of()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"bert-tf: error: {jobs}")
    status, _, err = lines_of("clasifier")
    unknown = "Unknown job 'clasifier'. Did you mean 'classifier'?"
    assert err.startswith(f"bert-tf: error: {unknown} {jobs}")


def test_a_missing_absl_is_one_line():
    """As for a script that runs outside of `.venv`."""
    for words in ["run_squad.py"], ["-m", "bert_tf", "squad"]:
        # Without site-packages.
        done = python("-S", *words, without="PYTHONPATH")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "error: This program needs the package absl-py." in done.stderr
        assert done.stderr.endswith(": . .venv/bin/activate\n")


FAST = """
import contextlib, sys
from bert_tf import command
with contextlib.suppress(SystemExit):
    command.command()
sys.exit(str({"absl", "keras", "numpy", "tensorflow"} & {*sys.modules} or ""))
"""


@pytest.mark.parametrize(
    ("word", "start"),
    [("--version", f"bert_tf {__version__}\n"), ("-h", "bert-tf JOB")],
)
def test_the_version_and_help_import_nothing_slow(word, start):
    done = python("-c", FAST, word)
    assert done.stderr == "\n"
    assert done.stdout.startswith(start)


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
    ("number", "words", "line"),
    [
        (
            signal.SIGINT,
            ["-m", "bert_tf", "fill_mask"],
            "bert-tf fill_mask: error: interrupted",
        ),
        (
            signal.SIGTERM,
            [str(ROOT / "fill_mask.py")],
            f"{ROOT / 'fill_mask.py'}: error: stopped by SIGTERM",
        ),
    ],
)
def test_a_signal_during_imports_is_one_line(tmp_path, number, words, line):
    (tmp_path / "tensorflow.py").write_text(SLOW_MODULE)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TF_")},
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    with subprocess.Popen(
        # The command line is checked first.
        [sys.executable, *words, f"--init_checkpoint={tmp_path}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    assert said == f"{line}\n"
    assert process.returncode == 128 + number


BROKEN = {
    "tensorflow": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
    "jax": "import sys\nprint('no CUDA', file=sys.stderr)\nsys.exit(3)",
    "torch": "class cuda:\n    device_count = int\n",
    "keras": "class config:\n    backend = str",
}


def test_the_environment_of_a_broken_machine(lines_of, tmp_path, monkeypatch):
    """A broken framework is one line; no secret is printed."""
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b=2")
    monkeypatch.setenv("HF_TOKEN", "secret")
    status, out, err = lines_of("env")
    assert (status, err) == (0, "")
    assert re.match(
        rf"bert_tf {__version__} in .*\nPython 3.*\nCPU: .*\nNVIDIA GPUs: .*\n"
        r"Packages: .*numpy 2\..*\nkeras: backend\n"
        r"tensorflow: failed with status -4\n"
        r"jax: failed with status 3, no CUDA\ntorch: CPU\n",
        out,
    )
    assert "\nXLA_FLAGS=--a=1 --b=2\n" in out
    assert "secret" not in out
    monkeypatch.setattr(command, "_SECONDS", 0.1)
    hanging = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert command._output(hanging).endswith("timed out after 0.1 seconds")


@pytest.mark.slow
def test_the_devices_of_tensorflow():
    program = command._DEVICES["tensorflow"]
    found = command._output([sys.executable, "-c", program])
    assert found.startswith("CPU")
