"""Rows of TSV, CSV and JSON Lines files."""

import csv
import gzip
import json
import random
import unicodedata

import pytest

from bert_tf.data import tables
from bert_tf.data.tables import read_csv, read_jsonl, read_lines, read_tsv
from bert_tf.errors import InputError

READERS = [read_tsv, read_csv, read_jsonl]
NAMED = {"text": "text", "label": "label"}


def values(rows):
    return [value for value, _ in rows]


def lines(rows):
    return [int(where.rpartition(":")[2]) for _, where in rows]


def random_texts(count, seed, excluded=""):
    """Returns texts of arbitrary characters, many of them unusual."""
    generator = random.Random(seed)
    odd = "\"',\\ \x00\x0b\x0c\x1c\x85\ufeff\u2028\u2029\u3000\r\n\t"
    texts = []
    for _ in range(count):
        codes = generator.choices(range(0x110000), k=generator.randrange(7))
        text = [chr(c) for c in codes if unicodedata.category(chr(c)) != "Cs"]
        text += generator.choices(odd, k=generator.randrange(5))
        generator.shuffle(text)
        texts.append("".join(c for c in text if c not in excluded))
    return texts


def in_threes(texts):
    return list(zip(*[iter(texts)] * 3, strict=True))


# The three formats.


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_tsv_round_trip(write, end, bom):
    rows = in_threes(random_texts(3000, seed=1, excluded="\t\n"))
    # After the last field "\r" would belong to the end of the line.
    rows = [(a, b, c + ".") for a, b, c in rows]
    path = write(bom + "".join("\t".join(row) + end for row in rows))
    assert values(read_tsv(path)) == rows
    assert lines(read_tsv(path)) == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("end", "quoting"),
    [
        ("\r\n", csv.QUOTE_MINIMAL),
        # With "\n" and QUOTE_MINIMAL csv leaves a lone "\r" unquoted.
        ("\n", csv.QUOTE_ALL),
    ],
)
def test_csv_round_trip(tmp_path, end, quoting):
    rows = in_threes(random_texts(3000, seed=2))
    path = tmp_path / "a.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=quoting)
        writer.writerows(rows)
    assert values(read_csv(str(path))) == rows


@pytest.mark.parametrize("ascii_only", [True, False])
def test_jsonl_round_trip(write, ascii_only):
    objects = [{"text": text} for text in random_texts(999, seed=3)]
    dumped = [json.dumps(v, ensure_ascii=ascii_only) for v in objects]
    assert values(read_jsonl(write("\n".join(dumped)))) == objects


def test_quotation_marks(write):
    path = write('"a\tb"c\t"\n\'d\t""\t5" x\n')
    assert values(read_tsv(path)) == [('"a', 'b"c', '"'), ("'d", '""', '5" x')]
    path = write('a,"b,""c"""\r\n"x\r\ny\nz",5" disk\r\nlast,""')
    assert values(read_csv(path)) == [
        ("a", 'b,"c"'),
        ("x\r\ny\nz", '5" disk'),
        ("last", ""),
    ]
    assert lines(read_csv(path)) == [1, 2, 5]


@pytest.mark.parametrize("text", ["a\rb", "a\x0cb", "a\u2028b", "a\x85b"])
def test_only_line_feeds_end_lines(write, text):
    assert values(read_tsv(write(f"{text}\tc\n"))) == [(text, "c")]
    assert values(read_csv(write(f"{text},c\n"))) == [(text, "c")]
    assert values(read_csv(write(f'"{text}",c\r\n'))) == [(text, "c")]
    assert values(read_jsonl(write(f'{{"x": "{text}"}}\r\n'))) == [{"x": text}]
    texts = [" a \r\n", "\n", f"{text}\n", " \t\n", "\ufeffd"]
    assert list(read_lines(write("\ufeff" + "".join(texts)))) == [
        (text, number) for number, text in enumerate(texts, start=1)
    ]


def test_blank_lines_are_skipped_but_counted(write):
    assert lines(read_tsv(write("\na\r\n\r\n  \nb\n\n"))) == [2, 5]
    assert lines(read_csv(write("\na\r\n\r\n\nb\n\n"))) == [2, 5]
    assert lines(read_jsonl(write("\n{}\r\n \r\n\t\n{}\n"))) == [2, 5]
    # A row of empty fields is not blank.
    assert values(read_tsv(write("\t\n"))) == [("", "")]
    assert values(read_csv(write(',\n""\n'))) == [("", ""), ("",)]


