"""Batches of examples of similar length, and their plans."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import batching, pipeline, records
from bert_tf.data.batching import Padding
from bert_tf.data.records import classification_schema
from bert_tf.errors import InputError

L = 29
STATIC = Padding(static=True)
SCHEMA = classification_schema(L)


def examples(n, schema=SCHEMA):
    """Returns random features of n examples, numbered by their labels."""
    random = np.random.default_rng(0)
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
    records.write(str(path), records.encode_batch(schema, batch))
    return str(path)


BATCH = examples(83)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "train.tf_record"
    return pipeline.load(write(path, BATCH), SCHEMA, vocab_size=131)


def evaluate(features, **options):
    options = {"padding": Padding(), "batch_size": 4, **options}
    batches = pipeline.evaluation_batches(features, **options)
    return list(batches.as_numpy_iterator())


def assert_holds_examples(batch, rows, expected=BATCH):
    """Compares a batch with rows of the examples, truncated to its length."""
    for name, values in expected.items():
        found = batch[name]
        assert found.dtype in (np.int32, np.float32)
        wanted = values[rows]
        if name in ("input_ids", "input_mask", "segment_ids"):
            length = found.shape[-1]
            assert not wanted[..., length:].any()
            wanted = wanted[..., :length]
        np.testing.assert_array_equal(found, wanted)


def test_load_equals_in_memory(features, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_EXAMPLES_PER_PARSE", 19)
    path = write(tmp_path / "x.gz", BATCH)
    several = pipeline.load(path, SCHEMA, vocab_size=131)
    parts = [
        {name: values[rows] for name, values in BATCH.items()}
        for rows in (slice(13), slice(13, 14), slice(14, None))
    ]
    for found in (features, several, batching.in_memory(parts, SCHEMA)):
        assert len(found) == 83
        assert found.max_seq_length == L
        assert found.sequences == ("input_ids", "input_mask", "segment_ids")
        lengths = BATCH["input_mask"].sum(axis=1)
        np.testing.assert_array_equal(found.lengths, lengths)
        for name, values in BATCH.items():
            np.testing.assert_array_equal(found.arrays[name], values)
    dtypes = {name: v.dtype for name, v in several.arrays.items()}
    assert dtypes.pop("input_ids") == np.int32
    assert set(dtypes.values()) == {np.dtype(np.int8)}


def test_labels_of_a_regression_and_lengths_of_several_choices():
    schema = classification_schema(L, "regression")
    batch = examples(5, schema)
    batch["label_ids"] += 0.25
    made = batching.in_memory([batch], schema)
    [first, *_] = evaluate(made, padding=STATIC, batch_size=5)
    assert first["label_ids"].dtype == np.float32
    assert first["label_ids"].tolist() == [0.25, 1.25, 2.25, 3.25, 4.25]
    schema = classification_schema(L, "multiple_choice", num_choices=3)
    batch = examples(31, schema)
    made = batching.in_memory([batch], schema)
    longest = batch["input_mask"].sum(axis=2).max(axis=1)
    np.testing.assert_array_equal(made.lengths, longest)
    batches = pipeline.training_batches(
        made,
        padding=Padding(1),
        global_batch_size=6,
        batch_size=6,
        num_batches=5,
        seed=5,
    )
    for found in batches.take(5).as_numpy_iterator():
        rows = found["label_ids"]
        assert found["input_ids"].shape == (6, 3, longest[rows].max())
        assert_holds_examples(found, rows, batch)


def test_padded_lengths(features):
    padded = Padding(8).padded(features)
    assert set(padded) == {8, 16, 24, L}
    assert (padded >= features.lengths).all()
    assert (padded - features.lengths < 8).all()
    np.testing.assert_array_equal(Padding(1).padded(features), features.lengths)
    assert set(STATIC.padded(features)) == {L}
    # Gaps in a mask count, and an empty example is padded to length 1.
    batch = examples(2)
    batch["input_mask"][:] = 0
    batch["input_mask"][0, [0, 12]] = 1
    made = batching.in_memory([batch], SCHEMA)
    assert made.lengths.tolist() == [13, 0]
    assert Padding(1).padded(made).tolist() == [13, 1]


@pytest.mark.parametrize(
    ("length", "vocab_size", "message"),
    [
        (L, 130, "input_ids must be from 0 to 129 "),
        (31, None, "`max_seq_length=29`"),
    ],
)
def test_unusable_files(tmp_path, length, vocab_size, message):
    path = write(tmp_path / "x", BATCH)
    with pytest.raises(InputError, match=message):
        pipeline.load(path, classification_schema(length), vocab_size)


@pytest.mark.parametrize(
    ("padding", "num_shards", "replicas", "start"),
    [(Padding(5), 1, 3, 0), (Padding(1), 3, 2, 7), (STATIC, 2, 1, 10)],
)
def test_shards_read_their_shares_of_the_plan(
    features, padding, num_shards, replicas, start
):
    """From any batch on; after the last one the stream repeats."""
    size = 2 * num_shards * replicas
    plan = batching.training_plan(
        features.lengths, num_batches=11, batch_size=size, seed=5
    )
    shares = batching.shares(plan, num_shards, 2)
    longest = padding.padded(features)[plan].max(axis=1)
    for shard in range(num_shards):
        batches = pipeline.training_batches(
            features,
            padding=padding,
            global_batch_size=size,
            num_batches=11,
            seed=5,
            batch_size=2,
            num_shards=num_shards,
            shard=shard,
            start_example=start * size,
        )
        assert batches.cardinality() == tf.data.INFINITE_CARDINALITY
        numbers = np.arange(start * replicas, (start + 13) * replicas)
        found = batches.take(len(numbers)).as_numpy_iterator()
        for number, batch in zip(numbers, found, strict=True):
            number %= 11 * replicas
            rows = shares[shard, number]
            np.testing.assert_array_equal(batch["label_ids"], rows)
            length = longest[number // replicas]
            assert batch["input_ids"].shape == (2, length)
            assert_holds_examples(batch, rows)


def test_shapes_are_static_if_asked_for(features):
    options = {"padding": STATIC, "batch_size": 4}
    evaluation = pipeline.evaluation_batches(features, **options)
    training = pipeline.training_batches(
        features, **options, global_batch_size=4, num_batches=2, seed=0
    )
    for batches in (training, evaluation):
        assert batches.element_spec["input_ids"].shape == (4, L)
        assert batches.element_spec["label_ids"].shape == (4,)
    assert evaluation.element_spec["example_index"].shape == (4,)


@pytest.mark.parametrize(
    ("padding", "num_shards", "n"),
    [(STATIC, 1, 83), (Padding(), 3, 83), (STATIC, 3, 2)],
)
def test_every_example_is_evaluated_once(padding, num_shards, n):
    """All shards have batches of the same shapes, or of padding alone."""
    expected = examples(n)
    made = batching.in_memory([expected], SCHEMA)
    shards = [
        evaluate(made, padding=padding, num_shards=num_shards, shard=shard)
        for shard in range(num_shards)
    ]
    for parts in zip(*shards, strict=True):
        assert len({part["input_ids"].shape for part in parts}) == 1
    batches = [batch for shard in shards for batch in shard]
    index = np.concatenate([batch["example_index"] for batch in batches])
    if padding.static and num_shards == 1:
        assert index.tolist() == [*range(83), -1]
    assert sorted(index[index >= 0]) == list(range(n))
    for batch in batches:
        index = batch["example_index"]
        is_real = index >= 0
        np.testing.assert_array_equal(batch["is_real_example"], is_real)
        real = {name: values[is_real] for name, values in batch.items()}
        assert_holds_examples(real, index[is_real], expected)
        for name, values in batch.items():
            assert name == "example_index" or not values[~is_real].any()


def test_examples_marked_as_padding_in_the_file():
    """The original fills files for TPUs with these."""
    batch = examples(5)
    batch["is_real_example"][3:] = 0
    made = batching.in_memory([batch], SCHEMA)
    [first, second] = evaluate(made, padding=STATIC)
    assert first["is_real_example"].tolist() == [1, 1, 1, 0]
    assert not second["is_real_example"].any()
    # Records may lack the mark.
    del batch["is_real_example"]
    made = batching.in_memory([batch], SCHEMA[:-1])
    [_, second] = evaluate(made, padding=STATIC)
    assert second["is_real_example"].tolist() == [1, 0, 0, 0]


LENGTHS = np.random.default_rng(3).integers(1, 14, 251) * 8  # Up to 104.


def plan(lengths=LENGTHS, num_batches=97, batch_size=7, seed=5):
    return batching.training_plan(
        lengths, num_batches=num_batches, batch_size=batch_size, seed=seed
    )


@pytest.mark.parametrize("num_batches", [0, 1, 36, 251])
@pytest.mark.parametrize("n", [1, 5, 251])
def test_a_plan_has_whole_epochs_and_a_part(num_batches, n):
    rows = plan(LENGTHS[:n], num_batches)
    assert rows.shape == (num_batches, 7)
    assert rows.dtype == np.int32
    seen = np.bincount(rows.ravel(), minlength=n)
    assert seen.max() - seen.min() <= 1


def test_a_longer_plan_starts_like_a_shorter_one():
    per_window = 251 // (4 * 7)
    whole = 97 // per_window * per_window
    longer = plan(num_batches=200)
    np.testing.assert_array_equal(longer[:whole], plan()[:whole])


def test_batches_have_similar_rows_but_are_not_sorted():
    def padding(rows):
        longest = LENGTHS[rows].max(axis=1)
        return 1 - LENGTHS[rows].sum() / (7 * longest.sum())

    assert padding(plan(np.full(251, 8))) > 0.35
    assert padding(plan()) < 0.12
    longest = LENGTHS[plan(num_batches=240)].max(axis=1)
    steps = np.sign(np.diff(longest))
    assert abs(steps.mean()) < 0.1
    assert 0.3 < np.mean(steps > 0) < 0.6


def test_rows_share_a_batch_with_others_in_the_next_epoch():
    lengths = np.random.default_rng(0).integers(1, 9, 1009) * 8
    first, second = (
        {frozenset(p) for row in rows for p in itertools.pairwise(row)}
        for rows in np.split(plan(lengths, 2 * 144), 2)
    )
    assert len(first & second) < 0.05 * len(first)


def test_golden_plan():
    """Runs must resume with later versions of NumPy and of this package."""
    assert (plan(seed=6) != plan()).mean() > 0.9
    found = plan(np.array([8, 16, 24] * 8), 6, 2, seed=1).tolist()
    assert found[:3] == [[4, 5], [0, 13], [11, 14]]
    assert found[3:] == [[19, 23], [12, 3], [9, 21]]


def test_shares_get_rows_in_turn():
    rows = np.arange(24).reshape(2, 12)
    assert batching.shares(rows, 2, 3).tolist() == [
        [[0, 4, 8], [2, 6, 10], [12, 16, 20], [14, 18, 22]],
        [[1, 5, 9], [3, 7, 11], [13, 17, 21], [15, 19, 23]],
    ]


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 300])
@pytest.mark.parametrize("is_filled", [True, False])
def test_evaluation_batches_have_a_limited_number_of_tokens(
    num_shards, batch_size, is_filled
):
    made = batching.evaluation_plan(
        LENGTHS,
        max_length=104,
        batch_size=batch_size,
        num_shards=num_shards,
        is_filled=is_filled,
    )
    # The longest come first; rows of one length keep their order.
    rows = np.concatenate([batch.T.ravel() for batch in made.batches])
    expected = np.argsort(-LENGTHS, kind="stable")
    np.testing.assert_array_equal(rows[:251], expected)
    assert (rows[251:] == -1).all()
    *others, last = zip(made.batches, made.lengths, strict=True)
    for batch, length in [*others, last]:
        shards, size = batch.shape
        assert shards == num_shards
        assert size % batch_size == 0
        assert size * length <= batch_size * 104
        assert LENGTHS[batch[batch >= 0]].max() == length
        if is_filled or batch is not last[0]:
            assert batch_size * 104 < (size + batch_size) * length
    unused = np.sum(last[0] < 0)
    assert unused < (last[0].size if is_filled else batch_size * num_shards)
