"""Kinds of TPU."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of TPU.

    Attributes:
      topology: A slice of four of them, as libtpu calls it.
      memory: Bytes of a chip's HBM.
      options: What else libtpu has to know.
    """

    topology: str
    memory: int
    options: tuple[tuple[str, str], ...] = ()


# TensorFlow takes the two cores of a v4 for one device, "megacore".
CHIPS = {
    "v4": Chip("v4:2x2x1", 32 * GIB, (("chip_config_name", "megacore"),)),
    "v5e": Chip("v5e:2x2", 16 * GIB),
    "v5p": Chip("v5p:2x2x1", 95 * GIB),
    "v6e": Chip("v6e:2x2", 32 * GIB),
}
