"""Files of records as tf.data reads them, whole or without damaged places."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.data import records
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError

# What can still be read of TFRecord files that have been damaged.


_FILES_CHECKED_AT_ONCE = 16
# What TensorFlow reads ahead, as `tf.data.TFRecordDataset` has it.
_BUFFER_SIZE = 1 << 18
_BLOCK_SIZE = 1 << 20
_NOT_ZERO = re.compile(rb"[^\0]")
_ZEROS = bytes(records.HEADER_SIZE)


class Stretch(NamedTuple):
    """Sound records that follow one another.

    Attributes:
      offset: The byte at which the first one begins.
      count: How many there are.
    """

    offset: int
    count: int


class Scan(NamedTuple):
    """What a file holds.

    Attributes:
      stretches: What is sound, in order.
      faults: For each damaged place, of one record or of several, where it is.
    """

    stretches: tuple[Stretch, ...]
    faults: tuple[str, ...]


class Salvage(NamedTuple):
    """What can be read of some files.

    Attributes:
      stretches: What is sound, by path; None where nobody has looked.
      num_faults: Damaged places in all files.
    """

    stretches: Mapping[str, tuple[Stretch, ...]] | None = None
    num_faults: int = 0

    @property
    def results(self) -> dict[str, int]:
        """What is to be told beside the scores of a model."""
        if self.stretches is None:
            return {}
        return {"skipped_records": self.num_faults}


def salvage(paths: Sequence[str]) -> Salvage:
    """Reads files through, and tells of each damaged one.

    Args:
      paths: TFRecord files, compressed where the name ends in `.gz`.

    Raises:
      InputError: Of a file nothing can be read: it may be another kind of file.
    """
    logging.info("Reading %d file(s) for damaged records", len(paths))
    with futures.ThreadPoolExecutor(_FILES_CHECKED_AT_ONCE) as pool:
        found = dict(zip(paths, pool.map(scan, paths), strict=True))
    for path, (_, faults) in found.items():
        if faults:
            logging.warning(
                "%s is read without its %d damaged place(s); the first: %s",
                path,
                len(faults),
                faults[0],
            )
    num_faults = sum(len(one.faults) for one in found.values())
    logging.info("Damaged places that are left out: %d", num_faults)
    return Salvage(
        {path: one.stretches for path, one in found.items()}, num_faults
    )


def scan(path: str) -> Scan:
    """Reads a file through.

    Raises:
      InputError: Nothing of it can be read: it may be another kind of file.
    """
    found = (_scan_compressed if path.endswith(".gz") else _scan)(path)
    if found.faults and not found.stretches:
        records.verify(path)
    return found


def _scan(path: str) -> Scan:
    with files.open_read(path) as file:
        file.seek(0, os.SEEK_END)
        return _Scanner(file, file.tell()).scan()


def _scan_compressed(path: str) -> Scan:
    try:
        return Scan((Stretch(0, records.verify(path)),), ())
    except InputError as error:
        fault = str(error)
    # It may hold back some of the records that stand before the damage.
    readable = read(path, "GZIP").ignore_errors()
    count = int(readable.reduce(np.int64(0), lambda n, _: n + 1))
    return Scan((Stretch(0, count),) if count else (), (fault,))


def read(path: Any, compression: Any, offset: Any = 0) -> tf.data.Dataset:
    """The records of a file from a byte on; all may be tensors."""

    def records_from(offset: tf.Tensor) -> tf.data.Dataset:
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=path,
            compression_type=compression,
            buffer_size=_BUFFER_SIZE,
            byte_offsets=offset,
        )
        return tf.data.experimental.from_variant(
            variant, tf.TensorSpec([], tf.string)
        )

    # Not by itself: as TensorFlow copies a data set of this kind, to optimize
    # it, it forgets the offset. What a function makes is not copied.
    offsets = tf.data.Dataset.from_tensors(tf.cast(offset, tf.int64))
    return offsets.flat_map(records_from)


@contextlib.contextmanager
def way_out_told() -> Iterator[None]:
    """Says of a damaged file what a script offers; a decorator as well."""
    try:
        yield
    except records.DamageError as error:
        raise InputError(
            f"{error} Or pass --skip_corrupt_records, to use the rest of it."
        ) from error


class _Scanner:
    """Looks for sound records in a file that is not compressed.

    Args:
      file: It, open.
      size: Its bytes.
    """

    def __init__(self, file: io.BufferedIOBase, size: int):
        self._file = file
        self._size = size

    def scan(self) -> Scan:
        stretches, faults = [], []
        position = number = 0
        while position < self._size:
            end, count = self._stretch(position)
            if count:
                stretches.append(Stretch(position, count))
                number += count
            if end == self._size:
                break
            position = self._next(end + 1)
            faults.append(
                f"{position - end:,} bytes from record {number} (from 0) on, "
                f"at byte {end:,}"
            )
            number += 1
        return Scan(tuple(stretches), tuple(faults))

    def _stretch(self, position: int) -> tuple[int, int]:
        """Where the sound records that begin here end, and how many are."""
        count = 0
        while (end := self._end(position)) is not None:
            position, count = end, count + 1
        return position, count

    def _end(self, position: int) -> int | None:
        """Where the record that begins here ends; None where none is sound."""
        header = self._read(position, records.HEADER_SIZE)
        length = int.from_bytes(header[:8], "little")
        end = position + records.HEADER_SIZE + length + records.FOOTER_SIZE
        if end > self._size or header != records.header(length):
            return None
        data = self._file.read(length)
        footer = self._file.read(records.FOOTER_SIZE)
        return end if footer == records.footer(data) else None

    def _next(self, position: int) -> int:
        """The first place from here on where a sound record begins, or the end.

        Every byte is tried, at a microsecond each; zeros, of which a disk may
        leave a lot, are passed over.
        """
        while position + records.HEADER_SIZE <= self._size:
            block = self._read(position, _BLOCK_SIZE)
            last = len(block) - records.HEADER_SIZE
            place = 0
            while place <= last:
                header = block[place : place + records.HEADER_SIZE]
                if header == _ZEROS:
                    found = _NOT_ZERO.search(block, place)
                    place = (found.start() if found else len(block)) - (
                        records.HEADER_SIZE - 1
                    )
                elif self._end(position + place) is not None:
                    return position + place
                else:
                    place += 1
            position += place
        return self._size

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)


# Files of records as tf.data reads them, whole or without damaged places.


_FILES_AT_ONCE = 16

# Of each file, by its path, what of it is sound.
Stretches = Mapping[str, Sequence[Stretch]]


class RecordFiles:
    """The files that hold records, after a look at the first of each.

    Args:
      paths: TFRecord files, compressed where the name ends in `.gz`.
      schema: What their records have to fit.
      stretches: What of them is sound, from `salvage`; None to take it that all
        is.

    Attributes:
      paths: Those with records.

    Raises:
      InputError: A file cannot be read, its records do not fit the schema, or
        there is none.
    """

    def __init__(
        self,
        paths: Sequence[str],
        schema: Schema,
        stretches: Stretches | None = None,
    ):
        self._stretches = stretches
        for path in paths:
            if not files.is_utf8(path):
                raise InputError(
                    "The names of record files must be UTF-8; got "
                    f"{path!r}. Rename it."
                )
        with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = pool.map(lambda path: self._holds(path, schema), paths)
            holds_records = dict(zip(paths, found, strict=True))
        for path in paths:
            if not holds_records[path]:
                logging.warning("%s holds no records.", path)
        self.paths = [path for path in paths if holds_records[path]]
        if not self.paths:
            raise InputError(
                f"Expected files with records. Received: {', '.join(paths)}, "
                "without any."
            )

    def __len__(self) -> int:
        return len(self.paths)

    def _holds(self, path: str, schema: Schema) -> bool:
        offset = 0
        if self._stretches is not None:
            if not self._stretches[path]:
                return False
            offset = self._stretches[path][0].offset
        return records.check_first_record(path, schema, offset)

    def count(self, at_most: int | None = None) -> int:
        """The number of records in all files, or `at_most` if it is less."""
        total = 0
        for path in self.paths:
            left = None if at_most is None else at_most - total
            if self._stretches is None:
                total += records.count_records(path, left)
            else:
                here = sum(one.count for one in self._stretches[path])
                total += here if left is None else min(here, left)
        return total

    def numbers(self) -> tf.data.Dataset:
        """What `read` takes: each file once, in their order."""
        return tf.data.Dataset.range(len(self.paths))

    def read(self, number: tf.Tensor) -> tf.data.Dataset:
        """The serialized examples of a file."""
        path = tf.constant(self.paths)[number]
        compression = tf.constant(
            ["GZIP" if path.endswith(".gz") else "" for path in self.paths]
        )[number]
        if self._stretches is None:
            return tf.data.TFRecordDataset(path, compression)
        sound = tf.ragged.constant(
            [self._stretches[path] for path in self.paths],
            tf.int64,
            ragged_rank=1,
            inner_shape=(2,),
        )[number]  # [stretches, 2]
        return tf.data.Dataset.from_tensor_slices(sound).flat_map(
            lambda one: read(path, compression, one[0]).take(one[1])
        )
