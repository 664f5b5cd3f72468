import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import buckets, records
from bert_tf.data.buckets import Padding
from bert_tf.data.schema import classification_schema
from bert_tf.errors import InputError

L = 29
STATIC = Padding(static=True)
PADDINGS = [Padding(1), Padding(5), Padding(), STATIC]
SCHEMA = classification_schema(L)


def examples(n, schema=SCHEMA, seed=0):
    """Random features of n examples; the label is the example's number."""
    random = np.random.default_rng(seed)
    shape = schema[0].shape
    lengths = random.integers(3, L + 1, (n, *shape[:-1]))
    mask = np.arange(L) < lengths[..., np.newaxis]
    label = schema[3]
    return {
        "input_ids": random.integers(1, 131, mask.shape) * mask,
        "input_mask": mask.astype(int),
        "segment_ids": random.integers(0, 2, mask.shape) * mask,
        "label_ids": np.arange(n, dtype=label.dtype),
        "is_real_example": np.ones(n, int),
    }


def write(path, batch, schema=SCHEMA):
    with records.RecordWriter(str(path)) as writer:
        writer.write_all(records.encode_batch(schema, batch))
    return str(path)


BATCH = examples(83)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "train.tf_record"
    return buckets.load(write(path, BATCH), SCHEMA, vocab_size=131)


def test_what_is_in_memory_equals_what_is_read(features):
    parts = [
        {name: values[rows] for name, values in BATCH.items()}
        for rows in (slice(13), slice(13, 14), slice(14, None))
    ]
    made = buckets.in_memory(parts, SCHEMA)
    assert made.arrays.keys() == features.arrays.keys()
    for name, values in features.arrays.items():
        np.testing.assert_array_equal(made.arrays[name], values)
    np.testing.assert_array_equal(made.lengths, features.lengths)
    assert made.max_seq_length == features.max_seq_length
    assert made.sequences == features.sequences


def train(features, num_batches=37, **options):
    """The first batches of a training stream, as NumPy arrays."""
    options = {
        "padding": Padding(),
        "global_batch_size": 6,
        "num_batches": 37,
        "seed": 5,
        **options,
    }
    options.setdefault("batch_size", options["global_batch_size"])
    batches = buckets.training_dataset(features, **options)
    return list(batches.take(num_batches).as_numpy_iterator())


def evaluate(features, **options):
    options = {"padding": Padding(), "batch_size": 4, **options}
    batches = buckets.evaluation_dataset(features, **options)
    return list(batches.as_numpy_iterator())


def numbers(batches):
    return np.stack([batch["label_ids"] for batch in batches])


def assert_holds_examples(batch, rows, expected=BATCH):
    """Compares with the examples, cut to the batch's length or not."""
    for name, values in expected.items():
        found = batch[name]
        assert found.dtype in (np.int32, np.float32)
        wanted = values[rows]
        if name in ("input_ids", "input_mask", "segment_ids"):
            length = found.shape[-1]
            assert not wanted[..., length:].any()
            wanted = wanted[..., :length]
        np.testing.assert_array_equal(found, wanted)


# load


