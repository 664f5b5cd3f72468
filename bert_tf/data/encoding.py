"""Many `tf.train.Example` protos serialized at once, by NumPy.

A record of fixed features is a row of varints: tags, names and lengths are
bytes below 128, so varints too, and only floats are not. NumPy encodes
thousands of such rows in the time in which protobuf serializes a hundred.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.data.schema import Feature, Schema

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
