"""What is wrong with data and yet no reason to stop: counted, and told."""

import collections
from collections.abc import Mapping

from absl import logging


class Faults:
    """Counts each kind of fault and keeps the first of it.

    Those of several pieces of the data can be joined, in their order, so that
    a fault is told once however the data was cut up.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._firsts: dict[str, str] = {}

    def add(self, kind: str, example: str) -> None:
        """Counts one.

        Args:
          kind: A sentence without its end: what is so, and what was done.
          example: Which one it was and where it stands.
        """
        self._counts[kind] += 1
        self._firsts.setdefault(kind, example)

    def update(self, other: "Faults") -> None:
        """Counts all that `other` has, as what came later."""
        self._counts.update(other._counts)
        self._firsts = other._firsts | self._firsts

    @property
    def counts(self) -> Mapping[str, int]:
        """How many there are of each kind."""
        return dict(self._counts)

    @property
    def firsts(self) -> Mapping[str, str]:
        """The first one of each kind."""
        return dict(self._firsts)

    def tell(self) -> None:
        """Warns of each kind in one line of the log."""
        for kind, count in self._counts.items():
            logging.warning(
                "%s: %s; the first: %s", kind, f"{count:,}", self._firsts[kind]
            )