def test_long_fields_do_not_change_the_limit_of_csv(write):
    text = "x" * 131_073 * 3
    limit = csv.field_size_limit()
    assert values(read_tsv(write(f"{text}\ta\n"))) == [(text, "a")]
    rows = read_csv(write(f'"{text}",a\nb,c\n'))
    assert next(rows)[0] == (text, "a")
    assert csv.field_size_limit() == limit
    with pytest.raises(InputError):
        list(read_csv(write('"a')))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("reader", READERS)
def test_files(write, tmp_path, reader):
    assert not list(reader(write("")))
    assert not list(reader(write("\ufeff\r\n")))
    assert len(list(reader("file://" + write('{"a": 1}\n{"a": 2}')))) == 2
    packed = gzip.compress(b'{"a": 1}\n')
    assert len(list(reader(write(packed, "a.gz")))) == 1
    with pytest.raises(InputError, match="gzip compression is damaged"):
        list(reader(write(packed[:-5], "b.gz")))
    with pytest.raises(InputError, match=r"no\.txt: No such file"):
        list(reader(str(tmp_path / "no.txt")))
    path = write(b'{"a": 1}\n\n{"a": "\xe9"}\n')
    with pytest.raises(InputError, match=r"a\.txt:3: byte 0xe9 is not UTF-8"):
        list(reader(path))
    with pytest.raises(InputError, match=r"a\.txt:1: byte 0xff"):
        list(reader(write("a,b\n".encode("utf-16"))))


@pytest.mark.parametrize("text", ['a\nb\n"c\nd\n', 'a\nb\n"c"d,e\nf\n'])
def test_invalid_csv_names_the_line_where_the_row_starts(write, text):
    with pytest.raises(InputError, match=r"a\.txt:3: this row is not valid"):
        list(read_csv(write(text)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'a': 1}", r"double quotes \(column 2\)"),
        ("[", "found an array"),
        (' [{"a": 1}]', "found an array. Convert the file with jq"),
        ('"a"', "found a str"),
        ('{"a": ' * 100_000, "recursion"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        (r'{"a": {"b": ["\ud83d"]}}', r"\\ud83d is half of a surrogate pair"),
    ],
)
def test_lines_that_are_not_json_objects(write, line, message):
    with pytest.raises(InputError, match=rf"a\.txt:2: .*{message}") as caught:
        list(read_jsonl(write(f"{{}}\n{line}\n")))
    assert "\n" not in str(caught.value)


# Named columns.


def test_columns_in_order(write):
    path = write("h\ta\tb\tc\td\te\nx\t1\t2\t3\t4\t5\n", "a.tsv")
    assert values(tables.read(path, "_ text _ key key *")) == [
        {"text": "1", "key": ("3", "4")}
    ]
    [_, row] = values(
        tables.read(path, "_ text * key key label", has_header=False)
    )
    assert row == {"text": "1", "key": ("3", "4"), "label": "5"}


@pytest.mark.parametrize("name", ["a.tsv", "ratings.txt", "A.CSV", "a.csv.gz"])
@pytest.mark.parametrize("column", ["text", "2", "-1", 2])
def test_columns_of_a_header(write, name, column):
    content = "id,label, text \n0,x,yes\n"
    if "csv" not in name.lower():
        content = content.replace(",", "\t")
    content = content.encode()
    path = write(gzip.compress(content) if ".gz" in name else content, name)
    columns = {"a": column, "b": ("id", "label")}
    assert list(tables.read(path, columns)) == [
        ({"a": "yes", "b": ("0", "x")}, f"{path}:2")
    ]


def test_names_take_precedence_over_numbers(write):
    path = write("2\t1\t0\nx\ty\tz\n", "a.tsv")
    assert values(tables.read(path, {"a": "2", "b": "1"})) == [
        {"a": "x", "b": "y"}
    ]
    path = write("text\ttext\nb\tc\n", "a.tsv")
    with pytest.raises(InputError, match=r":1: 2 columns are named 'text'"):
        list(tables.read(path, {"a": "text"}))
    assert values(tables.read(path, {"a": "1"})) == [{"a": "c"}]


def test_without_a_header_columns_have_numbers(write):
    path = write("a\tb\nc\td\n", "a.tsv")
    rows = tables.read(path, {"x": "1", "y": "-2"}, has_header=False)
    assert values(rows) == [{"x": "b", "y": "a"}, {"x": "d", "y": "c"}]
    with pytest.raises(InputError, match=r"a\.tsv: no header .* 'text'"):
        list(tables.read(path, {"a": "text"}, has_header=False))


def test_keys_of_json(write):
    rows = [
        {"text": "a", "label": [1, "b"], "2": 3},
        {"x": 0, "text": None, "label": None, "2": None},
    ]
    path = write("\n".join(map(json.dumps, rows)), "a.b.jsonl")
    found = values(tables.read(path, {**NAMED, "several": ("text", 2)}))
    assert found == [
        {"text": "a", "label": [1, "b"], "several": ("a", 3)},
        {"text": None, "label": None, "several": (None, None)},
    ]


