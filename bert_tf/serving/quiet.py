"""Libraries that tell of their own affairs, kept from it for a while."""

import contextlib
import logging
from collections.abc import Iterator

import absl.logging

_ABSL = "absl"


@contextlib.contextmanager
def at_least(level: int, *loggers: str) -> Iterator[None]:
    """Lets loggers tell nothing below a level; absl's is always among them.

    Args:
      level: One of `absl.logging`.
      *loggers: Their names.
    """
    found = [logging.getLogger(name) for name in (_ABSL, *loggers)]
    levels = [logger.level for logger in found]
    verbosity = absl.logging.get_verbosity()
    # TensorFlow sets absl's logger back and forth by it.
    absl.logging.set_verbosity(level)
    for logger in found:
        logger.setLevel(absl.logging.converter.absl_to_standard(level))
    try:
        yield
    finally:
        absl.logging.set_verbosity(verbosity)
        # Behind that, which gives absl's logger a level where it had none:
        # what a program logs at INFO would be lost from then on.
        for logger, before in zip(found, levels, strict=True):
            logger.setLevel(before)
