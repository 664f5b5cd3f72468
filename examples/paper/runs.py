"""Runs of this project's jobs, each of which is executed once.

A run is a script with its flags. The name of its folder has a digest of the
flags and of the input files: a different flag or text makes a different run. A
flag may name the output of another run, which is done first, unless every run
that needs it is done. So, to continue on another machine, copy only the records
and results of finished runs: `runs/*.json` and `runs/*/eval_results.txt`.
"""

import contextlib
import fcntl
import functools
import glob
import hashlib
import importlib
import json
import logging
import os
import pathlib
import shlex
import sys
import time
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

from absl import flags
from absl import logging as absl_logging

from bert_tf import __version__, cli
from bert_tf.base import files, options
from bert_tf.errors import InputError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# As the user would type it: .venv/bin/python.
PYTHON = min(sys.executable, os.path.relpath(sys.executable), key=len)
# Script -> the module of its job.
JOBS = {
    "create_vocab.py": "bert_tf.jobs.vocabulary",
    "create_pretraining_data.py": "bert_tf.jobs.pretraining_data",
    "run_pretraining.py": "bert_tf.kinds.pretraining.job",
    "run_classifier.py": "bert_tf.kinds.classification.job",
    "run_squad.py": "bert_tf.kinds.spans.job",
    "run_ner.py": "bert_tf.kinds.tags.job",
    "examples/paper/masked_examples.py": "masked_examples",
    "examples/paper/bilstm_classifier.py": "bilstm_classifier",
    "examples/paper/bilstm_squad.py": "bilstm_squad",
    "examples/paper/bilstm_ner.py": "bilstm_ner",
    "examples/paper/feature_ner.py": "feature_ner",
}


def read_options(
    script: str, words: Sequence[str]
) -> tuple[types.ModuleType, options.Options]:
    """Returns the job of a script and the options of a command line.

    Raises:
      flags.Error: A flag is unknown or its value has the wrong type.
      OptionError: A value is out of range or is not one of the choices.
    """
    job = importlib.import_module(JOBS[script])
    config_type = typing.get_type_hints(job.run)["config"]
    values = flags.FlagValues()
    cli.define_flags(config_type, values)
    values([script, *words])
    return job, cli.read_config(config_type, values)


