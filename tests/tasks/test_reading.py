import csv
import json

import pytest

from bert_tf.data.tables import Layout
from bert_tf.errors import InputError
from bert_tf.tasks.examples import (
    Example,
    Reading,
    Target,
    count_labels,
    read_examples,
)

CLASSES = Target("single_label", ("0", "1"))
TAGS = Target("multi_label", ("a", "b"))
PAIRS = Layout.of("id text_a text_b label")
LABELLED = Layout.of("text_a label", has_header=False)
HEADER = "id\ta\tb\tlabel\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.tsv"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return str(path)

    return write


@pytest.fixture
def warnings(monkeypatch):
    from absl import logging

    told = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: told.append(m % a))
    return told


def read(path, layout, target=CLASSES, **arguments):
    return read_examples(path, Reading(layout, target, **arguments))


def labels(examples):
    return [example.label for example in examples]


def test_examples(write, warnings):
    path = write(f"{HEADER}7\tone\ttwo\t1\n\tthree\t four\t0\n")
    assert read(path, PAIRS) == [
        Example("7", "one", "two", (), "1", f"{path}:2"),
        Example("1", "three", " four", (), "0", f"{path}:3"),
    ]
    assert not warnings


def test_troublesome_files(write):
    """All at once: a BOM, CRLF, blank lines, quotation marks, odd breaks."""
    long = "x" * 200_000
    texts = ['"', 'say "no', '5" and 6"', "a\rb", "a\u2028b", "a\x0cb", long]
    rows = "\r\n\r\n".join(f"{text}\t1" for text in texts)
    examples = read(write("\ufeff" + rows), LABELLED)
    assert [example.text_a for example in examples] == texts
    assert examples[-1].where.endswith(f":{2 * len(texts) - 1}")


def test_the_same_rows_in_every_format(tmp_path, write):
    texts = ["plain", 'a "quoted" one', "comma, too", "Ünï", "한국어"]
    layout = Layout(None, True, "text", label="label")
    path = tmp_path / "a.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [["label", "text"], *([1, t] for t in texts)]
        )
    objects = [json.dumps({"text": text, "label": 1}) for text in texts]
    paths = [
        str(path),
        write("text\tlabel\n" + "\n".join(f"{t}\t1" for t in texts)),
        write("\n".join(objects), "a.jsonl"),
    ]
    for path in paths:
        examples = read(path, layout)
        assert [example.text_a for example in examples] == texts
        assert labels(examples) == ["1"] * len(texts)


def test_choices_begin_alike(write):
    layout = Layout.of("text_a choice_start choice choice label", False)
    target = Target("multiple_choice", ("0", "1"))
    path = write("q\tShe\tgoes.\tstays.\t1\nq\t\tgoes.\tstays.\t0\n")
    first, second = read(path, layout, target)
    assert first.choices == ("She goes.", "She stays.")
    assert first.label == "1"
    assert second.choices == ("goes.", "stays.")
    assert first.text_b is None


def test_labels_may_be_missing_in_a_test_set_only(write):
    path = write(HEADER + "0\ta\tb\t1\n1\tc\td\t \n2\te\tf\t\n")
    with pytest.raises(InputError, match=r"a label on every row.*:3$"):
        read(path, PAIRS)
    assert labels(read(path, PAIRS, is_labelled=False)) == ["1", None, None]
    path = write("id\ta\tb\n0\ta\tb\n")
    assert labels(read(path, PAIRS, is_labelled=False)) == [None]


def test_but_not_unknown(write):
    path = write(HEADER + "0\ta\tb\t2\n")
    with pytest.raises(InputError, match=r"'0', '1'\. Received: '2' at .*:2$"):
        read(path, PAIRS, is_labelled=False)


def test_numbers(write):
    assert labels(read(write("a\t3.5"), LABELLED, Target("regression"))) == [
        3.5
    ]
    with pytest.raises(InputError, match=r"finite number.*'good' at .*:2$"):
        read(write("a\t3.5\nb\tgood\n"), LABELLED, Target("regression"))


