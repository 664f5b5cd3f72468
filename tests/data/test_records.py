import gzip

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.schema import Feature, pretraining_schema
from bert_tf.errors import InputError

# Where a varint gets another byte, and the ends of the number ranges.
_EDGES = sorted(
    {0, -1, -(2**31), -(2**63), 2**63 - 1}
    | {2**bits + step for bits in range(7, 63, 7) for step in (-1, 0)}
)
_ODD_SCHEMA = (
    Feature("z", (5,)),
    Feature("a", (2, 3), "float32"),
    Feature("é", ()),
    Feature("b" * 130, (131,)),
    Feature("B", (1,), "float32"),
)


def _random_batch(schema, rows, seed, highest=2**63 - 1):
    """Numbers of every width, half of them small."""
    rng = np.random.default_rng(seed)

    def values(feature):
        shape = (rows, *feature.shape)
        if feature.dtype == "float32":
            return rng.normal(size=shape).astype(np.float32)
        bits = rng.integers(0, 64, shape)
        wide = rng.integers(-highest - 1, highest, shape, endpoint=True)
        small = rng.integers(0, 200, shape)
        return np.where(rng.random(shape) < 0.5, small, wide >> bits)

    return {feature.name: values(feature) for feature in schema}


def _proto(schema, batch, row):
    """The same example as protobuf itself serializes it."""
    example = tf.train.Example()
    for feature in schema:
        target = example.features.feature[feature.name]
        values = batch[feature.name][row].reshape(-1).tolist()
        if feature.dtype == "float32":
            target.float_list.value.extend(values)
        else:
            target.int64_list.value.extend(values)
    return example.SerializeToString(deterministic=True)


def _parse(schema, serialized):
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in schema
    }
    parsed = tf.io.parse_example(serialized, spec)
    return {name: tensor.numpy() for name, tensor in parsed.items()}


def _write(path, data):
    with records.RecordWriter(str(path)) as writer:
        writer.write_all(data)
    return str(path)


def _message(function, *args):
    """The one line of the InputError."""
    with pytest.raises(InputError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# encode_batch


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("schema", [_ODD_SCHEMA, pretraining_schema(13, 3)])
def test_encode_batch_gives_protobufs_bytes(schema, seed):
    batch = _random_batch(schema, 1 + seed, seed)
    encoded = records.encode_batch(schema, batch)
    assert encoded == [
        _proto(schema, batch, row) for row in range(len(encoded))
    ]
    assert len(encoded) == 1 + seed


def test_encode_batch_is_what_parse_example_reads():
    batch = _random_batch(_ODD_SCHEMA, 17, seed=0)
    parsed = _parse(_ODD_SCHEMA, records.encode_batch(_ODD_SCHEMA, batch))
    for name, values in batch.items():
        np.testing.assert_array_equal(parsed[name], values)


@pytest.mark.parametrize("value", _EDGES)
def test_encode_batch_at_the_edges_of_widths(value):
    schema = (Feature("x", (3,)),)
    batch = {"x": np.array([[1, value, 128], [0, 0, 0]], np.int64)}
    assert records.encode_batch(schema, batch) == [
        _proto(schema, batch, row) for row in range(2)
    ]


def test_encode_batch_keeps_odd_floats():
    schema = (Feature("x", (5,), "float32"),)
    batch = {"x": np.array([[-0.0, np.inf, -np.inf, 1e-45, 3.4e38]])}
    parsed = _parse(schema, records.encode_batch(schema, batch))
    np.testing.assert_array_equal(parsed["x"], batch["x"].astype(np.float32))
    assert np.signbit(parsed["x"][0, 0])


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32]
)
def test_encode_batch_does_not_depend_on_the_width_of_arrays(dtype):
    schema = (Feature("x", (3,)),)
    lowest = max(-3, np.iinfo(dtype).min)
    values = np.array([[0, 127, 5], [lowest, 1, 2]], dtype)
    expected = records.encode_batch(schema, {"x": values.astype(np.int64)})
    assert records.encode_batch(schema, {"x": values}) == expected


def test_encode_batch_takes_bools_strides_and_column_order():
    schema = (Feature("x", (3,)), Feature("y", (2,), "float32"))
    x = np.arange(30).reshape(5, 6)[:, ::2] % 2
    y = np.asfortranarray(np.arange(10, dtype=np.float32).reshape(5, 2))
    expected = [_proto(schema, {"x": x, "y": y}, row) for row in range(5)]
    assert records.encode_batch(schema, {"x": x == 1, "y": y}) == expected


