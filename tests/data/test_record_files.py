"""The files behind a stream: which hold records, how many, in what order."""

import os

import numpy as np
import pytest

from bert_tf.data import record_files, records
from bert_tf.data.record_files import RecordFiles
from bert_tf.data.schema import Feature
from bert_tf.errors import InputError

SCHEMA = (Feature("number", ()),)


def examples(*numbers):
    return records.encode_batch(SCHEMA, {"number": np.array(numbers, int)})


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """0 to 9 in four files, one empty, one compressed."""
    folder = tmp_path_factory.mktemp("files")
    made = []
    for name, numbers in (
        ("a", range(4)),
        ("b", ()),
        ("c.gz", range(4, 7)),
        ("d", range(7, 10)),
    ):
        made.append(str(folder / name))
        with records.RecordWriter(made[-1]) as writer:
            writer.write_all(examples(*numbers))
    return made


def read(files):
    return list(files.numbers().flat_map(files.read).as_numpy_iterator())


def test_the_records_of_all_files_in_order(paths, caplog):
    files = RecordFiles(paths, SCHEMA)
    assert f"{paths[1]} holds no records" in caplog.text
    assert files.paths == [paths[0], *paths[2:]]
    assert len(files) == 3
    assert read(files) == examples(*range(10))
    counts = [files.count(at_most) for at_most in (None, 0, 3, 8, 99)]
    assert counts == [10, 0, 3, 8, 10]


def test_sound_files_are_the_same_with_stretches(paths):
    stretches = record_files.salvage(paths).stretches
    files = RecordFiles(paths, SCHEMA, stretches)
    assert files.paths == RecordFiles(paths, SCHEMA).paths
    assert read(files) == examples(*range(10))
    counts = [files.count(at_most) for at_most in (None, 0, 3, 8, 99)]
    assert counts == [10, 0, 3, 8, 10]


def test_what_is_damaged_is_left_out(paths, tmp_path):
    damaged = []
    for path in paths:
        with open(path, "rb") as file:
            data = bytearray(file.read())
        if path == paths[0]:
            size = len(data) // 4
            data[13] ^= 4  # The first record's data,
            data[2 * size] ^= 4  # and the third one's length.
        if path == paths[3]:
            data = data[:-1]
        damaged.append(str(tmp_path / path.rpartition("/")[2]))
        with open(damaged[-1], "wb") as file:
            file.write(data)
    found = record_files.salvage(damaged)
    assert found.num_faults == 3
    files = RecordFiles(damaged, SCHEMA, found.stretches)
    assert read(files) == examples(1, 3, 4, 5, 6, 7, 8)
    assert files.count() == 7
    assert files.count(at_most=4) == 4


def test_there_must_be_records(paths):
    for some in ([], [paths[1]]):
        with pytest.raises(InputError, match="Expected files with records"):
            RecordFiles(some, SCHEMA)


def test_the_first_record_of_each_has_to_fit(paths):
    other = (Feature("name", ()),)
    stretches = record_files.salvage(paths).stretches
    for some in (None, stretches):
        with pytest.raises(InputError, match="a feature name"):
            RecordFiles(paths, other, some)


def test_names_have_to_be_utf_8(tmp_path):
    path = str(tmp_path / os.fsdecode(b"a\xff"))
    with records.RecordWriter(path) as writer:
        writer.write_all(examples(3))
    with pytest.raises(InputError, match=r"must be UTF-8; got '.*/a.udcff'"):
        RecordFiles([path], SCHEMA)
