"""Labels, and examples read from the rows of files."""

import pytest

from bert_tf.errors import InputError
from bert_tf.tasks import examples
from bert_tf.tasks.examples import Example, Target, count_labels, read_examples

CLASSES = Target(labels=("0", "1"), aliases={"zero": "0"})
TAGS = Target("multi_label", ("a", "b", "c"), separator=";")
NUMBERS = Target("regression")
PAIRS = "id text_a text_b label"
HEADER = "id\ta\tb\tlabel\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.tsv"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return str(path)

    return write


def read(path, columns=PAIRS, target=CLASSES, **options):
    return read_examples(path, columns, target, **options)


def read_labelled(path, target=CLASSES, **options):
    """Reads a file without a header: a text and its label in each row."""
    return read(path, "text_a label", target, has_header=False, **options)


def labels(found):
    return [example.label for example in found]


# Labels.


@pytest.mark.parametrize(
    ("target", "value", "label"),
    [
        (CLASSES, "1", "1"),
        (CLASSES, " 0 ", "0"),
        (CLASSES, "zero", "0"),
        (CLASSES, 1, "1"),
        (CLASSES, "1.0", "1"),
        (CLASSES, 0.0, "0"),
        (CLASSES, " ", None),
        (CLASSES, None, None),
        (Target(labels=("false", "true")), True, "true"),
        # Before the labels are known, any name is accepted.
        (Target(), "whatever", "whatever"),
        (TAGS, "b;a", ("b", "a")),
        (TAGS, " c ;; c", ("c",)),
        (TAGS, "", ()),
        (TAGS, None, ()),
        (TAGS, [], ()),
        (TAGS, ["a", "b"], ("a", "b")),
        (NUMBERS, "3.800", 3.8),
        (NUMBERS, " -1e3", -1000.0),
        (NUMBERS, 4, 4.0),
        (NUMBERS, "", None),
        (NUMBERS, None, None),
        # pandas writes the integers of a column with gaps as floats.
        (Target(labels=("0.0", "1.0", "2.5")), "1", "1.0"),
        (Target("multi_label", ("1", "2")), "2.0,1", ("2", "1")),
        # An exact spelling takes precedence.
        (Target(labels=("0", "0.0")), "0", "0"),
        (Target(labels=("0", "0.0")), "0.0", "0.0"),
        (Target(labels=("1", "01", "1e0")), "01", "01"),
        (Target(labels=("1", "01", "1e0")), "1e0", "1e0"),
    ],
)
def test_labels(target, value, label):
    assert target.label_of(value, "x.tsv:7") == label


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        (CLASSES, "2", "unknown label '2'; the labels are '0' and '1'."),
        (CLASSES, "01", "'0' and '1'."),
        (CLASSES, "1e0", "'0' and '1'."),
        (CLASSES, 1.5, "unknown label '1.5'"),
        (CLASSES, True, "unknown label 'true'"),
        (TAGS, "a,b", "unknown label 'a,b'"),
        (TAGS, ["a", "d"], "unknown label 'd'"),
        (TAGS, [["a"]], "expected text or a number, found a list"),
        (TAGS, {"a": 1}, "expected text or a number, found a dict"),
        (NUMBERS, "good", "a finite number; got 'good'"),
        (NUMBERS, "nan", "a finite number"),
        (NUMBERS, "inf", "a finite number"),
        (NUMBERS, "3,8", "a finite number"),
        (NUMBERS, True, "a finite number"),
        (NUMBERS, [1.0], "a finite number"),
        (NUMBERS, 10**400, "a finite number"),
        (NUMBERS, "x" * 5000, "a finite number"),
    ],
)
def test_invalid_labels(target, value, message):
    with pytest.raises(InputError) as caught:
        target.label_of(value, "x.tsv:7")
    assert str(caught.value).startswith("x.tsv:7: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["1", "true", "True", 1, True, " 1", "1.0"])
def test_indicator_columns(value):
    target = Target("multi_label", indicators=("a", "b"))
    assert target.label_of((value, 0), "x.tsv:7") == ("a",)
    assert target.label_of((False, value), "x.tsv:7") == ("b",)


@pytest.mark.parametrize(
    ("value", "found"),
    [("", "is empty"), (None, "is empty"), ("2", "holds '2'"), (0.5, "'0.5'")],
)
def test_invalid_indicators(value, found):
    message = rf"^x\.tsv:7: the label column 'a' .*{found}.* 0 or 1"
    with pytest.raises(InputError, match=message):
        examples.is_set(value, "a", "x.tsv:7")


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (["10", "9", "-1", "9"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["nan", "2", "10"], ("10", "2", "nan")),
        (["b", "B", "a"], ("B", "a", "b")),
        ([], ()),
    ],
)
def test_order_of_labels(names, ordered):
    assert examples.in_order(names) == ordered


