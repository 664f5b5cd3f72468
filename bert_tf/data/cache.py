"""Files of records that are kept for as long as nothing changes.

A manifest beside the records tells all that shaped them; when any of it
differs they are made anew, whatever the times of the files say.
"""

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf import files
from bert_tf.data import records
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError

# To be raised when the same examples are to give other records.
_FORMAT = 1

_BLOCK_SIZE = 1 << 20


class Part(NamedTuple):
    """A piece of the file: its bytes, and what they hold.

    Attributes:
      data: Framed records.
      num_records: How many.
      num_cut: How many of them lack a part of their example.
    """

    data: bytes
    num_records: int
    num_cut: int = 0


class Kept(NamedTuple):
    """What there is now.

    Attributes:
      is_new: Whether it was made just now.
      num_records: Records of the file.
      num_cut: How many of them lack a part of their example.
    """

    is_new: bool
    num_records: int
    num_cut: int


def key(
    encoding: Any,
    contents: Iterable[bytes],
    sources: Iterable[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that shapes records, as JSON gives it back.

    Args:
      encoding: How examples become features: a dataclass with a `vocab`.
      contents: What shows of each example in its records.
      sources: The files that the examples came from.
      reading: What else decided on the examples; whatever JSON can hold.

    Raises:
      InputError: A source cannot be read.
    """
    settings = {
        field.name: getattr(encoding, field.name)
        for field in dataclasses.fields(encoding)
    }
    vocab = settings.pop("vocab")
    found = {
        "format": _FORMAT,
        "sources": list(map(_file_checksum, sources)),
        "reading": reading or {},
        "examples": checksum(contents),
        "vocabulary": checksum(f"{token}\n".encode() for token in vocab),
        **settings,
    }
    return json.loads(json.dumps(found))


def checksum(blocks: Iterable[bytes]) -> str:
    """What tells bytes from others; hex."""
    result = hashlib.sha256()
    for block in blocks:
        result.update(block)
    return result.hexdigest()


def make_part(
    schema: Schema, batch: Mapping[str, np.ndarray], num_cut: int = 0
) -> Part:
    """Serializes a batch, a dict of arrays [n, *shape]."""
    serialized = records.encode_batch(schema, batch)
    return Part(records.frame(serialized), len(serialized), num_cut)


def write_records(
    path: str,
    wanted: Mapping[str, Any],
    make_parts: Callable[[], Iterable[Part]],
) -> Kept:
    """Writes records, unless they are there already.

    Several processes may do so at once: each writes aside and renames, and
    equal parts are equal bytes.

    Args:
      path: The TFRecord file; `files.manifest_path` of it is written too.
      wanted: What shapes the records, from `key`.
      make_parts: Gives the pieces of the file, in order.

    Raises:
      InputError: A file cannot be written.
    """
    reason = _reason_to_write(path, wanted)
    if reason:
        logging.info("Writing %s: %s", path, reason)
        manifest = _write(path, wanted, make_parts())
    else:
        logging.info(
            "Using %s again: same examples, vocabulary and settings", path
        )
        manifest = files.read_json(files.manifest_path(path))
    return Kept(reason is not None, manifest["records"], manifest["cut"])


def _file_checksum(path: str) -> str:
    with files.open_read(path) as file, files.gzip_faults(path):
        return checksum(_blocks(file))


def _blocks(file: io.BufferedIOBase) -> Iterator[bytes]:
    while block := file.read(_BLOCK_SIZE):
        yield block


def _reason_to_write(path: str, wanted: Mapping[str, Any]) -> str | None:
    """Why records of this key are not there, or None if they are."""
    if not files.exists(path):
        return "it is not there yet"
    manifest_path = files.manifest_path(path)
    if not files.exists(manifest_path):
        return "there is no manifest beside the one that is there"
    try:
        manifest = files.read_json(manifest_path)
    except InputError as error:
        return f"the manifest of the one that is there is damaged: {error}"
    if differing := _differing(manifest.get("key"), wanted):
        return f"the one that is there has other {', '.join(differing)}"
    if manifest.get("sha256") != _file_checksum(path):
        return "the one that is there is damaged"
    return None


def _differing(found: Any, wanted: Mapping[str, Any]) -> list[str]:
    """Names of the parts in which two keys differ."""
    if not isinstance(found, dict):
        return list(wanted)
    names = dict.fromkeys([*wanted, *found])
    missing = object()
    return [
        name
        for name in names
        if found.get(name, missing) != wanted.get(name, missing)
    ]


def _write(
    path: str, wanted: Mapping[str, Any], parts: Iterable[Part]
) -> dict[str, Any]:
    """Writes records and manifest; returns the latter."""
    digest, num_bytes, num_records, num_cut = hashlib.sha256(), 0, 0, 0
    with (
        # The manifest first, which makes it the last to be renamed.
        files.atomic_writer(files.manifest_path(path)) as manifest_file,
        files.atomic_writer(path) as record_file,
    ):
        for part in parts:
            record_file.write(part.data)
            digest.update(part.data)
            num_bytes += len(part.data)
            num_records += part.num_records
            num_cut += part.num_cut
        manifest = {
            "key": dict(wanted),
            "records": num_records,
            "cut": num_cut,
            "bytes": num_bytes,
            "sha256": digest.hexdigest(),
        }
        manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    return manifest
