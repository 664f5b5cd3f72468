"""Streams of records: training, evaluation, faults."""

import collections
import itertools
import logging
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import pipeline, records
from bert_tf.data.schema import Feature, pretraining_schema
from bert_tf.errors import InputError

_SCHEMA = (
    Feature("number", ()),
    Feature("pair", (2,)),
    Feature("weights", (3,), "float32"),
)


def _examples(numbers):
    """Returns examples that differ in all features."""
    numbers = np.asarray(numbers, np.int64)
    return {
        "number": numbers,
        "pair": numbers[:, np.newaxis] * [2, -3],
        "weights": (numbers[:, np.newaxis] * [0.5, 0, 1]).astype(np.float32),
    }


def _write(path, batch, schema=_SCHEMA):
    with records.RecordWriter(str(path)) as writer:
        writer.write_all(records.encode_batch(schema, batch))
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Examples 1 to 41 in four files, some compressed."""
    folder = tmp_path_factory.mktemp("records")
    names = ["a.tfrecord", "b.tfrecord.gz", "c.tfrecord", "d.tfrecord.gz"]
    parts = np.split(np.arange(1, 42), [11, 18, 37])
    return [
        _write(folder / name, _examples(part))
        for name, part in zip(names, parts, strict=True)
    ]


def _stream(paths, num_examples, **options):
    """Returns the numbers of the first examples of a training stream."""
    options = {"batch_size": 20, "seed": 5, **options}
    batches = pipeline.training_dataset(paths, _SCHEMA, **options)
    batches = batches.take(-(-num_examples // options["batch_size"]))
    numbers = [batch["number"] for batch in batches.as_numpy_iterator()]
    return np.concatenate(numbers)[:num_examples].tolist()


def _evaluate(paths, **options):
    batches = pipeline.evaluation_dataset(paths, _SCHEMA, **options)
    return list(batches.as_numpy_iterator())


# training_dataset


def test_every_epoch_has_every_example_in_another_order(paths):
    epochs = np.reshape(_stream(paths, 5 * 41), [5, 41])
    assert (np.sort(epochs) == np.arange(1, 42)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 5
    # Few examples keep their position or their successor.
    assert np.mean(np.diff(epochs) == 1) < 0.1
    assert np.mean(epochs == np.arange(1, 42)) < 0.1


def test_batches(paths):
    batches = pipeline.training_dataset(paths, _SCHEMA, batch_size=7, seed=0)
    assert batches.element_spec == {
        "number": tf.TensorSpec([7], tf.int32),
        "pair": tf.TensorSpec([7, 2], tf.int32),
        "weights": tf.TensorSpec([7, 3], tf.float32),
    }
    for batch in batches.take(13).as_numpy_iterator():
        for name, values in _examples(batch["number"]).items():
            np.testing.assert_array_equal(batch[name], values)


@pytest.mark.parametrize("seed", [0, -1, 2**40])
def test_the_stream_depends_on_files_and_seed_only(paths, seed):
    stream = _stream(paths, 90, seed=seed)
    tf.random.set_seed(seed + 1)
    assert _stream(paths, 90, seed=seed) == stream
    assert _stream(paths, 90, seed=seed + 1) != stream
    assert _stream(paths, 90, seed=seed, batch_size=7) == stream


def test_the_global_seed_is_unchanged(paths):
    tf.random.set_seed(7)
    expected = tf.random.uniform([5]).numpy()
    tf.random.set_seed(7)
    _stream(paths, 3)
    np.testing.assert_array_equal(tf.random.uniform([5]), expected)


# Within an epoch, at its first and last example, and several epochs on.
@pytest.mark.parametrize(
    ("start", "num_shards"),
    [(1, 1), (40, 2), (41, 1), (42, 2), (3 * 41, 1), (97, 2)],
)
def test_resumed_stream(paths, start, num_shards):
    whole = _stream(paths, start + 60)
    for shard in range(num_shards):
        resumed = _stream(
            paths,
            60 // num_shards,
            start_example=start,
            num_shards=num_shards,
            shard=shard,
            batch_size=5,
        )
        assert resumed == whole[start + shard :: num_shards]


@pytest.mark.parametrize("num_shards", [3])
def test_the_batches_of_all_shards_are_one_global_batch(paths, num_shards):
    def batches(batch_size, **options):
        stream = _stream(
            paths, batch_size * 11, batch_size=batch_size, **options
        )
        return np.reshape(stream, [11, batch_size])

    whole = batches(5 * num_shards)
    shards = [
        batches(5, num_shards=num_shards, shard=shard)
        for shard in range(num_shards)
    ]
    np.testing.assert_array_equal(np.stack(shards, -1).reshape(11, -1), whole)


def test_resumed_stream_with_a_small_buffer(paths, monkeypatch):
    monkeypatch.setattr(pipeline, "_SHUFFLE_BUFFER", 5)
    monkeypatch.setattr(pipeline, "_FILES_AT_ONCE", 2)
    whole = _stream(paths, 100)
    assert sorted(whole[41:82]) == list(range(1, 42))
    assert _stream(paths, 47, start_example=53) == whole[53:]


def test_replicas_share_each_batch(paths):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = pipeline.training_dataset(paths, _SCHEMA, batch_size=6, seed=5)
    # With several workers a strategy would shard the files again.
    policy = batches.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    numbers = [
        np.concatenate(strategy.experimental_local_results(batch["number"]))
        for batch in (next(iterator) for _ in range(8))
    ]
    assert np.concatenate(numbers).tolist() == _stream(paths, 48)


# evaluation_dataset


@pytest.mark.parametrize(
    ("num_shards", "batch_size", "max_examples"),
    [(1, 3, None), (1, 64, 23), (2, 3, 100), (5, 3, 23), (5, 64, None)],
)
def test_every_example_is_evaluated_once(
    paths, batch_size, num_shards, max_examples
):
    total = min(41, max_examples or 41)
    shards = [
        _evaluate(
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
    names = ("number", "is_real_example", "example_index")
    numbers, is_real, index = (
        np.reshape(
            [[batch[name] for batch in batches] for batches in shards],
            [num_shards, -1],
        ).T.reshape(-1)
        for name in names
    )
    assert numbers[:total].tolist() == list(range(1, total + 1))
    assert not numbers[total:].any()
    padding = len(numbers) - total
    assert is_real.tolist() == [1] * total + [0] * padding
    assert index.tolist() == [*range(total), *[-1] * padding]


def test_fewer_examples_and_files_than_workers(tmp_path):
    """Three workers share two examples, each once an epoch."""
    path = _write(tmp_path / "few", _examples([1, 2]))
    shards = [{"num_shards": 3, "shard": shard} for shard in range(3)]
    whole = _stream([path], 6)
    found = [_stream([path], 2, batch_size=1, **own) for own in shards]
    assert np.transpose(found).reshape(-1).tolist() == whole
    assert np.bincount(whole).tolist() == [0, 3, 3]
    evaluated = [_evaluate([path], batch_size=2, **own) for own in shards]
    index = [[batch["example_index"] for batch in some] for some in evaluated]
    assert np.array(index).tolist() == [[[0, -1]], [[1, -1]], [[-1, -1]]]


def test_padding_examples_are_zeros(paths):
    (*_, last) = _evaluate(paths, batch_size=13)
    assert last["is_real_example"].tolist() == [1, 1] + [0] * 11
    assert last["is_real_example"].dtype == np.int32
    for name, values in _examples([40, 41]).items():
        np.testing.assert_array_equal(last[name][:2], values)
        assert last[name].shape == (13, *values.shape[1:])
        assert not last[name][2:].any()


def test_examples_marked_as_padding_in_the_file(tmp_path):
    """The original appends these for TPUs."""
    schema = (*_SCHEMA, Feature("is_real_example", ()))
    flags = np.array([1, 1, 0, 1, 0])
    batch = {**_examples(range(5)), "is_real_example": flags}
    path = _write(tmp_path / "padded", batch, schema)
    batches = pipeline.evaluation_dataset([path], schema, batch_size=7)
    (batch,) = batches.as_numpy_iterator()
    assert batch["is_real_example"].tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert batch["example_index"].tolist() == [0, 1, 2, 3, 4, -1, -1]


def test_evaluation_counts_no_more_records_than_needed(paths, monkeypatch):
    counted = []
    count = records.count_records
    monkeypatch.setattr(
        records,
        "count_records",
        lambda path, at_most: (
            counted.append((path, at_most)) or count(path, at_most)
        ),
    )
    assert len(_evaluate(paths, batch_size=5, max_examples=10)) == 2
    assert counted[0] == (paths[0], 10)
    assert all(at_most == 0 for _, at_most in counted[1:])


def test_whole_file(paths):
    batches = pipeline.whole_file(paths[1], _SCHEMA, batch_size=5)
    read = list(batches.as_numpy_iterator())
    assert [len(batch["number"]) for batch in read] == [5, 2]
    expected = _examples(np.arange(12, 19))
    for name, values in expected.items():
        found = np.concatenate([batch[name] for batch in read])
        np.testing.assert_array_equal(found, values)


# Unusable files.


def test_empty_files_are_skipped(paths, tmp_path, caplog):
    empty = _write(tmp_path / "empty", _examples([]))
    with caplog.at_level(logging.WARNING):
        assert _stream([empty, *paths], 50) == _stream(paths, 50)
    assert f"{empty} holds no records" in caplog.text
    assert len(_evaluate([*paths, empty], batch_size=41)) == 1
    for files in ([], [empty]):
        with pytest.raises(InputError, match="No records in"):
            _stream(files, 1)


def test_the_first_record_of_every_file_must_fit_the_schema(paths, tmp_path):
    schema = (*_SCHEMA[:2], Feature("weights", (7,), "float32"))
    batch = {**_examples([1]), "weights": np.zeros((1, 7), np.float32)}
    other = _write(tmp_path / "other", batch, schema)
    for build in (_stream, lambda paths, _: _evaluate(paths, batch_size=1)):
        with pytest.raises(InputError, match=f"{other}: .*weights"):
            build([*paths, other], 1)


def test_features_outside_the_schema_are_ignored(paths):
    batches = pipeline.evaluation_dataset(paths, _SCHEMA[:1], batch_size=41)
    (batch,) = batches.as_numpy_iterator()
    assert set(batch) == {"number", "is_real_example", "example_index"}


@pytest.mark.parametrize("name", ["damaged", "damaged.gz"])
def test_damaged_files_are_named(paths, tmp_path, name):
    path = tmp_path / name
    _write(path, _examples(range(1, 31)))
    data = bytearray(path.read_bytes())
    data[-20] ^= 4
    path.write_bytes(data)
    files = [*paths, str(path)]
    with (
        pytest.raises(InputError, match=re.escape(str(path))),
        pipeline.input_errors(files),
    ):
        _evaluate(files, batch_size=5)


@pytest.mark.parametrize(
    "other", [_SCHEMA[1:], (*_SCHEMA[1:], Feature("number", (2,)))]
)
def test_later_records_that_do_not_fit(tmp_path, other):
    path = str(tmp_path / "mixed")
    with records.RecordWriter(path) as writer:
        writer.write_all(records.encode_batch(_SCHEMA, _examples([1, 2])))
        writer.write_all(records.encode_batch(_SCHEMA[1:], _examples([3, 4])))
    with (
        pytest.raises(InputError, match=r"^A record does not fit.*number.*$"),
        pipeline.input_errors([path]),
    ):
        _evaluate([path], batch_size=4)


def test_a_file_removed_while_it_is_read(tmp_path):
    names = [str(tmp_path / name) for name in ("kept", "removed")]
    for path in names:
        with records.RecordWriter(path) as writer:
            writer.write_all(records.encode_batch(_SCHEMA, _examples([1, 2])))
    batches = iter(
        pipeline.training_dataset(names, _SCHEMA, batch_size=2, seed=0)
    )
    os.remove(names[1])
    message = (
        rf"^Cannot read {names[1]}: No such file.*\. Restore it, then rerun"
    )
    with (
        pytest.raises(InputError, match=message),
        pipeline.input_errors(names),
    ):
        collections.deque(itertools.islice(batches, 9))


def test_other_errors_are_not_input_errors(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(tf.errors.NotFoundError),
        pipeline.input_errors([str(tmp_path / "file")]),
    ):
        tf.io.read_file(str(tmp_path / "absent"))

    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        pipeline.input_errors([]),
    ):
        tf.reshape(tf.zeros(3), [2])


@pytest.mark.parametrize(
    ("name", "value"),
    [("input_ids", 99), ("masked_lm_ids", 99), ("input_ids", -1)],
)
def test_ids_outside_the_vocabulary(tmp_path, name, value):
    schema = pretraining_schema(11, 3)
    batch = {
        feature.name: np.zeros((7, *feature.shape), feature.dtype)
        for feature in schema
    }
    batch[name][3, 2] = 98
    path = _write(tmp_path / "f", batch, schema)

    def draw():
        batches = pipeline.training_dataset(
            [path], schema, batch_size=7, seed=0, vocab_size=99
        )
        return next(iter(batches))

    assert draw()[name].numpy().max() == 98
    batch[name][3, 2] = value
    _write(path, batch, schema)
    smallest, largest = sorted([0, value])
    with (
        pytest.raises(InputError) as caught,
        pipeline.input_errors([path]),
    ):
        draw()
    assert str(caught.value).startswith(
        f"{name} must be from 0 to 98 (vocab_size is 99); got "
        f"{smallest} to {largest}."
    )


# Damaged files whose other records are read.


@pytest.fixture(scope="module")
def cut_off(paths, tmp_path_factory):
    """Copies the files, damages example 5 and cuts the third file at 31."""
    folder = tmp_path_factory.mktemp("cut_off")
    copies = []
    for path in paths:
        copies.append(folder / path.rpartition("/")[2])
        shutil.copy(path, copies[-1])
    first, third = (bytearray(copies[i].read_bytes()) for i in (0, 2))
    sizes = [len(first) // 11, len(third) // 19]
    first[4 * sizes[0] + 20] ^= 1
    copies[0].write_bytes(first)
    copies[2].write_bytes(third[: 12 * sizes[1] + 9])
    return [str(path) for path in copies]


@pytest.fixture(scope="module")
def left(cut_off):
    """Returns the readable ranges of `cut_off` and the numbers in them."""
    found = records.find_readable(cut_off)
    assert found.num_faults == 2
    lost = {5, *range(31, 38)}
    return found.ranges, [n for n in range(1, 42) if n not in lost]


def test_intact_records_are_evaluated(cut_off, left):
    ranges, expected = left
    batches = _evaluate(cut_off, batch_size=7, ranges=ranges)
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert numbers[: len(expected)].tolist() == expected
    assert not numbers[len(expected) :].any()


@pytest.mark.parametrize("num_shards", [2])
def test_intact_records_are_trained_on(cut_off, left, num_shards):
    ranges, expected = left
    options = {"ranges": ranges, "batch_size": 1}
    whole = _stream(cut_off, 5 * 33, **options)
    for epoch in np.split(np.array(whole), 5):
        assert sorted(epoch) == expected
    for shard in range(num_shards):
        resumed = _stream(
            cut_off,
            40 // num_shards,
            start_example=53,
            num_shards=num_shards,
            shard=shard,
            **options,
        )
        assert resumed == whole[53 + shard : 93 : num_shards]


def test_undamaged_files_give_the_same_stream(paths):
    ranges = records.find_readable(paths).ranges
    assert _stream(paths, 90, ranges=ranges) == _stream(paths, 90)


# Remote files, and files of the original.


def test_remote_files(paths):
    remote = []
    for path in paths:
        remote.append("ram://pipeline/" + path.rpartition("/")[2])
        tf.io.gfile.copy(path, remote[-1], overwrite=True)
    numbers = _stream(remote, 41, start_example=41)
    assert numbers == _stream(paths, 41, start_example=41)


def test_pretraining_records_of_the_original(shared_data):
    folder = shared_data / "google_bert_outputs" / "pretraining"
    paths = [str(folder / "tf_examples.tfrecord")]
    schema = pretraining_schema(128, 20)
    (batch,) = pipeline.evaluation_dataset(
        paths, schema, batch_size=60, vocab_size=30_522
    ).as_numpy_iterator()
    assert batch["input_ids"].shape == (60, 128)
    assert batch["masked_lm_weights"].sum() == 922
    assert batch["next_sentence_labels"].sum() == 32
    assert batch["is_real_example"].all()


def test_classifier_records_of_the_original(shared_data):
    path = str(shared_data / "google_bert_outputs" / "mrpc" / "eval.tf_record")
    schema = (Feature("input_ids", (128,)), Feature("label_ids", ()))
    total = records.count_records(path)
    batches = pipeline.evaluation_dataset([path], schema, batch_size=8)
    labels = [batch["label_ids"] for batch in batches.as_numpy_iterator()]
    assert len(batches) == -(-total // 8)
    assert set(np.concatenate(labels).tolist()) == {0, 1}
