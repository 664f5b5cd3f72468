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
from typing import Any

import google_crc32c

from bert_tf import files
from bert_tf.data.encoding import encode_batch
from bert_tf.data.schema import Feature, Schema
from bert_tf.errors import InputError

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
