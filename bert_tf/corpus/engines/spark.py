"""Runs data creation on Apache Spark.

A collection is a DataFrame of pickled items and the functions that workers
apply to them. A stage's functions run when its items are stored, grouped or
collected. Spark's Java processes sort and group the items and write them to
disk if they do not fit into memory; a Python worker has a few at a time.

Spark's log is off unless `spark-submit --conf spark.log.level=WARN` sets its
level or, without spark-submit, the environment variable
PYSPARK_SUBMIT_ARGS='--conf spark.log.level=WARN pyspark-shell'.
"""

import contextlib
import functools
import io
import itertools
import logging as standard_logging
import operator
import os
import pickle
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from bert_tf.corpus.engines import pipeline
from bert_tf.corpus.settings import CLUSTER_SIZES, CreationConfig, PieceSizes
from bert_tf.errors import InputError, missing
from bert_tf.start_tensorflow import stderr_into

if TYPE_CHECKING:
    import pyarrow
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

# A worker's error in the text of the error that Spark raises.
_WORKER_ERROR = re.compile(r"^(?:\w+\.)*InputError: (.+)$", re.M)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
# The cause of an error, in Java's log and errors.
_REASON = re.compile(
    r"(?:has been killed\. Reason: |^(?:: )?[\w.$]+(?:Exception|Error): )(.+)",
    re.M,
)
# The columns of all DataFrames except `spread`'s. `part` is the number of a
# collection in its group.
_COLUMNS = ("key", "part", "value")
_SCHEMA = "key binary, part int, value binary"
# The most bytes and items that Spark and Python exchange at a time.
_BATCH_BYTES = 1 << 22
_BATCH_ITEMS = 1 << 10


@contextlib.contextmanager
def opened(master: str | None) -> "Iterator[SparkEngine]":
    """Starts Spark, or uses the session that this process already has.

    In the block, Spark's errors and a worker's InputError become an InputError
    of one line.

    Args:
      master: The URL of the cluster. None takes it from `spark-submit` or from
        Spark's configuration; without these, Spark uses all cores here.

    Raises:
      InputError: If PySpark or Java is missing, or the cluster refuses.
    """
    try:
        import pandas  # noqa: F401  PySpark imports both much later.
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise missing("`runner=spark`", str(error.name), "spark") from error
    before = SparkSession.getActiveSession()
    session = before or _start(master)
    engine = SparkEngine(session)
    with _one_line_errors():
        try:
            yield engine
        finally:
            with _if_java_lives():
                if before:
                    engine.free()
                else:
                    session.stop()


@contextlib.contextmanager
def _if_java_lives() -> Iterator[None]:
    """Ignores the errors of calls to a Java process that has ended."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, ConnectionError):
        yield


def _start(master: str | None) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
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
    # Py4J logs every connection that it closes.
    standard_logging.getLogger("py4j").setLevel(standard_logging.CRITICAL)
    asked = "spark.log.level" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    is_quiet = not asked and not is_submitted
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            with stderr_into(log) if is_quiet else contextlib.nullcontext():
                session = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            log.seek(0)
            raise InputError(
                f"Cannot start Spark{f' on {master}' if master else ''}: "
                f"{reason(log.read(), str(error))}"
            ) from error
    if not session.sparkContext.getConf().contains("spark.log.level"):
        session.sparkContext.setLogLevel("OFF")
    return session


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raises a worker's InputError, or one that says what stopped Spark."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException, PythonException

    def is_ours(record: Any) -> bool:
        return "py4j" not in record.pathname

    # If Java ends, Py4J logs tracebacks and PySpark's threads print them.
    handler = logging.get_absl_handler()
    handler.addFilter(is_ours)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                yield
            except (Py4JNetworkError, ConnectionError):
                time.sleep(1)  # The threads need a moment.
                raise
    except (Py4JNetworkError, ConnectionError) as error:
        raise InputError(
            "Spark's Java process has ended. Give it more memory with "
            "spark.driver.memory in Spark's configuration."
        ) from error
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if found := _WORKER_ERROR.search(text):
            raise InputError(found[1]) from None
        if found := _NO_MODULE.search(text):
            raise InputError(
                f"A Spark worker lacks the module {found[1]}. Install bert_tf "
                "on all workers for the Python of spark.pyspark.python, or "
                "pass an environment with it to spark-submit --archives."
            ) from None
        if isinstance(error, PythonException):
            raise
        raise InputError(
            f"Spark stopped the job: {reason(text)} To see Spark's log, run "
            "spark-submit --conf spark.log.level=WARN."
        ) from None
    finally:
        handler.removeFilter(is_ours)


def reason(*texts: str) -> str:
    """Returns what is wrong, from Java's output and errors."""
    text = "\n".join(texts)
    found = _REASON.search(text)
    return found[1] if found else text.strip().partition("\n")[0]


