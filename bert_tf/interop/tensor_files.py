"""Safetensors files, whole or in shards: tensors by the names in the file.

What is read comes from anywhere, so nothing of it is believed. The safetensors
library checks headers, lengths and offsets; the rest is checked here.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.interop.copies import local_file

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Every number of the first three is a float32 as well; of the last it may be.
_FLOATS = ("F32", "F16", "BF16", "F64")

_SHARD = re.compile(r"[^/\\]+\.safetensors")


class TensorFiles:
    """The tensors of one or more safetensors files, read when asked for.

    Args:
      path: A file, or where `paths` is from.
      paths: Dict from the name of each tensor to the file that holds it; None
        for what `path` holds.

    Attributes:
      path: As given, for messages.
      shapes: Dict from name to shape.

    Raises:
      InputError: A file is missing, damaged, or does not hold what it should.
    """

    def __init__(self, path: str, paths: Mapping[str, str] | None = None):
        self.path = path
        self._file_of: dict[str, Any] = {}
        for file in sorted(set(paths.values())) if paths else [path]:
            tensors = _open(file)
            held = set(tensors.keys())
            if paths:
                listed = {name for name, home in paths.items() if home == file}
                _check_listed(held, listed, file, path)
            self._file_of |= dict.fromkeys(held, tensors)
        self.shapes = {
            name: tuple(file.get_slice(name).get_shape())
            for name, file in self._file_of.items()
        }

    def is_float(self, name: str) -> bool:
        """True for a tensor that `read` gives as float32."""
        return self.dtype(name) in _FLOATS

    def dtype(self, name: str) -> str:
        """The dtype of a tensor by the name it has in the format: "BF16"."""
        return self._file_of[name].get_slice(name).get_dtype()

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor: floats as float32, exactly; others as they are.

        Raises:
          InputError: It is of a type that NumPy lacks, or holds numbers that
            are none of float32.
        """
        if self.dtype(name) == "BF16":
            import ml_dtypes  # noqa: F401  Makes NumPy know the type.
        try:
            value = np.asarray(self._file_of[name].get_tensor(name))
        except (safetensors.SafetensorError, TypeError, AttributeError) as e:
            raise InputError(
                f"expected {name!r} of a type that NumPy has. Received: "
                f"{self.dtype(name)} in {self.path}"
            ) from e
        if not self.is_float(name):
            return value
        return exact_float32(value, name, self.path)


def exact_float32(value: np.ndarray, name: str, path: str) -> np.ndarray:
    """The same numbers as float32.

    Raises:
      InputError: They would change.
    """
    with np.errstate(over="ignore"):
        narrow = value.astype(np.float32, copy=False)
    # What is no wider cannot change, and need not be compared.
    if value.dtype.itemsize > 4 and not np.array_equal(
        narrow, value, equal_nan=True
    ):
        raise InputError(
            f"expected {name} in numbers that float32 holds. Received: "
            f"{value.dtype} with others in {path}; round it to float32 where "
            "it was made"
        )
    return narrow


def open_tensors(file: str) -> TensorFiles:
    """Opens a safetensors file, or all those that the index of shards lists.

    Raises:
      InputError: It cannot be used, or a shard cannot.
    """
    if not file.endswith(".json"):
        return TensorFiles(file)
    folder = os.path.dirname(file)
    return TensorFiles(
        file,
        {
            name: os.path.join(folder, shard)
            for name, shard in _read_index(file).items()
        },
    )


def write(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes one safetensors file, which appears as a whole.

    Raises:
      InputError: The place cannot be written to.
    """
    # PyTorch's programs refuse a file that does not say it is theirs.
    metadata = {"format": "pt"}
    with files.atomic_writer(path) as file:
        file.write(safetensors.numpy.save(dict(tensors), metadata))


def _open(path: str) -> Any:
    """Opens one file; a remote one by way of a copy."""
    if not files.exists(path):
        raise InputError(
            f"expected a safetensors file at {path}. Received: no such file; "
            "has the download finished?"
        )
    if files.is_directory(path):
        raise InputError(
            f"expected a safetensors file at {path}. Received: a directory"
        )
    # The library says of what it may not read that there is no such file.
    files.open_read(path).close()
    try:
        # What is mapped into memory outlives the name of the file.
        with local_file(path) as local:
            return safetensors.safe_open(local, "numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(
            f"expected a safetensors file at {path}. Received: "
            f"{' '.join(str(error).split())}; the file is damaged, cut off or "
            "of another kind"
        ) from error


def _read_index(path: str) -> dict[str, str]:
    """Reads which file beside the index holds each tensor."""
    shards = files.read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise InputError(
            f"expected the key 'weight_map' with the file of every tensor in "
            f"{path}. Received: {str(shards)[:60]!r}"
        )
    for name, shard in shards.items():
        # A name with a folder in it could lead anywhere on this machine.
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise InputError(
                f"expected files beside {path}, such as "
                "'model-00001-of-00002.safetensors'. Received: "
                f"{str(shard)[:60]!r} for {name!r}"
            )
    return shards


def _check_listed(
    held: set[str], listed: set[str], file: str, index: str
) -> None:
    """Raises InputError if a shard and the index do not agree."""
    for names, verb in ((listed - held, "lacks"), (held - listed, "adds")):
        if names:
            raise InputError(
                f"expected {file} to hold what {index} lists. Received: a "
                f"file that {verb} {min(names)!r}; download both again"
            )
