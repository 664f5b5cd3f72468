"""Features of examples, and the files that keep them."""

import dataclasses
import logging

import numpy as np
import pytest

from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import encoding as encoding_module
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", "é", "e")
ENCODING = Encoding(VOCAB, True, None, 7, "single_label", ("no", "yes"))


def number(index, label=None, text="a", **fields):
    return Example(str(index), text, label=label, where=f"x:{index}", **fields)


EXAMPLES = [
    number(0, "yes", "a bd", text_b="c"),
    number(1, "no", "B"),
    number(2, "yes", "a a a a a a a"),
    number(3, None, "é"),
]


def features_of(examples, **changes):
    encoding = dataclasses.replace(ENCODING, **changes)
    batch, _, num_cut, _ = encoding.encode(examples)
    return {name: values.tolist() for name, values in batch.items()}, num_cut


def test_features_of_a_single_label():
    made, num_cut = features_of(EXAMPLES)
    assert made == {
        "input_ids": [
            [2, 4, 5, 7, 3, 6, 3],
            [2, 5, 3, 0, 0, 0, 0],
            [2, 4, 4, 4, 4, 4, 3],
            [2, 9, 3, 0, 0, 0, 0],
        ],
        "input_mask": [[1] * 7, [1] * 3 + [0] * 4, [1] * 7, [1] * 3 + [0] * 4],
        "segment_ids": [[0] * 5 + [1] * 2, [0] * 7, [0] * 7, [0] * 7],
        "label_ids": [1, 0, 1, 0],
        "is_real_example": [1, 1, 1, 1],
    }
    assert num_cut == 1


@pytest.mark.parametrize(
    ("example", "changes", "ids"),
    [
        (number(0, text="é B"), {"strip_accents": False}, [2, 8, 5, 3]),
        (number(0, text="é B"), {"do_lower_case": False}, [2, 8, 1, 3]),
        # A second text without tokens is ignored.
        (number(0, text_b=" \t"), {}, [2, 4, 3]),
        (number(0, text=""), {}, [2, 3]),
        (number(0, text="", text_b="b"), {}, [2, 3, 5, 3]),
    ],
)
def test_sequences(example, changes, ids):
    made, _ = features_of([example], **changes)
    assert made["input_ids"] == [ids + [0] * (7 - len(ids))]
    is_pair = ids.count(3) == 2
    assert sum(made["segment_ids"][0]) == 2 * is_pair


def test_truncated_examples_are_counted():
    texts = ["a " * n for n in range(4, 8)]
    singles = [number(0, text=text) for text in texts]
    assert ENCODING.encode(singles).num_cut == 2
    pairs = [number(0, text=text, text_b="b") for text in texts]
    made, num_cut = features_of(pairs)
    assert num_cut == 4
    assert made["input_ids"][3] == [2, 4, 4, 4, 3, 5, 3]


REGRESSION = {"problem": "regression", "labels": ()}


def test_label_ids():
    numbers = [number(i, label) for i, label in enumerate([2.5, "-3", None])]
    made, _ = features_of(numbers, **REGRESSION)
    assert made["label_ids"] == [2.5, -3, 0]
    tagged = [number(i, x) for i, x in enumerate([("z",), (), ("y", "x")])]
    made, _ = features_of(tagged, problem="multi_label", labels=tuple("xyz"))
    assert made["label_ids"] == [[0, 0, 1], [0, 0, 0], [1, 1, 0]]


CHOICE = {"problem": "multiple_choice", "labels": tuple("012")}
CHOICE["num_choices"] = 3


def test_each_choice_is_a_sequence():
    examples = [
        number(0, "2", "a", choices=("b", "b c", "")),
        number(1, None, "b", choices=("a", "a a a a", "c c c c c")),
    ]
    made, num_cut = features_of(examples, **CHOICE)
    assert made["input_ids"] == [
        [[2, 4, 3, 5, 3, 0, 0], [2, 4, 3, 5, 6, 3, 0], [2, 4, 3, 0, 0, 0, 0]],
        [[2, 5, 3, 4, 3, 0, 0], [2, 5, 3, 4, 4, 4, 3], [2, 5, 3, 6, 6, 6, 3]],
    ]
    assert np.shape(made["segment_ids"]) == (2, 3, 7)
    assert made["label_ids"] == [2, 0]
    assert num_cut == 1


@pytest.mark.parametrize(
    ("changes", "example", "message"),
    [
        ({}, number(4, "maybe"), "x:4: .* one of no or yes; got 'maybe'"),
        (REGRESSION, number(5, "good"), "x:5: .* a finite number; got 'good'"),
        ({"problem": "multi_label"}, number(6, ("?",)), "x:6: .* no or yes"),
        (CHOICE, number(7, choices=("a", "b")), "x:7: expected 3 .*, found 2"),
        ({"vocab": ("[UNK]", "[CLS]", "a")}, number(8, "no"), r"\[SEP\]"),
    ],
)
def test_invalid_examples(changes, example, message):
    with pytest.raises(InputError, match=message):
        features_of([example], **changes)


@pytest.fixture
def write(tmp_path):
    """Returns a function that calls `Encoding.write` with changed settings."""
    source = tmp_path / "train.tsv"
    source.write_text("the file that they came from")

    def write(examples=EXAMPLES, num_workers=1, **changes):
        encoding = dataclasses.replace(ENCODING, **changes)
        return encoding.write(
            str(write.path),
            examples,
            sources=[str(source)],
            num_workers=num_workers,
        )

    write.path = tmp_path / "train.tf_record"
    return write


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_records_do_not_depend_on_parts(write, monkeypatch, num_workers):
    examples = EXAMPLES * 11
    if num_workers:
        monkeypatch.setattr(Encoding, "rows_per_part", 13)
        monkeypatch.setattr(encoding_module, "_EXAMPLES_FOR_ONE", 0)
    assert write(examples, num_workers=max(1, num_workers))
    made = ENCODING.encode(examples).batch
    expected = records.encode_batch(ENCODING.schema, made)
    assert write.path.read_bytes() == records.frame(expected)
    assert write([])
    assert records.verify(str(write.path)) == 0


def test_examples_and_counts_are_logged(write, caplog):
    caplog.set_level(logging.INFO)
    write()
    assert caplog.messages.count("*** Example ***") == 3
    assert "tokens: [CLS] a b ##d [SEP] c [SEP]" in caplog.text
    assert "label: yes (id = 1)" in caplog.text
    caplog.clear()
    write()
    assert "truncated examples: 1" in caplog.text
    assert "tokens:" not in caplog.text


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("examples", {"examples": [*EXAMPLES[:3], number(3, "no", "é")]}),
        ("vocabulary", {"vocab": (*VOCAB[:-2], "e", "é")}),
        ("labels", {"labels": ("yes", "no")}),
    ],
)
def test_any_difference_is_rebuilt(write, caplog, part, changes):
    caplog.set_level(logging.INFO)
    assert write()
    moved = [dataclasses.replace(e, id="x", where="y:1") for e in EXAMPLES]
    assert not write(moved)
    assert write(**changes)
    [reason] = [m for m in caplog.messages if "differs in" in m]
    assert reason.endswith(f"differs in {part}")
    assert not write(**changes)
