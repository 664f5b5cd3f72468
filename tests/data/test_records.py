"""Schemas, and TFRecord files: serialized, written, checked and read."""

import gzip
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base import files
from bert_tf.data import records
from bert_tf.data.records import Feature, RecordFiles, pretraining_schema
from bert_tf.errors import InputError

NUMBER = (Feature("number", ()),)


def numbered(*numbers):
    """Examples with one integer each."""
    return records.encode_batch(NUMBER, {"number": np.array(numbers, int)})


def write_records(path, data):
    records.write(str(path), data)
    return str(path)


def find_readable(*paths):
    return records.find_readable(paths)


def error_of(function, *args):
    """Calls a function that raises an InputError; returns its one line."""
    with pytest.raises(InputError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The widths of varints change here, and the number ranges end.
EDGES = [0, -1, -(2**31), -(2**63), 2**63 - 1]
EDGES += [2**bits + step for bits in range(7, 63, 7) for step in (-1, 0)]
ODD_SCHEMA = (
    Feature("z", (5,)),
    Feature("a", (2, 3), "float32"),
    Feature("é", ()),
    Feature("b" * 130, (131,)),
    Feature("B", (1,), "float32"),
)


def random_batch(features, rows, seed):
    """Numbers of every width, a third of them small."""
    rng = np.random.default_rng(seed)

    def values(feature):
        shape = (rows, *feature.shape)
        if feature.dtype == "float32":
            return rng.normal(size=shape).astype(np.float32)
        wide = rng.integers(-(2**63), 2**63 - 1, shape, endpoint=True)
        wide >>= rng.integers(0, 64, shape)
        small, edges = rng.integers(0, 200, shape), rng.choice(EDGES, shape)
        return np.choose(rng.integers(0, 3, shape), [wide, small, edges])

    return {feature.name: values(feature) for feature in features}


def protos(features, batch):
    """Serializes the same examples with protobuf."""
    made = []
    for row in range(len(next(iter(batch.values())))):
        example = tf.train.Example()
        for feature in features:
            target = example.features.feature[feature.name]
            values = batch[feature.name][row].reshape(-1).tolist()
            if feature.dtype == "float32":
                target.float_list.value.extend(values)
            else:
                target.int64_list.value.extend(values)
        made.append(example.SerializeToString(deterministic=True))
    return made


@pytest.mark.parametrize("rows", [0, 1, 17])
@pytest.mark.parametrize("features", [ODD_SCHEMA, pretraining_schema(13, 3)])
def test_encoded_batches_equal_protobufs_bytes(features, rows, monkeypatch):
    monkeypatch.setattr(records, "_ROWS", 4)
    batch = random_batch(features, rows, seed=rows)
    assert records.encode_batch(features, batch) == protos(features, batch)


def test_every_kind_of_array_is_encoded():
    features = (Feature("x", (3,)), Feature("y", (2,), "float32"))
    x = np.arange(30).reshape(5, 6)[:, ::2] % 2
    y = np.asfortranarray(np.arange(10, dtype=np.float32).reshape(5, 2))
    y[0] = [-0.0, np.inf]
    expected = protos(features, {"x": x, "y": y})
    for dtype in (bool, np.int8, np.uint16, np.int32, np.uint64):
        batch = {"x": x.astype(dtype), "y": y.astype(np.float64)}
        assert records.encode_batch(features, batch) == expected
    wide = np.array([[300, 70_000, 2**40]], np.uint64)
    records.encode_batch(features[:1], {"x": wide})
    assert wide.tolist() == [[300, 70_000, 2**40]]


@pytest.mark.parametrize("values", [np.zeros((2, 4), int), np.zeros((2, 3))])
def test_arrays_that_do_not_fit_the_schema_are_refused(values):
    with pytest.raises(ValueError, match=r"x must be int64 .* 3\]"):
        records.encode_batch((Feature("x", (3,)),), {"x": values})


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["local", "ram://writer"])
def test_tensorflow_reads_what_the_writer_wrote(tmp_path, folder, suffix):
    folder = str(tmp_path) if folder == "local" else folder
    data = [bytes([i % 256]) * i for i in range(300)]
    path = write_records(f"{folder}/f.tfrecord{suffix}", data)
    read = tf.data.TFRecordDataset(path, "GZIP" if suffix else None)
    assert list(read.as_numpy_iterator()) == data
    assert records.count_records(path) == records.verify(path) == 300
    assert records.count_records(path, at_most=7) == 7


def test_the_writers_bytes_are_tensorflows(tmp_path, monkeypatch):
    data = [b"", b"abc", bytes(range(256)) * 41]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in data:
            writer.write(record)
    theirs = (tmp_path / "theirs").read_bytes()
    write_records(tmp_path / "ours", data)
    assert (tmp_path / "ours").read_bytes() == theirs
    # Compressed bytes do not depend on the name or the time.
    write_records(tmp_path / "a.gz", data)
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_records(tmp_path / "b.gz", data)
    compressed = (tmp_path / "a.gz").read_bytes()
    assert compressed == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress(compressed) == theirs


# The header of record 7 begins with a zero.
RECORDS = [bytes([n]) * (256 if n == 7 else 5 * n + 3) for n in range(9)]
DATA = records.frame(RECORDS)
# Where each record begins, and where the last one ends.
STARTS = [0]
for _record in RECORDS:
    STARTS.append(STARTS[-1] + 16 + len(_record))


def record_at(place):
    """The number of the record with a byte."""
    return max(n for n in range(9) if STARTS[n] <= place)


def flip(*places):
    data = bytearray(DATA)
    for place in places:
        data[place] ^= 4
    return bytes(data)


