"""Records of a fine-tuning data set, reused until an input changes.

A manifest next to the records holds a key: everything that determines their
content. If the key differs, or the file is damaged, the records are written
again.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf.base import files
from bert_tf.data import records
from bert_tf.data.records import Schema
from bert_tf.errors import InputError

# Increment this when the records of the same examples change.
_FORMAT = 1


class RecordBlock(NamedTuple):
    """Consecutive records of a file."""

    data: bytes  # From `records.frame`.
    num_records: int
    num_cut: int = 0  # Examples, or words, that did not fit completely.
    num_examples: int = 0


class CachedRecords(NamedTuple):
    """The records of a file; see `RecordBlock`."""

    is_new: bool  # False if an existing file was reused.
    num_records: int
    num_cut: int


def key(
    encoding: Any,
    contents: Iterable[bytes],
    sources: Iterable[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns everything that determines records, as JSON values.

    Args:
      encoding: How examples become features: a dataclass with a `vocab`.
      contents: For each example, the bytes that determine its records.
      sources: The files that the examples were read from.
      reading: Other settings that the records depend on, as JSON values.
    """
    settings = {
        field.name: getattr(encoding, field.name)
        for field in dataclasses.fields(encoding)
    }
    vocab = settings.pop("vocab")
    facts = {
        "format": _FORMAT,
        "sources": list(map(files.checksum, sources)),
        "reading": reading or {},
        "examples": checksum(contents),
        "vocabulary": checksum(f"{token}\n".encode() for token in vocab),
        **settings,
    }
    return json.loads(json.dumps(facts))


def checksum(blocks: Iterable[bytes]) -> str:
    """Returns the SHA-256 of joined blocks, as hexadecimal digits."""
    result = hashlib.sha256()
    for block in blocks:
        result.update(block)
    return result.hexdigest()


def make_block(
    schema: Schema,
    batch: Mapping[str, np.ndarray],
    num_cut: int = 0,
    num_examples: int = 0,
) -> RecordBlock:
    """Serializes a batch, a dict of arrays [n, *shape]."""
    serialized = records.encode_batch(schema, batch)
    return RecordBlock(
        records.frame(serialized), len(serialized), num_cut, num_examples
    )


def write_records(
    path: str,
    wanted: Mapping[str, Any],
    make_blocks: Callable[[], Iterable[RecordBlock]],
) -> CachedRecords:
    """Writes records, unless the file already has them.

    Several processes may write at once: each writes to a temporary file and
    renames it, and equal blocks give equal bytes.

    Args:
      path: The TFRecord file; its manifest is written too.
      wanted: The `key` of the records.
      make_blocks: Returns the blocks of the file in order.
    """
    reusable = _reusable(path, wanted)
    manifest = reusable or _write(path, wanted, make_blocks())
    return CachedRecords(reusable is None, manifest["records"], manifest["cut"])


def _reusable(path: str, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest of a file with the same records, or None."""
    reason = "there is no undamaged file"
    manifest_path = files.manifest_path(path)
    if files.exists(path) and files.exists(manifest_path):
        with contextlib.suppress(InputError):
            manifest = files.read_json(manifest_path)
            if manifest.get("sha256") == files.checksum(path):
                recorded = manifest["key"]
                differing = [
                    name
                    for name in {**wanted, **recorded}
                    if recorded.get(name) != wanted.get(name)
                ]
                if not differing:
                    logging.info("Reusing %s, which is up to date", path)
                    return manifest
                reason = f"the existing file differs in {', '.join(differing)}"
    logging.info("Writing the records %s: %s", path, reason)
    return None


def _write(
    path: str, wanted: Mapping[str, Any], blocks: Iterable[RecordBlock]
) -> dict[str, Any]:
    """Writes the records and the manifest; returns the manifest."""
    digest, num_bytes, num_records, num_cut = hashlib.sha256(), 0, 0, 0
    with (
        # Opened first, so that it is renamed last, after the records.
        files.atomic_writer(files.manifest_path(path)) as manifest_file,
        files.atomic_writer(path) as record_file,
    ):
        for block in blocks:
            record_file.write(block.data)
            digest.update(block.data)
            num_bytes += len(block.data)
            num_records += block.num_records
            num_cut += block.num_cut
        manifest = {
            "key": dict(wanted),
            "records": num_records,
            "cut": num_cut,
            "bytes": num_bytes,
            "sha256": digest.hexdigest(),
        }
        manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    return manifest
