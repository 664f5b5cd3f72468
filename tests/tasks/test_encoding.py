"""Features of examples, and the files that keep them."""

import dataclasses
import json
import logging
import pickle

import numpy as np
import pytest

from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import encoding as encoding_module
from bert_tf.tasks.encoding import (
    Encoding,
    TextEncoding,
    make_features,
    write_features,
)
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


def rows(examples, **changes):
    """Returns the features of examples as lists."""
    encoding = dataclasses.replace(ENCODING, **changes)
    made = make_features(examples, encoding)
    return {name: values.tolist() for name, values in made.batch.items()}


# The features.


def test_features_of_a_single_label():
    assert rows(EXAMPLES) == {
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


def test_casing():
    examples = [number(0, text="é B")]
    assert rows(examples)["input_ids"] == [[2, 9, 5, 3, 0, 0, 0]]
    kept = rows(examples, strip_accents=False)
    assert kept["input_ids"] == [[2, 8, 5, 3, 0, 0, 0]]
    cased = rows(examples, do_lower_case=False)
    assert cased["input_ids"] == [[2, 8, 1, 3, 0, 0, 0]]


@pytest.mark.parametrize("nothing", [None, "", " \t"])
def test_a_second_text_without_tokens_is_ignored(nothing):
    made = rows([number(0, text_b=nothing)])
    assert made["input_ids"] == [[2, 4, 3, 0, 0, 0, 0]]
    assert made["segment_ids"] == [[0] * 7]


def test_empty_first_texts():
    made = rows([number(0, text=""), number(1, text="", text_b="b")])
    assert [row[:4] for row in made["input_ids"]] == [
        [2, 3, 0, 0],
        [2, 3, 5, 3],
    ]


def test_cut_examples_are_counted():
    texts = ["a " * n for n in range(4, 8)]
    singles = [number(0, text=text) for text in texts]
    assert make_features(singles, ENCODING).num_cut == 2
    pairs = [number(0, text=text, text_b="b") for text in texts]
    assert make_features(pairs, ENCODING).num_cut == 4
    assert make_features(pairs, wider(8)).num_cut == 3
    [row] = rows(pairs[3:])["input_ids"]
    assert row == [2, 4, 4, 4, 3, 5, 3]


def wider(length):
    return dataclasses.replace(ENCODING, max_seq_length=length)


def test_labels_of_regression():
    labels = [2.5, "-3", None]
    examples = [number(i, label) for i, label in enumerate(labels)]
    encoding = dataclasses.replace(ENCODING, problem="regression", labels=())
    label_ids = make_features(examples, encoding).batch["label_ids"]
    assert label_ids.dtype == np.float32
    assert label_ids.tolist() == [2.5, -3, 0]


def test_labels_of_a_multi_label_problem():
    labels = [("z",), (), ("y", "x"), None]
    made = rows(
        [number(i, label) for i, label in enumerate(labels)],
        problem="multi_label",
        labels=("x", "y", "z"),
    )
    assert made["label_ids"] == [[0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0]]


CHOICE = {
    "problem": "multiple_choice",
    "labels": ("0", "1", "2"),
    "num_choices": 3,
}


def test_each_choice_is_a_sequence():
    examples = [
        number(0, "2", "a", choices=("b", "b c", "")),
        number(1, None, "b", choices=("a", "a a a a", "c c c c c")),
    ]
    made = rows(examples, **CHOICE)
    assert made["input_ids"] == [
        [[2, 4, 3, 5, 3, 0, 0], [2, 4, 3, 5, 6, 3, 0], [2, 4, 3, 0, 0, 0, 0]],
        [[2, 5, 3, 4, 3, 0, 0], [2, 5, 3, 4, 4, 4, 3], [2, 5, 3, 6, 6, 6, 3]],
    ]
    assert np.shape(made["segment_ids"]) == (2, 3, 7)
    assert made["label_ids"] == [2, 0]
    encoding = dataclasses.replace(ENCODING, **CHOICE)
    assert make_features(examples, encoding).num_cut == 1


@pytest.mark.parametrize(
    ("changes", "example", "message"),
    [
        (
            {},
            number(4, "maybe"),
            "x:4: the label must be one of no or yes; got 'ma",
        ),
        (
            {"problem": "regression", "labels": ()},
            number(5, "good"),
            "x:5: the label must be a number; got 'good'",
        ),
        (
            {"problem": "multi_label"},
            number(6, ("yes", "?")),
            r"x:6: .* no or yes; got \('yes', '\?'\)",
        ),
        (
            CHOICE,
            number(7, "0", choices=("a", "b")),
            "x:7: expected 3 choices, found 2",
        ),
    ],
)
def test_invalid_examples(changes, example, message):
    encoding = dataclasses.replace(ENCODING, **changes)
    with pytest.raises(InputError, match=message):
        make_features([example], encoding)


def test_a_vocabulary_needs_the_special_tokens():
    encoding = dataclasses.replace(ENCODING, vocab=("[UNK]", "[CLS]", "a"))
    with pytest.raises(InputError, match=r"\[SEP\]"):
        make_features(EXAMPLES, encoding)


def test_the_tokenizer_is_built_once():
    first = ENCODING.tokenizer
    other = TextEncoding(VOCAB, True, None, 5)
    assert other.tokenizer is first
    copy = pickle.loads(pickle.dumps(ENCODING))
    assert copy == ENCODING
    assert copy.tokenizer is first


# The records.


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("the file that they came from")
    return path


@pytest.fixture
def write(tmp_path, source):
    """Calls write_features with changed settings."""

    def write(examples=EXAMPLES, num_workers=1, **changes):
        return write_features(
            str(tmp_path / "train.tf_record"),
            examples,
            dataclasses.replace(ENCODING, **changes),
            sources=[str(source)],
            num_workers=num_workers,
        )

    write.path = tmp_path / "train.tf_record"
    write.manifest = tmp_path / "manifest.train.tf_record.json"
    return write


def test_records(write):
    assert write()
    made = make_features(EXAMPLES, ENCODING).batch
    expected = records.encode_batch(ENCODING.schema, made)
    assert write.path.read_bytes() == records.frame(expected)
    assert records.check_first_record(str(write.path), ENCODING.schema)
    manifest = json.loads(write.manifest.read_text())
    assert (manifest["records"], manifest["cut"]) == (4, 1)
    assert manifest["bytes"] == write.path.stat().st_size


@pytest.mark.parametrize("num_workers", [1, 2])
def test_parts_and_workers_change_nothing(write, monkeypatch, num_workers):
    examples = EXAMPLES * 11
    write(examples)
    expected = write.path.read_bytes()
    write.path.unlink()
    monkeypatch.setattr(encoding_module, "_EXAMPLES_PER_PART", 13)
    monkeypatch.setattr(encoding_module, "_EXAMPLES_FOR_ONE", 0)
    assert write(examples, num_workers=num_workers)
    assert write.path.read_bytes() == expected
    assert records.verify(str(write.path)) == 44
    assert json.loads(write.manifest.read_text())["cut"] == 11


def test_no_examples(write):
    assert write([])
    assert records.verify(str(write.path)) == 0
    assert not write([])


def test_log(write, caplog):
    caplog.set_level(logging.INFO)
    write()
    assert "it does not exist" in caplog.text
    assert "tokens: [CLS] a b ##d [SEP] c [SEP]" in caplog.text
    assert "label: yes (id = 1)" in caplog.text
    assert "4 examples, 1 (25.0 %) of them cut to max_seq" in caplog.text
    assert "guid: 3" not in caplog.text
    caplog.clear()
    write()
    assert "Reusing" in caplog.text
    assert "1 (25.0 %) of them cut" in caplog.text
    assert "tokens" not in caplog.text


# Reuse.


def test_the_file_is_reused_if_only_ids_and_places_differ(write, source):
    assert write()
    before = write.path.stat()
    source.touch()
    moved = [
        dataclasses.replace(example, id="x", where="elsewhere:1")
        for example in EXAMPLES
    ]
    assert not write(moved)
    after = write.path.stat()
    assert (after.st_mtime_ns, after.st_ino) == (
        before.st_mtime_ns,
        before.st_ino,
    )


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("examples", {"examples": EXAMPLES[::-1]}),
        ("examples", {"examples": EXAMPLES[:3]}),
        (
            "examples",
            {"examples": [dataclasses.replace(EXAMPLES[0], label="no")]},
        ),
        ("vocabulary", {"vocab": (*VOCAB, "f")}),
        ("vocabulary", {"vocab": (*VOCAB[:-2], "e", "é")}),
        ("do_lower_case", {"do_lower_case": False}),
        ("strip_accents", {"strip_accents": False}),
        ("max_seq_length", {"max_seq_length": 8}),
        ("labels", {"labels": ("yes", "no")}),
        ("labels", {"labels": ("no", "yes", "maybe")}),
        (
            "examples, problem, labels",
            {
                "examples": [number(0), number(1)],
                "problem": "regression",
                "labels": (),
            },
        ),
        (
            "examples, problem, num_choices",
            {
                "examples": [number(0, choices=("a", "b"))],
                "problem": "multiple_choice",
                "num_choices": 2,
            },
        ),
    ],
)
def test_any_difference_is_rebuilt(write, caplog, part, changes):
    caplog.set_level(logging.INFO)
    assert write()
    assert write(**changes)
    [reason] = [m for m in caplog.messages if "has other" in m]
    assert reason.endswith(f"has other {part}")
    assert not write(**changes)
    assert write()