def test_rows_without_text_are_kept_and_told_once(write, warnings):
    path = write(HEADER + "0\t\tb\t1\n1\tc\t \t1\n2\te\tf\t1\n")
    assert len(read(path, PAIRS)) == 3
    [line] = warnings
    assert "2 rows with an empty text were kept" in line
    assert line.endswith(f"{path}:2")


def test_undecided_rows_are_left_out_and_told(write, warnings):
    target = Target("single_label", ("0", "1"), undecided="-")
    path = write("a\t0\nb\t-\nc\t1\n")
    examples = read(path, LABELLED, target)
    assert [(e.id, e.label) for e in examples] == [("0", "0"), ("1", "1")]
    assert "1 row without an agreed label" in warnings[0]
    # In a test set a prediction is due for every row.
    assert labels(read(path, LABELLED, target, is_labelled=False)) == [
        "0",
        None,
        "1",
    ]


def test_malformed_rows_are_left_out_if_so_wished(write, warnings):
    path = write("a\t0\nb\nc\t1\n")
    with pytest.raises(
        InputError, match=r"2 columns.*Received: 1 at .*:2; --skip"
    ):
        read(path, LABELLED)
    assert labels(read(path, LABELLED, skip_malformed=True)) == ["0", "1"]
    assert "1 row with the wrong number of columns" in warnings[0]
    assert warnings[0].endswith(f"{path}:2")


@pytest.mark.parametrize("text", ["", "\n\n", HEADER])
def test_files_without_a_row_are_told(write, text):
    with pytest.raises(InputError, match=r"a\.tsv\. Received: no row"):
        read(write(text), PAIRS)


def test_languages(write):
    layout = Layout.of("language text_a label")
    path = write("x\ty\tz\nen\ta\t0\nko\tb\t1\nen\tc\t1\n")
    examples = read(path, layout, language="en")
    assert [e.text_a for e in examples] == ["a", "c"]
    with pytest.raises(InputError, match=r"'en', 'ko'\. Received: 'zh'"):
        read(path, layout, language="zh")


def test_rows_by_their_keys(write):
    layout = Layout.of("label key key text_a")
    path = write("x\ty\tz\tt\n0\t1\t2\ta\n0\t2\t1\tb\n")
    reading = Reading(layout, CLASSES)
    [example] = read_examples(path, reading, lambda key: key == ("2", "1"))
    assert (example.text_a, example.id) == ("b", "0")


def test_several_labels_of_a_row(write):
    assert labels(read(write("x\tb,a\ny\t\n"), LABELLED, TAGS)) == [
        ("b", "a"),
        (),
    ]


def test_several_labels_in_columns(write):
    layout = Layout(3, False, 0, indicators=(("b", 2), ("a", 1)))
    path = write("x\t0\t1\ny\t1\t1\nz\t0\t0\n")
    expected = [("b",), ("b", "a"), ()]
    assert labels(read(path, layout, TAGS)) == expected
    assert labels(read(path, layout, TAGS, is_labelled=False)) == expected
    with pytest.raises(InputError, match=r":1: .*'a' holds 'yes'.* 0 or 1"):
        read(write("x\tyes\t1\n"), layout, TAGS)


def test_a_test_set_without_any_of_several_labels(write):
    def test_labels(text):
        path = write(text)
        return labels(read(path, LABELLED, TAGS, is_labelled=False))

    assert test_labels("x\t\ny\t\n") == [None, None]
    assert test_labels("x\t\ny\ta\n") == [(), ("a",)]
    path = write('{"t": "x"}\n{"t": "y", "l": ["a"]}\n', "a.jsonl")
    layout = Layout(None, True, "t", label="l")
    assert labels(read(path, layout, TAGS, is_labelled=False)) == [None, ("a",)]


