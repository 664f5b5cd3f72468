"""TFRecord files of `tf.train.Example`, written and checked without TensorFlow.

A TFRecord file is a sequence of frames: the length (uint64), the masked
CRC-32C of those 8 bytes (uint32), the data, the masked CRC-32C of the data
(uint32), all little-endian.
"""

import contextlib
import functools
import gzip
import io
import itertools
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from bert_tf import files
from bert_tf.data.schema import Feature, Schema
from bert_tf.errors import InputError

# Many `tf.train.Example` protos serialized at once, by NumPy.


# Field tags of tf.train.Example: (number << 3) | 2, a length-delimited field.
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
_KIND_TAGS = {"float32": _SECOND, "int64": _THIRD}  # of tf.train.Feature

# Rows encoded at a time: enough to hide NumPy's cost of a call, and not so
# many that a whole corpus is held several times over.
_ROWS = 2048


class _Columns(NamedTuple):
    """Encoded bytes of `n` records, with gaps: varints differ in width.

    Attributes:
      parts: uint8 arrays [n, w]; side by side they are the padded bytes.
      keep: bool arrays [n, w], False where a byte is padding.
      sizes: int64 [n], the number of bytes kept in each row.
    """

    parts: list[np.ndarray]
    keep: list[np.ndarray]
    sizes: np.ndarray


def encode_batch(
    schema: Schema, batch: Mapping[str, np.ndarray]
) -> list[bytes]:
    """Serializes examples, byte for byte as protobuf does deterministically.

    Args:
      schema: The features of an example.
      batch: For each feature an array [n, *shape] of integers or floats. Give
        a thousand rows or more: a call costs as much as some 400 rows.

    Returns:
      n serialized `tf.train.Example` protos, keys in sorted order.

    Raises:
      ValueError: An array has another shape or kind than the schema says.
    """
    features = sorted(schema, key=lambda feature: feature.name)
    arrays = [_values(feature, batch[feature.name]) for feature in features]
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(
            "Expected as many rows in each feature. Received: "
            + ", ".join(f"{k}: {np.shape(v)}" for k, v in batch.items())
        )
    encoded = (
        _encode_rows(
            features, [array[start : start + _ROWS] for array in arrays]
        )
        for start in range(0, len(arrays[0]), _ROWS)
    )
    return list(itertools.chain.from_iterable(encoded))


def _values(feature: Feature, array: np.ndarray) -> np.ndarray:
    """The feature's values as [n, size], floats as float32."""
    array = np.asarray(array)
    is_float = feature.dtype == "float32"
    kinds = "f" if is_float else "iub"
    if array.shape[1:] != feature.shape or array.dtype.kind not in kinds:
        raise ValueError(
            f"Expected {feature.name} of type {feature.dtype} and shape "
            f"{['n', *feature.shape]}. Received: {array.dtype} {array.shape}"
        )
    flat = array.reshape(len(array), feature.size)
    return flat.astype("<f4") if is_float else flat


def _encode_rows(
    features: Iterable[Feature], arrays: Iterable[np.ndarray]
) -> Iterator[bytes]:
    """Encodes a few records at once."""
    entries = [
        _encode_feature(feature, values)
        for feature, values in zip(features, arrays, strict=True)
    ]
    example = _field(_FIRST, _join(entries))
    data = np.concatenate(example.parts, axis=1)
    keep = np.concatenate(example.keep, axis=1)
    kept = data[keep].tobytes()
    ends = np.cumsum(example.sizes).tolist()
    return (kept[a:b] for a, b in itertools.pairwise([0, *ends]))


def _encode_feature(feature: Feature, values: np.ndarray) -> _Columns:
    """One entry of the map of features: its key and its list of values."""
    name = feature.name.encode()
    rows = len(values)
    key = _field(_FIRST, _constant(name, rows))
    numbers = _varints(values) if feature.dtype == "int64" else _raw(values)
    packed = _field(_FIRST, numbers)
    value = _field(_SECOND, _field(_KIND_TAGS[feature.dtype], packed))
    return _field(_FIRST, _join([key, value]))


def _field(tag: bytes, body: _Columns) -> _Columns:
    """Puts a length-delimited field's tag and length in front of its body."""
    length = _varints(body.sizes[:, np.newaxis])
    return _join([_constant(tag, len(body.sizes)), length, body])


def _join(columns: list[_Columns]) -> _Columns:
    """Sets columns side by side."""
    parts = [part for column in columns for part in column.parts]
    keep = [keep for column in columns for keep in column.keep]
    return _Columns(
        parts, keep, np.sum([column.sizes for column in columns], 0)
    )


def _constant(data: bytes, rows: int) -> _Columns:
    """The same bytes in each row."""
    row = np.frombuffer(data, np.uint8)
    return _full(np.broadcast_to(row, (rows, len(data))))