def test_a_file_is_read_whole_and_packed(features, tmp_path):
    assert len(features) == 83
    assert features.max_seq_length == L
    assert features.sequences == ("input_ids", "input_mask", "segment_ids")
    lengths = BATCH["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(features.lengths, lengths)
    for name, values in BATCH.items():
        np.testing.assert_array_equal(features.arrays[name], values)
    dtypes = {name: v.dtype for name, v in features.arrays.items()}
    assert dtypes.pop("input_ids") == np.int32
    assert set(dtypes.values()) == {np.dtype(np.int8)}


@pytest.mark.parametrize("sign", [1, -1])
def test_any_number_of_batches_is_parsed(tmp_path, monkeypatch, sign):
    """The widest type of any of them holds all."""
    monkeypatch.setattr(buckets, "_EXAMPLES_PER_PARSE", 19)
    batch = examples(2 * 83)
    batch["label_ids"] *= sign
    read = buckets.load(write(tmp_path / "x.gz", batch), SCHEMA)
    assert read.arrays["label_ids"].dtype == np.int32
    for name, values in batch.items():
        np.testing.assert_array_equal(read.arrays[name], values)


def test_labels_may_be_numbers(tmp_path):
    schema = classification_schema(L, "regression")
    batch = examples(5, schema)
    batch["label_ids"] += 0.25
    read = buckets.load(write(tmp_path / "x", batch, schema), schema)
    [first, *_] = evaluate(read, padding=STATIC, batch_size=5)
    assert first["label_ids"].dtype == np.float32
    assert first["label_ids"].tolist() == [0.25, 1.25, 2.25, 3.25, 4.25]


def test_choices_are_as_long_as_the_longest(tmp_path):
    schema = classification_schema(L, "multiple_choice", num_choices=3)
    batch = examples(31, schema)
    read = buckets.load(write(tmp_path / "x", batch, schema), schema)
    longest = batch["input_mask"].sum(axis=2).max(axis=1)
    np.testing.assert_array_equal(read.lengths, longest)
    for made in train(read, 5, padding=Padding(1)):
        rows = made["label_ids"]
        assert made["input_ids"].shape == (6, 3, longest[rows].max())
        assert_holds_examples(made, rows, batch)


def test_places_within_a_mask_count(tmp_path):
    """And an example of nothing at all has one place."""
    batch = examples(2)
    batch["input_mask"][:] = 0
    batch["input_mask"][0, [0, 12]] = 1
    read = buckets.load(write(tmp_path / "x", batch), SCHEMA)
    assert read.lengths.tolist() == [13, 0]
    assert Padding(1).padded(read).tolist() == [13, 1]


@pytest.mark.parametrize(
    ("damage", "vocab_size", "message"),
    [
        (lambda data: data, 130, "input_ids from 0 to 129, as vocab_size"),
        (lambda data: data[:-3], None, "cut off within record 82"),
        (
            lambda data: data[:-40] + b"~" + data[-39:],
            None,
            "wrong checksum in record 82",
        ),
        (lambda data: b"", None, "No records in"),
        (lambda data: b"text" * 9, None, "not a TFRecord file"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path, damage, vocab_size, message):
    path = tmp_path / "x"
    write(path, BATCH)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        buckets.load(str(path), SCHEMA, vocab_size)


def test_records_of_another_length_are_told(tmp_path):
    path = write(tmp_path / "x", BATCH)
    with pytest.raises(InputError, match="--max_seq_length=29"):
        buckets.load(path, classification_schema(31))


# Padding


def test_lengths_are_rounded_up(features):
    padded = Padding(8).padded(features)
    assert set(padded) == {8, 16, 24, L}
    assert (padded >= features.lengths).all()
    assert (padded - features.lengths < 8).all()
    np.testing.assert_array_equal(Padding(1).padded(features), features.lengths)
    assert set(STATIC.padded(features)) == {L}


@pytest.mark.parametrize("multiple", [0, -8])
def test_a_multiple_is_above_0(multiple):
    with pytest.raises(InputError, match=f"Received: {multiple}"):
        Padding(multiple)


# training_dataset


@pytest.mark.parametrize("padding", PADDINGS)
def test_batches_hold_whole_examples(features, padding):
    for batch in train(features, padding=padding):
        rows = batch["label_ids"]
        assert len(rows) == 6
        longest = padding.padded(features)[rows].max()
        assert batch["input_ids"].shape == (6, longest)
        assert_holds_examples(batch, rows)


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_stream_holds_whole_epochs_and_a_part(features, padding):
    rows = numbers(train(features, padding=padding))
    assert set(np.bincount(rows.ravel(), minlength=83)) == {2, 3}
    assert rows.size == 37 * 6
    longest = features.lengths[rows].max(axis=1, keepdims=True)
    assert (longest - features.lengths[rows]).mean() < 8


def test_what_is_learned_does_not_depend_on_the_padding(features):
    first, *others = [numbers(train(features, padding=p)) for p in PADDINGS]
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_shapes_are_known_where_static(features):
    def spec(padding):
        return buckets.training_dataset(
            features,
            padding=padding,
            global_batch_size=6,
            batch_size=3,
            num_batches=2,
            seed=0,
        ).element_spec

    assert spec(STATIC)["input_ids"] == tf.TensorSpec([3, L], tf.int32)
    assert spec(STATIC)["label_ids"] == tf.TensorSpec([3], tf.int32)
    assert spec(Padding())["segment_ids"] == tf.TensorSpec([3, None], tf.int32)
    static = buckets.evaluation_dataset(
        features, padding=STATIC, batch_size=4
    ).element_spec
    assert static["input_mask"] == tf.TensorSpec([4, L], tf.int32)
    assert static["example_index"] == tf.TensorSpec([4], tf.int32)


@pytest.mark.parametrize("padding", [Padding(), STATIC])
@pytest.mark.parametrize("done", [1, 13, 36])
def test_a_resumed_stream_goes_on_where_it_stopped(features, padding, done):
    whole = train(features, padding=padding)
    rest = train(features, 37 - done, padding=padding, start_example=done * 6)
    np.testing.assert_array_equal(numbers(rest), numbers(whole[done:]))


def test_a_replica_of_a_shard_goes_on_too(features):
    options = {"batch_size": 1, "num_shards": 3, "shard": 2}
    whole = train(features, 2 * 37, **options)
    rest = train(features, 2 * 24, start_example=13 * 6, **options)
    np.testing.assert_array_equal(numbers(rest), numbers(whole[2 * 13 :]))


def test_a_stream_does_not_end(features):
    twice = numbers(train(features, 2 * 37))
    np.testing.assert_array_equal(twice[37:], twice[:37])
    batches = buckets.training_dataset(
        features,
        padding=Padding(),
        global_batch_size=6,
        batch_size=6,
        num_batches=37,
        seed=0,
        start_example=60,
    )
    assert batches.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize(("num_shards", "replicas"), [(2, 1), (1, 3), (3, 2)])
def test_shards_and_replicas_share_global_batches(
    features, num_shards, replicas
):
    size = 2 * num_shards * replicas
    whole = train(features, global_batch_size=size)
    shards = [
        train(
            features,
            37 * replicas,
            global_batch_size=size,
            batch_size=2,
            num_shards=num_shards,
            shard=shard,
        )
        for shard in range(num_shards)
    ]
    for step, batch in enumerate(whole):
        parts = [
            part
            for shard in shards
            for part in shard[step * replicas : (step + 1) * replicas]
        ]
        together = np.concatenate([part["label_ids"] for part in parts])
        assert sorted(together) == sorted(batch["label_ids"])
        lengths = {part["input_ids"].shape[-1] for part in parts}
        assert lengths == {batch["input_ids"].shape[-1]}


def test_replicas_of_a_strategy_get_their_batches(features):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def make(context):
        return buckets.training_dataset(
            features,
            padding=Padding(),
            global_batch_size=6,
            num_batches=37,
            seed=5,
            batch_size=3,
            num_shards=context.num_input_pipelines,
            shard=context.input_pipeline_id,
        )

    batches = iter(strategy.distribute_datasets_from_function(make))
    for expected in train(features, 5):
        parts = strategy.experimental_local_results(next(batches)["label_ids"])
        assert [len(part) for part in parts] == [3, 3]
        assert sorted(np.concatenate(parts)) == sorted(expected["label_ids"])


def test_tells_what_sorting_saves(features, caplog):
    caplog.set_level("INFO", "absl")
    train(features, 1)
    assert "% if all were 29 long" in caplog.text


# evaluation_dataset


@pytest.mark.parametrize("padding", [Padding(1), Padding(), STATIC])
@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_every_example_comes_once(features, padding, num_shards):
    shards = [
        evaluate(features, padding=padding, num_shards=num_shards, shard=shard)
        for shard in range(num_shards)
    ]
    assert len({len(shard) for shard in shards}) == 1
    for parts in zip(*shards, strict=True):
        assert len({part["input_ids"].shape for part in parts}) == 1
    batches = [batch for shard in shards for batch in shard]
    index = np.concatenate([batch["example_index"] for batch in batches])
    assert sorted(index[index >= 0]) == list(range(83))
    for batch in batches:
        index = batch["example_index"]
        is_real = index >= 0
        np.testing.assert_array_equal(batch["is_real_example"], is_real)
        real = {name: values[is_real] for name, values in batch.items()}
        assert_holds_examples(real, index[is_real])
        for name, values in batch.items():
            assert name == "example_index" or not values[~is_real].any()


def test_fewer_examples_than_workers():
    """The third has nothing to evaluate, and as many batches."""
    few = buckets.in_memory([examples(2)], SCHEMA)
    shards = [{"num_shards": 3, "shard": shard} for shard in range(3)]
    evaluated = [evaluate(few, padding=STATIC, **own) for own in shards]
    index = [[batch["example_index"] for batch in some] for some in evaluated]
    expected = [[[0, -1, -1, -1]], [[1, -1, -1, -1]], [[-1] * 4]]
    assert np.array(index).tolist() == expected
    options = {"global_batch_size": 3, "batch_size": 1}
    found = [train(few, 2, **options, **own) for own in shards]
    seen = np.concatenate([numbers(batches).reshape(-1) for batches in found])
    assert np.bincount(seen).tolist() == [3, 3]


def test_a_batch_is_full_of_places(features):
    batches = evaluate(features)
    for batch in batches:
        size, length = batch["input_ids"].shape
        assert size % 4 == 0
        assert size * length <= 4 * L < (size + 4) * length
    lengths = [batch["input_ids"].shape[1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) < 21


def test_static_batches_are_in_order(features):
    index = [
        batch["example_index"] for batch in evaluate(features, padding=STATIC)
    ]
    expected = [*range(83), -1]
    np.testing.assert_array_equal(np.concatenate(index), expected)


def test_examples_that_the_file_does_not_count(tmp_path):
    """The original fills files for TPUs up with such."""
    batch = examples(5)
    batch["is_real_example"][3:] = 0
    read = buckets.load(write(tmp_path / "x", batch), SCHEMA)
    [first, second] = evaluate(read, padding=STATIC)
    assert first["is_real_example"].tolist() == [1, 1, 1, 0]
    assert not second["is_real_example"].any()


def test_records_may_lack_the_mark_of_real_ones(tmp_path):
    schema = SCHEMA[:-1]
    batch = examples(5)
    del batch["is_real_example"]
    read = buckets.load(write(tmp_path / "x", batch, schema), schema)
    [_, second] = evaluate(read, padding=STATIC)
    assert second["is_real_example"].tolist() == [1, 0, 0, 0]
