"""Runs scripts in the process of the tests, without importing TensorFlow again.

The fixture `launch` of conftest.py runs the script `SCRIPT_NAME` of a module.
"""

import contextlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator

import keras
import pytest
from absl import app, flags
from absl.testing import flagsaver

from bert_tf import cli, jobs
from bert_tf.base.options import Options


def job_of(script: str) -> types.ModuleType | None:
    """Returns the job that a program runs, which may be itself, or None."""
    module = importlib.import_module(script)
    if hasattr(module, "run") and not hasattr(module, "main"):
        return module
    started = re.search(r'run_job\("(\w+)"\)', inspect.getsource(module))
    if started:
        return getattr(jobs, started[1])
    return None


def config_type_of(job: types.ModuleType) -> type[Options]:
    """Returns the class of a job's options."""
    return job.run.__annotations__["config"]


def flags_of(job: types.ModuleType) -> flags.FlagValues:
    """Returns the flags of a job, which are not parsed."""
    values = flags.FlagValues()
    cli.define_flags(config_type_of(job), values)
    return values


def parse(job: types.ModuleType, words: Iterable[object]) -> Options:
    """Returns a job's options; required flags may be missing, as in pages."""
    values = flags_of(job)
    values(["program", *map(str, words)])
    for name in cli.options.required(config_type_of(job)):
        if values[name].value is None:
            values[name].value = ""
    return cli.read_config(config_type_of(job), values)


@contextlib.contextmanager
def script(
    name: str, required: Iterable[str] = ()
) -> Iterator[Callable[[list[str]], int]]:
    """Loads a program without `.py`; removes its flags after the block.

    Yields a function that runs it with a command line and returns the exit
    status. A job declares its required flags itself.
    """
    app.define_help_flags()
    before = set(flags.FLAGS)
    job, module = job_of(name), importlib.import_module(name)

    def start() -> None:
        if job is None:
            cli._start(module.main, list(required))
        _remove_flags(set(flags.FLAGS) - before)
        cli.main(job.run)

    def launch(words: list[str]) -> int:
        main = sys.modules["__main__"]
        with pytest.MonkeyPatch.context() as patch, flagsaver.flagsaver():
            patch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
            patch.setattr(main, "__doc__", main.__doc__)
            flags.FLAGS.unparse_flags()
            with pytest.raises(SystemExit) as left:
                start()
        keras.config.set_dtype_policy("float32")
        return left.value.code or 0

    try:
        yield launch
    finally:
        _remove_flags(set(flags.FLAGS) - before)
        del sys.modules[name]


def _remove_flags(names: Iterable[str]) -> None:
    for name in list(names):
        delattr(flags.FLAGS, name)


def the_error(capsys: pytest.CaptureFixture, name: str) -> str:
    """Returns the one-line error of a script, which must be its last output."""
    lines = capsys.readouterr().err.splitlines()
    [line] = [line for line in lines if "error: " in line]
    assert lines[-1] == line
    assert line.startswith(f"{name}.py: error: ")
    assert "Traceback" not in "".join(lines)
    return line
