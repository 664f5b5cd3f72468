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
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from bert_tf import files
from bert_tf.errors import InputError

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# As one would type it: .venv/bin/python.
PYTHON = min(sys.executable, os.path.relpath(sys.executable), key=len)


class Source(NamedTuple):
    """A flag's value: files of the user's, or the folder that they lie in.

    Attributes:
      pattern: As the flag has it.
      identity: Names, sizes and times of the files: other text, other runs.
    """

    pattern: str
    identity: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, pattern: str) -> Self:
        """Looks at the files; there need not be any."""
        patterns = pattern.split(",")
        patterns += [os.path.join(folder, "*") for folder in patterns]
        found = sorted({path for p in patterns for path in glob.glob(p)})
        stats = [(p, os.stat(p)) for p in found if os.path.isfile(p)]
        return cls(
            pattern,
            tuple(
                (os.path.basename(path), stat.st_size, stat.st_mtime_ns)
                for path, stat in stats
            ),
        )


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
            flag: getattr(value, "identity", str(value))
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
        return made + ([self.continues] if self.continues else [])


class Folder(NamedTuple):
    """Where runs are kept.

    Attributes:
      path: The folder; each run has a folder, a log and a record in `runs`.
    """

    path: str

    def place(self, run: Run) -> str:
        """The folder that a run writes into."""
        return os.path.join(self.path, "runs", (run.continues or run).label)

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
        """The command, as one would type it."""
        return f"{PYTHON} {shlex.join(self.command(run))}"

    def record(self, run: Run) -> dict | None:
        """What is known of a run that is done: its command and its seconds."""
        path = self._record_path(run)
        return files.read_json(path) if files.exists(path) else None

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

        Yields:
          Each run that is done, also those done before.

        Raises:
          InputError: A script has failed.
        """
        ordered = in_order(runs)
        to_do = [run for run in ordered if self.record(run) is None]
        print(
            f"{len(ordered)} runs: {len(ordered) - len(to_do)} done before, "
            f"{len(to_do)} to do. They are kept in {self.path}/runs.",
            flush=True,
        )
        for run in ordered:
            if run in to_do:
                number = to_do.index(run) + 1
                print(f"\n[{number}/{len(to_do)}] $ {self.shown(run)}")
                print(f"  took {self._do(run):.1f} s", flush=True)
            yield run

    def _do(self, run: Run) -> float:
        """Runs the script; gives the seconds that it took."""
        files.makedirs(self.place(run))
        _, *words = self.command(run)
        log = f"{self.place(run)}.log"
        sys.stdout.flush()
        start = time.perf_counter()
        with open(log, "a", encoding="utf-8") as file:
            done = subprocess.run(
                [sys.executable, str(ROOT / run.script), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        seconds = time.perf_counter() - start
        if done.returncode:
            *_, last = ["nothing", *files.read_text(log).splitlines()]
            raise InputError(
                f"expected {run.script} to end well. Received: exit status "
                f"{done.returncode}; {log} ends with: {last}"
            )
        record = {"command": self.command(run), "seconds": round(seconds, 1)}
        text = json.dumps(record, indent=2)
        files.write_text(self._record_path(run), f"{text}\n")
        return seconds

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