def test_encode_batch_over_several_slices_of_rows(monkeypatch):
    schema = pretraining_schema(13, 3)
    batch = _random_batch(schema, 11, seed=1)
    expected = records.encode_batch(schema, batch)
    monkeypatch.setattr(records, "_ROWS", 4)
    assert records.encode_batch(schema, batch) == expected


def test_encode_batch_of_no_rows():
    schema = pretraining_schema(13, 3)
    assert not records.encode_batch(schema, _random_batch(schema, 0, seed=0))


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 4), int), np.zeros(2, int), np.zeros((2, 3)), [["a"] * 3]],
)
def test_encode_batch_wants_the_schemas_shape_and_kind(values):
    with pytest.raises(ValueError, match=r"Expected x of type int64.* 3\]"):
        records.encode_batch((Feature("x", (3,)),), {"x": values})


def test_encode_batch_wants_equally_many_rows():
    schema = (Feature("x", ()), Feature("y", ()))
    with pytest.raises(ValueError, match="rows"):
        records.encode_batch(
            schema, {"x": np.zeros(3, int), "y": np.zeros(2, int)}
        )


# RecordWriter


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["local", "ram://writer"])
def test_tensorflow_reads_what_the_writer_wrote(tmp_path, folder, suffix):
    folder = str(tmp_path) if folder == "local" else folder
    data = [bytes([i % 256]) * i for i in range(300)]
    path = f"{folder}/f.tfrecord{suffix}"
    with records.RecordWriter(path) as writer:
        writer.write(data[0])
        writer.write_all(data[1:])
    assert writer.count == 300
    compression = "GZIP" if suffix else None
    read = tf.data.TFRecordDataset(path, compression)
    assert list(read.as_numpy_iterator()) == data
    assert records.count_records(path) == records.verify(path) == 300


def test_the_writers_bytes_are_tensorflows(tmp_path):
    data = [b"", b"abc", bytes(range(256)) * 41]
    ours = _write(tmp_path / "ours", data)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in data:
            writer.write(record)
    with open(ours, "rb") as file:
        assert file.read() == (tmp_path / "theirs").read_bytes()


def test_compressed_bytes_do_not_depend_on_name_or_time(tmp_path, monkeypatch):
    first = _write(tmp_path / "a.gz", [b"abc"] * 7)
    monkeypatch.setattr("time.time", lambda: 1e9)
    second = _write(tmp_path / "b.gz", [b"abc"] * 7)
    with open(first, "rb") as a, open(second, "rb") as b:
        assert a.read() == b.read()


@pytest.mark.parametrize("name", ["f", "f.gz"])
def test_the_writer_leaves_nothing_behind(tmp_path, name):
    def write():
        with records.RecordWriter(str(tmp_path / name)) as writer:
            writer.write(b"abc")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not list(tmp_path.iterdir())


# count_records and verify


def _bytes_of_records(tmp_path, sizes=(50, 70, 30)):
    path = _write(tmp_path / "whole", [b"x" * size for size in sizes])
    with open(path, "rb") as file:
        return file.read()


def test_every_cut_is_noticed(tmp_path):
    data = _bytes_of_records(tmp_path)
    ends = {0: 0, 66: 1, 152: 2, 198: 3}
    assert len(data) == max(ends)
    path = tmp_path / "cut"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        for function in (records.count_records, records.verify):
            if cut in ends:
                assert function(str(path)) == ends[cut]
            else:
                assert str(path) in _message(function, str(path))


