import pytest

from bert_tf.errors import InputError
from bert_tf.tasks import examples
from bert_tf.tasks.examples import Target

CLASSES = Target("single_label", ("0", "1"), {"zero": "0"})
TAGS = Target("multi_label", ("a", "b", "c"), separator=";")
NUMBERS = Target("regression")


def read(target, value):
    return target.label_of(value, "x.tsv:7")


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("1", "1"),
        (" 0 ", "0"),
        ("zero", "0"),
        (1, "1"),
        ("1.0", "1"),
        (0.0, "0"),
        ("", None),
        (None, None),
    ],
)
def test_names(value, label):
    assert read(CLASSES, value) == label


def test_truths_of_json_are_names():
    assert read(Target("single_label", ("false", "true")), True) == "true"


@pytest.mark.parametrize("value", ["2", "01", "1e0", 1.5, True, "zer"])
def test_unknown_names_are_told_with_the_names_that_there_are(value):
    with pytest.raises(InputError, match=r"'0', '1'\. Received: .*x\.tsv:7"):
        read(CLASSES, value)


def test_a_label_is_found_by_its_number_in_either_spelling():
    """pandas writes the integers of a column with gaps as floats."""
    floats = Target("single_label", ("0.0", "1.0", "2.5"))
    assert read(floats, "1") == "1.0"
    both = Target("single_label", ("0", "0.0"))
    assert [read(both, name) for name in both.labels] == ["0", "0.0"]
    tags = Target("multi_label", ("1", "2"))
    assert read(tags, "2.0,1") == ("2", "1")
    codes = Target("single_label", ("1", "01", "1e0"))
    assert [read(codes, name) for name in codes.labels] == [*codes.labels]


def test_any_name_will_do_before_the_labels_are_known():
    assert read(Target("single_label"), "whatever") == "whatever"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("b;a", ("b", "a")),
        (" c ;; c", ("c",)),
        ("", ()),
        (None, ()),
        ([], ()),
        (["a", "b"], ("a", "b")),
    ],
)
def test_several_names(value, names):
    assert read(TAGS, value) == names


@pytest.mark.parametrize("value", ["a,b", ["a", "d"], [["a"]], {"a": 1}])
def test_what_are_no_names_is_told(value):
    with pytest.raises(InputError, match=r"x\.tsv:7$"):
        read(TAGS, value)


@pytest.mark.parametrize(
    ("value", "number"),
    [("3.800", 3.8), (" -1e3", -1000.0), (4, 4.0), ("", None), (None, None)],
)
def test_numbers(value, number):
    assert read(NUMBERS, value) == number


@pytest.mark.parametrize(
    "value", ["good", "nan", "inf", "3,8", True, [1.0], 10**400, "x" * 5000]
)
def test_what_is_no_finite_number_is_told(value):
    with pytest.raises(InputError, match=r"finite number .*x\.tsv:7$") as error:
        read(NUMBERS, value)
    assert len(str(error.value)) < 200


def test_undecided_labels():
    target = Target("single_label", ("0", "1"), undecided="-")
    assert target.is_undecided("-")
    assert not target.is_undecided("0")
    assert not CLASSES.is_undecided(None)


@pytest.mark.parametrize(
    "value", ["1", "true", "True", 1, True, " 1", "1.0", 1.0]
)
def test_columns_that_say_yes(value):
    assert examples.is_set(value, "a", "x.tsv:7") is True


@pytest.mark.parametrize(
    ("value", "found"),
    [("", "is empty"), (None, "is empty"), ("2", "holds '2'"), (0.5, "'0.5'")],
)
def test_columns_that_say_neither(value, found):
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
def test_order(names, ordered):
    assert examples.in_order(names) == ordered
