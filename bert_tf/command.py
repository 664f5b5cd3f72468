"""Starts jobs: the command `bert-tf JOB` and the scripts in the root folder.

This module imports almost nothing, so that `bert-tf --help` is fast. A job is
imported after its command line is checked.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from bert_tf import jobs, start_tensorflow
from bert_tf.jobs import JOBS
from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.base.options import Options

WITHOUT_TENSORFLOW = ("vocabulary", "pretraining_data")
# A command that runs no job: it has no options and no script.
ENVIRONMENT = "env"

# The packages whose versions `bert-tf env` prints.
_PACKAGES = (
    *("tensorflow", "tensorflow-tpu", "tensorflow-text", "keras", "jax"),
    *("jaxlib", "torch", "transformers", "tokenizers", "safetensors"),
    *("huggingface_hub", "numpy", "ml_dtypes", "protobuf", "absl-py"),
    *("onnxruntime", "tf2onnx", "ai-edge-litert", "apache-beam", "pyspark"),
)
# The environment variables that `bert-tf env` prints; none holds a secret.
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


def run_job(name: str) -> None:
    """Runs a job of JOBS with the options of the command line, then exits."""
    from bert_tf import errors

    if not importlib.util.find_spec("absl"):
        lacking = errors.missing(
            "This program",
            "absl-py",
            "tensorflow",
            ". Or activate the environment that has it: . .venv/bin/activate",
        )
        sys.exit(f"{sys.argv[0]}: error: {lacking}")
    # The flags of absl take a tenth of a second to import.
    from bert_tf import cli

    config_type = options_of(name)

    def load() -> Any:
        if name not in WITHOUT_TENSORFLOW:
            start_tensorflow.quietly()
        return getattr(jobs, name).run

    page = sys.modules[config_type.__module__].__doc__
    cli.run_job(config_type, load, page)


def options_of(job: str) -> "type[Options]":
    """Returns the class of a job's options: NameOfJobConfig."""
    module = importlib.import_module(f"bert_tf.{JOBS[job][1]}")
    kind: type[Options] = getattr(
        module, f"{job.title().replace('_', '')}Config"
    )
    return kind


def command() -> None:
    """Runs `bert-tf JOB --flag=value ...`, the installed package's command."""
    program, *words = sys.argv
    sys.argv[0] = os.path.basename(program)
    first = words[0] if words else ""
    if first in ("--help", "-h"):
        _print(_help())
    elif first == "--version":
        _print(f"bert_tf {__version__}\n")
    elif first == ENVIRONMENT:
        _print("".join(f"{line}\n" for line in describe_environment()))
    if first not in JOBS:
        print(f"{sys.argv[0]}: error: {_unknown_job(first)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"{sys.argv[0]} {first}", *words[1:]]
    run_job(first)


def _help() -> str:
    jobs = "".join(f"  {job:20}{_summary(job)}\n" for job in JOBS)
    return (
        f"bert-tf JOB --flag=value ...\n\n{jobs}"
        f"  {ENVIRONMENT:20}Prints versions, devices and settings for a bug "
        "report\n\n`bert-tf JOB --help` lists the flags of a job. "
        "`bert-tf --version` prints the version.\n"
    )


def _unknown_job(word: str) -> str:
    from bert_tf.errors import did_you_mean

    unknown = ""
    if word:
        advice = did_you_mean(word, (*JOBS, ENVIRONMENT))
        unknown = f"Unknown job {word!r}.{advice} "
    return (
        f"{unknown}Name a job: {', '.join(JOBS)}. `bert-tf --help` describes "
        "them, and `bert-tf JOB --help` lists flags."
    )


def _summary(job: str) -> str:
    """Returns the first line of a job's help without importing its module."""
    folder = os.path.dirname(__file__)
    path = os.path.join(folder, *JOBS[job][1].split(".")) + ".py"
    with open(path, encoding="utf-8") as file:
        return file.readline().strip('".\n')


def _print(text: str) -> NoReturn:
    # One call: `bert-tf --help | head` may close the pipe before a second.
    print(text, end="")
    sys.exit(0)


def describe_environment() -> Iterator[str]:
    """Yields the lines that `bert-tf env` prints for a bug report.

    Missing or broken packages cause no error: each framework is imported in a
    separate process.
    """
    yield f"bert_tf {__version__} in {os.path.dirname(__file__)}"
    yield f"Python {platform.python_version()} on {platform.platform()}"
    processor = platform.processor() or platform.machine()
    yield f"CPU: {processor}, {os.cpu_count()} cores"
    yield f"NVIDIA GPUs: {_output(_NVIDIA)}"
    versions = (_version(name) for name in _PACKAGES)
    yield f"Packages: {', '.join(filter(None, versions))}"
    for module, program in _DEVICES.items():
        if importlib.util.find_spec(module):
            words = [sys.executable, "-P", "-c", program]
            yield f"{module}: {_output(words)}"
    for name in sorted(filter(_VARIABLES.fullmatch, os.environ)):
        yield f"{name}={os.environ[name]}"


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
        # By default JAX reserves most of the GPU's memory.
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
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stdout.splitlines()
    if done.returncode:
        lines.append(f"failed with status {done.returncode}")
        lines += done.stderr.splitlines()[-1:]
    return ", ".join(map(str.strip, lines))
