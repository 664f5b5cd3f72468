"""Cached records: reused, or rebuilt if anything differs."""

import dataclasses
import json
import os
from concurrent import futures

import numpy as np
import pytest

from bert_tf.data import cache, records
from bert_tf.data.records import Feature

SCHEMA = (Feature("numbers", (3,)),)
NUMBERS = np.arange(21).reshape(7, 3)


@dataclasses.dataclass(frozen=True)
class Encoding:
    vocab: tuple[str, ...] = ("a", "b")
    width: int = 3


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("some content")
    return path


@pytest.fixture
def write(tmp_path, source, caplog):
    """Writes records in parts of two; returns whether any were written."""
    caplog.set_level("INFO")

    def write(numbers=NUMBERS, encoding=Encoding(), reading=None):
        def make_blocks():
            for start in range(0, len(numbers), 2):
                batch = {"numbers": numbers[start : start + 2]}
                yield cache.make_block(SCHEMA, batch, num_cut=1)

        key = cache.key(encoding, map(bytes, numbers), [str(source)], reading)
        write.kept = cache.write_records(str(write.path), key, make_blocks)
        return write.kept.is_new

    write.path = tmp_path / "train.tf_record"
    write.manifest = tmp_path / "manifest.train.tf_record.json"
    return write


def test_records_and_manifest(write):
    assert write()
    assert write.kept == (True, 7, 4)
    expected = records.encode_batch(SCHEMA, {"numbers": NUMBERS})
    assert write.path.read_bytes() == records.frame(expected)
    manifest = json.loads(write.manifest.read_text())
    assert (manifest["records"], manifest["cut"]) == (7, 4)
    assert manifest["bytes"] == write.path.stat().st_size
    assert not write()
    assert write.kept == (False, 7, 4)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("examples", {"numbers": NUMBERS[::-1]}),
        ("reading", {"reading": {"columns": ("a", 3)}}),
        ("vocabulary", {"encoding": Encoding(vocab=("b", "a"))}),
        ("width", {"encoding": Encoding(width=4)}),
        ("sources", {}),
        ("format", {}),
    ],
)
def test_any_difference_is_logged_and_rebuilt(
    write, source, caplog, monkeypatch, part, changes
):
    assert write()
    if part == "sources":  # They are compared by content.
        times = source.stat().st_atime_ns, source.stat().st_mtime_ns
        source.write_text("same content")
        os.utime(source, ns=times)
    if part == "format":
        monkeypatch.setattr(cache, "_FORMAT", 2)
    assert write(**changes)
    [reason] = [m for m in caplog.messages if "differs in" in m]
    assert reason.endswith(f"differs in {part}")
    assert not write(**changes)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("manifest", lambda _: b"null"),
        ("manifest", lambda _: b'{"key": 3}'),
        ("manifest", lambda _: b"\xff"),
        ("path", lambda data: data[:-5]),
        ("path", lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:]),
        ("manifest", None),
        ("path", None),
    ],
)
def test_damaged_or_missing_files_are_replaced(write, name, damage):
    write()
    path = getattr(write, name)
    good = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(good))
    assert write()
    assert path.read_bytes() == good
    assert not write()


def test_concurrent_writers(write):
    with futures.ThreadPoolExecutor(5) as pool:
        written = list(pool.map(lambda _: write(), range(10)))
    assert any(written)
    assert not write()
    assert records.verify(str(write.path)) == 7
    assert len(list(write.path.parent.iterdir())) == 3