def test_every_cut_is_noticed(write):
    for cut in range(len(DATA) + 1):
        path = write(DATA[:cut])
        for function in (records.count_records, records.verify):
            if cut in STARTS:
                assert function(path) == STARTS.index(cut)
                continue
            number = record_at(cut)
            message = f"{path} is truncated in record {number} (from 0) at "
            message += f"byte {STARTS[number]}. Create or copy the file again."
            if cut < records.HEADER_SIZE:
                message = f"{path} is not a TFRecord file"
            assert message in error_of(function, path)


def test_every_flipped_byte_is_noticed(write):
    for place in range(len(DATA)):
        path, number = write(flip(place)), record_at(place)
        where = f"in record {number} (from 0) at byte {STARTS[number]}"
        if place < records.HEADER_SIZE:
            message = f"{path} is not a TFRecord file"
        elif place < STARTS[number] + records.HEADER_SIZE:
            message = f"{path} has a wrong length {where}"
        else:  # Counting does not read data.
            message = f"{path} has a wrong checksum {where}"
            assert records.count_records(path) == 9
        assert message in error_of(records.verify, path)


def test_files_of_other_kinds_and_remote_files(write):
    for function in records.count_records, records.verify, find_readable:
        path = write(b"id\ttext\n" * 9)
        assert f"{path} is not a TFRecord" in error_of(function, path)
        path = write(b"short", "a.gz")
        assert path in error_of(function, path)
    remote = "ram://records/cut"
    with files.atomic_writer(remote) as file:
        file.write(DATA[:-20])
    assert "truncated" in error_of(records.count_records, remote)
    assert find_readable(remote).counts == {remote: 8}


def test_the_first_record_is_compared_with_the_schema(tmp_path):
    features = pretraining_schema(13, 7)
    zeros = {f.name: np.zeros((3, *f.shape), f.dtype) for f in features}
    for name in ("f.gz", "f"):
        encoded = records.encode_batch(features, zeros)
        path = write_records(tmp_path / name, encoded)
        assert records.check_first_record(path, features)
        assert records.check_first_record(path, features[2:])
    empty = write_records(tmp_path / "0", [])
    assert not records.check_first_record(empty, features)
    foreign = write_records(tmp_path / "g", [b"hello"])
    number = (Feature("input_ids", (13,), "float32"),)
    for checked, file, message in (
        (
            pretraining_schema(13, 5),
            path,
            "masked_lm_positions must have length 5; got 7. Pass "
            "`max_predictions_per_seq=7`, or create the records again.",
        ),
        (number, path, "input_ids must be float32; got int64."),
        (NUMBER, path, "the records have no feature number, only input_ids, "),
        (NUMBER, foreign, "the first record is not a tf.train.Example."),
    ):
        found = error_of(records.check_first_record, file, checked)
        assert found.startswith(f"{file}: ")
        assert message in found


def test_records_before_the_damage_are_read(write, caplog):
    whole, empty = write(DATA), write(b"", "empty")
    hurt = write(flip(STARTS[3] + 13, STARTS[7]), "hurt")
    at_once = write(flip(13), "at_once")
    caplog.set_level("WARNING")
    found = find_readable(whole, empty, hurt, at_once)
    assert found.counts == {whole: 9, empty: 0, hurt: 3, at_once: 0}
    assert found.results == {"damaged_files": 2}
    assert caplog.messages[0].startswith(f"{hurt} has a wrong checksum in rec")
    assert caplog.messages[0].endswith("; the 3 records before are used")
    assert records.ReadableRecords().results == {}
    assert records.ReadableRecords({}).results == {"damaged_files": 0}


def test_of_a_damaged_compressed_file_the_beginning_is_read(write):
    rng = random.Random(3)
    many = [rng.randbytes(1000) for _ in range(900)]
    packed = gzip.compress(records.frame(many))
    half = len(packed) // 2
    flipped = packed[:half] + bytes([packed[half] ^ 4]) + packed[half + 1 :]
    for data in (packed[:half], flipped):
        path = write(data, "a.gz")
        assert path in error_of(records.verify, path)
        count = find_readable(path).counts[path]
        assert 150 < count <= 450
        readable = tf.data.TFRecordDataset(path, "GZIP").take(count)
        assert list(readable.as_numpy_iterator()) == many[:count]


def test_the_flag_that_skips_is_suggested_for_damage_alone(write):
    verify = records.suggest_skip_corrupt()(records.verify)
    message = error_of(verify, write(flip(STARTS[3] + 13)))
    assert "again. Or pass `skip_corrupt_records`" in message
    assert "skip_corrupt" not in error_of(verify, write(b"text"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """0 to 9 in four files, one empty, one compressed."""
    folder = tmp_path_factory.mktemp("files")
    contents = {"a": range(4), "b": (), "c.gz": range(4, 7), "d": range(7, 10)}
    return [
        write_records(folder / name, numbered(*numbers))
        for name, numbers in contents.items()
    ]


@pytest.mark.parametrize("is_scanned", [False, True])
def test_files_are_counted_and_read_in_order(paths, is_scanned, caplog):
    counts = find_readable(*paths).counts if is_scanned else None
    found = RecordFiles(paths, NUMBER, counts)
    assert f"{paths[1]} holds no records" in caplog.text
    assert found.paths == [paths[0], *paths[2:]]
    assert len(found) == 3
    read = found.examples().as_numpy_iterator()
    assert list(read) == numbered(*range(10))
    limits = (None, 0, 3, 8, 99)
    assert [found.count(at_most) for at_most in limits] == [10, 0, 3, 8, 10]
    with pytest.raises(InputError, match="no feature name"):
        RecordFiles(paths, (Feature("name", ()),), counts)


def test_files_need_records(paths):
    for some in ([], [paths[1]]):
        with pytest.raises(InputError, match="No records"):
            RecordFiles(some, NUMBER)
