import json

import pytest

from bert_tf.data.tables import Layout, format_of, open_records
from bert_tf.errors import InputError

NAMED = Layout(None, True, "text", label="label")


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.tsv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)

    return write


def read(path, layout, **arguments):
    found, records = open_records(path, layout, **arguments)
    return found, [tuple(values) for values, _ in records]


def test_columns_by_their_names_in_order():
    layout = Layout.of("id _ text_a text_b label")
    assert layout == Layout(5, True, 2, 3, label=4, id=0)


def test_columns_behind_a_star_count_from_the_end():
    layout = Layout.of("_ text_a * text_b label", has_header=False)
    assert layout == Layout(4, False, 1, -2, label=-1)


def test_several_columns_of_one_name():
    layout = Layout.of("key choice text_a choice key choice_start language")
    assert (layout.key, layout.choices) == ((0, 4), (1, 3))
    assert (layout.choice_start, layout.language) == (5, 6)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.tsv", "tsv"),
        ("ratings.txt", "tsv"),
        ("A.CSV", "csv"),
        ("a.b.jsonl.gz", "jsonl"),
        ("gs://x/a.json", "jsonl"),
    ],
)
def test_formats(name, format):
    assert format_of(name) == format


def test_unknown_formats_are_told():
    with pytest.raises(InputError, match=r"\.tsv.*Received: a\.xlsx"):
        format_of("a.xlsx")


@pytest.mark.parametrize("column", ["text", "2", "-1", 2])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_columns_of_a_header(write, name, column):
    text = "id,label, text \n0,x,yes\n"
    path = write(text.replace(",", "\t") if name == "a.tsv" else text, name)
    layout, records = read(path, Layout(None, True, column))
    assert layout.text_a == 2
    assert records == [("0", "x", "yes")]


def test_a_name_that_is_a_number(write):
    layout, _ = read(write("2\t1\t0\n"), Layout(None, True, "2", "1"))
    assert (layout.text_a, layout.text_b) == (0, 1)


def test_keys_of_json(write):
    rows = [
        {"text": "a", "label": [1, "b"]},
        {"x": 0, "text": None, "label": None},
    ]
    path = write("\n".join(map(json.dumps, rows)), "a.jsonl")
    layout, records = read(path, NAMED)
    assert [r[layout.text_a] for r in records] == ["a", None]
    assert [r[layout.label] for r in records] == [[1, "b"], None]


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("txet", r"'txet'\. Received: 'text', 'mark' .*:1; did you .*'text'"),
        ("zzz", r"'zzz'\. Received: 'text', 'mark' at .*:1$"),
        ("5", r"'5'\. Received: 'text', 'mark' at .*:1$"),
    ],
)
def test_missing_columns_are_told(write, name, column, message):
    rows = {"a.tsv": "text\tmark\na\tb\n", "a.jsonl": '{"text": "", "mark": 0}'}
    with pytest.raises(InputError, match=message):
        read(write(rows[name], name), Layout(None, True, column))


def test_names_that_stand_twice_are_told(write):
    path = write("text\ttext\nb\tc\n")
    with pytest.raises(InputError, match=r"2 columns of that name at .*:1"):
        read(path, Layout(None, True, "text"))
    assert read(path, Layout(None, True, "1"))[0].text_a == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_labels_may_be_missing_where_none_are_needed(write, name):
    rows = {"a.tsv": "text\na\n", "a.jsonl": '{"text": "a"}'}
    path = write(rows[name], name)
    with pytest.raises(InputError, match="a column 'label'"):
        read(path, NAMED)
    layout, [record] = read(path, NAMED, is_labelled=False)
    assert record[layout.text_a] == "a"
    assert name == "a.jsonl" or layout.label is None


def test_without_a_header_columns_have_numbers(write):
    path = write("a\tb\nc\td\n")
    layout, records = read(path, Layout(None, False, "1", label="0"))
    assert (layout.text_a, layout.label) == (1, 0)
    assert len(records) == 2
    with pytest.raises(InputError, match=r"for .*a\.tsv has no header"):
        read(path, Layout(None, False, "text"))


def test_an_empty_file_has_no_columns_to_be_missed(write):
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        assert read(write("", name), NAMED)[1] == []


@pytest.mark.parametrize(
    ("layout", "text", "message"),
    [
        (NAMED, "text\tlabel\na\tb\tc\n", "2 columns, as in the header.* 3 at"),
        (NAMED, "text\tlabel\na\n", "2 columns, as in the header.* 1 at"),
        (Layout.of("text_a label"), "x\na\n", "2 columns or more.* 1 at"),
        (
            Layout.of("text_a label"),
            "a\nb\tc\td\ne\tf\n",
            "3 columns, as at .*:2. Received: 2 at .*:3; --skip_malformed_rows",
        ),
        (Layout(None, False, "2"), "a\tb\n", "3 columns or more.* 2 at .*:1;"),
        (Layout(None, False, "-2"), "a\n", "2 columns or more.* 1 at .*:1;"),
    ],
)
def test_rows_of_another_length_are_told(write, layout, text, message):
    with pytest.raises(InputError, match=message):
        read(write(text), layout)


def test_more_columns_than_needed_are_fine(write):
    path = write("x\na\tb\tc\nd\te\tf\n")
    _, records = read(path, Layout.of("text_a label"))
    assert records == [("a", "b", "c"), ("d", "e", "f")]


def test_a_label_that_stands_last_may_be_missing(write):
    path = write("x\ny\tb\n")
    assert read(path, Layout.of("id text_a label"), is_labelled=False)[1]
    with pytest.raises(InputError, match="2 columns or more"):
        # A label that does not may not: what is behind would be elsewhere.
        read(write("x\ny\n"), Layout.of("label text_a"), is_labelled=False)


def test_rows_of_another_length_can_be_left_out(write):
    path = write("x\ny\na\tb\nc\nd\te\nf\tg\n")
    places = []
    _, records = read(path, Layout.of("text_a label"), skip=places.append)
    assert records == [("a", "b"), ("d", "e"), ("f", "g")]
    assert [place.rpartition(":")[2] for place in places] == ["2", "4"]


def test_but_not_most_of_them(write):
    path = write("x\ty\nb\tc\n" + "a\n" * 5)
    with pytest.raises(InputError, match=r"5 rows that have not, out of 6"):
        read(path, Layout.of("text_a label"), skip=lambda where: None)
