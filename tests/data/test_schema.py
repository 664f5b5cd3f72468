import pytest

from bert_tf.data import schema


def test_pretraining_schema_is_the_originals():
    sizes = {
        feature.name: (feature.shape, feature.dtype)
        for feature in schema.pretraining_schema(11, 3)
    }
    assert sizes == {
        "input_ids": ((11,), "int64"),
        "input_mask": ((11,), "int64"),
        "segment_ids": ((11,), "int64"),
        "masked_lm_positions": ((3,), "int64"),
        "masked_lm_ids": ((3,), "int64"),
        "masked_lm_weights": ((3,), "float32"),
        "next_sentence_labels": ((1,), "int64"),
    }


def test_classification_schema_is_the_originals():
    features = schema.classification_schema(11)
    assert [(f.name, f.shape) for f in features] == [
        ("input_ids", (11,)),
        ("input_mask", (11,)),
        ("segment_ids", (11,)),
        ("label_ids", ()),
        ("is_real_example", ()),
    ]
    assert {f.dtype for f in features} == {"int64"}
    flags = {f.length_flag for f in features if f.shape}
    assert flags == {"max_seq_length"}


@pytest.mark.parametrize(
    ("problem", "shape", "dtype"),
    [
        ("single_label", (), "int64"),
        ("multi_label", (5,), "int64"),
        ("regression", (), "float32"),
        ("multiple_choice", (), "int64"),
    ],
)
def test_labels_of_each_problem(problem, shape, dtype):
    features = schema.classification_schema(11, problem, 5, 3)
    found = {f.name: f for f in features}
    label = found["label_ids"]
    assert (label.shape, label.dtype) == (shape, dtype)
    assert not label.is_sequence
    sequence = (3, 11) if problem == "multiple_choice" else (11,)
    sequences = {f.name: f.shape for f in features if f.is_sequence}
    assert sequences == dict.fromkeys(
        ["input_ids", "input_mask", "segment_ids"], sequence
    )


def test_tagging_schema_is_of_places_alone():
    features = schema.tagging_schema(11)
    names = ["input_ids", "input_mask", "segment_ids"]
    assert [f.name for f in features] == [*names, "label_ids", "label_mask"]
    assert {(f.shape, f.dtype) for f in features} == {((11,), "int64")}
    assert all(f.is_sequence for f in features)


def test_span_schema_is_the_originals():
    features = schema.span_schema(11)
    assert {f.name: f.shape for f in features} == {
        "unique_ids": (),
        "input_ids": (11,),
        "input_mask": (11,),
        "segment_ids": (11,),
        "start_positions": (),
        "end_positions": (),
        "is_impossible": (),
    }
    assert {f.dtype for f in features} == {"int64"}
    assert all(f.is_sequence == bool(f.shape) for f in features)


def test_size_is_the_number_of_values():
    assert schema.Feature("scalar", ()).size == 1
    assert schema.Feature("choices", (3, 5)).size == 15


@pytest.mark.parametrize(
    "fields", [((5,), "int32"), ((5,), "string"), ((0,),), ((3, -1),)]
)
def test_what_a_record_cannot_hold(fields):
    with pytest.raises(ValueError, match=r"'odd'.*Received"):
        schema.Feature("odd", *fields)
