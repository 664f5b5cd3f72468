"""Runs a script on a machine with several CPU devices.

    python benchmarks/cpu_devices.py 4 run_pretraining.py \\
        --distribution_strategy=mirrored ...

TensorFlow splits its CPU device into logical devices, which become replicas.
They compute what as many GPUs would, no faster than one device.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import pathlib
import runpy
import sys

import tensorflow as tf


def main(count: int, script: str, *words: str) -> None:
    """Runs `script` as the main program on `count` devices."""
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    sys.argv = [script, *words]
    sys.path[0] = str(pathlib.Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
