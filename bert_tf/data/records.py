"""The schemas of records, and TFRecord files: written, checked and read.

The writer (`encode_batch`) and the reader (`pipeline`) use the same schema, so
they cannot disagree. In all schemas, `input_ids`, `input_mask` and
`segment_ids` are padded with 0 to `max_seq_length`.

A TFRecord file is a sequence of frames: the length (uint64), the masked
CRC-32C of those 8 bytes (uint32), the data, the masked CRC-32C of the data
(uint32), all little-endian.

Writing, counting and verifying records do not import TensorFlow, so that worker
processes start quickly.
"""

import contextlib
import dataclasses
import functools
import gzip
import itertools
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Literal, NamedTuple

import google_crc32c
import numpy as np
from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError, in_file, listed

# ------------------------------------------------------------- schemas

# The features that have token ids.
VOCABULARY_FEATURES = ("input_ids", "masked_lm_ids")
# The features of a sequence that models take.
INPUTS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One fixed-length feature of a `tf.train.Example`."""

    name: str
    shape: tuple[int, ...]  # In one example; () for a single value.
    dtype: Literal["int64", "float32"] = "int64"  # In the file.
    length_option: str | None = None  # Sets the length of the last axis.

    @property
    def size(self) -> int:
        """The number of values in one example."""
        return math.prod(self.shape)

    @property
    def is_sequence(self) -> bool:
        """Whether the last axis is the padded sequence."""
        return self.length_option == "max_seq_length"


Schema = tuple[Feature, ...]


def pretraining_schema(
    max_seq_length: int, max_predictions_per_seq: int
) -> Schema:
    """Returns the features of a pre-training example, as in the original.

    The `masked_lm_*` features are padded to `max_predictions_per_seq`, with
    weight 0.0. `next_sentence_labels` is 0 for a real next segment and 1 for a
    random one.
    """
    option = "max_predictions_per_seq"
    predictions = (max_predictions_per_seq,)
    return (
        *_sequences(INPUTS, max_seq_length),
        Feature("masked_lm_positions", predictions, "int64", option),
        Feature("masked_lm_ids", predictions, "int64", option),
        Feature("masked_lm_weights", predictions, "float32", option),
        Feature("next_sentence_labels", (1,)),
    )


def classification_schema(
    max_seq_length: int,
    problem: str = "single_label",
    num_labels: int = 0,
    num_choices: int = 0,
    has_windows: bool = False,
) -> Schema:
    """Returns the features of a text, or a pair of texts, with its label.

    For multiple choice the sequences have a row for each choice, and for
    similarity one for each text of the pair. `label_ids` is the number of the
    class or of the correct choice; for regression and similarity the value,
    float32; for multi-label classification 1 for each class that applies and 0
    for the others. `is_real_example` is 0 for padding of the last batch. With a
    single label these are the features of the original's `run_classifier.py`.

    Args:
      problem: One of `examples.PROBLEMS`, or "similarity".
      num_labels: The number of classes, for multi-label classification.
      num_choices: The number of choices, for multiple choice.
      has_windows: Whether a row is a window of a text. It then also has
        `window_numbers`, from 0 in each text, and `num_windows` of the text.
    """
    sides = {"multiple_choice": (num_choices,), "similarity": (2,)}
    label = Feature(
        "label_ids",
        (num_labels,) if problem == "multi_label" else (),
        "float32" if problem in ("regression", "similarity") else "int64",
    )
    names = ("window_numbers", "num_windows") if has_windows else ()
    return (
        *_sequences(INPUTS, *sides.get(problem, ()), max_seq_length),
        label,
        Feature("is_real_example", ()),
        *(Feature(name, ()) for name in names),
    )


def tagging_schema(max_seq_length: int) -> Schema:
    """Returns the features of a sentence whose words have labels.

    `label_mask` is 1 at the first token of each word and 0 elsewhere;
    `label_ids` has the number of the word's label there, and 0 elsewhere.
    """
    return _sequences((*INPUTS, "label_ids", "label_mask"), max_seq_length)


def span_schema(max_seq_length: int) -> Schema:
    """Returns the features of a question with a window of its context.

    `start_positions` and `end_positions` are the positions of the answer's
    first and last token, or 0, the position of [CLS], if the answer is unknown
    or not in the window. `is_impossible` is 1 if the context does not contain
    the answer. The original's `run_squad.py` has the same features (in
    `FeatureWriter`), but omits the last three for prediction.
    """
    return (
        Feature("unique_ids", ()),
        *_sequences(INPUTS, max_seq_length),
        Feature("start_positions", ()),
        Feature("end_positions", ()),
        Feature("is_impossible", ()),
    )


def _sequences(names: Iterable[str], *shape: int) -> Schema:
    """Returns integer features whose last axis is the padded sequence."""
    return tuple(
        Feature(name, shape, "int64", "max_seq_length") for name in names
    )


# ------------------------------------------------- serializing examples

# Field tags of tf.train.Example: (number << 3) | 2, a length-delimited field.
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
_KIND_TAGS = {"float32": _SECOND, "int64": _THIRD}  # of tf.train.Feature

# Rows encoded at a time: enough to make NumPy's overhead per call small, few
# enough that a corpus is not copied several times.
_ROWS = 2048


class _Columns(NamedTuple):
    """Encoded bytes of n records, with gaps because varints vary in width."""

    parts: list[np.ndarray]  # uint8 [n, w] each, side by side.
    keep: list[np.ndarray]  # bool [n, w] each, False where a byte is a gap.
    sizes: np.ndarray  # int64 [n], the number of bytes kept in each row.


def encode_batch(
    schema: Schema, batch: Mapping[str, np.ndarray]
) -> list[bytes]:
    """Serializes examples to the bytes of deterministic protobuf.

    Args:
      schema: The features of an example.
      batch: For each feature an array [n, *shape] of integers or floats.
        A call has an overhead as large as 400 rows: pass a thousand or more.

    Returns:
      n serialized `tf.train.Example` protos, keys in sorted order.

    Raises:
      ValueError: An array does not have the schema's shape or kind, or arrays
        differ in n.
    """
    features = sorted(schema, key=lambda feature: feature.name)
    arrays = [_values(feature, batch[feature.name]) for feature in features]
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(
            "All features must have the same number of rows; got "
            + ", ".join(f"{k}: {np.shape(v)}" for k, v in batch.items())
        )
    encoded: list[bytes] = []
    for start in range(0, len(arrays[0]), _ROWS):
        rows = [array[start : start + _ROWS] for array in arrays]
        encoded += _encode_rows(features, rows)
    return encoded


def _values(feature: Feature, array: np.ndarray) -> np.ndarray:
    """Returns the feature's values as [n, size], floats as float32."""
    array = np.asarray(array)
    is_float = feature.dtype == "float32"
    kinds = "f" if is_float else "iub"
    if array.shape[1:] != feature.shape or array.dtype.kind not in kinds:
        raise ValueError(
            f"{feature.name} must be {feature.dtype} with shape "
            f"{['n', *feature.shape]}; got {array.dtype} {array.shape}."
        )
    flat = array.reshape(len(array), feature.size)
    return flat.astype("<f4") if is_float else flat


