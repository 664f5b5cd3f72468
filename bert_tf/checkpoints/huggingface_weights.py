"""Weights of a Hugging Face BERT, to and from this project's names."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import huggingface_names
from bert_tf.checkpoints.checkpoint import Check, local_file, read_json
from bert_tf.checkpoints.huggingface_names import HEADS, WeightName
from bert_tf.checkpoints.weights import Weights, require_finite
from bert_tf.config import BertConfig
from bert_tf.errors import in_file, listed

# Safetensors files, whole or in shards.

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# The dtypes that can be read as float32; F64 only if no number changes.
FLOATS = ("F32", "F16", "BF16", "F64")

# A name with a folder in it could lead anywhere on this machine.
_SHARD = re.compile(r"[^/\\]+\.safetensors")
_SHARDS = Check(
    lambda value: (
        isinstance(value, dict)
        and all(_SHARD.fullmatch(str(file)) for file in value.values())
    ),
    "an object with the file of each tensor, in the same folder",
)


class TensorFiles:
    """The tensors of one or more safetensors files, read on access.

    Args:
      path: The file, or the index that `paths` is from.
      paths: The file of each tensor, by name; None if `path` has them all.

    Attributes:
      path: As given, for messages.
      shapes: Shapes by name.
      metadata: The strings that the files store beside the tensors, by key.

    Raises:
      InputError: If a file is missing, damaged, or lacks a tensor.
    """

    def __init__(self, path: str, paths: Mapping[str, str] | None = None):
        self.path = path
        self._file_of: dict[str, Any] = {}
        self.metadata: dict[str, str] = {}
        for file in sorted(set(paths.values())) if paths else [path]:
            tensors = _open(file)
            held = set(tensors.keys())
            if paths:
                names = {name for name, home in paths.items() if home == file}
                if names != held:
                    raise in_file(
                        file,
                        f"this file and {path} do not both have the tensor "
                        f"{min(names ^ held)!r}. Download both again.",
                    )
            self._file_of |= dict.fromkeys(held, tensors)
            self.metadata |= tensors.metadata() or {}
        self.shapes = {
            name: tuple(file.get_slice(name).get_shape())
            for name, file in self._file_of.items()
        }

    def dtype(self, name: str) -> str:
        """Returns the name of a tensor's dtype in the file, such as "BF16"."""
        return self._file_of[name].get_slice(name).get_dtype()

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor: floats as float32, others unchanged."""
        if self.dtype(name) == "BF16":
            import ml_dtypes  # noqa: F401  Adds the dtype to NumPy.
        value = np.asarray(self._file_of[name].get_tensor(name))
        if self.dtype(name) in FLOATS:
            value = to_float32(value, name, self.path)
        require_finite(value, name, self.path)
        return value


def to_float32(value: np.ndarray, name: str, path: str) -> np.ndarray:
    """Returns the same numbers as float32, or raises InputError."""
    with np.errstate(over="ignore"):
        narrow = value.astype(np.float32, copy=False)
    # Narrower types cannot change.
    if value.dtype.itemsize > 4 and not np.array_equal(
        narrow, value, equal_nan=True
    ):
        raise in_file(
            path,
            f"{name} has {value.dtype} numbers that float32 cannot represent. "
            "Round it to float32 first.",
        )
    return narrow


def open_tensors(file: str) -> TensorFiles:
    """Opens a safetensors file, or the shards that an index lists.

    Raises:
      InputError: If a file cannot be used.
    """
    if not file.endswith(".json"):
        return TensorFiles(file)
    shards = read_json(file, {"weight_map": _SHARDS}).get("weight_map") or {}
    folder = os.path.dirname(file)
    return TensorFiles(
        file, {name: os.path.join(folder, x) for name, x in shards.items()}
    )


def write(
    path: str,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes one safetensors file atomically.

    Args:
      path: The file.
      tensors: Floats by name.
      metadata: Strings to store beside the tensors. The key "format", which
        PyTorch programs need, is added.
    """
    # safetensors ignores strides.
    arrays = {n: np.asarray(x, order="C") for n, x in tensors.items()}
    content = safetensors.numpy.save(
        arrays, {"format": "pt", **(metadata or {})}
    )
    with files.atomic_writer(path) as file:
        file.write(content)


def _open(path: str) -> Any:
    """Opens one file; copies a remote one first."""
    if not files.exists(path):
        raise in_file(
            path, "there is no such safetensors file. Is the download complete?"
        )
    files.require_file(path)
    # Of a file without permission, safetensors says that it does not exist.
    files.open_read(path).close()
    try:
        # The memory map of the file stays valid after the copy is deleted.
        with local_file(path) as local:
            return safetensors.safe_open(local, "numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise in_file(
            path,
            f"this is not a safetensors file, or it is damaged or truncated: "
            f"{' '.join(str(error).split())}",
        ) from error


