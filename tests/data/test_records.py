"""Schemas, and TFRecord files: serialized, written, checked and read."""

import gzip
import logging
import os
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import files
from bert_tf.data import records, schema
from bert_tf.data.records import RecordFiles
from bert_tf.data.schema import Feature, pretraining_schema
from bert_tf.errors import InputError

IDS = ("input_ids", "input_mask", "segment_ids")
NUMBER = (Feature("number", ()),)


def numbered(*numbers):
    """Examples with one integer each."""
    return records.encode_batch(NUMBER, {"number": np.array(numbers, int)})


def write(path, data):
    with records.RecordWriter(str(path)) as writer:
        writer.write_all(data)
    return str(path)


def error_of(function, *args):
    """Calls a function that raises an InputError; returns its one line."""
    with pytest.raises(InputError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (
            schema.pretraining_schema(11, 3),
            {
                **dict.fromkeys(IDS, (11,)),
                "masked_lm_positions": (3,),
                "masked_lm_ids": (3,),
                "masked_lm_weights": (3,),
                "next_sentence_labels": (1,),
            },
        ),
        (
            schema.classification_schema(11),
            {
                **dict.fromkeys(IDS, (11,)),
                "label_ids": (),
                "is_real_example": (),
            },
        ),
        (
            schema.classification_schema(11, "multiple_choice", 5, 3),
            {
                **dict.fromkeys(IDS, (3, 11)),
                "label_ids": (),
                "is_real_example": (),
            },
        ),
        (
            schema.tagging_schema(11),
            dict.fromkeys((*IDS, "label_ids", "label_mask"), (11,)),
        ),
        (
            schema.span_schema(11),
            {
                "unique_ids": (),
                **dict.fromkeys(IDS, (11,)),
                "start_positions": (),
                "end_positions": (),
                "is_impossible": (),
            },
        ),
    ],
)
def test_schemas_are_those_of_the_original(features, expected):
    assert {f.name: f.shape for f in features} == expected
    floats = {f.name for f in features if f.dtype == "float32"}
    assert floats == {"masked_lm_weights"} & expected.keys()
    sequences = {f.name for f in features if f.is_sequence}
    assert sequences == {n for n, s in expected.items() if s[-1:] == (11,)}
    flags = {f.length_flag for f in features if f.shape == (3,)}
    assert flags <= {"max_predictions_per_seq"}


@pytest.mark.parametrize(
    ("problem", "shape", "dtype"),
    [
        ("single_label", (), "int64"),
        ("multi_label", (5,), "int64"),
        ("regression", (), "float32"),
    ],
)
def test_labels_of_each_problem(problem, shape, dtype):
    features = schema.classification_schema(11, problem, 5, 3)
    [label] = [f for f in features if f.name == "label_ids"]
    assert (label.shape, label.dtype) == (shape, dtype)
    assert not label.is_sequence


@pytest.mark.parametrize("fields", [((5,), "int32"), ((0,),), ((3, -1),)])
def test_a_feature_needs_a_positive_shape_and_a_known_dtype(fields):
    with pytest.raises(ValueError, match="feature 'odd'"):
        Feature("odd", *fields)
    assert Feature("choices", (3, 5)).size == 15
    assert Feature("scalar", ()).size == 1


# --------------------------------------------------------- encode_batch

# The widths of varints change here, and the number ranges end.
EDGES = sorted(
    {0, -1, -(2**31), -(2**63), 2**63 - 1}
    | {2**bits + step for bits in range(7, 63, 7) for step in (-1, 0)}
)
ODD_SCHEMA = (
    Feature("z", (5,)),
    Feature("a", (2, 3), "float32"),
    Feature("é", ()),
    Feature("b" * 130, (131,)),
    Feature("B", (1,), "float32"),
)


def random_batch(features, rows, seed):
    """Numbers of every width, half of them small."""
    rng = np.random.default_rng(seed)

    def values(feature):
        shape = (rows, *feature.shape)
        if feature.dtype == "float32":
            return rng.normal(size=shape).astype(np.float32)
        wide = rng.integers(-(2**63), 2**63 - 1, shape, endpoint=True)
        small = rng.integers(0, 200, shape)
        wide >>= rng.integers(0, 64, shape)
        return np.where(rng.random(shape) < 0.5, small, wide)

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