def test_unknown_file_types():
    with pytest.raises(InputError, match=r"^a\.xlsx: unknown file type.*\.tsv"):
        tables.read("a.xlsx", NAMED)


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_missing_columns(write, name):
    content = {
        "a.tsv": "text\tmark\na\tb\n",
        "a.jsonl": '{"text": "", "mark": 0}',
    }[name]
    path = write(content, name)
    for column, hint in (
        ("txet", r" Did you mean 'text'\?"),
        ("zzz", ""),
        ("5", ""),
    ):
        message = rf":1: no column '{column}'; the columns are 'text' and 'ma"
        with pytest.raises(InputError, match=rf"{message}rk'\.{hint}$"):
            # Skipping malformed rows does not skip a misspelt column.
            list(tables.read(path, {"a": column}, skip=lambda *args: None))


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_optional_columns(write, name):
    content = {"a.tsv": "text\na\n", "a.jsonl": '{"text": "a"}'}[name]
    path = write(content, name)
    with pytest.raises(InputError, match="no column 'label'"):
        list(tables.read(path, NAMED))
    [row] = values(tables.read(path, NAMED, optional=["label"]))
    assert (row["text"], row.get("label")) == ("a", None)


def test_an_optional_last_column_may_be_missing_in_the_rows(write):
    path = write("x\ny\tb\n", "a.tsv")
    columns = "id text label"
    assert values(tables.read(path, columns, optional=["label"])) == [
        {"id": "y", "text": "b", "label": None}
    ]
    with pytest.raises(InputError, match="3 columns or more, found 2"):
        list(tables.read(path, columns))
    # Without another column those after it would be in the wrong place.
    with pytest.raises(InputError, match="2 columns or more, found 1"):
        list(
            tables.read(
                write("x\ny\n", "a.tsv"), "label text", optional=["label"]
            )
        )


def test_an_empty_file_has_no_rows(write):
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        assert not list(tables.read(write("", name), NAMED))


@pytest.mark.parametrize(
    ("columns", "has_header", "content", "message"),
    [
        (NAMED, True, "text\tlabel\na\tb\tc\n", ":2: .* 2 .*header, found 3"),
        (NAMED, True, "text\tlabel\na\n", ":2: .* 2 .*header, found 1"),
        ("text label", True, "x\na\n", ":2: .* 2 columns or more, found 1"),
        (
            "text label",
            True,
            "a\nb\tc\td\ne\tf\n",
            r":3: .* 3 columns, as in .*a\.tsv:2, found 2\. .*--skip_malformed",
        ),
        ({"a": "2"}, False, "a\tb\n", ":1: .* 3 columns or more, found 2"),
        ({"a": "-2"}, False, "a\n", ":1: .* 2 columns or more, found 1"),
    ],
)
def test_rows_with_a_wrong_number_of_columns(
    write, columns, has_header, content, message
):
    path = write(content, "a.tsv")
    with pytest.raises(InputError, match=message):
        list(tables.read(path, columns, has_header=has_header))


def test_rows_may_have_more_columns_than_needed(write):
    path = write("x\na\tb\tc\nd\te\tf\n", "a.tsv")
    assert values(tables.read(path, "text label")) == [
        {"text": "a", "label": "b"},
        {"text": "d", "label": "e"},
    ]


def test_malformed_rows_can_be_skipped_unless_they_are_the_majority(write):
    skipped = []
    path = write("x\ny\na\tb\nc\nd\te\nf\tg\n", "a.tsv")
    rows = tables.read(
        path, "text label", skip=lambda *row: skipped.append(row)
    )
    assert [row["text"] for row in values(rows)] == ["a", "d", "f"]
    problem = "with the wrong number of columns"
    assert skipped == [(problem, f"{path}:2"), (problem, f"{path}:4")]
    path = write("x\ty\nb\tc\n" + "a\n" * 5, "a.tsv")
    with pytest.raises(InputError, match=r"a\.tsv: .* 2 columns.*5 of 6 rows"):
        list(tables.read(path, "text label", skip=lambda *row: None))


def test_json_objects_that_lack_a_key(write):
    path = write('{"text": 0, "label": 1}\n{"label": 2}\n', "a.jsonl")
    message = rf"^{path}:2: no key 'text'; the keys are 'label'\. .*--skip_mal"
    with pytest.raises(InputError, match=message):
        list(tables.read(path, NAMED))
    skipped = []
    rows = tables.read(path, NAMED, skip=lambda *row: skipped.append(row))
    assert len(list(rows)) == 1
    assert skipped == [("without one of the keys", f"{path}:2")]
