"""Where a training step compiles what stands between two products.

On a CPU TensorFlow's kernels make a pass over memory for every operation: a
GELU with its gradient reads and writes its numbers some twenty times. XLA makes
one loop of it all, but multiplies matrices slower than oneDNN does. So a step
on a CPU leaves the products to TensorFlow and gives XLA what is between them:

    with fusion.fused_passes():
        outputs = model(features, training=True, seed=seed)

Layers ask here, by `passes_for`; what they get is in `fused_passes.py`.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Compiling takes a twentieth of a second for each pass and shape. With fewer
# numbers than these it would be long until that is earned back.
LEAST_SIZE = 2**17

_is_on = contextvars.ContextVar("fused_passes", default=False)


@contextlib.contextmanager
def fused_passes(on: bool = True) -> Iterator[None]:
    """Lets layers fuse: on Keras's TensorFlow backend, on CPUs, in training."""
    token = _is_on.set(on)
    try:
        yield
    finally:
        _is_on.reset(token)


def passes_for(x: Any) -> ModuleType | None:
    """The module `fused_passes` if a tensor is to go through it, else None.

    Not where shapes change from batch to batch, as in fine-tuning: there it
    took longer to compile for all of them than was won in an epoch.
    """
    if not _is_on.get() or None in tuple(x.shape):
        return None
    if math.prod(x.shape) < LEAST_SIZE:
        return None
    # Here, as it takes TensorFlow, and layers run without.
    from bert_tf import fused_passes

    return fused_passes
