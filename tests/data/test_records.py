import gzip

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.schema import Feature, pretraining_schema
from bert_tf.errors import InputError


def _zeros(schema):
    """Three examples of zeros."""
    return {
        feature.name: np.zeros((3, *feature.shape), feature.dtype)
        for feature in schema
    }


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
    return _write(path, records.encode_batch(schema, _zeros(schema)))


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
