"""Which instance goes where: into equal shares, and these into parts.

The instances are shuffled as a whole; the ranks of the shuffle are dealt out
to the output files one after the other. A part is what one worker writes at a
time.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class PartPlan:
    """Some of the instances of one output file.

    Attributes:
      shard: The number of the output file.
      first: Rank of the first instance in the shuffle of all.
      stop: Rank after the last.
      total: The number of all instances.
      is_compressed: The file is a gzip file.
    """

    shard: int
    first: int
    stop: int
    total: int
    is_compressed: bool


@dataclasses.dataclass(frozen=True)
class Dealing:
    """Deals instances out to files, as evenly as can be.

    Attributes:
      paths: The files.
      total: The number of all instances.
      part_size: Instances of a part at most.

    Raises:
      InputError: There are more files than instances.
    """

    paths: tuple[str, ...]
    total: int
    part_size: int

    def __post_init__(self) -> None:
        if self.total < len(self.paths):
            raise InputError(
                "Expected as many instances as output files at least. "
                f"Received: {self.total} instances for {len(self.paths)} "
                "files; name fewer"
            )

    def plans(self) -> Iterator[PartPlan]:
        """Yields all parts, in the order of the ranks."""
        for shard in range(len(self.paths)):
            start, stop = self._bound(shard), self._bound(shard + 1)
            for first in range(start, stop, self.part_size):
                yield self._plan(shard, first)

    def plan(self, first: int) -> PartPlan:
        """The part that begins with a rank."""
        return self._plan(int(self._shards(np.array([first]))[0]), first)

    def part_starts(self, ranks: np.ndarray) -> np.ndarray:
        """The rank that begins the part of each of these: int64 [n]."""
        start = self._bounds()[self._shards(ranks)]
        return start + (ranks - start) // self.part_size * self.part_size

    def _plan(self, shard: int, first: int) -> PartPlan:
        stop = min(first + self.part_size, self._bound(shard + 1))
        is_compressed = self.paths[shard].endswith(".gz")
        return PartPlan(shard, first, stop, self.total, is_compressed)

    def _shards(self, ranks: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._bounds(), ranks, "right") - 1

    def _bounds(self) -> np.ndarray:
        """The rank that each file begins with: int64 [files]."""
        return np.array([self._bound(n) for n in range(len(self.paths))])

    def _bound(self, shard: int) -> int:
        return self.total * shard // len(self.paths)
