"""Sides of a benchmark that are commands, run anew each time."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import sessions


class Command:
    """A side; see `turns.take`.

    Args:
      words: The command line, but for what a request adds.
      versions: Of its packages.
      times: From the folder where a command has written to how many times it
        has done the work.
    """

    def __init__(
        self,
        words: Sequence[str],
        versions: dict[str, str],
        times: Callable[[str], float] = lambda folder: 1,
    ):
        self.versions = versions
        self._words = words
        self._times = times

    def ask(self, request: Sequence[str]) -> dict[str, Any]:
        """Runs the command.

        Args:
          request: More words; `{folder}` in them is a new and empty folder.

        Raises:
          subprocess.CalledProcessError: It failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            more = [word.format(folder=folder) for word in request]
            usage = sessions.run([*self._words, *more])
            return {
                "times": self._times(folder),
                "seconds": usage.seconds,
                "cpu_seconds": usage.cpu_seconds,
                "request_cpu_seconds": usage.cpu_seconds,
                "peak_bytes": usage.peak_bytes,
            }