# Examples.


def test_examples(write, warnings):
    path = write(f"{HEADER}7\tone\ttwo\t1\n\tthree\t four\tzero\n")
    assert read(path) == [
        Example("7", "one", "two", (), "1", f"{path}:2"),
        Example("1", "three", " four", (), "0", f"{path}:3"),
    ]
    assert not warnings


def test_unusual_characters(write):
    long = "x" * 200_000
    texts = ['"', 'say "no', '5" and 6"', "a\rb", "a\u2028b", "a\x0cb", long]
    rows = "\r\n\r\n".join(f"{text}\t1" for text in texts)
    found = read_labelled(write("\ufeff" + rows))
    assert [example.text_a for example in found] == texts
    assert found[-1].where.endswith(f":{2 * len(texts) - 1}")


def test_choices_share_a_beginning(write):
    path = write("q\tShe\tgoes.\tstays.\t1\nq\t\tgoes.\tstays.\t0\n")
    first, second = read(
        path, "text_a choice_start choice choice label", has_header=False
    )
    assert first.choices == ("She goes.", "She stays.")
    assert (first.label, first.text_b) == ("1", None)
    assert second.choices == ("goes.", "stays.")


def test_only_a_test_set_may_lack_labels(write):
    path = write(HEADER + "0\ta\tb\t1\n1\tc\td\t \n2\te\tf\t\n")
    with pytest.raises(InputError, match=r":3: no label\.$"):
        read(path)
    assert labels(read(path, is_labelled=False)) == ["1", None, None]
    path = write("id\ta\tb\n0\ta\tb\n")
    assert labels(read(path, is_labelled=False)) == [None]
    # An unknown label is an error in a test set, too.
    path = write(HEADER + "0\ta\tb\t2\n")
    with pytest.raises(InputError, match=r":2: unknown label '2'"):
        read(path, is_labelled=False)


def test_empty_texts_are_kept_with_one_warning(write, warnings):
    path = write(HEADER + "0\t\tb\t1\n1\tc\t \t1\n2\te\tf\t1\n")
    assert len(read(path, warn=False)) == 3
    assert not warnings
    assert len(read(path)) == 3
    assert warnings == [
        f"2 rows with an empty text were kept; the first: {path}:2"
    ]


def test_undecided_rows_are_skipped_with_a_warning(write, warnings):
    target = Target(labels=("0", "1"), undecided="-")
    path = write("a\t0\nb\t-\nc\t1\n")
    found = read_labelled(path, target)
    assert [(e.id, e.label) for e in found] == [("0", "0"), ("1", "1")]
    assert warnings == [
        f"1 row without an agreed label were skipped; the first: {path}:2"
    ]
    # Every row of a test set needs a prediction.
    found = read_labelled(path, target, is_labelled=False)
    assert labels(found) == ["0", None, "1"]


def test_malformed_rows_can_be_skipped(write, warnings):
    path = write("a\t0\nb\nc\t1\n")
    with pytest.raises(InputError, match=r":2: .* 2 columns.*found 1\. .*--sk"):
        read_labelled(path)
    assert labels(read_labelled(path, skip_malformed=True)) == ["0", "1"]
    what = "with the wrong number of columns were skipped"
    assert warnings == [f"1 row {what}; the first: {path}:2"]
    # In JSON, a null is an empty text, and a test set may lack labels.
    rows = [
        '{"i": 7, "t": "x", "l": 1}',
        '{"i": 8, "l": 1}',
        '{"i": 9, "t": "y"}',
        '{"i": 10, "t": null, "l": 0}',
    ]
    path = write("\n".join(rows), "a.jsonl")

    def ids(**options):
        columns = {"id": "i", "text_a": "t", "label": "l"}
        found = read(path, columns, **options)
        return [(e.id, e.text_a) for e in found]

    assert ids(skip_malformed=True) == [("7", "x"), ("10", "")]
    what = "without one of the keys were skipped"
    assert f"2 rows {what}; the first: {path}:2" in warnings
    with pytest.raises(InputError, match=":2: no key 't'"):
        ids(is_labelled=False)
    found = ids(is_labelled=False, skip_malformed=True)
    assert found == [("7", "x"), ("9", "y"), ("10", "")]


@pytest.mark.parametrize("text", ["", "\n\n", HEADER])
def test_files_without_rows(write, text):
    with pytest.raises(InputError, match=r"a\.tsv: no row found"):
        read(write(text))


