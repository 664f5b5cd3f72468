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


def test_jsonl_round_trip(write):
    objects = [{"text": text} for text in random_texts(999, seed=3)]
    dumped = [json.dumps(value, ensure_ascii=False) for value in objects]
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
    if "\r" not in text:
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


def test_fields_may_be_longer_than_the_limit_of_csv(write):
    text = "x" * 131_073 * 3
    rows = read_csv(write(f'"{text}",a\nb,c\n'))
    assert next(rows)[0] == (text, "a")


@pytest.mark.parametrize("reader", [read_tsv, read_csv, read_jsonl])
def test_files(write, tmp_path, reader):
    assert not list(reader(write("")))
    assert not list(reader(write("\ufeff\r\n")))
    assert len(list(reader("file://" + write('{"a": 1}\n{"a": 2}')))) == 2
    packed = gzip.compress(b'{"a": 1}\n')
    assert len(list(reader(write(packed, "a.gz")))) == 1
    damaged, latin1 = packed[:-5], b'{"a": 1}\n\n{"a": "\xe9"}\n'
    for path, message in (
        (write(damaged, "b.gz"), "gzip compression is damaged"),
        (str(tmp_path / "no.txt"), r"no\.txt: No such file"),
        (write(latin1), r"a\.txt:3: byte 0xe9 is not"),
    ):
        with pytest.raises(InputError, match=message):
            list(reader(path))


@pytest.mark.parametrize("text", ['a\nb\n"c\nd\n', 'a\nb\n"c"d,e\nf\n'])
def test_invalid_csv_names_the_line_where_the_row_starts(write, text):
    with pytest.raises(InputError, match=r"a\.txt:3: this row is not valid"):
        list(read_csv(write(text)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'a': 1}", r"double quotes \(column 2\)"),
        (' [{"a": 1}]', "found an array. Convert the file with jq"),
        ('"a"', "found a str"),
    ],
)
def test_lines_that_are_not_json_objects(write, line, message):
    with pytest.raises(InputError, match=rf"a\.txt:2: .*{message}"):
        list(read_jsonl(write(f"{{}}\n{line}\n")))


HEADERLESS = {"has_header": False}
OPTIONAL = {"optional": ["label"]}
SKIP = {"skip": print}
SEVERAL = {**NAMED, "several": ("text", 2)}


def read(write, content, columns, settings):
    """Reads a table with tabs or, after a brace, JSON Lines."""
    path = write(content, "a.b.jsonl" if content.startswith("{") else "a.tsv")
    return list(tables.read(path, columns, **settings))


@pytest.mark.parametrize(
    ("content", "columns", "settings", "expected"),
    [
        ("h\nx\t1\t2\t3\t4\n", "_ a b b *", {}, {"a": "1", "b": ("2", "3")}),
        ("1\t2\t3\t4\n", "a * b b", HEADERLESS, {"a": "1", "b": ("3", "4")}),
        ("2\t1\t0\nx\ty\tz\n", {"a": "2"}, {}, {"a": "x"}),
        ("text\ttext\nb\tc\n", {"a": "1"}, {}, {"a": "c"}),
        ("a\tb\n", {"x": "1", "y": "-2"}, HEADERLESS, {"x": "b", "y": "a"}),
        (
            '{"text": null, "label": [1, "b"], "2": 3, "x": 0}',
            SEVERAL,
            {},
            {"text": None, "label": [1, "b"], "several": (None, 3)},
        ),
        ("text\na\n", NAMED, OPTIONAL, {"text": "a"}),
        ('{"text": "a"}', NAMED, OPTIONAL, {"text": "a", "label": None}),
        ("x\na\tb\tc\n", "a b", {}, {"a": "a", "b": "b"}),
    ],
)
def test_columns(write, content, columns, settings, expected):
    [(row, _)] = read(write, content, columns, settings)
    assert row == expected
    assert not list(tables.read(write("", "a.jsonl"), columns, **settings))
    assert not list(tables.read(write("", "a.csv"), columns, **settings))


@pytest.mark.parametrize("name", ["a.tsv", "b.txt", "A.CSV", "a.csv.gz"])
@pytest.mark.parametrize("column", ["text", "2", -1])
def test_columns_of_a_header(write, name, column):
    content = "id,label, text \n0,x,yes\n"
    if "csv" not in name.lower():
        content = content.replace(",", "\t")
    pack = gzip.compress if name.endswith(".gz") else bytes
    path = write(pack(content.encode()), name)
    columns = {"a": column, "b": ("id", "label")}
    assert list(tables.read(path, columns)) == [
        ({"a": "yes", "b": ("0", "x")}, f"{path}:2")
    ]


TABLE = "text\tmark\na\tb\n"
JSON = '{"text": "", "mark": 0}\n{"mark": 2}'
MISSPELT = r":1: no column 'txet'; .* 'text' and 'mark'\. Did you mean 'text'"


@pytest.mark.parametrize(
    ("content", "columns", "settings", "message"),
    [
        # Skipping malformed rows does not skip a misspelt column.
        (TABLE, {"a": "txet"}, SKIP, MISSPELT),
        (JSON, {"a": "txet"}, SKIP, MISSPELT),
        (TABLE, NAMED, HEADERLESS, r"a\.tsv: no header .* 'text'"),
        ("a;b\n1;2\n", {"x": "a"}, {}, r"'a;b'\. Separate .* by commas in a"),
        ("a\ta\nb\tc\n", {"x": "a"}, {}, ":1: 2 columns are named"),
        ("x\ty\na\n", {"a": "x"}, {}, ":2: .* 2 .*header, found 1"),
        ("x\na\n", "a b", {}, ":2: .* 2 columns or more, found 1"),
        ("x\na\tb\nc\n", "a *", {}, r":3: .* 2 columns, as in .*a.tsv:2, f"),
        ("a\tb\n", {"a": "2"}, HEADERLESS, ":1: .* 3 columns or more"),
        # Columns after a missing one would be in the wrong place.
        ("x\ny\n", "label text", OPTIONAL, "2 columns or more, found 1"),
        (JSON, {"a": "text"}, {}, ":2: no key 'text'; .*null is an empty text"),
    ],
)
def test_unusable_columns_and_rows(write, content, columns, settings, message):
    with pytest.raises(InputError, match=message):
        read(write, content, columns, settings)


def test_unknown_file_types():
    with pytest.raises(InputError, match=r"^a\.xlsx: unknown file type.*\.tsv"):
        tables.read("a.xlsx", NAMED)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text\tmark\na\n1\tb\n2\tc\n", "with the wrong number of columns"),
        (JSON + '\n{"text": 3}\n', "without one of the keys"),
    ],
)
def test_malformed_rows_can_be_skipped(write, content, problem):
    skipped = {}
    settings = {"skip": skipped.setdefault}
    assert len(read(write, content, {"a": "text"}, settings)) == 2
    [(found, where)] = skipped.items()
    assert found == problem
    assert where.endswith(":2")
