"""Runs of this project's scripts, each of which is done once.

A run is a script with its flags. Where it is kept follows from these and from
the files that go into it: another flag, or another text, makes another run. A
flag may name what an earlier run has made; that run is done first.
"""

import glob
import hashlib
import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from processes import status_of

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.jobs.output_folder import only_one
from bert_tf.version import __version__

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# As one would type it: .venv/bin/python.
PYTHON = min(sys.executable, os.path.relpath(sys.executable), key=len)


class Source(NamedTuple):
    """A flag's value: files of the user's, or the folder that they lie in.

    Attributes:
      pattern: As the flag has it.
      identity: Names, sizes and times of the files: other text, other runs.
        What has none here, as `hf://owner/name`, stands for itself.
    """

    pattern: str
    identity: tuple[tuple[str, int, int] | str, ...]

    @classmethod
    def of(cls, pattern: str) -> Self:
        """Looks at the files; there need not be any."""
        items = [item.strip() for item in pattern.split(",") if item.strip()]
        found = {item: _local_files(item) for item in items}
        stats = [(p, os.stat(p)) for p in sorted(set().union(*found.values()))]
        return cls(
            pattern,
            (
                *(
                    (os.path.basename(path), stat.st_size, stat.st_mtime_ns)
                    for path, stat in stats
                ),
                *(item for item, paths in found.items() if not paths),
            ),
        )


def _local_files(item: str) -> set[str]:
    """Files of a glob, or in its folders; or those of a checkpoint's prefix."""
    name = glob.escape(item)
    for patterns in (
        [item, os.path.join(item, "*")],
        [name, os.path.join(name, "*"), f"{name}.*"],
    ):
        found = {path for one in patterns for path in glob.glob(one)}
        if paths := {path for path in found if os.path.isfile(path)}:
            return paths
    return set()


class Made(NamedTuple):
    """A flag's value: a file, or a folder, that a run has made."""

    run: "Run"
    name: str

    @property
    def identity(self) -> list:
        """It is what its run is."""
        return [self.run.digest, self.name]


class Run(NamedTuple):
    """A script, and what it is given.

    Attributes:
      name: What the run's folder begins with.
      script: The file in the project's root.
      flags: Its flags, but for the output; True is a flag without a value.
      output_file: The file that --output_file names; --output_dir if empty.
      continues: The run in whose folder this one goes on.
    """

    name: str
    script: str
    flags: Mapping[str, object]
    output_file: str = ""
    continues: "Run | None" = None

    @property
    def digest(self) -> str:
        """Eight letters that are a function of all that goes into the run."""
        values = {
            flag: value.identity
            if isinstance(value, Source | Made)
            else str(value)
            for flag, value in self.flags.items()
        }
        before = self.continues.digest if self.continues else None
        facts = [self.script, values, self.output_file, before]
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def label(self) -> str:
        """The name of its folder, its log and its record."""
        return f"{self.name}-{self.digest}"

    @property
    def needs(self) -> list["Run"]:
        """The runs that have to be done before."""
        made = [v.run for v in self.flags.values() if isinstance(v, Made)]
        return [self.continues, *made] if self.continues else made


