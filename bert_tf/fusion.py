"""What XLA compiles of a training step, and what is left to TensorFlow.

On a CPU TensorFlow's kernels make a pass over memory for every operation: a
GELU with its gradient reads and writes its numbers some twenty times. XLA makes
one loop of it all, but multiplies matrices slower than oneDNN does. So a step
on a CPU leaves the products to TensorFlow and gives XLA what is between them:

    with fusion.compiling(Compiled.PASSES):
        outputs = model(features, training=True, seed=seed)

Layers ask here, by `passes_for`; what they get is in `fused_passes.py`. On GPUs
and TPUs XLA compiles everything.
"""

import contextlib
import contextvars
import enum
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Compiling takes a twentieth of a second for each pass and shape. With fewer
# numbers than these it would be long until that is earned back.
LEAST_SIZE = 2**17


class Compiled(enum.Enum):
    """What XLA compiles."""

    NOTHING = enum.auto()
    # What stands between products of matrices; on CPUs, in training, with
    # Keras's TensorFlow backend.
    PASSES = enum.auto()
    EVERYTHING = enum.auto()


_compiled = contextvars.ContextVar("compiled", default=Compiled.NOTHING)


@contextlib.contextmanager
def compiling(what: Compiled) -> Iterator[None]:
    """Lets layers know how what they compute is run."""
    token = _compiled.set(what)
    try:
        yield
    finally:
        _compiled.reset(token)


def is_all_compiled() -> bool:
    """Whether there are no kernels that would rather have it another way."""
    return _compiled.get() is Compiled.EVERYTHING


def passes_for(x: Any) -> ModuleType | None:
    """The module `fused_passes` if a tensor is to go through it, else None.

    Not where shapes change from batch to batch, as in fine-tuning: there it
    took longer to compile for all of them than was won in an epoch.
    """
    if _compiled.get() is not Compiled.PASSES or None in tuple(x.shape):
        return None
    # The passes compute in float32.
    if math.prod(x.shape) < LEAST_SIZE or x.dtype.size > 4:
        return None
    # Here, as it takes TensorFlow, and layers run without.
    from bert_tf import fused_passes

    return fused_passes