def _encode_rows(
    features: Iterable[Feature], arrays: Iterable[np.ndarray]
) -> Iterator[bytes]:
    entries = list(map(_encode_feature, features, arrays))
    example = _field(_FIRST, _join(entries))
    data = np.concatenate(example.parts, axis=1)
    keep = np.concatenate(example.keep, axis=1)
    encoded = data[keep].tobytes()
    ends = np.cumsum(example.sizes).tolist()
    return (encoded[a:b] for a, b in itertools.pairwise([0, *ends]))


def _encode_feature(feature: Feature, values: np.ndarray) -> _Columns:
    """Encodes one entry of the map of features: its key and its values."""
    key = _field(_FIRST, _constant(feature.name.encode(), len(values)))
    if feature.dtype == "int64":
        numbers = _varints(values)
    else:
        numbers = _full(np.ascontiguousarray(values).view(np.uint8))
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
    sizes = np.sum([column.sizes for column in columns], 0)
    return _Columns(parts, keep, sizes)


def _constant(data: bytes, rows: int) -> _Columns:
    """Repeats the same bytes in each row."""
    row = np.frombuffer(data, np.uint8)
    return _full(np.broadcast_to(row, (rows, len(data))))


def _full(part: np.ndarray) -> _Columns:
    """Makes columns without gaps from bytes [n, w]."""
    rows, width = part.shape
    keep = np.broadcast_to(np.True_, part.shape)
    return _Columns([part], [keep], np.full(rows, width))


def _varints(values: np.ndarray) -> _Columns:
    """Encodes integers [n, k] as base-128 varints.

    The lowest 7 bits come first, and the high bit of a byte says that another
    follows: 300 = 0b10_0101100 is 0xAC 0x02. A negative number is its 64-bit
    two's complement, so 10 bytes.
    """
    # The same bits in the narrowest unsigned type that holds them.
    if values.min(initial=0) < 0:
        rest = values.astype(np.int64).view(np.uint64)
    else:
        largest = int(values.max(initial=0))
        rest = values.astype(np.min_scalar_type(largest))
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


# -------------------------------------------------------- writing files

_MASK_DELTA = 0xA282EAD8
# Above this level token ids hardly shrink further, and writing gets slow.
_GZIP_LEVEL = 6