# Hugging Face's weights by this project's names, and the reverse.


class HuggingFaceWeights(Weights):
    """Weights by their TF1 names, read from safetensors on access.

    Tensors that are not BERT's are included, unchanged and by their own names.

    Attributes:
      path: The file, for messages.
      shapes: Shapes by name, kernels as [in, out].
      parts: The parts of the model that have weights.
      explained: The tensors in the files that `shapes` leaves out, by name,
        each with the reason why nothing is lost.

    Raises:
      InputError: If the weights do not belong to a BERT with this `config`.
    """

    def __init__(self, tensors: TensorFiles, config: BertConfig):
        self.path = tensors.path
        # Also limits the size of the table below.
        if config.num_hidden_layers > len(tensors.shapes):
            raise in_file(
                self.path,
                f"there are {len(tensors.shapes)} tensors, too few for "
                f"{config.num_hidden_layers} layers as in the config.",
            )
        rows = huggingface_names.rows(config)
        sources, unknown = _match(rows, tensors)
        for names in sources.values():
            _check_tensors(tensors, names)
        self.parts = {row.part for row in sources} | {"encoder"}
        _check_unknown(unknown, rows, self.path)
        self.explained = {
            name: "a counter, which nothing reads"
            for name in tensors.shapes
            if huggingface_names.canonical(name) in huggingface_names.BUFFERS
        }
        for first, *others in sources.values():
            self.explained |= dict.fromkeys(others, f"a copy of {first}")
        shapes = {
            row.ours: row.turned_shape(tensors.shapes[names[0]])
            for row, names in sources.items()
        }
        self.shapes = shapes | {name: tensors.shapes[name] for name in unknown}
        self._tensors = tensors
        self._sources = {row.ours: (row, n[0]) for row, n in sources.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._sources:
            row, source = self._sources[name]
            return row.turned(self._tensors.read(source))
        if name not in self.shapes:
            raise KeyError(name)
        return self._tensors.read(name)


def huggingface_tensors(
    weights: Weights, config: BertConfig, head: str
) -> dict[str, np.ndarray]:
    """Returns the float32 tensors of Hugging Face's class for a head.

    Weights that the class lacks are ignored. Raises InputError if float32
    cannot represent a weight.
    """
    return {
        row.their_name(head): row.turned(
            to_float32(np.asarray(weights[row.ours]), row.ours, weights.path)
        )
        for row in huggingface_names.rows(config)
        # Many encoders were trained without a pooler.
        if row.part in HEADS[head].parts and row.ours in weights
    }


def _match(
    rows: Iterable[WeightName], tensors: TensorFiles
) -> tuple[dict[WeightName, list[str]], list[str]]:
    """Returns the tensors of each row, and the tensors without a row.

    A row has several tensors if files have copies, for example of the embedding
    matrix that masked LM shares.
    """
    by_name = {row.theirs: row for row in rows}
    sources: dict[WeightName, list[str]] = {}
    unknown = []
    # Names as in the table come before other spellings.
    for name in sorted(
        tensors.shapes,
        key=lambda name: (huggingface_names.canonical(name) != name, name),
    ):
        canonical = huggingface_names.canonical(name)
        if canonical in by_name:
            sources.setdefault(by_name[canonical], []).append(name)
        elif canonical not in huggingface_names.BUFFERS:
            unknown.append(name)
    return sources, unknown


def _check_unknown(
    unknown: Sequence[str], rows: Iterable[WeightName], path: str
) -> None:
    """Logs tensors that are not BERT's.

    Refuses layers that the config lacks, and this project's names.
    """
    ours = {row.ours for row in rows}
    refused = [
        name
        for name in unknown
        if name in ours
        or huggingface_names.canonical(name).startswith("bert.encoder.layer.")
    ]
    if refused:
        raise in_file(
            path,
            "these tensors do not belong to a BERT with this config: "
            f"{quoted(refused)}.",
        )
    if unknown:
        logging.warning(
            "%s: ignoring tensors that are not BERT's: %s",
            path,
            quoted(unknown),
        )


def _check_tensors(tensors: TensorFiles, names: Sequence[str]) -> None:
    """Raises InputError if tensors of a weight differ or are not floats."""
    first, *_ = names
    for name in names:
        dtype = tensors.dtype(name)
        if dtype not in FLOATS:
            requirement = f"{listed(FLOATS, last='or')}; got {dtype}."
            raise in_file(tensors.path, f"{name} must be {requirement}")
        if name != first and not np.array_equal(
            tensors.read(first), tensors.read(name)
        ):
            raise in_file(
                tensors.path,
                f"{name} differs from {first}. Models in which these are not "
                "tied are not supported.",
            )


def quoted(names: Sequence[str]) -> str:
    """Returns the first names in quotes, since files can have any names."""
    return listed([name[:80] for name in names], most=4, quote=True)
