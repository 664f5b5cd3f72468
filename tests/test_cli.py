"""The command line of a job, and how its mistakes are reported."""

import os
import subprocess
import sys
import sysconfig
import textwrap

import in_process
import pytest
from absl import logging
from checkout import ROOT, python

from bert_tf import cli, command, jobs
from bert_tf.base.options import declared

SCRIPT = """
    import dataclasses
    from absl import logging
    from bert_tf import cli
    from bert_tf.errors import InputError
    from bert_tf.base.options import Options, option

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Options):
        input_file: str = option("What to read.")
        do_lower_case: bool = option("Whether to lower-case.", default=True)
        num_steps: int = option("Steps.", default=7)
        dropout: float = option("A rate.", default=0.1, at_least=0, at_most=1)

    def run(config: Config) -> None:
        name = config.input_file
        if name == "bad":
            raise InputError("The file is bad.\\nPass another one.")
        if name.startswith("says "):
            message = name.removeprefix("says ")
            logging.warning(message.replace("%", "%%") + " of %r", "x")
            raise InputError(message)
        if name == "missing":
            open("/nowhere/at/all")
        if name == "bug":
            raise KeyError("ours")
        print("lower" if config.do_lower_case else "cased")

    if __name__ == "__main__":
        cli.main(run)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "cli_script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.fixture(scope="module")
def launch(script):
    """Runs the script in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(script.parent))
        with in_process.script("cli_script") as launch:
            yield launch


def test_flags_reach_the_script(launch, capsys):
    for argument in "--nodo_lower_case", "--do_lower_case=False":
        assert launch(["--input_file=x", argument]) == 0
        assert capsys.readouterr().out == "cased\n"


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("--input_file=", 2, "--input_file must be passed"),
        ("--do_lower=False", 2, "'do_lower'"),
        ("--input_fil=x", 2, "Did you mean: input_file"),
        ("False", 2, "'False' is not a flag"),
        ("--nodo_lower_case=no", 2, "nodo_lower_case"),
        (f"--num_steps={2**63}", 2, f"at most {2**63 - 1:,}; got {2**63} ("),
        ("--dropout=2", 2, "must be at most 1; got 2.0 ("),
        ("--input_file=bad", 1, "The file is bad. Pass another one."),
        ("--input_file=missing", 1, "No such file"),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    launch, capsys, argument, status, message
):
    assert launch(["--input_file=x", argument]) == status
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("Pass `input_file`.", "Pass --input_file."),
        ("`input_file=a b/%s` is `x y`", "--input_file=a b/%s is `x y`"),
        ("`do_lower_case=False`", "--nodo_lower_case"),
        ("`do_lower_case=True`", "--do_lower_case"),
        ("`do_lower_case=false`", "--do_lower_case=false"),
        ("`other` or `hf login`, `dropout", "`other` or `hf login`, `dropout"),
    ],
)
def test_messages_name_flags_for_arguments(
    launch, capsys, caplog, message, printed
):
    """Errors and the log; other words in backquotes stay as they are."""
    assert launch([f"--input_file=says {message}"]) == 1
    error = in_process.the_error(capsys, "cli_script")
    assert error == f"cli_script.py: error: {printed}"
    assert caplog.messages == [f"{printed} of 'x'"]
    # Python code sees arguments again.
    assert not logging.get_absl_logger().filters


def test_names_need_to_be_utf_8_for_tensorflow_only(script, launch, capsys):
    name = "--input_file=" + os.fsdecode(b"a\xffb")
    assert python(script, name).returncode == 0
    assert launch([name]) == 2
    line = in_process.the_error(capsys, "cli_script")
    assert r"--input_file must be UTF-8; got 'a\udcffb'" in line


def test_help_and_bugs(script):
    done = python(script, "--help")
    assert done.returncode == 0
    assert "--num_steps: Steps." in done.stdout
    done = python(script, "--input_file=bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_closed_pipe_ends_help(script):
    """`--help | head` closes the pipe early."""
    for unbuffered in ("", "1"):
        with subprocess.Popen(
            [sys.executable, script, "--help"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        ) as program:
            program.stdout.close()
            assert program.stderr.read() == b""
        assert program.returncode == 0


def test_a_signal_is_reported_in_one_line(tmp_path):
    """No half-written file is left; others: tests/base/test_signals.py."""
    program = f"""
import os, signal
from bert_tf import cli
from bert_tf.base import files
def main():
    with files.atomic_writer({str(tmp_path / "half")!r}):
        os.kill(os.getpid(), signal.SIGHUP)
cli._start(main, ())
"""
    done = python("-c", program)
    assert done.returncode == 129
    assert done.stderr == "-c: error: stopped by SIGHUP\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", command.JOBS)
def test_flags_and_options_agree(name):
    """Each flag gives the option of its name, or None to fall back."""
    job = getattr(jobs, name)
    config_type = in_process.config_type_of(job)
    words = {int: "7", float: "0.5", str: "x", tuple: "x,y", bool: "true"}
    known = declared(config_type)
    given = {
        name: option.choices[0] if option.choices else words[kind]
        for name, (kind, option) in known.items()
    }

    def parse(names):
        values = in_process.flags_of(job)
        values(["x.py", *(f"--{n}={given[n]}" for n in names)])
        return cli.read_config(config_type, values), values

    config, values = parse(known)
    for name, (kind, _) in known.items():
        value = values[name].value
        expected = tuple(value) if kind is tuple else value
        assert getattr(config, name) == expected
    config, values = parse(cli.options.required(config_type))
    for name, (_, option) in known.items():
        if option.fallback is not None:
            assert getattr(config, name) is None
            assert values[name].value == option.fallback


@pytest.mark.slow
def test_an_installed_wheel_runs_jobs_outside_of_the_checkout(tmp_path):
    """A new environment with the wheel; its dependencies are borrowed."""
    outer = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*words):
        words = [*map(str, words)]
        return subprocess.check_output(
            words, text=True, cwd=tmp_path, env=outer
        )

    # setuptools writes build/ and *.egg-info into the folder that it builds.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("bert_tf", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    pip = (sys.executable, "-m", "pip", "--quiet")
    run(
        *(*pip, "wheel", "--no-deps", "--no-build-isolation"),
        *(f"--wheel-dir={tmp_path}", source),
    )
    [wheel] = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "new")
    python = tmp_path / "new" / "bin" / "python"
    run(*pip, f"--python={python}", "install", "--no-deps", wheel)
    [site] = (tmp_path / "new").glob("lib/python*/site-packages")
    borrowed = sysconfig.get_path("purelib")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    (tmp_path / "text.txt").write_text("a sentence of words here\n\n" * 9)
    for program in ([python.with_name("bert-tf")], [python, "-m", "bert_tf"]):
        path = tmp_path / "vocab.txt"
        path.unlink(missing_ok=True)
        flags = ("--input_file=text.txt", "--output_file=vocab.txt")
        run(*program, "vocabulary", *flags, "--vocab_size=30")
        assert len(path.read_text().splitlines()) == 30
    where = run(python, "-c", "import bert_tf; print(bert_tf.__file__)")
    assert where.startswith(str(site))
