"""Starts jobs: the command `bert-tf JOB` and the scripts in the root folder.

This module imports almost nothing, so that `bert-tf --help` is fast. A job is
imported after its command line was checked.
"""

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from bert_tf import jobs
from bert_tf.base import start_tensorflow
from bert_tf.jobs import JOBS
from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.base.options import Options

WITHOUT_TENSORFLOW = ("vocabulary", "pretraining_data")
# A command that runs no job: it has no options and no script.
ENVIRONMENT = "env"


def run_job(name: str) -> None:
    """Runs a job of JOBS with the options of the command line, then exits."""
    _require_absl()
    # The flags of absl take a tenth of a second to import.
    from bert_tf import cli

    config_type = options_of(name)
    cli.run_job(
        config_type,
        lambda: _import_job(name).run,
        sys.modules[config_type.__module__].__doc__,
    )


def _import_job(name: str) -> Any:
    if name not in WITHOUT_TENSORFLOW:
        start_tensorflow.quietly()
    return getattr(jobs, name)


def _require_absl() -> None:
    """Exits with one line if absl is missing, as outside of `.venv`."""
    if importlib.util.find_spec("absl"):
        return
    from bert_tf.base import packages

    lacking = packages.missing(
        "This program",
        "absl-py",
        "tensorflow",
        ". Or activate the environment that has it: . .venv/bin/activate",
    )
    sys.exit(f"{sys.argv[0]}: error: {lacking}")


def options_of(job: str) -> "type[Options]":
    """Returns the class of a job's options: NameOfJobConfig."""
    module = importlib.import_module(f"bert_tf.{JOBS[job][1]}")
    kind: type[Options] = getattr(
        module, f"{job.title().replace('_', '')}Config"
    )
    return kind


def command() -> None:
    """Runs `bert-tf JOB --flag=value ...`, the installed package's command."""
    program, *words = sys.argv
    sys.argv[0] = os.path.basename(program)
    first = words[0] if words else ""
    if first in ("--help", "-h"):
        _print(_help())
    elif first == "--version":
        _print(f"bert_tf {__version__}\n")
    elif first == ENVIRONMENT:
        from bert_tf import environment

        _print("".join(f"{line}\n" for line in environment.report()))
    if first not in JOBS:
        _fail(_unknown_job(first))
    sys.argv = [f"{sys.argv[0]} {first}", *words[1:]]
    run_job(first)


def _help() -> str:
    jobs = "\n".join(f"  {job:20}{_summary(job)}" for job in JOBS)
    jobs += (
        f"\n  {ENVIRONMENT:20}Prints versions, devices and settings for a bug "
        "report"
    )
    return (
        f"bert-tf JOB --flag=value ...\n\n{jobs}\n\n"
        "`bert-tf JOB --help` lists the flags of a job. `bert-tf --version` "
        "prints the version.\n"
    )


def _unknown_job(word: str) -> str:
    from bert_tf.errors import did_you_mean

    unknown = (
        f"Unknown job {word!r}.{did_you_mean(word, (*JOBS, ENVIRONMENT))} "
    )
    return (
        f"{unknown if word else ''}Name a job: {', '.join(JOBS)}. `bert-tf "
        "--help` describes them, and `bert-tf JOB --help` lists flags."
    )


def _summary(job: str) -> str:
    """Returns the first line of a page of help without importing it."""
    folder = os.path.dirname(__file__)
    path = os.path.join(folder, *JOBS[job][1].split(".")) + ".py"
    with open(path, encoding="utf-8") as file:
        return file.readline().strip('".\n')


def _print(text: str) -> NoReturn:
    # In one call: in `bert-tf --help | head`, a second one might find the pipe
    # closed.
    print(text, end="")
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    _require_absl()
    from bert_tf import cli

    cli.fail(message, status=2)
