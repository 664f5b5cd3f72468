"""The weights of Hugging Face's BERT by our names, and ours by theirs."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import huggingface_names
from bert_tf.interop.checkpoint import local_file
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, Row
from bert_tf.training.weights import BOOKKEEPING, Weights

# Safetensors files, whole or in shards: tensors by the names in the file.


WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Every number of the first three is a float32 as well; of the last it may be.
_FLOATS_OF_FILES = ("F32", "F16", "BF16", "F64")

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
        return self.dtype(name) in _FLOATS_OF_FILES

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


# The weights of Hugging Face's BERT by our names, and ours by theirs.


# The names in the file of every weight: more than one where it is stored
# again, as the matrix may be that masked LM shares with the embeddings.
Sources = Mapping[Row, Sequence[str]]

# What float32 may hold exactly. NumPy knows bfloat16 by its name alone.
_FLOATS = ("float32", "float16", "bfloat16", "float64")

_LAYER = re.compile(r"(?<=^bert\.encoder\.layer\.)\d+(?=\.)")


class HuggingFaceWeights:
    """Weights by their TF1 names, read from safetensors when asked for.

    What is none of BERT's is there as well, under its own name and as it is:
    whoever takes the weights decides.

    Args:
      tensors: The files.
      config: The configuration of the model.

    Attributes:
      path: Where they are from, for messages.
      shapes: Dict from name to shape, kernels as [in, out].
      parts: The parts of the model that there are weights of.
      explained: Dict from the names, in the files, of tensors that `shapes`
        leaves out to the reason why nothing is lost.

    Raises:
      InputError: The files do not hold the weights of such a model.
    """

    def __init__(self, tensors: TensorFiles, config: BertConfig):
        rows = _rows(config, tensors)
        sources, unknown = _match(rows, tensors)
        for row, names in sources.items():
            for name in names:
                _check_tensor(tensors, name, row)
            _check_equal(tensors, names)
        self.path = tensors.path
        self.parts = {row.part for row in sources} | {"encoder"}
        _check_whole(rows, self.parts, sources, self.path)
        _check_unknown(unknown, rows, self.path)
        self.explained = _explain(sources, tensors)
        shapes = {
            row.ours: row.turned_shape(tensors.shapes[names[0]])
            for row, names in sources.items()
        }
        self.shapes: Mapping[str, Sequence[int]] = shapes | {
            name: tensors.shapes[name] for name in unknown
        }
        self._tensors = tensors
        self._sources = {row.ours: (row, n[0]) for row, n in sources.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._sources:
            row, source = self._sources[name]
            return row.turned(self._tensors.read(source))
        if name not in self.shapes:
            raise KeyError(name)
        return self._tensors.read(name)


def from_ours(
    weights: Weights, config: BertConfig, head: str
) -> dict[Row, np.ndarray]:
    """The tensors that Hugging Face's class for a head has, float32.

    Args:
      weights: Weights by their TF1 names. Those of parts that the class does
        not have are passed over.
      config: The configuration of the model.
      head: One of `PARTS_OF_HEAD`.

    Raises:
      InputError: A weight is missing, of another shape, or none of BERT's.
    """
    rows = huggingface_names.rows(config)
    known = {row.ours for row in rows}
    unknown = [n for n in weights_of(weights) if n not in known]
    if unknown:
        raise InputError(
            "expected the weights of such a BERT as the config describes. "
            f"Received: {_listing(unknown)} as well, in {weights.path}"
        )
    parts = set(PARTS_OF_HEAD[head])
    held = {row for row in rows if row.ours in weights}
    if head == "encoder" and not any(row.part == "pooler" for row in held):
        parts.remove("pooler")  # Many an encoder was trained without one.
    _check_whole(rows, parts, held, weights.path)
    kept = [row for row in rows if row.part in parts]
    for row in kept:
        shape = weights.shapes[row.ours]
        if not row.fits(shape):
            raise _misfit(row.ours, row.shape, shape, weights.path)
    return {row: row.turned(_as_float32(weights, row.ours)) for row in kept}


def parts_of(weights: Weights, config: BertConfig) -> set[str]:
    """The parts of a model that there are weights of."""
    rows = huggingface_names.rows(config)
    return {row.part for row in rows if row.ours in weights}


def weights_of(weights: Weights) -> tuple[str, ...]:
    """The names of what is a model's: no optimizer slots, no counters."""
    return tuple(n for n in weights.shapes if not BOOKKEEPING.match(n))