HEADER_SIZE = 12
FOOTER_SIZE = 4


def write(path: str, records: Iterable[bytes]) -> None:
    """Writes a TFRecord file, compressed if the path ends in `.gz`.

    The file appears only when it is complete. Equal records give equal bytes.
    """
    data = frame(records)
    with files.atomic_writer(path) as file:
        file.write(compress(data) if path.endswith(".gz") else data)


def frame(records: Iterable[bytes]) -> bytes:
    """Returns the bytes of a TFRecord file with these records.

    Several processes can write the parts of one file: concatenated TFRecord
    files are a TFRecord file. The same holds for gzip files, but TensorFlow
    stops reading at a part without data.
    """
    return b"".join(
        piece
        for record in records
        for piece in (header(len(record)), record, footer(record))
    )


def compress(framed: bytes) -> bytes:
    """Returns a gzip member; equal data gives equal bytes."""
    return gzip.compress(framed, _GZIP_LEVEL, mtime=0)


@functools.lru_cache(maxsize=4096)
def header(length: int) -> bytes:
    """Returns the bytes before data of this length."""
    size = struct.pack("<Q", length)
    return size + footer(size)


def footer(data: bytes) -> bytes:
    """Returns the masked checksum that follows `data`."""
    crc = google_crc32c.value(data)
    # Rotated and added to a constant, as in LevelDB.
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
    return struct.pack("<I", masked)


# ------------------------------------------------------- checking files

_DTYPE_OF_KIND = {
    "bytes_list": "bytes",
    "float_list": "float32",
    "int64_list": "int64",
}
_ADVICE = "Create or copy the file again."


class DamageError(InputError):
    """A TFRecord file is damaged or truncated."""


@contextlib.contextmanager
def suggest_skip_corrupt() -> Iterator[None]:
    """Adds to a `DamageError` the option that skips damaged records."""
    try:
        yield
    except DamageError as error:
        raise InputError(
            f"{error} Or pass `skip_corrupt_records` to skip the rest of it."
        ) from error


def count_records(path: str, at_most: int | None = None) -> int:
    """Counts records, up to `at_most`, without verifying their data.

    Raises:
      DamageError: The file is truncated or damaged.
      InputError: The file cannot be read, or is not a TFRecord file.
    """
    frames = _frames(path, read_data=False)
    return sum(1 for _ in itertools.islice(frames, at_most))


def verify(path: str) -> int:
    """Counts records as `count_records` does, and verifies all checksums."""
    return sum(1 for _ in _frames(path, read_data=True))


def check_first_record(path: str, schema: Schema) -> bool:
    """Compares the first record of a file with a schema.

    Features that the schema does not name are ignored, as in reading.

    Returns:
      False if the file is intact but has no records.

    Raises:
      InputError: A feature is missing, or has another length or type; or the
        file is not a TFRecord file of `tf.train.Example`.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    record = next(_frames(path, read_data=True), None)
    if record is None:
        return False
    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise in_file(
            path, "the first record is not a tf.train.Example."
        ) from error
    for feature in schema:
        if problem := _mismatch(feature, features):
            raise in_file(path, problem)
    return True


def _mismatch(expected: Feature, features: Any) -> str:
    """Says how a record's map of features differs from a schema, or ""."""
    name, advice = expected.name, ""
    if name not in features:
        names = listed(sorted(features)) or "empty examples"
        return f"the records have no feature {name}, only {names}."
    kind = features[name].WhichOneof("kind") or "int64_list"
    size = len(getattr(features[name], kind).value)
    if (dtype := _DTYPE_OF_KIND[kind]) != expected.dtype:
        return f"{name} must be {expected.dtype}; got {dtype}."
    if size == expected.size:
        return ""
    if expected.length_option and len(expected.shape) == 1:
        option = f"{expected.length_option}={size}"
        advice = f" Pass `{option}`, or create the records again."
    return f"{name} must have length {expected.size}; got {size}.{advice}"


def _frames(path: str, read_data: bool) -> Iterator[bytes]:
    """Yields the data of each record; b"" where the data was skipped."""
    # Seeking in a gzip file means reading. A GFile cannot seek past its end,
    # which this function does to detect a truncated file.
    can_seek = not (files.is_remote(path) or path.endswith(".gz"))
    number = position = 0  # The position counts decompressed bytes.
    with files.open_read(path) as file, files.gzip_faults(path):
        while head := file.read(HEADER_SIZE):
            place = f"record {number} (from 0) at byte {position:,}. {_ADVICE}"
            length = int.from_bytes(head[:8], "little")
            if head != header(length):
                if number == 0:
                    raise InputError(
                        f"{path} is not a TFRecord file: it starts with "
                        f"{head!r}. Make one from text with "
                        "create_pretraining_data.py."
                    )
                if len(head) < HEADER_SIZE:
                    raise DamageError(f"{path} is truncated in {place}")
                raise DamageError(f"{path} has a wrong length in {place}")
            data = b""
            if can_seek and not read_data:
                file.seek(length, os.SEEK_CUR)
            else:
                data = file.read(length)
            head = file.read(FOOTER_SIZE)
            if len(head) < FOOTER_SIZE:
                raise DamageError(f"{path} is truncated in {place}")
            if read_data and head != footer(data):
                raise DamageError(f"{path} has a wrong checksum in {place}")
            yield data
            number += 1
            position += HEADER_SIZE + length + FOOTER_SIZE