def _raw(values: np.ndarray) -> _Columns:
    """The bytes of numbers of fixed width [n, k]."""
    return _full(np.ascontiguousarray(values).view(np.uint8))


def _full(part: np.ndarray) -> _Columns:
    """Columns without gaps, from bytes [n, w]."""
    rows, width = part.shape
    keep = np.broadcast_to(np.True_, part.shape)
    return _Columns([part], [keep], np.full(rows, width))


def _varints(values: np.ndarray) -> _Columns:
    """Base-128 varints of integers [n, k].

    The lowest 7 bits come first, and the high bit of a byte says that another
    follows: 300 = 0b10_0101100 is 0xAC 0x02. A negative number is its 64-bit
    two's complement, so 10 bytes.
    """
    rest = _unsigned(values)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    if width == 1:
        return _full(rest.astype(np.uint8))
    part = np.empty((*rest.shape, width), np.uint8)
    keep = np.empty((*rest.shape, width), bool)
    for byte in range(width):
        keep[..., byte] = rest > 0
        # The assignment keeps the lowest 8 bits.
        part[..., byte] = np.where(rest > 0x7F, rest | 0x80, rest)
        rest >>= 7
    keep[..., 0] = True
    rows = len(rest)
    keep = keep.reshape(rows, -1)
    sizes = np.count_nonzero(keep, axis=1)
    return _Columns([part.reshape(rows, -1)], [keep], sizes)


def _unsigned(values: np.ndarray) -> np.ndarray:
    """The same bits as unsigned numbers, of a type as narrow as they allow."""
    if values.min(initial=0) < 0:
        return values.astype(np.int64).view(np.uint64)
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


# TFRecord files of `tf.train.Example`, written and checked without TensorFlow.


__all__ = [
    "DamageError",
    "RecordWriter",
    "check_first_record",
    "compress",
    "count_records",
    "encode_batch",
    "frame",
    "verify",
]

_MASK_DELTA = 0xA282EAD8
# Token ids hardly get smaller above this level, and writing gets much slower.
_GZIP_LEVEL = 6

HEADER_SIZE = 12
FOOTER_SIZE = 4
_DTYPE_OF_KIND = {
    "bytes_list": "bytes",
    "float_list": "float32",
    "int64_list": "int64",
}


class DamageError(InputError):
    """A file was whole once, and is damaged or cut off."""


class RecordWriter:
    """Writes a TFRecord file that appears only when it is complete.

    A path that ends in `.gz` is compressed. The same records always give the
    same bytes. Use it in a `with` statement.

    Attributes:
      count: The number of records written so far.

    Raises:
      InputError: The place cannot be written to (when entered), or is full.
    """

    def __init__(self, path: str) -> None:
        self.count = 0
        self._path = path

    def __enter__(self) -> "RecordWriter":
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(files.atomic_writer(self._path))
            if self._path.endswith(".gz"):
                # No name and no time in the header: equal input, equal bytes.
                file = stack.enter_context(
                    gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
                )
            self._file = file
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def write(self, record: bytes) -> None:
        """Appends one serialized example."""
        self.write_all([record])

    def write_all(self, records: list[bytes]) -> None:
        """Appends serialized examples with one write."""
        self._file.write(frame(records))
        self.count += len(records)


def frame(records: Iterable[bytes]) -> bytes:
    """The bytes of a TFRecord file of these records.

    Such files set end to end are a TFRecord file too, and so are their gzip
    compressions (none of which may be of nothing: TensorFlow stops reading
    there). So several processes can make the parts of one file.
    """
    return b"".join(
        piece
        for record in records
        for piece in (header(len(record)), record, footer(record))
    )


