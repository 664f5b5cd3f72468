"""Starts Apache Spark and turns its errors into one line.

Spark's log is off unless `spark-submit --conf spark.log.level=WARN` sets its
level or, without spark-submit, the environment variable
PYSPARK_SUBMIT_ARGS='--conf spark.log.level=WARN pyspark-shell'.
"""

import contextlib
import io
import logging as standard_logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_tf.errors import InputError, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# When to warn that nothing happens.
SECONDS_WITHOUT_TASK = 60
# A worker's error in the text of the error that Spark raises.
_WORKER_ERROR = re.compile(r"^(?:\w+\.)*InputError: (.+)$", re.M)
# What is wrong, in Java's log and in its errors.
_REASON = re.compile(r"has been killed\. Reason: (.+)")
_JAVA_ERROR = re.compile(r"^(?:: )?[\w.$]+(?:Exception|Error): (.+)", re.M)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@contextlib.contextmanager
def opened(master: str | None) -> "Iterator[SparkSession]":
    """Starts Spark, or uses the session that this process already has.

    In the block, Spark's errors and a worker's InputError become an InputError
    of one line; other errors of a worker become a RuntimeError.

    Args:
      master: The URL of the cluster; None for what `spark-submit` or Spark's
        configuration sets, and all cores of this machine otherwise.

    Raises:
      InputError: If PySpark or Java is missing, or the cluster refuses.
    """
    try:
        import pandas  # noqa: F401  PySpark imports it much later,
        import pyarrow  # noqa: F401  and this too.
        import pyspark.sql
    except ModuleNotFoundError as error:
        raise missing("`runner=spark`", str(error.name), "spark") from error
    before = pyspark.sql.SparkSession.getActiveSession()
    session = before or _start(master)
    try:
        with _one_line_errors(), _no_tracebacks(), _warning(session):
            yield session
    finally:
        if not before:
            with if_java_lives():
                session.stop()


@contextlib.contextmanager
def if_java_lives() -> Iterator[None]:
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
    # It logs every connection that it closes.
    standard_logging.getLogger("py4j").setLevel(standard_logging.CRITICAL)
    asked = "spark.log.level" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    with _stderr_of_java(asked or is_submitted) as log:
        try:
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
def _warning(session: "SparkSession") -> Iterator[None]:
    """Warns if the cluster runs no task; Spark waits without end."""
    tracker = session.sparkContext.statusTracker()

    def check() -> None:
        with if_java_lives():
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            tasks = [
                s.numActiveTasks + s.numCompletedTasks for s in stages if s
            ]
            if tasks and not any(tasks):
                logging.warning(
                    "Spark has started no task for %d seconds. The cluster has "
                    "no free cores, or no worker with the memory that "
                    "spark.executor.memory asks for.",
                    SECONDS_WITHOUT_TASK,
                )

    timer = threading.Timer(SECONDS_WITHOUT_TASK, check)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _no_tracebacks() -> Iterator[None]:
    """Drops what PySpark's threads print and Py4J logs if Java ends."""
    handler = logging.get_absl_handler()

    def is_ours(record: Any) -> bool:
        return "py4j" not in record.pathname

    handler.addFilter(is_ours)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        handler.removeFilter(is_ours)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raises the InputError of a worker, or one for what stopped Spark."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException, PythonException

    try:
        yield
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
            raise RuntimeError(text) from None
        raise InputError(
            f"Spark stopped the job: {reason(text)} To see Spark's log, run "
            "spark-submit --conf spark.log.level=WARN."
        ) from None


def reason(*texts: str) -> str:
    """Returns what is wrong, from Java's output and errors."""
    text = "\n".join(texts)
    found = _REASON.search(text) or _JAVA_ERROR.search(text)
    return found[1] if found else text.strip().partition("\n")[0]
