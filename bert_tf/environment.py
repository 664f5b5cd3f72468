"""Describes the machine and the installed packages: `bert-tf env`.

The report is for bug reports, so it must not fail where something is missing
or broken. Each framework is imported in a process of its own.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from bert_tf.version import __version__

# The distributions whose versions matter.
_PACKAGES = (
    *("tensorflow", "tensorflow-tpu", "tensorflow-text", "keras", "jax"),
    *("jaxlib", "torch", "transformers", "tokenizers", "safetensors"),
    *("huggingface_hub", "numpy", "ml_dtypes", "protobuf", "absl-py"),
    *("onnxruntime", "tf2onnx", "ai-edge-litert", "apache-beam", "pyspark"),
)
# The environment variables that matter, none of which holds a secret.
_VARIABLES = re.compile(
    "CUDA_VISIBLE_DEVICES|KERAS_BACKEND|LD_LIBRARY_PATH|MALLOC_ARENA_MAX"
    "|OMP_NUM_THREADS|TF_(CPP|ENABLE|FORCE|XLA)_.*|XLA_FLAGS"
)
# Programs that print the devices of a framework.
_DEVICES = {
    "keras": "import keras; print('backend', keras.config.backend())",
    "tensorflow": "import tensorflow as tf\n"
    "for device in tf.config.list_physical_devices():\n"
    "    details = tf.config.experimental.get_device_details(device)\n"
    "    print(device.device_type, details.get('device_name', ''))",
    "jax": "import jax\n"
    "for device in jax.devices(): print(device.platform, device.device_kind)",
    "torch": "import torch\n"
    "for number in range(torch.cuda.device_count()):\n"
    "    print('GPU', torch.cuda.get_device_name(number))\n"
    "print('CPU')",
}
_NVIDIA = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,driver_version,compute_cap",
    "--format=csv,noheader",
)
_SECONDS = 60.0


def report() -> Iterator[str]:
    """Yields the lines of the report, while the frameworks are imported."""
    yield f"bert_tf {__version__} in {os.path.dirname(__file__)}"
    yield f"Python {platform.python_version()} on {platform.platform()}"
    yield f"CPU: {_processor()}, {os.cpu_count()} cores"
    yield f"NVIDIA GPUs: {_output(_NVIDIA)}"
    versions = (_version(name) for name in _PACKAGES)
    yield f"Packages: {', '.join(filter(None, versions))}"
    for module, program in _DEVICES.items():
        if importlib.util.find_spec(module):
            words = [sys.executable, "-P", "-c", program]
            yield f"{module}: {_output(words)}"
    for name in sorted(filter(_VARIABLES.fullmatch, os.environ)):
        yield f"{name}={os.environ[name]}"


def _processor() -> str:
    """Returns the name of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].split(":")[1].strip() if names else platform.machine()


def _version(package: str) -> str | None:
    """Returns the name and version of a package, or None if it is missing."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(words: Sequence[str]) -> str:
    """Returns what a program prints, or how it fails, in one line."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # JAX would reserve the memory of the GPU.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    try:
        done = subprocess.run(
            words,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except FileNotFoundError:
        return f"unknown, since there is no program {words[0]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in done.stdout.splitlines()]
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines()][-1:]
        lines += [f"failed with status {done.returncode}", *last]
    return ", ".join(lines)
