"""Sides of a benchmark that stay, each a process that is asked again and again.

What they run is in benchmarks/peers; see `peers/request_lines.py`.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from measured import failure

SECONDS_TO_END = 20


class Answerer:
    """A side at work, in a process of its own.

    Attributes:
      versions: Of its packages.
    """

    def __init__(self, process: subprocess.Popen, said: pathlib.Path):
        self._process = process
        self._said = said
        self.versions: dict[str, str] = self._reply()["versions"]

    def ask(self, request: Any) -> dict[str, Any]:
        """What the side replies to a request, both of them JSON.

        Raises:
          SystemExit: The side failed; with the end of what it said.
        """
        # One that has failed takes nothing; it says so when it should reply.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        raise failure(self._process.args, status, self._said)


@contextlib.contextmanager
def answerer(
    command: Sequence[str],
    said: pathlib.Path,
    environment: Mapping[str, str],
) -> Iterator[Answerer]:
    """Starts a side, and ends it when the block ends.

    Args:
      command: Its words.
      said: The file for what it says beside its answers.
      environment: Variables beside those of this process.

    Raises:
      SystemExit: It failed; with the end of what it said.
    """
    with (
        said.open("wb") as error,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error,
            text=True,
            encoding="utf-8",
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            yield Answerer(process, said)
        finally:
            # Its input ends, and so does it, with what it has started.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
            process.kill()


@contextlib.contextmanager
def together(
    start: Callable[
        [str, pathlib.Path], contextlib.AbstractContextManager[Answerer]
    ],
    names: Iterable[str],
) -> Iterator[dict[str, Answerer]]:
    """Starts several sides, and ends them when the block ends.

    Args:
      start: From a side's name, and a folder for what they all write, to the
        side.
      names: The sides.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        yield {
            name: stack.enter_context(start(name, pathlib.Path(folder)))
            for name in names
        }