class _Part(NamedTuple):
    """A part of a collection: rows, and the function that reads their items."""

    frame: "DataFrame"
    read: Callable[[Iterator[Any]], Iterator[Any]]


_Collection = tuple[_Part, ...]


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
        return (_Part(numbers, take),)

    def flat_map(
        self,
        label: str,
        function: Callable[..., Iterable[Any]],
        collection: _Collection,
        *arguments: Any,
    ) -> _Collection:
        return tuple(
            _Part(
                frame,
                functools.partial(_flat_mapped, read, function, arguments),
            )
            for frame, read in collection
        )

    def keep(self, label: str, collection: _Collection) -> _Collection:
        from pyspark import StorageLevel

        frame = self._frame(collection, _plain)
        self._stored.append(frame.persist(StorageLevel.DISK_ONLY))
        return (_Part(frame, _values),)

    def union(self, label: str, *collections: _Collection) -> _Collection:
        return tuple(itertools.chain.from_iterable(collections))

    def group(self, label: str, *collections: _Collection) -> _Collection:
        keyed = [
            self._frame(each, functools.partial(_keyed, part))
            for part, each in enumerate(collections)
        ]
        rows = _united(keyed).repartition(self._num_parts, "key")
        # Values are sorted too, so that a retried task has the same results;
        # otherwise Spark may stop the job.
        rows = rows.sortWithinPartitions(*_COLUMNS)
        return (_Part(rows, functools.partial(_grouped, len(collections))),)

    def _frame(
        self, collection: _Collection, pack: Callable[..., Any]
    ) -> "DataFrame":
        """Returns the rows that `pack` makes of all items."""
        return _united(
            frame.mapInArrow(functools.partial(_rows, read, pack), _SCHEMA)
            for frame, read in collection
        )

    def once(
        self, label: str, function: Callable[..., Any], *inputs: Any
    ) -> "Broadcast[Any]":
        values = (
            self._collected(label, each)
            if isinstance(each, tuple)
            else each.value
            for each in inputs
        )
        return self._sent(function(*values))

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
                with _if_java_lives():
                    self._context.cancelJobGroup(self._group)
                raise
        return [pickle.loads(row.value) for row in found]

    def _sent(self, value: Any) -> "Broadcast[Any]":
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


def _united(frames: "Iterable[DataFrame]") -> "DataFrame":
    return functools.reduce(lambda first, more: first.union(more), frames)


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


def _grouped(num_parts: int, rows: Iterator[Any]) -> Iterator[Any]:
    for key, group in itertools.groupby(rows, operator.itemgetter(0)):
        values: tuple[list[Any], ...] = tuple([] for _ in range(num_parts))
        for _, part, value in group:
            values[part].append(pickle.loads(value))
        yield pickle.loads(key), values


def _flat_mapped(
    read: Callable[..., Iterator[Any]],
    function: Callable[..., Iterable[Any]],
    arguments: tuple[Any, ...],
    rows: Iterator[Any],
) -> Iterator[Any]:
    from pyspark import Broadcast

    values = [
        value.value if isinstance(value, Broadcast) else value
        for value in arguments
    ]
    for item in read(rows):
        yield from function(item, *values)