def parse(features, serialized):
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in features
    }
    parsed = tf.io.parse_example(serialized, spec)
    return {name: tensor.numpy() for name, tensor in parsed.items()}


@pytest.mark.parametrize("rows", [0, 1, 5, 17])
@pytest.mark.parametrize("features", [ODD_SCHEMA, pretraining_schema(13, 3)])
def test_encoded_batches_equal_protobufs_bytes(features, rows, monkeypatch):
    monkeypatch.setattr(records, "_ROWS", 4)
    batch = random_batch(features, rows, seed=rows)
    encoded = records.encode_batch(features, batch)
    assert encoded == protos(features, batch)
    if rows:
        for name, values in parse(features, encoded).items():
            np.testing.assert_array_equal(values, batch[name])


def test_varints_at_the_edges_of_their_widths():
    features = (Feature("x", (3,)),)
    for value in EDGES:
        batch = {"x": np.array([[1, value, 128], [0, 0, 0]], np.int64)}
        encoded = records.encode_batch(features, batch)
        assert encoded == protos(features, batch), value


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


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 4), int), np.zeros(2, int), np.zeros((2, 3)), [["a"] * 3]],
)
def test_arrays_that_do_not_fit_the_schema_are_refused(values):
    with pytest.raises(ValueError, match=r"x must be int64 .* 3\]"):
        records.encode_batch((Feature("x", (3,)),), {"x": values})
    uneven = {"x": np.zeros((3, 3), int), "y": np.zeros(2, int)}
    with pytest.raises(ValueError, match="same number of rows"):
        records.encode_batch((Feature("x", (3,)), Feature("y", ())), uneven)


def test_records_of_the_original_are_read_and_rewritten(shared_data):
    folder = shared_data / "google_bert_outputs" / "pretraining"
    path = str(folder / "tf_examples.tfrecord")
    features = pretraining_schema(128, 20)
    assert records.check_first_record(path, features)
    assert records.verify(path) == 60
    serialized = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    batch = parse(features, serialized)
    assert batch["masked_lm_weights"].sum() == 922
    encoded = records.encode_batch(features, batch)
    theirs, ours = (
        [tf.train.Example.FromString(record) for record in examples]
        for examples in (serialized, encoded)
    )
    assert ours == theirs


# -------------------------------------------------------------- writing


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["local", "ram://writer"])
def test_tensorflow_reads_what_the_writer_wrote(tmp_path, folder, suffix):
    folder = str(tmp_path) if folder == "local" else folder
    data = [bytes([i % 256]) * i for i in range(300)]
    path = write(f"{folder}/f.tfrecord{suffix}", data)
    read = tf.data.TFRecordDataset(path, "GZIP" if suffix else None)
    assert list(read.as_numpy_iterator()) == data
    assert records.count_records(path) == records.verify(path) == 300
    assert records.count_records(path, at_most=7) == 7


def test_the_writers_bytes_are_tensorflows(tmp_path, monkeypatch):
    data = [b"", b"abc", bytes(range(256)) * 41]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in data:
            writer.write(record)
    write(tmp_path / "ours", data)
    theirs = (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "ours").read_bytes() == theirs
    # Compressed bytes do not depend on the name or the time.
    write(tmp_path / "a.gz", data)
    monkeypatch.setattr("time.time", lambda: 1e9)
    write(tmp_path / "b.gz", data)
    compressed = (tmp_path / "a.gz").read_bytes()
    assert compressed == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress(compressed) == theirs


@pytest.mark.parametrize("name", ["f", "f.gz"])
def test_an_interrupted_writer_leaves_no_file(tmp_path, name):
    def interrupted():
        yield b"abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / name, interrupted())
    assert not list(tmp_path.iterdir())


def test_concatenated_parts_are_one_file(tmp_path):
    parts = [[b"a" * 7, b""], [b"b" * 301]]
    plain, compressed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_bytes(b"".join(map(records.frame, parts)))
    compressed.write_bytes(
        b"".join(records.compress(records.frame(part)) for part in parts)
    )
    assert records.verify(str(plain)) == records.verify(str(compressed)) == 3
    dataset = tf.data.TFRecordDataset(str(compressed), "GZIP")
    assert list(dataset.as_numpy_iterator()) == parts[0] + parts[1]


# ------------------------------------------------------------- checking