def _rows(config: BertConfig, tensors: TensorFiles) -> tuple[Row, ...]:
    """The rows of the table, not more of them than a file can have."""
    if config.num_hidden_layers > len(tensors.shapes):
        raise InputError(
            f"expected {config.num_hidden_layers} layers, as the config "
            f"says. Received: {len(tensors.shapes)} tensors in {tensors.path}"
        )
    return huggingface_names.rows(config)


def _match(
    rows: Iterable[Row], tensors: TensorFiles
) -> tuple[Sources, list[str]]:
    """Finds the row of every tensor, and those that have none."""
    by_name = {row.theirs: row for row in rows}
    sources: dict[Row, list[str]] = {}
    unknown = []
    for name in sorted(tensors.shapes, key=_spelling):
        canonical = huggingface_names.canonical(name)
        if canonical in by_name:
            sources.setdefault(by_name[canonical], []).append(name)
        elif canonical not in huggingface_names.BUFFERS:
            unknown.append(name)
    return sources, unknown


def _check_unknown(
    unknown: Sequence[str], rows: Iterable[Row], path: str
) -> None:
    """Warns of tensors that are none of BERT's.

    Raises:
      InputError: They are BERT's, but of layers that the config does not
        have; or they are called what weights of ours are.
    """
    ours = {row.ours for row in rows}
    theirs = {row.theirs for row in rows}
    refused = [
        name
        for name in unknown
        if name in ours
        or _LAYER.sub("0", huggingface_names.canonical(name)) in theirs
    ]
    if refused:
        raise InputError(
            "expected the weights of such a BERT as the config describes. "
            f"Received: {_listing(refused)} as well, in {path}"
        )
    if unknown:
        logging.warning(
            "%s holds %s beside the weights of BERT: nothing here uses them",
            path,
            _listing(unknown),
        )


def _explain(sources: Sources, tensors: TensorFiles) -> dict[str, str]:
    """Why tensors that are no weights by themselves can be left out."""
    explained = {
        name: "a counter, which nothing reads"
        for name in tensors.shapes
        if huggingface_names.canonical(name) in huggingface_names.BUFFERS
    }
    for first, *others in sources.values():
        explained |= dict.fromkeys(others, f"{first} once more")
    return explained


def _spelling(name: str) -> tuple[bool, str]:
    """Puts the names of the table first."""
    return huggingface_names.canonical(name) != name, name


def _check_tensor(tensors: TensorFiles, name: str, row: Row) -> None:
    """Raises InputError if a tensor cannot be the weight of its row."""
    if not tensors.is_float(name):
        raise InputError(
            f"expected {name} in one of {', '.join(_FLOATS)}. Received: "
            f"{tensors.dtype(name)} in {tensors.path}"
        )
    shape = tensors.shapes[name]
    if not row.fits(row.turned_shape(shape)):
        raise _misfit(name, row.turned_shape(row.shape), shape, tensors.path)


def _misfit(
    name: str, expected: Sequence[int], shape: Sequence[int], path: str
) -> InputError:
    sizes = ", ".join(str(size or "classes") for size in expected)
    return InputError(
        f"expected {name} of shape [{sizes}], as the config says. Received: "
        f"{list(shape)} in {path}"
    )


def _check_equal(tensors: TensorFiles, names: Sequence[str]) -> None:
    """Raises InputError if tensors that must be one and the same are not."""
    first, *others = names
    for other in others:
        if not np.array_equal(tensors.read(first), tensors.read(other)):
            raise InputError(
                f"expected {other} to be {first} once more. Received: two "
                f"that differ, in {tensors.path}; a model in which they are "
                "not tied cannot be computed here"
            )


def _check_whole(
    rows: Iterable[Row], parts: set[str], held: Iterable[Row], path: str
) -> None:
    """Raises InputError if weights of these parts are missing."""
    held = set(held)
    missing = [
        row.theirs for row in rows if row.part in parts and row not in held
    ]
    if missing:
        raise InputError(
            f"expected all weights of {', '.join(sorted(parts))}. Received: "
            f"{path} without {_listing(missing)}"
        )


def _as_float32(weights: Weights, name: str) -> np.ndarray:
    value = np.asarray(weights[name])
    if value.dtype.name not in _FLOATS:
        raise InputError(
            f"expected {name} in one of {', '.join(_FLOATS)}. Received: "
            f"{value.dtype} in {weights.path}"
        )
    return exact_float32(value, name, weights.path)


def _listing(names: Sequence[str]) -> str:
    """The first few of some names, and how many they are.

    A file can hold any names: they are shown as Python would write them.
    """
    shown = ", ".join(repr(name[:80]) for name in names[:4])
    shown += ", ..." if len(names) > 4 else ""
    noun = "tensor" if len(names) == 1 else "tensors"
    return f"{len(names)} {noun} ({shown})"