def compress(framed: bytes) -> bytes:
    """A gzip member, the same for the same bytes: no name, no time."""
    return gzip.compress(framed, _GZIP_LEVEL, mtime=0)


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord asks (as LevelDB's log does)."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
def header(length: int) -> bytes:
    """What stands before data of a length; lengths repeat: it is remembered."""
    size = struct.pack("<Q", length)
    return size + struct.pack("<I", _masked_crc(size))


def footer(data: bytes) -> bytes:
    """What stands behind the data."""
    return struct.pack("<I", _masked_crc(data))


def count_records(path: str, at_most: int | None = None) -> int:
    """Counts records by walking from length to length; the data is not read.

    Args:
      path: A TFRecord file.
      at_most: Where to stop counting; None for the whole file.

    Raises:
      DamageError: The file is cut off or damaged.
      InputError: It cannot be read, or is no TFRecord file.
    """
    frames = _frames(path, read_data=False)
    return sum(1 for _ in itertools.islice(frames, at_most))


def verify(path: str) -> int:
    """Counts records and compares the checksum of each record's data.

    Raises:
      DamageError: The file is cut off or damaged.
      InputError: As `count_records`.
    """
    return sum(1 for _ in _frames(path, read_data=True))


def check_first_record(path: str, schema: Schema, offset: int = 0) -> bool:
    """Compares a file's first record with what will be read from it.

    Features of the file that the schema does not name are ignored, as they
    are when the file is read.

    Args:
      path: A TFRecord file.
      schema: What will be read.
      offset: The byte at which the record begins.

    Returns:
      False if the file is sound but holds no record at all.

    Raises:
      InputError: A feature is missing, or has another length or type; or the
        file is no TFRecord file of `tf.train.Example`.
    """
    record = next(_frames(path, read_data=True, offset=offset), None)
    if record is None:
        return False
    found = _parse_example(record, path)
    for feature in schema:
        _check_feature(path, feature, found)
    return True


def _parse_example(record: bytes, path: str) -> dict[str, tuple[str, int]]:
    """The type and the number of values of each feature of a record."""
    # Whoever compares a file with a schema is about to read it in TensorFlow.
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise InputError(
            f"Expected {path} to hold records of tf.train.Example. Received: "
            "a first record of another kind."
        ) from error
    found = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind") or "int64_list"
        size = len(getattr(feature, kind).value)
        found[name] = _DTYPE_OF_KIND[kind], size
    return found


def _check_feature(
    path: str, feature: Feature, found: Mapping[str, tuple[str, int]]
) -> None:
    """Raises unless `found` has the feature with the right type and length."""
    if feature.name not in found:
        raise InputError(
            f"Expected {path} to hold records with a feature {feature.name}. "
            f"Received: records with {', '.join(sorted(found)) or 'none'}."
        )
    dtype, size = found[feature.name]
    if dtype != feature.dtype:
        raise InputError(
            f"Expected {feature.name} of type {feature.dtype} in {path}. "
            f"Received: {dtype}."
        )
    if size != feature.size:
        # Of several axes the number of values tells no single one.
        flag = feature.length_flag if len(feature.shape) == 1 else None
        expected = f" (--{flag}={feature.size})" if flag else ""
        advice = f" Pass --{flag}={size}, or make the records anew."
        raise InputError(
            f"Expected {feature.name} of length {feature.size}{expected} in "
            f"{path}. Received: length {size}.{advice if flag else ''}"
        )


def _frames(path: str, read_data: bool, offset: int = 0) -> Iterator[bytes]:
    """Yields each record's data, checked; or b"", having skipped the data."""
    with files.open_read(path) as file, files.gzip_faults(path):
        file.seek(offset)
        reader = _FrameReader(path, file)
        step = reader.data if read_data else reader.skip
        while (length := reader.next_length()) is not None:
            yield step(length)


class _FrameReader:
    """Walks the frames of an open TFRecord file and says where it fails."""

    def __init__(self, path: str, file: io.BufferedIOBase) -> None:
        self._path = path
        self._file = file
        # Elsewhere, moving forward means reading; and GFile may not pass the
        # end, which is how a file that is cut off shows.
        self._can_jump = not (files.is_remote(path) or path.endswith(".gz"))
        self._number = 0
        self._offset = 0  # Of the record's frame, in decompressed bytes.

    def next_length(self) -> int | None:
        """Reads what stands before a record: its length; None at the end."""
        found = self._file.read(HEADER_SIZE)
        if not found:
            return None
        length = int.from_bytes(found[:8], "little")
        if found == header(length):
            return length
        if self._number == 0:
            raise InputError(
                f"{self._path} is not a TFRecord file: it starts with "
                f"{found!r}."
            )
        if len(found) < HEADER_SIZE:
            raise self._cut_off()
        raise self._damaged("length")

    def skip(self, length: int) -> bytes:
        """Passes over a record."""
        if self._can_jump:
            self._file.seek(length, os.SEEK_CUR)
        else:
            self._file.read(length)
        self._end_record(length, self._file.read(FOOTER_SIZE))
        return b""

    def data(self, length: int) -> bytes:
        """Reads a record and compares its checksum."""
        data = self._file.read(length)
        found = self._file.read(FOOTER_SIZE)
        if len(found) == FOOTER_SIZE and found != footer(data):
            raise self._damaged("data")
        self._end_record(length, found)
        return data

    def _end_record(self, length: int, found: bytes) -> None:
        """Moves on to the next record; what is cut off has no footer."""
        if len(found) < FOOTER_SIZE:
            raise self._cut_off()
        self._number += 1
        self._offset += HEADER_SIZE + length + FOOTER_SIZE

    def _cut_off(self) -> DamageError:
        return DamageError(
            f"{self._path} is cut off within {self._place()}. Make or copy it "
            "again."
        )

    def _damaged(self, part: str) -> DamageError:
        return DamageError(
            f"{self._path} is damaged in {self._place()}: the checksum of its "
            f"{part} does not fit. Make or copy the file again."
        )

    def _place(self) -> str:
        return f"record {self._number} (from 0) at byte {self._offset:,}"