@pytest.fixture
def three(tmp_path):
    """The bytes of a file with records of 50, 70 and 30 bytes, and a path."""
    data = records.frame([b"x" * size for size in (50, 70, 30)])
    return bytearray(data), tmp_path / "f"


def test_every_cut_is_noticed(three):
    data, path = three
    ends = {0: 0, 66: 1, 152: 2, 198: 3}
    assert len(data) == max(ends)
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        for function in (records.count_records, records.verify):
            if cut in ends:
                assert function(str(path)) == ends[cut]
                continue
            message = error_of(function, str(path))
            if cut < records.HEADER_SIZE:
                assert f"{path} is not a TFRecord file" in message
            else:
                number = max(n for end, n in ends.items() if end < cut)
                start = max(end for end in ends if end < cut)
                assert message == (
                    f"{path} is cut off within record {number} (from 0) at "
                    f"byte {start}. Create or copy the file again."
                )


def test_every_flipped_byte_is_noticed(three):
    data, path = three
    for place in range(len(data)):
        data[place] ^= 4
        path.write_bytes(data)
        message = error_of(records.verify, str(path))
        assert str(path) in message
        if place >= 66 + records.HEADER_SIZE:
            record, start = (1, 66) if place < 152 else (2, 152)
            assert f"record {record} (from 0) at byte {start}" in message
        data[place] ^= 4


def test_counting_checks_lengths_but_does_not_read_data(three):
    data, path = three
    data[100] ^= 4
    path.write_bytes(data)
    assert records.count_records(str(path)) == 3
    assert "wrong checksum in record 1" in error_of(records.verify, str(path))
    data[66] ^= 4
    path.write_bytes(data)
    message = error_of(records.count_records, str(path))
    assert "wrong length in record 1" in message


def test_files_of_other_kinds_and_damaged_compression(three):
    data, path = three
    for text in (b"id\ttext\n" * 9, b"short"):
        path.write_bytes(text)
        message = error_of(records.count_records, str(path))
        assert f"{path} is not a TFRecord file" in message
    path = path.with_suffix(".gz")
    whole = gzip.compress(data)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged in (whole[:-30], bytes(flipped), b"plain text" * 9):
        path.write_bytes(damaged)
        for function in (records.count_records, records.verify):
            assert str(path) in error_of(function, str(path))
    remote = "ram://records/cut"
    with files.atomic_writer(remote) as file:
        file.write(data[:-20])
    assert "cut off" in error_of(records.count_records, remote)


def test_the_first_record_is_compared_with_the_schema(tmp_path):
    features = pretraining_schema(13, 7)
    zeros = {f.name: np.zeros((3, *f.shape), f.dtype) for f in features}
    for name in ("f.gz", "f"):
        path = write(tmp_path / name, records.encode_batch(features, zeros))
        assert records.check_first_record(path, features)
        assert records.check_first_record(path, features[2:])
    assert not records.check_first_record(write(tmp_path / "0", []), features)
    foreign = write(tmp_path / "g", [b"hello"])
    for checked, file, message in (
        (
            pretraining_schema(13, 5),
            path,
            "masked_lm_positions must have length 5 "
            "(--max_predictions_per_seq=5); got 7. Pass "
            "--max_predictions_per_seq=7, or create the records again.",
        ),
        (
            (Feature("input_ids", (2, 3)),),
            path,
            "input_ids must have length 6; got 13.",
        ),
        (
            (Feature("input_ids", (13,), "float32"),),
            path,
            "input_ids must be float32; got int64.",
        ),
        (
            (Feature("y", ()),),
            path,
            "the records have no feature y, only input_ids, input_mask, "
            "masked_lm_ids, masked_lm_positions, masked_lm_weights, "
            "next_sentence_labels and segment_ids.",
        ),
        (NUMBER, foreign, "the first record is not a tf.train.Example."),
    ):
        found = error_of(records.check_first_record, file, checked)
        assert found == f"{file}: {message}"


# -------------------------------------------------------- damaged files

RECORDS = [bytes([n]) * (5 * n + 3) for n in range(9)]
# Where each record begins, and where the last one ends.
STARTS = [0]
for _record in RECORDS:
    STARTS.append(STARTS[-1] + 16 + len(_record))


def record_at(place):
    """The number of the record with a byte."""
    return max(n for n in range(9) if STARTS[n] <= place)


