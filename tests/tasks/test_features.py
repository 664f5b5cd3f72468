import dataclasses
import json
import logging
import pickle

import numpy as np
import pytest

from bert_tf import files
from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import encoding as encoding_module
from bert_tf.tasks.encoding import Encoding, make_features, write_features
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
    """The features of examples as plain lists."""
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


def test_the_casing_is_the_encodings():
    examples = [number(0, text="é B")]
    assert rows(examples)["input_ids"] == [[2, 9, 5, 3, 0, 0, 0]]
    kept = rows(examples, strip_accents=False)
    assert kept["input_ids"] == [[2, 8, 5, 3, 0, 0, 0]]
    cased = rows(examples, do_lower_case=False)
    assert cased["input_ids"] == [[2, 8, 1, 3, 0, 0, 0]]


@pytest.mark.parametrize("nothing", [None, "", " \t"])
def test_a_second_text_of_nothing_is_none(nothing):
    made = rows([number(0, text_b=nothing)])
    assert made["input_ids"] == [[2, 4, 3, 0, 0, 0, 0]]
    assert made["segment_ids"] == [[0] * 7]


def test_a_first_text_of_nothing_keeps_its_place():
    made = rows([number(0, text=""), number(1, text="", text_b="b")])
    assert [row[:4] for row in made["input_ids"]] == [
        [2, 3, 0, 0],
        [2, 3, 5, 3],
    ]


def test_counts_what_is_cut():
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
        ({}, number(4, "maybe"), "no, yes. Received: 'maybe' at x:4"),
        (
            {"problem": "regression", "labels": ()},
            number(5, "good"),
            "a number. Received: 'good' at x:5",
        ),
        (
            {"problem": "multi_label"},
            number(6, ("yes", "?")),
            r"no, yes. Received: \('yes', '\?'\) at x:6",
        ),
        (
            CHOICE,
            number(7, "0", choices=("a", "b")),
            "3 choices. Received: 2 at x:7",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(changes, example, message):
    encoding = dataclasses.replace(ENCODING, **changes)
    with pytest.raises(InputError, match=message):
        make_features([example], encoding)


def test_a_vocabulary_has_the_special_tokens():
    encoding = dataclasses.replace(ENCODING, vocab=("[UNK]", "[CLS]", "a"))
    with pytest.raises(InputError, match=r"\[SEP\] in the vocabulary"):
        make_features(EXAMPLES, encoding)


def test_an_encoding_can_go_to_other_processes():
    assert pickle.loads(pickle.dumps(ENCODING)) == ENCODING


# The records.


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("the file that they came from")
    return path


@pytest.fixture
def write(tmp_path, source):
    """Calls write_features with changes to what is usual."""

    def write(examples=EXAMPLES, reading=None, num_workers=1, **changes):
        return write_features(
            str(tmp_path / "train.tf_record"),
            examples,
            dataclasses.replace(ENCODING, **changes),
            sources=[str(source)],
            reading={"header": True, **(reading or {})},
            num_workers=num_workers,
        )

    write.path = tmp_path / "train.tf_record"
    write.manifest = tmp_path / "manifest.train.tf_record.json"
    return write


def test_the_file_holds_the_examples_in_order(write):
    assert write()
    made = make_features(EXAMPLES, ENCODING).batch
    expected = records.encode_batch(ENCODING.schema, made)
    assert write.path.read_bytes() == records.frame(expected)
    assert records.check_first_record(str(write.path), ENCODING.schema)
    manifest = json.loads(write.manifest.read_text())
    assert (manifest["records"], manifest["cut"]) == (4, 1)
    assert manifest["bytes"] == write.path.stat().st_size


@pytest.mark.parametrize("num_workers", [1, 2])
def test_pieces_and_workers_do_not_show(write, monkeypatch, num_workers):
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


def test_no_examples_are_a_file_without_records(write):
    assert write([])
    assert records.verify(str(write.path)) == 0
    assert not write([])


def test_tells_what_it_does(write, caplog):
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


# The cache.


def test_what_is_good_is_used_again(write, source):
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
        ("reading", {"reading": {"header": False}}),
        ("reading", {"reading": {"columns": ("a", 3)}}),
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
def test_any_difference_makes_it_anew(write, caplog, part, changes):
    caplog.set_level(logging.INFO)
    assert write()
    assert write(**changes)
    [reason] = [m for m in caplog.messages if "has other" in m]
    assert reason.endswith(f"has other {part}")
    assert not write(**changes)
    assert write()


def test_a_failure_leaves_what_was_there(write):
    write()
    good = write.path.read_bytes()
    with pytest.raises(InputError, match="maybe"):
        write([*EXAMPLES, number(4, "maybe")])
    assert write.path.read_bytes() == good
    assert not write()
    assert files.expand(f"{write.path}*") == [str(write.path)]
