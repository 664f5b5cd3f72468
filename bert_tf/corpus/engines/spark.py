"""Runs data creation on Apache Spark.

A collection is a DataFrame of pickled items and the functions that workers
apply to them. A stage's functions run when its items are stored, grouped or
collected. Spark's Java processes sort and group the items and write them to
disk if they do not fit into memory; a Python worker has a few at a time.
"""

import contextlib
import dataclasses
import functools
import itertools
import operator
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

from bert_tf.corpus.engines import pipeline, spark_session
from bert_tf.corpus.settings import CLUSTER_SIZES, CreationConfig, PieceSizes

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

# The columns of all DataFrames except `spread`'s. `part` is the number of a
# collection in its group.
_COLUMNS = ("key", "part", "value")
_SCHEMA = "key binary, part int, value binary"
# The most bytes and items that Spark and Python exchange at a time.
_BATCH_BYTES = 1 << 22
_BATCH_ITEMS = 1 << 10


@contextlib.contextmanager
def opened(master: str | None) -> "Iterator[SparkEngine]":
    """Starts the engine; see `spark_session.opened`."""
    with spark_session.opened(master) as session:
        engine = SparkEngine(session)
        try:
            yield engine
        finally:
            engine.free()


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a collection: rows, and what makes items of them."""

    frame: "DataFrame"
    read: Callable[[Iterator[Any]], Iterator[Any]]


@dataclasses.dataclass(frozen=True)
class _Collection:
    parts: tuple[_Part, ...]


@dataclasses.dataclass(frozen=True)
class _Table:
    value: Any
    broadcast: Any  # The same on all workers.


class SparkEngine:
    """Runs the stages in a session of Spark; see `pipeline.Engine`."""

    def __init__(self, session: "SparkSession") -> None:
        # The settings of a new session do not change the user's.
        self._session = session.newSession()
        self._context = session.sparkContext
        settings = self._session.conf
        settings.set("spark.sql.execution.arrow.maxBytesPerBatch", _BATCH_BYTES)
        settings.set(
            "spark.sql.execution.arrow.maxRecordsPerBatch", _BATCH_ITEMS
        )
        self._num_parts = 2 * self._context.defaultParallelism
        self._stored: list[Any] = []
        # The name of all jobs in Spark, to cancel them.
        self._group = f"bert_tf-{secrets.token_hex(4)}"

    def spread(self, label: str, items: Sequence[Any]) -> _Collection:
        self._num_parts = max(self._num_parts, len(items))
        numbers = self._session.range(0, len(items), 1, len(items))
        take = functools.partial(_take, self._sent(tuple(items)))
        return _Collection((_Part(numbers, take),))

    def map(
        self,
        label: str,
        function: Callable[..., Any],
        collection: _Collection,
        *arguments: Any,
    ) -> _Collection:
        return self._apply(_mapped, function, collection, arguments)

    def flat_map(
        self,
        label: str,
        function: Callable[..., Iterable[Any]],
        collection: _Collection,
        *arguments: Any,
    ) -> _Collection:
        return self._apply(_flat_mapped, function, collection, arguments)

    def _apply(
        self,
        apply: Callable[..., Any],
        function: Callable[..., Any],
        collection: _Collection,
        arguments: tuple[Any, ...],
    ) -> _Collection:
        sent = tuple(
            value.broadcast if isinstance(value, _Table) else value
            for value in arguments
        )
        return _Collection(
            tuple(
                dataclasses.replace(
                    part,
                    read=functools.partial(apply, function, sent, part.read),
                )
                for part in collection.parts
            )
        )

    def keep(self, label: str, collection: _Collection) -> _Collection:
        from pyspark import StorageLevel

        frame = self._frame(collection, _plain)
        self._stored.append(frame.persist(StorageLevel.DISK_ONLY))
        return _Collection((_Part(frame, _values),))

    def union(self, label: str, *collections: _Collection) -> _Collection:
        parts = itertools.chain(*(each.parts for each in collections))
        return _Collection(tuple(parts))

    def group(self, label: str, collection: _Collection) -> _Collection:
        keyed = self._frame(collection, functools.partial(_keyed, 0))
        return self._sorted(keyed, _grouped)

    def co_group(
        self, label: str, first: _Collection, second: _Collection
    ) -> _Collection:
        keyed = self._frame(first, functools.partial(_keyed, 0))
        more = self._frame(second, functools.partial(_keyed, 1))
        return self._sorted(keyed.union(more), _co_grouped)

    def _sorted(
        self, frame: "DataFrame", read: Callable[..., Any]
    ) -> _Collection:
        rows = frame.repartition(self._num_parts, "key")
        # Values are sorted too, so that a retried task has the same results;
        # otherwise Spark may stop the job.
        rows = rows.sortWithinPartitions(*_COLUMNS)
        return _Collection((_Part(rows, read),))

    def _frame(
        self, collection: _Collection, pack: Callable[..., Any]
    ) -> "DataFrame":
        """Returns the rows that `pack` makes of all items."""
        frames = [
            part.frame.mapInArrow(
                functools.partial(_rows, part.read, pack), _SCHEMA
            )
            for part in collection.parts
        ]
        return functools.reduce(lambda first, more: first.union(more), frames)

    def once(
        self, label: str, function: Callable[..., Any], *inputs: Any
    ) -> _Table:
        value = function(
            *(
                each.value
                if isinstance(each, _Table)
                else self._collected(label, each)
                for each in inputs
            )
        )
        return _Table(value, self._sent(value))

    def _collected(self, label: str, collection: _Collection) -> list[Any]:
        """Runs stages in a thread, so that a signal can stop Spark's jobs."""

        def collect() -> list[Any]:
            self._context.setJobGroup(self._group, label, True)
            return rows.collect()

        rows = self._frame(collection, _plain).select("value")
        with futures.ThreadPoolExecutor(1) as pool:
            try:
                found = pool.submit(collect).result()
            except BaseException:
                with spark_session.if_java_lives():
                    self._context.cancelJobGroup(self._group)
                raise
        return [pickle.loads(row.value) for row in found]

    def _sent(self, value: Any) -> Any:
        broadcast = self._context.broadcast(value)
        self._stored.append(broadcast)
        return broadcast

    def run(self) -> None:
        """Does nothing: `once` has run all stages."""

    def free(self) -> None:
        """Deletes what the workers have stored."""
        with spark_session.if_java_lives():
            for each in self._stored:
                each.unpersist()


