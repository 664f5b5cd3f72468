"""What every test may count on: two CPU devices, quiet logs, real data."""

import os
import pathlib

# Before TensorFlow is imported anywhere: its C++ log fills a test report.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def two_cpu_devices():
    """Gives every run two logical CPUs, so that replicas are always real."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data beside the checkout; skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return folder


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    """The folder of golden numbers."""
    return pathlib.Path(__file__).parent / "golden"