def test_what_is_no_text_in_json_is_told(write):
    layout = Layout(None, True, "t", label="l")
    path = write('{"t": 12.5, "l": 0}\n{"t": ["x"], "l": 0}\n', "a.jsonl")
    with pytest.raises(InputError, match=r"a list at .*a\.jsonl:2$"):
        read(path, layout)
    path = write('{"t": 12.5, "l": 0}\n{"t": null, "l": 1}\n', "a.jsonl")
    assert [e.text_a for e in read(path, layout)] == ["12.5", ""]


def test_json_objects_without_a_key_are_malformed(write, warnings):
    """A text that is null is an empty one; a label may be missing in tests."""
    layout = Layout(None, True, "t", label="l", id="i")
    rows = [
        '{"i": 7, "t": "x", "l": 1}',
        '{"i": 8, "l": 1}',
        '{"i": 9, "t": "y"}',
        '{"i": 10, "t": null, "l": 0}',
    ]
    path = write("\n".join(rows), "a.jsonl")
    message = (
        rf"^{path}:2: no key 't' in the object, only 'i', 'l'\. .*--skip_ma"
    )
    for is_labelled in (True, False):
        with pytest.raises(InputError, match=message):
            read(path, layout, is_labelled=is_labelled)
    with pytest.raises(InputError, match=r":2: no key 'l' in the object"):
        read(write("\n".join([rows[0], rows[2]]), "b.jsonl"), layout)

    def ids(**arguments):
        examples = read(path, layout, skip_malformed=True, **arguments)
        return [(e.id, e.text_a) for e in examples]

    assert ids() == [("7", "x"), ("10", "")]
    assert (
        f"2 rows without one of the keys were left out; the first: {path}:2"
        in (warnings)
    )
    assert ids(is_labelled=False) == [("7", "x"), ("9", "y"), ("10", "")]


def test_labels_are_counted(write):
    reading = Reading(LABELLED, Target("single_label"))
    counts = count_labels(write("a\tx\nb\ty\nc\tx\n"), reading)
    assert counts == {"x": 2, "y": 1}
    reading = Reading(LABELLED, Target("multi_label"))
    assert count_labels(write("a\tx,y\nb\t\n"), reading) == {"x": 1, "y": 1}


def test_labels_equal_as_numbers_are_one_or_refused(write):
    """1.0 is 1; other spellings may be codes, of which the user decides."""
    reading = Reading(LABELLED, Target("single_label"))
    mixed = write("a\t1\nb\t0.0\nc\t1.0\nd\t-2.0\ne\t2.50\n")
    counts = count_labels(mixed, reading)
    assert counts == {"1": 2, "0": 1, "-2": 1, "2.50": 1}
    # A file with one spelling keeps it.
    assert count_labels(write("a\t1.0\nb\t2\n"), reading) == {"1.0": 1, "2": 1}
    many = Reading(LABELLED, Target("multi_label"))
    assert count_labels(write("a\t1,2\nb\t2.0\n"), many) == {"1": 1, "2": 2}
    for one, other in (("1", "01"), ("1", "1e0"), ("2.5", "2.50")):
        path = write(f"a\t{one}\nb\tx\nc\t{one}\nd\t{other}\n")
        message = rf"^{path}:4: .*'{other}'.*'{one}'.* at {path}:1.*--labels"
        with pytest.raises(InputError, match=message):
            count_labels(path, reading)
    for names in (("10000000000000001", "10000000000000000"), ("1_0", "10")):
        path = write(f"a\t{names[0]}\nb\t{names[1]}\n")
        assert len(count_labels(path, reading)) == 2


def test_a_reading_tells_all_that_matters_in_json():
    one = Reading(PAIRS, CLASSES)
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict()
    others = [
        Reading(LABELLED, CLASSES),
        Reading(PAIRS, Target("single_label", ("1", "0"))),
        Reading(PAIRS, CLASSES, language="en"),
        Reading(PAIRS, CLASSES, skip_malformed=True),
        Reading(PAIRS, CLASSES, is_labelled=False),
    ]
    assert all(other.as_dict() != one.as_dict() for other in others)
