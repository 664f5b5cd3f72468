"""Fixtures of all tests: two CPU devices, quiet logs, real data."""

import contextlib
import gc
import importlib
import os
import pathlib
import signal

# Before TensorFlow is imported anywhere: its C++ log fills a test report.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# As in the scripts, so that tests and the programs that they start compute the
# same numbers.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import benchmark_modules
import pytest
from absl import logging
from checkout import ROOT

pytest_plugins = ["tests.fidelity", "tests.fault_rows"]
# On Keras's other backends TensorFlow need not even be installed.
WITHOUT_TENSORFLOW = os.environ.get("KERAS_BACKEND") not in (None, "tensorflow")


def pytest_configure():
    """Restores signals that `nohup` or `make test &` ignore.

    Programs that tests start would inherit SIG_IGN, but not a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            # The tests themselves keep ignoring it.
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def two_cpu_devices():
    """Gives every run two logical CPUs, so that replicas are always real."""
    if WITHOUT_TENSORFLOW:
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture(scope="module", autouse=True)
def only_new_objects_are_collected(two_cpu_devices):
    """Leaves older objects out of Keras's many garbage collections.

    Each would take a second to search TensorFlow's objects.
    """
    importlib.import_module("keras")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def scripts_log_level():
    """Sets the log level of scripts, whatever earlier tests have set."""
    logging.set_verbosity(logging.INFO)


def pytest_addoption(parser):
    parser.addoption(
        "--graphs",
        action="store_true",
        help="run the tests that use the fixture `eagerly` in graphs too",
    )


@contextlib.contextmanager
def _functions_run_eagerly(value: bool):
    """Sets whether TensorFlow's functions run as Python, if it is installed."""
    if WITHOUT_TENSORFLOW:
        yield
        return
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(value)
    yield
    tf.config.run_functions_eagerly(before)


@pytest.fixture
def eagerly(request):
    """Runs TensorFlow's functions as Python; does nothing on other backends.

    Graphs, which take longer than a few steps, are used in tests marked `graph`
    or `slow`, in fixtures of modules and, with --graphs, in every test.
    """
    marks = {mark.name for mark in request.node.iter_markers()}
    is_slow = "slow" in marks and "eager_fixtures" not in request.fixturenames
    in_graphs = request.config.getoption("graphs") or "graph" in marks
    with _functions_run_eagerly(not (in_graphs or is_slow)):
        yield


@pytest.fixture(scope="module")
def eager_fixtures(request):
    """The same for the fixtures of a module that come after this one.

    For tests that compare bit for bit with a run of such a fixture. Slow ones
    then use graphs only with --graphs.
    """
    with _functions_run_eagerly(not request.config.getoption("graphs")):
        yield


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data beside the checkout; skips if it is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return folder


@pytest.fixture(scope="module")
def benchmarks():
    with benchmark_modules.importable() as module_of:
        yield module_of


@pytest.fixture(scope="module")
def layouts(benchmarks):
    return benchmarks("layouts")


@pytest.fixture(scope="module")
def launch(request):
    """Runs the script `SCRIPT_NAME` of a module of tests in this process."""
    import in_process

    with in_process.script(request.module.SCRIPT_NAME) as launch:
        yield launch


@pytest.fixture
def two_devices(monkeypatch):
    """The flags of a script's run on two CPUs, with full padding."""
    from bert_tf.training import distribution
    from tests.training import toy_task

    makers = distribution._MAKERS
    monkeypatch.setitem(makers, "mirrored", lambda _: toy_task.two_devices())
    return {"distribution_strategy": "mirrored"}


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    return pathlib.Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def google_oracle(golden):
    """The original's random model: its config, weights and numbers.

    See tests/golden/README.md for the names of the arrays.
    """
    import numpy as np

    from bert_tf.config import BertConfig

    config = BertConfig(
        vocab_size=120,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        type_vocab_size=2,
    )
    return config, np.load(golden / "google_oracle.npz")


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a text or bytes and returns the path."""

    def write(content, name="a.txt"):
        is_text = isinstance(content, str)
        path = tmp_path / name
        path.write_bytes(content.encode() if is_text else content)
        return str(path)

    return write


@pytest.fixture
def warnings(monkeypatch):
    """The warnings that a test logs, as text."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: lines.append(m % a))
    return lines
