import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.schema import Feature, pretraining_schema

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


def test_encode_batch_leaves_its_input_alone():
    x = np.array([[300, 70_000, 2**40]], np.uint64)
    records.encode_batch((Feature("x", (3,)),), {"x": x})
    assert x.tolist() == [[300, 70_000, 2**40]]


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