@pytest.fixture
def damaged(tmp_path):
    """Writes a file of what a function makes of the bytes of RECORDS."""

    def write(change=bytes, name="a.tfrecord"):
        path = tmp_path / name
        path.write_bytes(change(bytearray(records.frame(RECORDS))))
        return str(path)

    return write


def flip(*places):
    def change(data):
        for place in places:
            data[place] ^= 4
        return data

    return change


def readable(path):
    """What TensorFlow reads of the intact ranges, and the faults."""
    ranges, faults = records.scan_file(path)
    compression = "GZIP" if path.endswith(".gz") else ""
    found = []
    for offset, count in ranges:
        dataset = records.dataset_from(path, compression, offset).take(count)
        some = list(dataset.as_numpy_iterator())
        assert len(some) == count
        found += some
    return found, faults


def intact_numbers(path):
    """The numbers in RECORDS of the intact ranges, found by their bytes."""
    ranges, _ = records.scan_file(path)
    data = files.open_read(path).read()
    found = []
    for offset, count in ranges:
        for _ in range(count):
            record = RECORDS[data[offset + records.HEADER_SIZE]]
            framed = records.frame([record])
            assert data[offset : offset + len(framed)] == framed
            found.append(record[0])
            offset += len(framed)
    return found


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_an_undamaged_file_is_one_range(damaged, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    path = damaged(pack, name)
    assert records.scan_file(path) == ([(0, 9)], [])
    assert readable(path) == (RECORDS, [])
    assert records.scan_file(damaged(lambda data: b"")) == ([], [])


def test_a_flipped_byte_costs_one_record():
    path = "ram://damaged/flipped"
    for place in range(STARTS[-1]):
        with files.atomic_writer(path) as file:
            file.write(flip(place)(bytearray(records.frame(RECORDS))))
        ranges, faults = records.scan_file(path)
        number = record_at(place)
        before, after = (0, number), (STARTS[number + 1], 8 - number)
        assert ranges == [r for r in (before, after) if r[1]]
        assert faults == [
            f"{16 + len(RECORDS[number])} bytes from record {number} (from 0) "
            f"on, at byte {STARTS[number]}"
        ]


def test_a_cut_ends_the_file(damaged):
    for cut in range(1, STARTS[-1], 3):
        number = record_at(cut)
        path = damaged(lambda data, cut=cut: data[:cut])
        if number == 0:
            assert path in error_of(records.scan_file, path)
            continue
        ranges, faults = records.scan_file(path)
        assert ranges == [(0, number)]
        assert len(faults) == (cut != STARTS[number])


def cut_out(data):
    """From within record 2 to within record 4."""
    return data[: STARTS[2] + 14] + data[STARTS[4] + 3 :]


def put_in(data):
    """Before record 3, bytes that look almost like records."""
    mad = records.header(5) + b"x" * 40 + records.header(10**9)
    return data[: STARTS[3]] + mad + data[STARTS[3] :]


def zero(data):
    """Most of record 4, record 5 and the length of record 6, as of a disk."""
    first, last = STARTS[4] + 9, STARTS[6] + 5
    return data[:first] + bytes(last - first) + data[last:]


def zero_the_end(data):
    return data[: STARTS[7] + 3] + bytes(3 << 20)


@pytest.mark.parametrize(
    ("change", "lost", "num_faults"),
    [
        (flip(STARTS[2] + 13, STARTS[3] + 2, STARTS[6]), {2, 3, 6}, 2),
        (flip(0, STARTS[-1] - 1), {0, 8}, 2),
        (cut_out, {2, 3, 4}, 1),
        (put_in, set(), 1),
        (zero, {4, 5, 6}, 1),
        (zero_the_end, {7, 8}, 1),
    ],
)
def test_all_intact_records_are_found(damaged, change, lost, num_faults):
    found, faults = readable(damaged(change))
    assert found == [r for n, r in enumerate(RECORDS) if n not in lost]
    assert len(faults) == num_faults


def test_records_across_the_blocks_of_a_search(damaged, monkeypatch):
    path = damaged(cut_out)
    for size in range(12, 60):
        monkeypatch.setattr(records, "_BLOCK_SIZE", size)
        assert intact_numbers(path) == [0, 1, 5, 6, 7, 8]


def test_random_damage(damaged):
    rng = random.Random(7)
    for _ in range(100):
        places = rng.sample(range(STARTS[-1]), rng.randrange(1, 4))
        hit = set(map(record_at, places))
        found = intact_numbers(damaged(flip(*places)))
        assert found == [n for n in range(9) if n not in hit]


@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_of_a_compressed_file_the_beginning_is_read(tmp_path, cut):
    rng = random.Random(3)
    many = [rng.randbytes(1000) for _ in range(900)]
    packed = gzip.compress(records.frame(many))
    path = tmp_path / "a.tfrecord.gz"
    place = int(len(packed) * cut)
    for data in (packed[:place], flip(place)(bytearray(packed))):
        path.write_bytes(data)
        found, [fault] = readable(str(path))
        assert found == many[: len(found)]
        assert 900 * cut - 300 < len(found) <= 900 * cut
        assert str(path) in fault


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt.gz"])
def test_scanning_another_kind_of_file_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"These are no records at all.\n" * 9)
    assert name in error_of(records.scan_file, str(path))