def test_a_cut_file_says_where(tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(_bytes_of_records(tmp_path)[:-20])
    assert "cut off within record 2 (from 0) at byte 152" in _message(
        records.count_records, str(path)
    )


def test_every_flipped_byte_is_noticed(tmp_path):
    data = bytearray(_bytes_of_records(tmp_path))
    path = tmp_path / "flipped"
    for place in range(len(data)):
        data[place] ^= 4
        path.write_bytes(data)
        data[place] ^= 4
        message = _message(records.verify, str(path))
        assert str(path) in message
        if place >= 78:
            record, start = (1, 66) if place < 152 else (2, 152)
            assert f"record {record} (from 0) at byte {start}" in message


def test_count_records_checks_lengths_but_reads_no_data(tmp_path):
    data = bytearray(_bytes_of_records(tmp_path))
    path = tmp_path / "flipped"
    data[100] ^= 4
    path.write_bytes(data)
    assert records.count_records(str(path)) == 3
    assert "checksum of its data" in _message(records.verify, str(path))
    data[66] ^= 4
    path.write_bytes(data)
    assert "checksum of its length" in _message(
        records.count_records, str(path)
    )


@pytest.mark.parametrize("text", [b"id\ttext\n" * 9, b"short"])
def test_a_foreign_file(tmp_path, text):
    path = tmp_path / "train.tsv"
    path.write_bytes(text)
    message = _message(records.count_records, str(path))
    assert f"{path} is not a TFRecord file" in message


def test_damaged_compression(tmp_path):
    path = tmp_path / "f.gz"
    whole = gzip.compress(_bytes_of_records(tmp_path))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged in (whole[:-30], bytes(flipped), b"plain text" * 9):
        path.write_bytes(damaged)
        for function in (records.count_records, records.verify):
            assert str(path) in _message(function, str(path))


def test_a_remote_file_that_is_cut_off(tmp_path):
    path = "ram://records/cut"
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(_bytes_of_records(tmp_path)[:-20])
    assert "cut off" in _message(records.count_records, path)


# check_first_record


def _pretraining_file(path, **sizes):
    schema = pretraining_schema(**sizes)
    batch = _random_batch(schema, 3, seed=0)
    return _write(path, records.encode_batch(schema, batch))


def test_check_first_record_agrees(tmp_path):
    sizes = {"max_seq_length": 13, "max_predictions_per_seq": 5}
    schema = pretraining_schema(**sizes)
    for name in ("f", "f.gz"):
        path = _pretraining_file(tmp_path / name, **sizes)
        assert records.check_first_record(path, schema)
        assert records.check_first_record(path, schema[2:])
    assert not records.check_first_record(_write(tmp_path / "0", []), schema)


def test_check_first_record_names_feature_flag_and_lengths(tmp_path):
    path = _pretraining_file(
        tmp_path / "f", max_seq_length=13, max_predictions_per_seq=7
    )
    message = _message(
        records.check_first_record, path, pretraining_schema(13, 5)
    )
    assert message == (
        "Expected masked_lm_positions of length 5 "
        f"(--max_predictions_per_seq=5) in {path}. Received: length 7. Pass "
        "--max_predictions_per_seq=7, or make the records anew."
    )
    message = _message(
        records.check_first_record, path, (Feature("input_ids", (2, 3)),)
    )
    assert message.endswith("length 6 in " + path + ". Received: length 13.")


def test_check_first_record_names_what_is_missing(tmp_path):
    path = _write(
        tmp_path / "f",
        records.encode_batch((Feature("x", ()),), {"x": np.arange(3)}),
    )
    message = _message(records.check_first_record, path, (Feature("y", ()),))
    assert "feature y" in message
    assert message.endswith("Received: records with x.")
    message = _message(
        records.check_first_record, path, (Feature("x", (), "float32"),)
    )
    assert "x of type float32" in message
    assert "int64" in message


def test_check_first_record_wants_examples(tmp_path):
    path = _write(tmp_path / "f", [b"hello"])
    message = _message(records.check_first_record, path, (Feature("x", ()),))
    assert f"Expected {path} to hold records of tf.train.Example" in message


# The original's own files


def test_the_originals_records_are_read_and_rewritten(shared_data):
    folder = shared_data / "google_bert_outputs" / "pretraining"
    path = str(folder / "tf_examples.tfrecord")
    schema = pretraining_schema(128, 20)
    assert records.check_first_record(path, schema)
    assert records.verify(path) == 60
    serialized = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    batch = _parse(schema, serialized)
    assert batch["masked_lm_weights"].sum() == 922
    encoded = records.encode_batch(schema, batch)
    for name, values in _parse(schema, encoded).items():
        np.testing.assert_array_equal(values, batch[name])
    theirs, ours = (
        [tf.train.Example.FromString(record) for record in examples]
        for examples in (serialized, encoded)
    )
    assert ours == theirs


def test_parts_set_end_to_end_are_one_file(tmp_path):
    parts = [[b"a" * 7, b""], [b"b" * 301]]
    plain, compressed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_bytes(b"".join(map(records.frame, parts)))
    compressed.write_bytes(
        b"".join(records.compress(records.frame(part)) for part in parts)
    )
    assert records.verify(str(plain)) == records.verify(str(compressed)) == 3
    dataset = tf.data.TFRecordDataset(str(compressed), "GZIP")
    assert list(dataset.as_numpy_iterator()) == parts[0] + parts[1]