def run_job(script: str, words: Sequence[str], log: TextIO) -> str:
    """Runs the job of a script in this process; output goes to `log`.

    Returns:
      An error that the user can fix, or "". Any other exception is a bug and
      ends the program.
    """
    logger = absl_logging.get_absl_logger()
    handler = logging.StreamHandler(log)
    handler.setFormatter(absl_logging.PythonFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with contextlib.redirect_stdout(log):
            job, config = read_options(script, words)
            job.run(config)
    except (InputError, OSError, flags.Error) as error:
        traceback.print_exc(file=log)
        return f"{type(error).__name__}: {error}"
    finally:
        logger.propagate = True
        logger.removeHandler(handler)
        if keras := sys.modules.get("keras"):
            keras.utils.clear_session()
    return ""


def lock(log: TextIO) -> None:
    """Waits until no other program locks the log; locks it until closed."""
    with contextlib.suppress(OSError):  # The file system may have no locks.
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  another program does this: waiting for it", flush=True)
            fcntl.flock(log, fcntl.LOCK_EX)


class Made(NamedTuple):
    """The value of a flag: a file or a folder that a run writes."""

    run: "Run"
    name: str


class Run(NamedTuple):
    """A script and its flags.

    Attributes:
      name: The beginning of the name of the run's folder.
      script: The name of the script.
      flags: The flags, except the output; True is a flag without a value.
      output_file: The name for --output_file; if empty, --output_dir is passed.
      continues: The run in whose folder this one continues.
    """

    name: str
    script: str
    flags: Mapping[str, object]
    output_file: str = ""
    continues: "Run | None" = None

    @property
    def label(self) -> str:
        """The name and the digest: "pretraining-1a2b3c4d"."""
        return f"{self.name}-{self.digest}"

    @property
    def digest(self) -> str:
        values = {flag: _identity(flag, v) for flag, v in self.flags.items()}
        before = self.continues.digest if self.continues else None
        facts = [self.script, values, self.output_file, before]
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _identity(flag: str, value: object) -> object:
    """Returns what a value contributes to the digest.

    Files contribute their names and contents; a pattern without local files,
    such as hf://owner/name, contributes itself.
    """
    if isinstance(value, Made):
        return [value.run.digest, value.name]
    if not flag.endswith(("_file", "_dir", "_checkpoint")):
        return str(value)
    items = [item.strip() for item in str(value).split(",") if item.strip()]
    found = {item: _local_files(item) for item in items}
    paths = sorted(set().union(*found.values()))
    return [
        *([os.path.basename(path), _sha256(path)] for path in paths),
        *(item for item, paths in found.items() if not paths),
    ]


@functools.cache
def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _local_files(item: str) -> set[str]:
    """Returns the files of a glob, of a folder, or of a checkpoint's prefix."""
    name = glob.escape(item)
    for patterns in (
        [item, os.path.join(item, "*")],
        [name, os.path.join(name, "*"), f"{name}.*"],
    ):
        found = {path for one in patterns for path in glob.glob(one)}
        if paths := {path for path in found if os.path.isfile(path)}:
            return paths
    return set()


def needs(run: Run) -> list[Made]:
    """Returns the outputs of other runs that a run reads."""
    made = [value for value in run.flags.values() if isinstance(value, Made)]
    if run.continues:
        made.insert(0, Made(run.continues, "checkpoint"))
    return made


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs and all that they need, each once, in a valid order."""
    found: dict[str, Run] = {}

    def add(run: Run) -> None:
        for made in needs(run):
            add(made.run)
        found.setdefault(run.label, run)

    for run in runs:
        add(run)
    return list(found.values())


class Folder(NamedTuple):
    """Where runs are kept: each has a folder, a log and a record in `runs`."""

    path: str

    def place(self, run: Run) -> str:
        """Returns the folder that a run writes to."""
        if run.continues:
            return self.place(run.continues)
        return os.path.join(self.path, "runs", run.label)

    def made(self, made: Made) -> str:
        """Returns the path of a run's output."""
        return os.path.join(self.place(made.run), made.name)

    def log(self, run: Run) -> str:
        return f"{self.place(run)}.log"

    def command(self, run: Run) -> list[str]:
        """Returns the script and its arguments."""
        words = [run.script]
        for flag, value in run.flags.items():
            if isinstance(value, Made):
                value = self.made(value)
            words.append(f"--{flag}" if value is True else f"--{flag}={value}")
        if run.output_file:
            path = os.path.join(self.place(run), run.output_file)
            return [*words, f"--output_file={path}"]
        return [*words, f"--output_dir={self.place(run)}"]

    def check(self, run: Run) -> None:
        """Raises InputError if a flag is unknown or has an invalid value."""
        script, *words = self.command(run)
        try:
            read_options(script, words)
        except (flags.Error, InputError) as error:
            raise InputError(f"{script}: {error}") from None

    def shown(self, run: Run) -> str:
        """Returns the command as the user would type it here."""
        _, *words = self.command(run)
        path = str(ROOT / run.script)
        script = min(path, os.path.relpath(path), key=len)
        return shlex.join([PYTHON, script, *words])

    def record(self, run: Run) -> dict | None:
        """Returns the record of a finished run: command, version, seconds.

        The seconds include attempts that were stopped.
        """
        found = self._attempts(run)
        return found if found.get("done", True) else None

    def results(self, run: Run) -> dict[str, float]:
        """Returns the metrics that a run has written."""
        path = os.path.join(self.place(run), "eval_results.txt")
        lines = files.read_text(path).splitlines()
        pairs = (line.split(" = ") for line in lines)
        return {name: float(value) for name, value in pairs}

    def to_do(self, runs: Iterable[Run]) -> list[Run]:
        """Returns the runs that are not done and what they need, in order.

        The record of a run whose output is needed but missing is removed.
        """
        found: dict[str, Run] = {}

        def add(run: Run) -> None:
            for made in needs(run):
                if self.record(made.run) is None:
                    add(made.run)
                elif not files.exists(self.made(made)):
                    files.remove(self._record_path(made.run))
                    add(made.run)
            found.setdefault(run.label, run)

        for run in runs:
            if self.record(run) is None:
                add(run)
        return list(found.values())

    def do(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Executes the runs that are not done, and prints their commands.

        What they need is done first. If a run fails, the runs that do not need
        it are still done.

        Yields:
          Each run that is done, including those done before.

        Raises:
          InputError: At the end, if runs have failed.
        """
        runs = list(runs)
        to_do = self.to_do(runs)
        ordered = [
            run
            for run in in_order(runs)
            if run in to_do or self.record(run) is not None
        ]
        print(
            f"{len(ordered)} runs: {len(ordered) - len(to_do)} done before, "
            f"{len(to_do)} to do. They are kept in {self.path}/runs.",
            flush=True,
        )
        missing: set[str] = set()
        faults = []
        for run in ordered:
            if missing & {made.run.label for made in needs(run)}:
                missing.add(run.label)
                continue
            if run in to_do:
                number = to_do.index(run) + 1
                print(f"\n[{number}/{len(to_do)}] $ {self.shown(run)}")
                if fault := self._do(run):
                    print(f"  failed: {fault}", flush=True)
                    faults.append(fault)
                    missing.add(run.label)
                    continue
            yield run
        if faults:
            rest = len(missing) - len(faults)
            raise InputError(
                f"{len(faults)} of the runs failed, and {rest} that need them "
                "were left out. Fix the cause and rerun the command. The first "
                f"failure: {faults[0]}"
            )

    def _do(self, run: Run) -> str:
        """Executes a run; returns the error, or ""."""
        files.makedirs(self.place(run))
        script, *words = command = self.command(run)
        with open(self.log(run), "a", encoding="utf-8") as log:
            lock(log)
            if self.record(run) is not None:
                print("  was done by another program meanwhile", flush=True)
                return ""
            before = self._attempts(run).get("seconds", 0)
            start, fault = time.perf_counter(), "stopped"
            try:
                fault = run_job(script, words, log)
            finally:
                seconds = time.perf_counter() - start
                record = {
                    "command": command,
                    "bert_tf": __version__,
                    "seconds": round(before + seconds, 1),
                    "done": not fault,
                }
                text = json.dumps(record, indent=2)
                files.write_text(self._record_path(run), f"{text}\n")
        if fault:
            return f"{run.label}: {fault} (log: {self.log(run)})"
        print(f"  took {seconds:.1f} s", flush=True)
        return ""

    def _attempts(self, run: Run) -> dict:
        path = self._record_path(run)
        return files.read_json(path) if files.exists(path) else {"done": False}

    def _record_path(self, run: Run) -> str:
        return os.path.join(self.path, "runs", f"{run.label}.json")