class Folder(NamedTuple):
    """Where runs are kept.

    Attributes:
      path: The folder; each run has a folder, a log and a record in `runs`.
    """

    path: str

    def place(self, run: Run) -> str:
        """The folder that a run writes into."""
        if run.continues:
            return self.place(run.continues)
        return os.path.join(self.path, "runs", run.label)

    def log(self, run: Run) -> str:
        """The file of what the scripts say that write into that folder."""
        return f"{self.place(run)}.log"

    def command(self, run: Run) -> list[str]:
        """The script and its arguments."""
        words = [run.script]
        for flag, value in run.flags.items():
            if isinstance(value, Made):
                value = os.path.join(self.place(value.run), value.name)
            elif isinstance(value, Source):
                value = value.pattern
            words.append(f"--{flag}" if value is True else f"--{flag}={value}")
        if run.output_file:
            path = os.path.join(self.place(run), run.output_file)
            return [*words, f"--output_file={path}"]
        return [*words, f"--output_dir={self.place(run)}"]

    def shown(self, run: Run) -> str:
        """The command, as one would type it here."""
        _, *words = self.command(run)
        path = str(ROOT / run.script)
        script = min(path, os.path.relpath(path), key=len)
        return shlex.join([PYTHON, script, *words])

    def record(self, run: Run) -> dict | None:
        """What is known of a run that is done.

        Returns:
          Its command, the version of bert_tf, and the seconds that it took,
          those of attempts that were stopped among them; None if it is not
          done.
        """
        found = self._attempts(run)
        return found if found["done"] else None

    def results(self, run: Run) -> dict[str, float]:
        """What the run has written of how good its model is.

        Raises:
          InputError: The file is not there.
        """
        path = os.path.join(self.place(run), "eval_results.txt")
        lines = files.read_text(path).splitlines()
        pairs = (line.split(" = ") for line in lines)
        return {name: float(value) for name, value in pairs}

    def do(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Does what is not done, and tells of it.

        Where a script fails, what does not need its run is done all the same.

        Yields:
          Each run that is done, also those done before.

        Raises:
          InputError: Scripts have failed, told at the end; or another program
            is doing one of the runs.
        """
        ordered = in_order(runs)
        to_do = [run for run in ordered if self.record(run) is None]
        print(
            f"{len(ordered)} runs: {len(ordered) - len(to_do)} done before, "
            f"{len(to_do)} to do. They are kept in {self.path}/runs.",
            flush=True,
        )
        missing: set[str] = set()
        faults = []
        for run in ordered:
            if missing & {needed.label for needed in run.needs}:
                missing.add(run.label)
                continue
            if run in to_do:
                number = to_do.index(run) + 1
                print(f"\n[{number}/{len(to_do)}] $ {self.shown(run)}")
                if fault := self._do(run):
                    faults.append(fault)
                    missing.add(run.label)
                    continue
            yield run
        if faults:
            rest = len(missing) - len(faults)
            raise InputError(
                f"expected every script to end well. Received: {len(faults)} "
                f"that did not, and {rest} left out that need them: "
                f"{'; '.join(faults)}"
            )

    def _do(self, run: Run) -> str:
        """Runs the script; gives what went wrong, or nothing."""
        files.makedirs(self.place(run))
        _, *words = self.command(run)
        command = [sys.executable, str(ROOT / run.script), *words]
        sys.stdout.flush()
        with (
            open(self.log(run), "a", encoding="utf-8") as log,
            only_one(self.log(run)),
        ):
            if self.record(run) is not None:
                print("  was done by another program meanwhile", flush=True)
                return ""
            start = time.perf_counter()
            status = None
            try:
                status = status_of(command, log)
            finally:
                seconds = time.perf_counter() - start
                self._note(run, seconds, done=status == 0)
        if status == 0:
            print(f"  took {seconds:.1f} s", flush=True)
            return ""
        *_, last = ["nothing", *files.read_text(self.log(run)).splitlines()]
        fault = f"{run.label}: exit status {status}"
        fault += f", and {self.log(run)} ends with: {last}"
        print(f"  failed after {seconds:.1f} s: {fault}", flush=True)
        return fault

    def _note(self, run: Run, seconds: float, done: bool) -> None:
        """Writes the record, with the seconds of one attempt more."""
        seconds += self._attempts(run).get("seconds", 0)
        record = {
            "command": self.command(run),
            "bert_tf": __version__,
            "seconds": round(seconds, 1),
            "done": done,
        }
        text = json.dumps(record, indent=2)
        files.write_text(self._record_path(run), f"{text}\n")

    def _attempts(self, run: Run) -> dict:
        """The record, of a run that is done or not."""
        path = self._record_path(run)
        return files.read_json(path) if files.exists(path) else {"done": False}

    def _record_path(self, run: Run) -> str:
        return os.path.join(self.path, "runs", f"{run.label}.json")


def in_order(runs: Iterable[Run]) -> list[Run]:
    """The runs and all that they need, what is needed first, each once."""
    found: dict[str, Run] = {}

    def add(run: Run) -> None:
        for needed in run.needs:
            add(needed)
        found.setdefault(run.label, run)

    for run in runs:
        add(run)
    return list(found.values())
