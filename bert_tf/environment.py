"""Describes the machine and the installed packages: `bert-tf env`.

The report is for bug reports, so it must not fail where something is missing
or broken. Each framework is imported in a separate process: an import that
raises, crashes or hangs becomes one line.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from bert_tf.version import __version__

# The packages whose versions matter, by the names of their distributions.
PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-text"),
    *("tensorflow-serving-api", "keras", "tf-keras", "keras-hub", "jax"),
    *("jaxlib", "jax-cuda12-plugin", "libtpu", "torch", "transformers"),
    *("tokenizers", "safetensors", "huggingface_hub", "numpy", "ml_dtypes"),
    *("protobuf", "absl-py", "onnxruntime", "tf2onnx", "ai-edge-litert"),
    *("apache-beam", "pyspark"),
    *("nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12"),
)
# The environment variables that matter. Terraform's also start with TF_, and
# those for its variables and tokens hold secrets.
_VARIABLES = re.compile(
    "(?!TF_(CLI|VAR|TOKEN)_|.*(KEY|PASSWORD|SECRET|TOKEN))"
    "((BERT_TF|CUDA|JAX|KERAS|NCCL|TF|TPU|XLA)_.*|HF_HUB_OFFLINE"
    "|LD_LIBRARY_PATH|MALLOC_ARENA_MAX|NVIDIA_VISIBLE_DEVICES|OMP_NUM_THREADS)"
)
# In a URL, as of a mirror: scheme://name:password@host.
_PASSWORD = re.compile("(?<=://)[^/@]+@")
# Instructions that decide speed and precision: x86's and ARM's.
_INSTRUCTIONS = (
    *("avx", "avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "amx_bf16", "asimd", "sve", "i8mm", "bf16"),
)
# Programs that print the devices of a framework, one per line. Listing devices
# reserves no memory on a GPU, except in JAX without the variable below.
_PROBES = {
    "tensorflow": """\
import tensorflow as tf
for device in tf.config.list_physical_devices():
    details = tf.config.experimental.get_device_details(device)
    print(device.device_type, details.get("device_name", ""), flush=True)
import importlib.util
if importlib.util.find_spec("tensorflow_text"):
    import tensorflow_text
""",
    "jax": """\
import jax
for device in jax.devices():
    print(device.platform.upper(), device.device_kind)
""",
    "torch": """\
import torch
for number in range(torch.cuda.device_count()):
    print("GPU", torch.cuda.get_device_name(number))
print("CPU")
""",
}
_OF_PROBES = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_SECONDS = 60.0


def report() -> Iterator[str]:
    """Yields the lines of the report, while the frameworks are imported."""
    processes = {
        module: _start_probe(module)
        for module in _PROBES
        if _is_installed(module)
    }
    versions = {name: _version(name) for name in PACKAGES}
    yield f"bert_tf {__version__} in {os.path.dirname(__file__)}"
    implementation = platform.python_implementation()
    yield f"Python {platform.python_version()} ({implementation})"
    yield f"System: {platform.platform()}"
    yield f"CPU: {processor()}"
    yield f"Memory: {_memory()}"
    yield from gpus()
    installed = [f"{name} {found}" for name, found in versions.items() if found]
    yield f"Packages: {', '.join(installed) or 'none of those that matter'}"
    yield f"Keras backend: {keras_backend(os.environ)}"
    for module, process in processes.items():
        if line := _answer(process):
            yield f"{module}: {line}"
    found = sorted(filter(_VARIABLES.fullmatch, os.environ))
    yield f"Environment variables:{'' if found else ' none that matter'}"
    for name in found:
        value = _PASSWORD.sub("...@", " ".join(os.environ[name].split()))
        yield f"  {name}={value[:200]}"


def _is_installed(module: str) -> bool:
    """Returns whether Python finds a module, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True  # The probe says what is wrong.


def _version(package: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package) or "(version unknown)"
    except importlib.metadata.PackageNotFoundError:
        return None
    except (KeyError, OSError, ValueError):
        return "(version unknown)"


def processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Returns the name of the CPU, its cores and the instructions it has."""
    facts = {}
    for line in _read(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    flags = facts.get("flags", facts.get("Features", "")).split()
    known = [name for name in _INSTRUCTIONS if name in flags]
    name = facts.get("model name", platform.processor() or platform.machine())
    cores = str(os.cpu_count())
    if hasattr(os, "sched_getaffinity"):
        cores = f"{len(os.sched_getaffinity(0))} of {cores}"
    return f"{name}, {cores} cores; {' '.join(known) or 'unknown instructions'}"


def _memory() -> str:
    """Returns the size of the memory, and the container's limit if any."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "unknown"
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    bound = f", limit {int(limit) / 2**30:.1f} GiB" if limit.isdigit() else ""
    return f"{total / 2**30:.1f} GiB{bound}"


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# GPUs.


def gpus() -> Iterator[str]:
    """Yields a line for each NVIDIA GPU: memory, driver, precisions."""
    program = shutil.which("nvidia-smi")
    if not program:
        yield "NVIDIA GPU: none found (there is no program nvidia-smi)"
        return
    query = "name,memory.total,memory.free,driver_version,compute_cap"
    words = [f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"NVIDIA GPU: nvidia-smi failed: {_last_line(str(error))}"
        return
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = _last_line(done.stderr) or _last_line(done.stdout)
        yield f"NVIDIA GPU: nvidia-smi failed: {reason or 'no output'}"
        return
    for line in lines:
        values = [value.strip() for value in line.split(",")]
        if len(values) != 5:
            yield f"NVIDIA GPU: {line.strip()}"
            continue
        name, total, free, driver, capability = values
        yield (
            f"NVIDIA GPU: {name}, {total} ({free} free), driver {driver}, "
            f"compute capability {capability}: {precisions(capability)}"
        )


def precisions(capability: str) -> str:
    """Returns the precisions in which a GPU multiplies matrices fast."""
    try:
        version = float(capability)
    except ValueError:
        return "unknown precisions"
    if version >= 8:
        return "bfloat16, float16, float32"
    return "float16, float32" if version >= 7 else "float32"


# Frameworks.


def keras_backend(variables: Mapping[str, str]) -> str:
    """Returns the backend that Keras will use and where it is chosen."""
    home = variables.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    path = os.path.join(home, "keras.json")
    backend, source = "tensorflow", "default"
    try:
        settings = json.loads(_read(path) or "{}")
        if settings.get("backend"):
            backend, source = str(settings["backend"]), path
    except (ValueError, AttributeError):
        source = f"default, since {path} is not valid JSON"
    if variables.get("KERAS_BACKEND"):
        backend, source = variables["KERAS_BACKEND"], "KERAS_BACKEND"
    missing = "" if _is_installed(backend) else f"; {backend} is not installed"
    return f"{backend} ({source}){missing}"


def _start_probe(module: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROBES[module]],
        env={**os.environ, **_OF_PROBES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _answer(process: subprocess.Popen) -> str:
    """Returns what a probe found, or how it failed, in one line."""
    try:
        out, err = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"the import did not end within {_SECONDS:.0f} s"
    devices = ", ".join(line.strip() for line in out.splitlines())
    if not process.returncode:
        return devices
    reason = f"the import failed: {_last_line(err)}"
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        reason = f"the import was killed by {name}. {_last_line(err)}".rstrip()
    return f"{devices}; {reason}" if devices else reason


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""
