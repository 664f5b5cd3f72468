"""Vectors of texts in files: the original's JSON lines, NumPy's, TFRecord.

Each writer is a context manager; it gives a function that takes one text after
the other. The file appears when it is complete. A text's vectors are written
and forgotten: memory does not grow with the file.
"""

import contextlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf import files
from bert_tf.data.encoding import encode_batch
from bert_tf.data.records import RecordWriter
from bert_tf.data.schema import Feature
from bert_tf.tasks.feature_extraction import TextFeatures

Write = Callable[[TextFeatures], object]


# --------------------------------------------------------------- JSON lines


@contextlib.contextmanager
def jsonl_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes an object a line, as the original does to the byte.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers":
            [{"index": -1, "values": [0.1, ...]}, ...]}, ...]}

    `index` is the layer as it was asked for, a number or a name. Of pooled
    vectors, which the original has not, there are `layers` in the place of
    `features`.

    Args:
      path: The file; one of that name is replaced.
      vocab: The tokens, in the order of their ids.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    with files.atomic_writer(path) as file:
        yield lambda text: file.write(_json_line(text, vocab).encode())


def _json_line(text: TextFeatures, vocab: Sequence[str]) -> str:
    rounded = {name: _rounded(x) for name, x in text.vectors.items()}
    if _is_pooled(text):
        content = {"layers": _json_layers(rounded)}
    else:
        content = {
            "features": [
                {
                    "token": vocab[token],
                    "layers": _json_layers(
                        {name: x[place] for name, x in rounded.items()}
                    ),
                }
                for place, token in enumerate(text.input_ids)
            ]
        }
    return json.dumps({"linex_index": text.line, **content}) + "\n"


def _rounded(x: np.ndarray) -> list:
    """`round(float(x), 6)` of each float32.

    Times a million they are exact as float64, so that NumPy's way to round,
    which goes over it, gives the nearest decimal as Python's does.
    """
    return np.round(x.astype(np.float64), 6).tolist()


def _json_layers(values: dict[str, list]) -> list[dict[str, Any]]:
    return [
        {"index": _index(name), "values": value}
        for name, value in values.items()
    ]


def _index(name: str) -> int | str:
    return int(name) if name.lstrip("-").isdecimal() else name


def _is_pooled(text: TextFeatures) -> bool:
    return any(x.ndim == 1 for x in text.vectors.values())


# -------------------------------------------------------------------- NumPy


@contextlib.contextmanager
def npz_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes arrays for `numpy.load`, those of layers by their names.

    Pooled vectors are float32 [n, W]: a row for each line. Otherwise the
    tokens of all texts follow each other, float32 [tokens, W], beside their
    `input_ids`, int32 [tokens]; those of line i are the rows from `offsets[i]`
    to `offsets[i + 1]`, int64 [n + 1].

    How long an array is stands at its beginning, and is known at the end: till
    then each is in a file without a name, beside the output.

    Args:
      path: The file; one of that name is replaced.
      vocab: Not needed.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    del vocab
    has_room = not files.is_remote(path) and not files.is_special(path)
    folder = os.path.dirname(files.follow_links(path)) if has_room else None
    with files.atomic_writer(path) as file, contextlib.ExitStack() as stack:
        columns = _Columns(
            lambda: stack.enter_context(tempfile.TemporaryFile(dir=folder))
        )
        yield columns.add
        columns.write_to(_OneWay(file) if files.is_remote(path) else file)


class _OneWay(io.RawIOBase):
    """A file to write from its beginning to its end.

    Of TensorFlow's own zipfile would ask where it is, which not all can tell,
    and how much was written, which none does.
    """

    def __init__(self, file: Any):
        self._file = file

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)


class _Columns:
    """The arrays of a file, while it is not known how long they will be.

    Args:
      open_file: Opens a file for one of them.
    """

    def __init__(self, open_file: Callable[[], Any]):
        self._open_file = open_file
        self._columns: dict[str, _Column] = {}

    def add(self, text: TextFeatures) -> None:
        if _is_pooled(text):
            for name, vector in text.vectors.items():
                self._append(name, vector[np.newaxis])
            return
        if not self._columns:
            self._append("offsets", np.zeros(1, np.int64))
        for name, rows in text.vectors.items():
            self._append(name, rows)
        self._append("input_ids", text.input_ids)
        self._append("offsets", np.array([self._columns["input_ids"].count]))

    def _append(self, name: str, rows: np.ndarray) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(self._open_file(), rows)
        self._columns[name].append(rows)

    def write_to(self, file: Any) -> None:
        """Writes what `numpy.load` reads."""
        with zipfile.ZipFile(file, "w") as archive:
            for name, column in self._columns.items():
                # Not by its name alone, which would add the time.
                member = zipfile.ZipInfo(f"{name}.npy")
                with archive.open(member, "w", force_zip64=True) as target:
                    column.copy_to(target)


class _Column:
    """An array that is written some rows at a time.

    Args:
      file: Where to keep them, to be read again.
      rows: Such as will come.

    Attributes:
      count: How many there are.
    """

    def __init__(self, file: Any, rows: np.ndarray):
        self.count = 0
        self._file = file
        self._row_shape, self._dtype = rows.shape[1:], rows.dtype

    def append(self, rows: np.ndarray) -> None:
        self._file.write(rows.tobytes())
        self.count += len(rows)

    def copy_to(self, target: Any) -> None:
        """Writes it as a `.npy` file."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.count, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(target, header)
        self._file.seek(0)
        shutil.copyfileobj(self._file, target)


# ----------------------------------------------------------------- TFRecord


@contextlib.contextmanager
def tfrecord_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes a `tf.train.Example` for each text.

    It holds `line_index`, `input_ids` [t], and the vectors of each layer by
    its name, floats [t * W], or [W] if pooled. To be read by
    `tf.io.FixedLenSequenceFeature([W], tf.float32, allow_missing=True)`.

    Args:
      path: The file, compressed if its name ends in `.gz`.
      vocab: Not needed.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    del vocab
    with RecordWriter(path) as writer:
        yield lambda text: writer.write_all(_records(text))


def _records(text: TextFeatures) -> list[bytes]:
    arrays = {
        "line_index": np.array(text.line),
        "input_ids": text.input_ids,
        **text.vectors,
    }
    schema = tuple(
        Feature(name, x.shape, "float32" if x.dtype.kind == "f" else "int64")
        for name, x in arrays.items()
    )
    return encode_batch(schema, {k: x[np.newaxis] for k, x in arrays.items()})


WRITERS = {
    "jsonl": jsonl_writer,
    "npz": npz_writer,
    "tfrecord": tfrecord_writer,
}