def create(
    config: CreationConfig,
    master: str | None = None,
    sizes: PieceSizes = CLUSTER_SIZES,
) -> dict[str, Any]:
    """Writes the same files as `creation.create`; see `pipeline.create`.

    Args:
      config: The options. All workers must be able to access the files.
      master: See `opened`.
      sizes: How the work is divided.

    Raises:
      InputError: As in `opened` and `creation.create`.
    """
    return pipeline.create(config, opened(master), sizes)


# What follows runs on workers. A row is the tuple of its _COLUMNS.


def _rows(
    read: Callable[..., Iterator[Any]],
    pack: Callable[[Any], tuple[bytes, int, bytes]],
    batches: "Iterator[pyarrow.RecordBatch]",
) -> "Iterator[pyarrow.RecordBatch]":
    """Reads items from batches of rows and packs them into others."""
    import pyarrow

    types = (pyarrow.binary(), pyarrow.int32(), pyarrow.binary())
    schema = pyarrow.schema(zip(_COLUMNS, types, strict=True))

    def batch() -> "pyarrow.RecordBatch":
        columns = map(pyarrow.array, zip(*rows, strict=True), types)
        return pyarrow.record_batch(list(columns), schema=schema)

    rows: list[tuple[bytes, int, bytes]] = []
    size = 0
    for row in map(pack, read(_unpacked(batches))):
        rows.append(row)
        size += len(row[2])
        if size >= _BATCH_BYTES or len(rows) >= _BATCH_ITEMS:
            yield batch()
            rows, size = [], 0
    if rows:
        yield batch()


def _unpacked(batches: "Iterator[pyarrow.RecordBatch]") -> Iterator[Any]:
    for batch in batches:
        for row in zip(*batch.columns, strict=True):
            yield tuple(value.as_py() for value in row)


def _plain(item: Any) -> tuple[bytes, int, bytes]:
    return b"", 0, pickle.dumps(item, -1)


def _keyed(part: int, item: tuple[Any, Any]) -> tuple[bytes, int, bytes]:
    key, value = item
    return pickle.dumps(key, -1), part, pickle.dumps(value, -1)


def _take(items: Any, rows: Iterator[Any]) -> Iterator[Any]:
    for (number,) in rows:
        yield items.value[number]


def _values(rows: Iterator[Any]) -> Iterator[Any]:
    for _, _, value in rows:
        yield pickle.loads(value)


def _grouped(rows: Iterator[Any]) -> Iterator[Any]:
    for key, group in itertools.groupby(rows, operator.itemgetter(0)):
        yield pickle.loads(key), _values(group)


def _co_grouped(rows: Iterator[Any]) -> Iterator[Any]:
    for key, group in itertools.groupby(rows, operator.itemgetter(0)):
        parts = itertools.groupby(group, operator.itemgetter(1))
        first = list(_values(next(parts)[1]))
        more = itertools.chain.from_iterable(rows for _, rows in parts)
        yield pickle.loads(key), (first, _values(more))


def _mapped(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    read: Callable[..., Iterator[Any]],
    rows: Iterator[Any],
) -> Iterator[Any]:
    from pyspark import Broadcast

    values = [
        value.value if isinstance(value, Broadcast) else value
        for value in arguments
    ]
    for item in read(rows):
        yield function(item, *values)


def _flat_mapped(
    function: Callable[..., Iterable[Any]],
    arguments: tuple[Any, ...],
    read: Callable[..., Iterator[Any]],
    rows: Iterator[Any],
) -> Iterator[Any]:
    for items in _mapped(function, arguments, read, rows):
        yield from items
