"""Streams of records: training, evaluation, faults."""

import contextlib
import itertools
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import pipeline, records
from bert_tf.data.records import Feature, pretraining_schema
from bert_tf.errors import InputError

SCHEMA = (
    Feature("number", ()),
    Feature("pair", (2,)),
    Feature("weights", (3,), "float32"),
)


def examples(numbers):
    """Returns examples that differ in all features."""
    numbers = np.asarray(numbers, np.int64)
    return {
        "number": numbers,
        "pair": numbers[:, np.newaxis] * [2, -3],
        "weights": (numbers[:, np.newaxis] * [0.5, 0, 1]).astype(np.float32),
    }


def write(path, *batches, schema=SCHEMA):
    """Writes batches, each with the features of the schema that it has."""
    data = []
    for batch in batches:
        own = [feature for feature in schema if feature.name in batch]
        data += records.encode_batch(own, batch)
    records.write(str(path), data)
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Examples 1 to 41 in four files, some compressed."""
    folder = tmp_path_factory.mktemp("records")
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord", "d.tfrecord.gz"]
    parts = np.split(np.arange(1, 42), [11, 18, 37])
    return [
        write(folder / name, examples(part))
        for name, part in zip(names, parts, strict=True)
    ]


def stream(paths, num_examples, **options):
    """Returns the numbers of the first examples of a training stream."""
    options = {"batch_size": 20, "seed": 5, **options}
    batches = pipeline.training_dataset(paths, SCHEMA, **options)
    batches = batches.take(-(-num_examples // options["batch_size"]))
    numbers = [batch["number"] for batch in batches.as_numpy_iterator()]
    return np.concatenate(numbers)[:num_examples].tolist()


@contextlib.contextmanager
def refused(message, paths):
    with (
        pytest.raises(InputError, match=message),
        pipeline.input_errors(paths),
    ):
        yield


def evaluate(paths, schema=SCHEMA, **options):
    batches = pipeline.evaluation_dataset(paths, schema, **options)
    return list(batches.as_numpy_iterator())


def test_every_epoch_has_every_example_in_another_order(paths):
    epochs = np.reshape(stream(paths, 5 * 41), [5, 41])
    assert (np.sort(epochs) == np.arange(1, 42)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5
    # Few examples keep their position or their successor.
    assert np.mean(np.diff(epochs) == 1) < 0.1
    assert np.mean(epochs == np.arange(1, 42)) < 0.1


def test_batches(paths):
    batches = pipeline.training_dataset(paths, SCHEMA, batch_size=7, seed=0)
    assert batches.element_spec == {
        "number": tf.TensorSpec([7], tf.int32),
        "pair": tf.TensorSpec([7, 2], tf.int32),
        "weights": tf.TensorSpec([7, 3], tf.float32),
    }
    # With several workers a strategy would shard the files again.
    policy = batches.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    for batch in batches.take(13).as_numpy_iterator():
        for name, values in examples(batch["number"]).items():
            np.testing.assert_array_equal(batch[name], values)


def test_the_stream_depends_on_files_and_seed_only(paths):
    expected = stream(paths, 90, seed=-1)
    tf.random.set_seed(7)
    number = tf.random.uniform([])
    tf.random.set_seed(7)
    assert stream(paths, 90, seed=-1, batch_size=7) == expected
    assert stream(paths, 90, seed=2**40) != expected
    # Nor does it change the global seed.
    assert tf.random.uniform([]) == number


@pytest.mark.parametrize("buffer", [None, 5])
def test_resumed_and_shared_streams(paths, monkeypatch, buffer):
    """At the first and last example of an epoch, and within one."""
    if buffer:
        monkeypatch.setattr(pipeline, "_SHUFFLE_BUFFER", buffer)
        monkeypatch.setattr(pipeline, "_FILES_AT_ONCE", 2)
    whole = stream(paths, 97 + 60)
    assert sorted(whole[41:82]) == list(range(1, 42))
    for start, num_shards in (0, 1), (40, 2), (41, 1), (97, 3):
        for shard in range(num_shards):
            resumed = stream(
                paths,
                60 // num_shards,
                start_example=start,
                num_shards=num_shards,
                shard=shard,
                batch_size=5,
            )
            assert resumed == whole[start : start + 60][shard::num_shards]


@pytest.mark.parametrize(
    ("num_shards", "batch_size", "max_examples"),
    [(1, 64, 23), (2, 3, 100), (5, 3, 2)],
)
def test_every_example_is_evaluated_once(
    paths, batch_size, num_shards, max_examples
):
    """With two examples, some of the five shards have only padding."""
    total = min(41, max_examples or 41)
    shards = [
        evaluate(
            paths,
            batch_size=batch_size,
            num_shards=num_shards,
            shard=shard,
            max_examples=max_examples,
        )
        for shard in range(num_shards)
    ]
    num_batches = -(-total // (batch_size * num_shards))
    assert [len(batches) for batches in shards] == [num_batches] * num_shards
    found = {}
    for name in shards[0][0]:
        columns = [[batch[name] for batch in batches] for batches in shards]
        columns = np.stack([np.concatenate(column) for column in columns], 1)
        found[name] = columns.reshape(-1, *columns.shape[2:])
    padding = len(found["number"]) - total
    index = found["example_index"]
    assert index.tolist() == [*range(total), *[-1] * padding]
    np.testing.assert_array_equal(found["is_real_example"], index >= 0)
    assert found["is_real_example"].dtype == np.int32
    for name, values in examples(range(1, total + 1)).items():
        np.testing.assert_array_equal(found[name][:total], values)
        assert not found[name][total:].any()


def test_examples_marked_as_padding_in_the_file(tmp_path):
    """The original appends these for TPUs."""
    schema = (*SCHEMA, Feature("is_real_example", ()))
    flags = np.array([1, 1, 0, 1, 0])
    batch = {**examples(range(5)), "is_real_example": flags}
    path = write(tmp_path / "padded", batch, schema=schema)
    [batch] = evaluate([path], schema, batch_size=7)
    assert batch["is_real_example"].tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert batch["example_index"].tolist() == [0, 1, 2, 3, 4, -1, -1]
    # Features outside the schema are ignored.
    [batch] = evaluate([path], SCHEMA[:1], batch_size=7)
    assert set(batch) == {"number", "is_real_example", "example_index"}
    assert batch["is_real_example"].tolist() == [1] * 5 + [0] * 2


@pytest.mark.parametrize("name", ["damaged", "damaged.gz"])
def test_damaged_files_are_named(paths, tmp_path, name):
    path = tmp_path / name
    write(path, examples(range(1, 31)))
    data = bytearray(path.read_bytes())
    data[-20] ^= 4
    path.write_bytes(data)
    files = [*paths, str(path)]
    with refused(re.escape(str(path)), files):
        evaluate(files, batch_size=5)


def test_later_records_that_do_not_fit(tmp_path):
    other = examples([3, 4])
    del other["number"]
    path = write(tmp_path / "mixed", examples([1, 2]), other)
    with refused(r"^A record does not fit.*number.*$", [path]):
        evaluate([path], batch_size=4)


def test_a_file_removed_while_it_is_read(tmp_path):
    names = [
        write(tmp_path / name, examples([1, 2])) for name in ("kept", "removed")
    ]
    batches = iter(
        pipeline.training_dataset(names, SCHEMA, batch_size=2, seed=0)
    )
    os.remove(names[1])
    expected = rf"^Cannot read {names[1]}: No such file.*\. Restore it, then re"
    with refused(expected, names):
        list(itertools.islice(batches, 9))


def test_other_errors_are_not_input_errors(paths):
    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        pipeline.input_errors(paths),
    ):
        tf.reshape(tf.zeros(3), [2])


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("input_ids", 99, "0 to 99"),
        ("input_ids", -1, "-1 to 0"),
        ("masked_lm_ids", 99, "0 to 99"),
    ],
)
def test_ids_outside_the_vocabulary(tmp_path, name, value, found):
    schema = pretraining_schema(11, 3)
    batch = {f.name: np.zeros((7, *f.shape), f.dtype) for f in schema}
    batch[name][3, 2] = 98
    path = write(tmp_path / "f", batch, schema=schema)
    evaluate([path], schema, batch_size=7, vocab_size=99)
    batch[name][3, 2] = value
    write(path, batch, schema=schema)
    message = f"^{name} must be from 0 to 98 .vocab_size is 99.; got {found}"
    with refused(message, [path]):
        evaluate([path], schema, batch_size=7, vocab_size=99)


def test_records_before_the_damage_are_read(paths, tmp_path):
    """Example 5 is damaged, and the third file ends at 31."""
    contents = [bytearray(pathlib.Path(path).read_bytes()) for path in paths]
    contents[0][4 * (len(contents[0]) // 11) + 20] ^= 1
    del contents[2][12 * (len(contents[2]) // 19) + 9 :]
    cut_off = [f"{tmp_path}/{os.path.basename(path)}" for path in paths]
    for path, content in zip(cut_off, contents, strict=True):
        pathlib.Path(path).write_bytes(content)
    found = records.find_readable(cut_off)
    assert found.num_damaged == 2
    expected = [*range(1, 5), *range(12, 31), *range(38, 42)]
    batches = evaluate(cut_off, batch_size=7, counts=found.counts)
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert numbers[: len(expected)].tolist() == expected
    assert not numbers[len(expected) :].any()
    options = {"counts": found.counts, "batch_size": 1}
    size = len(expected)
    whole = stream(cut_off, 3 * size, **options)
    for epoch in np.split(np.array(whole), 3):
        assert sorted(epoch) == expected
    resumed = stream(
        cut_off, 10, start_example=size + 20, num_shards=2, shard=1, **options
    )
    assert resumed == whole[size + 21 : size + 41 : 2]


def test_remote_files_and_counts_of_undamaged_files(paths):
    remote = [f"ram://pipeline/{os.path.basename(path)}" for path in paths]
    for path, copy in zip(paths, remote, strict=True):
        tf.io.gfile.copy(path, copy, overwrite=True)
    expected = stream(paths, 41, start_example=41)
    assert stream(remote, 41, start_example=41) == expected
    counts = records.find_readable(remote).counts
    assert stream(remote, 41, start_example=41, counts=counts) == expected


def test_pretraining_records_of_the_original(shared_data):
    folder = shared_data / "google_bert_outputs" / "pretraining"
    path, schema = str(folder / "tf_examples.tfrecord"), pretraining_schema
    batch = pipeline.load(path, schema(128, 20), vocab_size=30_522).arrays
    assert batch["input_ids"].shape == (60, 128)
    assert batch["masked_lm_weights"].sum() == 922
    assert batch["next_sentence_labels"].sum() == 32
    parse = tf.train.Example.FromString
    theirs = tf.data.TFRecordDataset(path).as_numpy_iterator()
    ours = records.encode_batch(schema(128, 20), batch)
    assert list(map(parse, ours)) == list(map(parse, theirs))