def test_damaged_files_are_logged_and_counted(damaged, caplog):
    caplog.set_level(logging.WARNING)
    whole = damaged()
    hurt = damaged(flip(STARTS[3] + 13, STARTS[7]), "hurt")
    found = records.find_readable([whole, hurt])
    assert found.results == {"skipped_records": 2}
    assert found.ranges == {
        whole: [(0, 9)],
        hurt: [(0, 3), (STARTS[4], 3), (STARTS[8], 1)],
    }
    assert caplog.messages == [
        f"{hurt}: 2 damaged place(s) are skipped; the first: 34 bytes from "
        f"record 3 (from 0) on, at byte {STARTS[3]}"
    ]
    assert records.ReadableRecords().results == {}
    assert records.ReadableRecords({}, 0).results == {"skipped_records": 0}


def test_the_flag_that_skips_is_suggested_for_damage_alone(damaged):
    def verify(path):
        with records.suggest_skip_corrupt():
            records.verify(path)

    message = error_of(verify, damaged(flip(STARTS[3] + 13)))
    assert "again. Or pass --skip_corrupt_records" in message
    assert "skip_corrupt" not in error_of(verify, damaged(lambda d: b"text"))


# ---------------------------------------------------------- RecordFiles


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """0 to 9 in four files, one empty, one compressed."""
    folder = tmp_path_factory.mktemp("files")
    return [
        write(folder / name, numbered(*numbers))
        for name, numbers in (
            ("a", range(4)),
            ("b", ()),
            ("c.gz", range(4, 7)),
            ("d", range(7, 10)),
        )
    ]


def read_all(found):
    return list(found.numbers().flat_map(found.read).as_numpy_iterator())


@pytest.mark.parametrize("is_scanned", [False, True])
def test_files_are_counted_and_read_in_order(paths, is_scanned, caplog):
    ranges = records.find_readable(paths).ranges if is_scanned else None
    found = RecordFiles(paths, NUMBER, ranges)
    assert f"{paths[1]} holds no records" in caplog.text
    assert found.paths == [paths[0], *paths[2:]]
    assert len(found) == 3
    assert read_all(found) == numbered(*range(10))
    counts = [found.count(at_most) for at_most in (None, 0, 3, 8, 99)]
    assert counts == [10, 0, 3, 8, 10]
    with pytest.raises(InputError, match="no feature name"):
        RecordFiles(paths, (Feature("name", ()),), ranges)


def test_damaged_records_are_skipped(paths, tmp_path):
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
    readable = records.find_readable(damaged)
    assert readable.num_faults == 3
    found = RecordFiles(damaged, NUMBER, readable.ranges)
    assert read_all(found) == numbered(1, 3, 4, 5, 6, 7, 8)
    assert [found.count(), found.count(at_most=4)] == [7, 4]


def test_files_need_records_and_utf_8_names(paths, tmp_path):
    for some in ([], [paths[1]]):
        with pytest.raises(InputError, match="No records in"):
            RecordFiles(some, NUMBER)
    path = write(tmp_path / os.fsdecode(b"a\xff"), numbered(3))
    with pytest.raises(InputError, match=r"must be UTF-8; got '.*/a.udcff'"):
        RecordFiles([path], NUMBER)
