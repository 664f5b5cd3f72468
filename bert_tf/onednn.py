"""Lets TensorFlow multiply matrices with oneDNN on every x86 CPU.

TensorFlow does so by default only where a CPU has special instructions for
neural networks. On a CPU with AVX2 alone, a training step takes a third longer
without oneDNN. TensorFlow reads the variable TF_ENABLE_ONEDNN_OPTS when it is
imported.
"""

import os
import platform
import re
import sys

_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
_DEFAULT_FOR = re.compile(r"\b(avx512_vnni|avx512_bf16|avx_vnni|amx_\w+)\b")
_CPU_INFO = "/proc/cpuinfo"


def enable() -> None:
    """Turns oneDNN on, unless the user has set the variable.

    If TensorFlow was imported without oneDNN, logs what to do.
    """
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if not is_x86 or _VARIABLE in os.environ:
        return
    if "tensorflow" not in sys.modules:
        os.environ[_VARIABLE] = "1"
    elif _is_off_by_default():
        from absl import logging

        logging.warning(
            "TensorFlow was imported before bert_tf and does not use oneDNN: "
            "training is slower on this CPU. Import bert_tf first, or set "
            "%s=1",
            _VARIABLE,
        )


def _is_off_by_default() -> bool:
    """Returns whether the CPU is known to lack the special instructions."""
    try:
        with open(_CPU_INFO) as lines:
            flags = next((x for x in lines if x.startswith("flags")), "")
    except OSError:
        return False
    return bool(flags) and not _DEFAULT_FOR.search(flags)
