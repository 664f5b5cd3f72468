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
import logging
import operator
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bert_tf.corpus.engines import pipeline
from bert_tf.corpus.settings import DEFAULT_SIZES, CreationConfig, PieceSizes
from bert_tf.errors import InputError
from bert_tf.packages import missing

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

# The columns of all DataFrames. `part` tells the collections of a group apart.
_COLUMNS = ("key", "part", "value")
_SCHEMA = "key binary, part int, value binary"
# The most bytes and items that Spark and Python exchange at a time.
_BATCH_BYTES = 1 << 22
_BATCH_ITEMS = 1 << 10
# A worker's error in the text of the error that Spark raises.
_WORKER_ERROR = re.compile(r"^(?:\w+\.)*InputError: (.+)$", re.M)
# What is wrong, in Java's log and in its errors.
_REASON = re.compile(r"has been killed\. Reason: (.+)")
_JAVA_ERROR = re.compile(r"^(?:: )?[\w.$]+(?:Exception|Error): (.+)", re.M)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@contextlib.contextmanager
def opened(master: str | None) -> "Iterator[SparkEngine]":
    """Starts Spark, or uses the session that this process already has.

    Args:
      master: The URL of the cluster; None for what `spark-submit` or Spark's
        configuration sets, and all cores of this machine otherwise.

    Raises:
      InputError: If PySpark or Java is missing, or the cluster refuses.
    """
    try:
        import pyspark.sql

        # PySpark imports both much later.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing("`runner=spark`", str(error.name), "spark") from error
    before = pyspark.sql.SparkSession.getActiveSession()
    session = before or _start(master)
    engine = SparkEngine(session)
    try:
        with _one_line_errors():
            yield engine
    finally:
        # If Spark has ended, neither can be done.
        with contextlib.suppress(Exception):
            engine.free() if before else session.stop()


def _start(master: str | None) -> "SparkSession":
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not is_submitted and not shutil.which("java") and not shutil.which(java):
        raise InputError(
            "`runner=spark` needs Java 17 or newer. Install it, for example "
            "with: apt-get install openjdk-17-jre-headless"
        )
    builder = SparkSession.builder.appName("bert_tf pretraining_data")
    if master:
        builder = builder.master(master)
    if not is_submitted and (master or "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    asked = "spark.log.level" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _stderr_of_java(asked or is_submitted) as log:
        try:
            session = builder.getOrCreate()
        except Exception as error:
            log.seek(0)
            reason = _reason(log.read(), str(error))
            raise InputError(f"Cannot start Spark: {reason}") from error
    if not session.sparkContext.getConf().contains("spark.log.level"):
        session.sparkContext.setLogLevel("OFF")
    return session


@contextlib.contextmanager
def _stderr_of_java(is_shown: bool) -> Iterator[Any]:
    """Makes the Java process that is started write to a temporary file."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        if is_shown:
            yield log
            return
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raises the InputError of a worker, or one for what stopped Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException, PythonException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        text = str(error)
        if found := _WORKER_ERROR.search(text):
            raise InputError(found[1]) from None
        if found := _NO_MODULE.search(text):
            raise InputError(
                f"A Spark worker lacks the module {found[1]}. Install bert_tf "
                "on all workers for the Python of spark.pyspark.python, or "
                "pass it to spark-submit with --archives."
            ) from None
        if isinstance(error, PythonException):
            raise RuntimeError(text) from None
        raise InputError(
            f"Spark stopped the job: {_reason(text)} Set spark.log.level=WARN "
            "in Spark's configuration to see its log."
        ) from None


def _reason(*texts: str) -> str:
    """Returns what is wrong, from Java's output and errors."""
    text = "\n".join(texts)
    found = _REASON.search(text) or _JAVA_ERROR.search(text)
    return found[1] if found else text.strip().partition("\n")[0]


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
        rows = rows.sortWithinPartitions("key", "part")
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
        self._context.setJobDescription(label)
        value = function(
            *(
                each.value
                if isinstance(each, _Table)
                else self._collected(each)
                for each in inputs
            )
        )
        return _Table(value, self._sent(value))

    def _collected(self, collection: _Collection) -> list[Any]:
        rows = self._frame(collection, _plain).select("value").collect()
        return [pickle.loads(row.value) for row in rows]

    def _sent(self, value: Any) -> Any:
        broadcast = self._context.broadcast(value)
        self._stored.append(broadcast)
        return broadcast

    def run(self) -> None:
        """Does nothing: `once` has run all stages."""

    def free(self) -> None:
        """Deletes what the workers have stored."""
        for each in self._stored:
            each.unpersist()


def create(
    config: CreationConfig,
    master: str | None = None,
    sizes: PieceSizes = DEFAULT_SIZES,
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
        first, more = [], iter(())
        for row in group:
            if row[1]:
                more = itertools.chain([row], group)
                break
            first.append(row)
        yield pickle.loads(key), (list(_values(first)), _values(more))


def _mapped(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    read: Callable[..., Iterator[Any]],
    rows: Iterator[Any],
) -> Iterator[Any]:
    values = [getattr(value, "value", value) for value in arguments]
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