# ------------------------------------------------------- damaged files

_FILES_AT_ONCE = 16


class ReadableRecords(NamedTuple):
    """How many records of some files precede the first damaged one."""

    counts: Mapping[str, int] | None = None  # None if the files are undamaged.
    num_damaged: int = 0  # Damaged files.

    @property
    def results(self) -> dict[str, int]:
        """The count to report with a model's metrics; {} if not scanned."""
        if self.counts is None:
            return {}
        return {"damaged_files": self.num_damaged}


def find_readable(paths: Sequence[str]) -> ReadableRecords:
    """Reads TFRecord files completely; warns of damaged ones.

    Raises:
      InputError: A file cannot be read, or is not a TFRecord file.
    """
    logging.info("Reading %d file(s) to find damaged records", len(paths))
    counts, num_damaged = {}, 0
    with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        found = zip(paths, pool.map(_count_readable, paths), strict=True)
        for path, (count, fault) in found:
            counts[path] = count
            if fault:
                num_damaged += 1
                logging.warning(
                    "%s The rest of the file is skipped; the %d records before "
                    "are used",
                    fault,
                    count,
                )
    logging.info("Damaged files: %d of %d", num_damaged, len(paths))
    return ReadableRecords(counts, num_damaged)


def _count_readable(path: str) -> tuple[int, InputError | None]:
    """Returns the number of records before the damage, and the damage."""
    import tensorflow as tf

    try:
        return verify(path), None
    except InputError as error:
        fault = error
    # Count with TensorFlow, which may not return every record that precedes
    # damage in a compressed file.
    compression = "GZIP" if path.endswith(".gz") else ""
    readable = tf.data.TFRecordDataset(path, compression).ignore_errors()
    count = int(readable.reduce(np.int64(0), lambda n, _: n + 1))
    if not count and not isinstance(fault, DamageError):
        raise fault  # The file may have another format.
    return count, fault


# ---------------------------------------------------- reading with tf.data


class RecordFiles:
    """TFRecord files whose first records fit a schema.

    Args:
      paths: TFRecord files, compressed where the name ends in `.gz`; the
        attribute `paths` has those with records.
      schema: The features that will be read.
      counts: How many records of each file to read, from `find_readable`; None
        if the files are undamaged.

    Raises:
      InputError: A file cannot be read, its records do not fit the schema, or
        there are no records.
    """

    def __init__(
        self,
        paths: Sequence[str],
        schema: Schema,
        counts: Mapping[str, int] | None = None,
    ):
        self._counts = counts

        def has_records(path: str) -> bool:
            if counts is not None and not counts[path]:
                return False
            return check_first_record(path, schema)

        with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            is_usable = list(pool.map(has_records, paths))
        self.paths = list(itertools.compress(paths, is_usable))
        for path in paths:
            if path not in self.paths:
                logging.warning("%s holds no records.", path)
        if not self.paths:
            places = f" in {listed(paths)}" if paths else ""
            raise InputError(f"No records{places}.")

    def __len__(self) -> int:
        return len(self.paths)

    def count(self, at_most: int | None = None) -> int:
        """Returns the number of records, but not more than `at_most`."""
        if self._counts is not None:
            total = sum(self._counts[path] for path in self.paths)
            return total if at_most is None else min(total, at_most)
        total = 0
        for path in self.paths:
            left = None if at_most is None else at_most - total
            total += count_records(path, left)
        return total

    def examples(self) -> Any:
        """Returns a data set of the serialized examples of all files."""
        import tensorflow as tf

        return tf.data.Dataset.range(len(self.paths)).flat_map(self.read)

    def read(self, number: Any) -> Any:
        """Returns a data set of the serialized examples of `paths[number]`."""
        import tensorflow as tf

        path = tf.constant(self.paths)[number]
        compression = tf.constant(
            ["GZIP" if path.endswith(".gz") else "" for path in self.paths]
        )[number]
        examples = tf.data.TFRecordDataset(path, compression)
        if self._counts is None:
            return examples
        counts = [self._counts[path] for path in self.paths]
        return examples.take(tf.constant(counts, tf.int64)[number])
