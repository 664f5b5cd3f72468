"""Labels, and examples read from the rows of files."""

import pytest

from bert_tf.errors import InputError
from bert_tf.tasks.examples import Example, Target, count_labels, read_examples

CLASSES = Target(labels=("0", "1"), aliases={"zero": "0"}, undecided="-")
TAGS = Target("multi_label", ("a", "b", "c"))
NUMBERS = Target("regression")
INDICATORS = Target("multi_label", ("a", "b"), indicators=("b", "a"))
PAIRS = "id text_a text_b label"
HEADER = "id\ta\tb\tlabel\n"
JSON = {"id": "i", "text_a": "t", "label": "l"}


def read(path, columns=PAIRS, target=CLASSES, **options):
    return read_examples(path, columns, target, **options)


def read_labelled(path, target=CLASSES, **options):
    """Reads a file without a header: a text and its label in each row."""
    return read(path, "text_a label", target, has_header=False, **options)


def labels(found):
    return [example.label for example in found]


@pytest.mark.parametrize(
    ("target", "value", "label"),
    [
        (CLASSES, " 0 ", "0"),
        (CLASSES, "zero", "0"),
        (CLASSES, 1, "1"),
        (CLASSES, "1.0", "1"),
        (CLASSES, 0.0, "0"),
        (CLASSES, None, None),
        (Target(labels=("false", "true")), True, "true"),
        # Before the labels are known, any name is accepted.
        (Target(), "whatever", "whatever"),
        (TAGS, " c ,, b, c", ("c", "b")),
        (TAGS, None, ()),
        (TAGS, ["a", "b"], ("a", "b")),
        (NUMBERS, " -1e3", -1000.0),
        (NUMBERS, "", None),
        # pandas writes the integers of a column with gaps as floats.
        (Target(labels=("0.0", "1.0", "2.5")), "1", "1.0"),
        (Target("multi_label", ("1", "2")), "2.0,1", ("2", "1")),
        # An exact spelling takes precedence.
        (Target(labels=("1", "01", "1e0")), "1e0", "1e0"),
        *((INDICATORS, (x, 0), ("b",)) for x in ("True", 1, True, " 1", "1.0")),
        (INDICATORS, (False, "true"), ("a",)),
    ],
)
def test_labels(target, value, label):
    assert target.label_of(value, "x.tsv:7") == label


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        (CLASSES, "2", "unknown label '2'; the labels are '0' and '1'."),
        (CLASSES, "01", "'0' and '1'."),
        (CLASSES, True, "unknown label 'true'"),
        (Target(labels=("no", "yes")), "yess", "Did you mean 'yes'?"),
        (TAGS, ["a", "d"], "unknown label 'd'"),
        (TAGS, [["a"]], "expected text or a number, found a list"),
        (NUMBERS, "nan", "a finite number"),
        (NUMBERS, True, "a finite number"),
        (NUMBERS, 10**400, "a finite number"),
        (NUMBERS, "x" * 5000, "a finite number"),
        (INDICATORS, (None, 0), "column 'b' is empty. Write 0 or 1"),
        (INDICATORS, (0, 0.5), "column 'a' holds '0.5'"),
    ],
)
def test_invalid_labels(target, value, message):
    with pytest.raises(InputError) as caught:
        target.label_of(value, "x.tsv:7")
    assert str(caught.value).startswith("x.tsv:7: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_examples(write):
    path = write(f"{HEADER}7\tone\ttwo\t1\n\tthree\t four\tzero\n")
    assert read(path) == [
        Example("7", "one", "two", (), "1", f"{path}:2"),
        Example("1", "three", " four", (), "0", f"{path}:3"),
    ]


def test_only_a_test_set_may_lack_labels(write):
    path = write(HEADER + "0\ta\tb\t1\n1\tc\td\t \n2\te\tf\t\n")
    with pytest.raises(InputError, match=r":3: no label\.$"):
        read(path)
    assert labels(read(path, is_labelled=False)) == ["1", None, None]
    path = write("id\ta\tb\n0\ta\tb\n")
    assert labels(read(path, is_labelled=False)) == [None]
    # An unknown label is an error in a test set, too.
    path = write(HEADER + "0\ta\tb\t2\n")
    with pytest.raises(InputError, match=":2: unknown label '2'"):
        read(path, is_labelled=False)


def test_unusable_rows_are_counted(write, warnings):
    path = write("a\t0\nb\t-\nc\n\t1\n \t0\nd\t1\n")
    options = {"skip_malformed": True}
    found = read_labelled(path, warn=False, **options)
    assert labels(found) == ["0", "1", "0", "1"]
    assert [example.id for example in found] == ["0", "1", "2", "3"]
    assert not warnings
    # Every row of a test set needs a prediction.
    found = read_labelled(path, is_labelled=False, warn=False, **options)
    assert labels(found) == ["0", None, "1", "0", "1"]
    read_labelled(path, **options)
    assert warnings == [
        f"Rows without an agreed label are skipped: 1; the first: {path}:2",
        "Rows with the wrong number of columns are skipped: 1; the first: "
        f"{path}:3",
        f"Rows with an empty text: 2; the first: {path}:4",
    ]


def test_unusable_rows_of_json(write, warnings):
    # A null is an empty text, and a test set may lack labels.
    rows = [
        '{"i": 7, "t": 12.5, "l": 1}',
        '{"i": 8, "l": 1}',
        '{"i": 9, "t": "y"}',
        '{"i": 10, "t": null, "l": 0}',
    ]
    path = write("\n".join(rows), "a.jsonl")
    found = read(path, JSON, skip_malformed=True)
    assert [(e.id, e.text_a) for e in found] == [("7", "12.5"), ("10", "")]
    what = "without one of the keys"
    assert f"Rows {what} are skipped: 2; the first: {path}:2" in warnings
    found = read(path, JSON, skip_malformed=True, is_labelled=False)
    assert [e.id for e in found] == ["7", "9", "10"]


@pytest.mark.parametrize(
    ("text", "name", "columns", "message"),
    [
        (HEADER, "a.tsv", PAIRS, r"a\.tsv: no row found"),
        ('{"i": 1, "l": 1}', "a.jsonl", JSON, ":1: no column 't'; the"),
        ('{"i": 1, "t": [], "l": 0}', "a.jsonl", JSON, ":1: .* found a list"),
    ],
)
def test_files_that_cannot_be_read(write, text, name, columns, message):
    path = write(text, name)
    with pytest.raises(InputError, match=message):
        read(path, columns, has_header=text == HEADER)


BY_NUMBER = {"text_a": 0, "label": (2, 1)}


@pytest.mark.parametrize(
    ("target", "columns", "text", "expected"),
    [
        (TAGS, "text_a label", "x\tb,a\ny\t\n", [("b", "a"), ()]),
        # The column of a test set is empty: its labels are unknown.
        (TAGS, "text_a label", "x\t\ny\t\n", [None, None]),
        (INDICATORS, BY_NUMBER, "x\t0\t1\ny\t0\t0\n", [("b",), ()]),
        (INDICATORS, BY_NUMBER, "x\t\t \ny\t0\t0\n", [None, ()]),
    ],
)
def test_several_labels(write, target, columns, text, expected):
    path, options = write(text), {"has_header": False}
    found = read(path, columns, target, is_labelled=False, **options)
    assert labels(found) == expected
    if "\t\t " in text:
        with pytest.raises(InputError, match="column 'b' is empty"):
            read(path, columns, target, **options)
    else:
        found = read(path, columns, target, **options)
        assert labels(found) == [label or () for label in expected]


@pytest.mark.parametrize(
    ("names", "problem", "counts"),
    [
        ("x y x", "single_label", {"x": 2, "y": 1}),
        # pandas writes the integers of one file as floats.
        ("1 0.0 1.0 2.50", "single_label", {"1": 2, "0": 1, "2.50": 1}),
        # A file with one spelling keeps it.
        ("1.0 2", "single_label", {"1.0": 1, "2": 1}),
        ("1,2 2.0", "multi_label", {"1": 1, "2": 2}),
        ("1_0 10", "single_label", {"1_0": 1, "10": 1}),
    ],
)
def test_labels_are_counted(write, names, problem, counts):
    rows = "".join(f"a\t{name}\n" for name in names.split())
    found = read_labelled(write(rows), Target(problem))
    assert count_labels(found) == counts


CUSTOM = {"text_a": "1", "label": "0"}
LOOKS = "a.tsv:1: the header looks like an example with the "


@pytest.mark.parametrize(
    ("columns", "first", "reason"),
    [
        (CUSTOM, "a|x y", f"{LOOKS}label 'a'"),
        ({"text_a": "0", "label": "1"}, "x y|1", f"{LOOKS}label '1'"),
        ({"text_a": "0", "id": "1"}, "x y|1", f"{LOOKS}id '1'"),
        # These are headers.
        (CUSTOM, "0|1", None),
        ({"text_a": "text", "label": "a"}, "a|text", None),
        ({"text_a": "2019", "label": "2020"}, "2020|2019", None),
    ],
)
def test_a_header_may_be_an_example(write, warnings, columns, first, reason):
    """This is unknown if all columns are given by number."""
    path = write(f"{first}\nb\n{first}\n".replace("|", "\t"), "a.tsv")
    labels = ("a", "1") if reason else ("class", "0", "2020", "1", "a")
    options = {"is_labelled": False, "skip_malformed": True}
    if reason:
        with pytest.raises(InputError, match=f"{reason}.* pass `header=False`"):
            read(path, columns, Target(labels=labels), **options)
        return
    read(path, columns, Target(labels=labels), **options)
    assert not [line for line in warnings if "example" in line]