def test_languages(write):
    columns = "language text_a label"
    path = write("x\ty\tz\nen\ta\t0\nko\tb\t1\nen\tc\t1\n")
    found = read(path, columns, language="en")
    assert [(e.id, e.text_a) for e in found] == [("0", "a"), ("1", "c")]
    message = r"language 'zh'; the languages are 'en' and 'ko'\.$"
    with pytest.raises(InputError, match=message):
        read(path, columns, language="zh")


def test_rows_by_their_keys(write):
    path = write("x\ty\tz\tt\n0\t1\t2\ta\n0\t2\t1\tb\n")
    [example] = read(
        path,
        "label key key text_a",
        is_wanted=lambda key: key == ("2", "1"),
    )
    assert (example.text_a, example.id) == ("b", "0")


def test_several_labels(write):
    found = read_labelled(write("x\tb;a\ny\t\n"), TAGS)
    assert labels(found) == [("b", "a"), ()]
    target = Target("multi_label", ("a", "b"), indicators=("b", "a"))
    columns = {"text_a": 0, "label": (2, 1)}
    path = write("x\t0\t1\ny\t1\t1\nz\t0\t0\n")
    for is_labelled in (True, False):
        found = read(
            path, columns, target, has_header=False, is_labelled=is_labelled
        )
        assert labels(found) == [("b",), ("b", "a"), ()]
    with pytest.raises(InputError, match=r":1: .*'a' holds 'yes'.* 0 or 1"):
        read(write("x\tyes\t1\n"), columns, target, has_header=False)


def test_a_test_set_without_several_labels(write):
    def test_labels(text):
        return labels(read_labelled(write(text), TAGS, is_labelled=False))

    assert test_labels("x\t\ny\t\n") == [None, None]
    assert test_labels("x\t\ny\ta\n") == [(), ("a",)]
    path = write('{"t": "x"}\n{"t": "y", "l": ["a"]}\n', "a.jsonl")
    columns = {"text_a": "t", "label": "l"}
    found = read(path, columns, TAGS, is_labelled=False)
    assert labels(found) == [None, ("a",)]
    target = Target("multi_label", indicators=("a", "b"))
    columns = {"text_a": 0, "label": (1, 2)}
    found = read(
        write("x\t\t \ny\t0\t0\n"),
        columns,
        target,
        has_header=False,
        is_labelled=False,
    )
    assert labels(found) == [None, ()]


def test_texts_in_json(write):
    columns = {"text_a": "t", "label": "l"}
    path = write('{"t": 12.5, "l": 0}\n{"t": null, "l": 1}\n', "a.jsonl")
    assert [e.text_a for e in read(path, columns)] == ["12.5", ""]
    path = write('{"t": 12.5, "l": 0}\n{"t": ["x"], "l": 0}\n', "a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl:2: .* found a list"):
        read(path, columns)


def counted(path, problem="single_label"):
    return count_labels(read_labelled(path, Target(problem)))


@pytest.mark.parametrize(
    ("rows", "problem", "counts"),
    [
        ("a\tx\nb\ty\nc\tx\n", "single_label", {"x": 2, "y": 1}),
        ("a\tx,y\nb\t\n", "multi_label", {"x": 1, "y": 1}),
        (
            "a\t1\nb\t0.0\nc\t1.0\nd\t-2.0\ne\t2.50\n",
            "single_label",
            {"1": 2, "0": 1, "-2": 1, "2.50": 1},
        ),
        # A file with one spelling keeps it.
        ("a\t1.0\nb\t2\n", "single_label", {"1.0": 1, "2": 1}),
        ("a\t1,2\nb\t2.0\n", "multi_label", {"1": 1, "2": 2}),
        (
            "a\t10000000000000001\nb\t10000000000000000\n",
            "single_label",
            {"10000000000000001": 1, "10000000000000000": 1},
        ),
        ("a\t1_0\nb\t10\n", "single_label", {"1_0": 1, "10": 1}),
    ],
)
def test_labels_are_counted(write, rows, problem, counts):
    assert counted(write(rows), problem) == counts


@pytest.mark.parametrize(
    ("one", "other"), [("1", "01"), ("1", "1e0"), ("2.5", "2.50")]
)
def test_labels_equal_as_numbers_are_ambiguous(write, one, other):
    path = write(f"a\t{one}\nb\tx\nc\t{one}\nd\t{other}\n")
    message = rf"^{path}:4: .*'{other}'.*'{one}' in {path}:1\..*--labels"
    with pytest.raises(InputError, match=message):
        counted(path)
