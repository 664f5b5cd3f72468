import csv
import gzip
import json
import random
import unicodedata

import pytest

from bert_tf.data.tables import (
    read_csv,
    read_jsonl,
    read_lines,
    read_tsv,
)
from bert_tf.errors import InputError

READERS = [read_tsv, read_csv, read_jsonl]


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.txt"):
        if isinstance(content, str):
            content = content.encode()
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


def fields(rows):
    return [row.fields for row in rows]


def lines(rows):
    return [int(row.where.rpartition(":")[2]) for row in rows]


def random_texts(count, seed, excluded=""):
    """Texts of any characters that there are, many of them odd."""
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
def test_any_text_comes_back_from_tsv(write, end, bom):
    rows = in_threes(random_texts(3000, seed=1, excluded="\t\n"))
    # Behind the last field "\r" would belong to the end of the line.
    rows = [(a, b, c + ".") for a, b, c in rows]
    path = write(bom + "".join("\t".join(row) + end for row in rows))
    assert fields(read_tsv(path)) == rows
    assert lines(read_tsv(path)) == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("end", "quoting"),
    [
        ("\r\n", csv.QUOTE_MINIMAL),
        ("\r\n", csv.QUOTE_ALL),
        # With "\n" and QUOTE_MINIMAL csv leaves a lone "\r" unquoted.
        ("\n", csv.QUOTE_ALL),
    ],
)
def test_any_text_comes_back_from_csv(tmp_path, end, quoting):
    rows = in_threes(random_texts(3000, seed=2))
    path = tmp_path / "a.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=quoting)
        writer.writerows(rows)
    assert fields(read_csv(str(path))) == rows


@pytest.mark.parametrize("ascii_only", [True, False])
def test_any_text_comes_back_from_jsonl(write, ascii_only):
    values = [{"text": text} for text in random_texts(999, seed=3)]
    dumped = [json.dumps(v, ensure_ascii=ascii_only) for v in values]
    path = write("\n".join(dumped))
    assert [value for value, _ in read_jsonl(path)] == values


def test_tsv_knows_no_quoting(write):
    path = write('"a\tb"c\t"\n\'d\t""\t5" x\n')
    assert fields(read_tsv(path)) == [('"a', 'b"c', '"'), ("'d", '""', '5" x')]


def test_csv_knows_quoting(write):
    path = write('a,"b,""c"""\r\n"x\r\ny\nz",5" disk\r\nlast,""')
    assert list(fields(read_csv(path))) == [
        ("a", 'b,"c"'),
        ("x\r\ny\nz", '5" disk'),
        ("last", ""),
    ]
    assert lines(read_csv(path)) == [1, 2, 5]


@pytest.mark.parametrize("text", ["a\rb", "a\x0cb", "a\u2028b", "a\x85b"])
def test_lines_end_at_line_feeds_only(write, text):
    assert fields(read_tsv(write(f"{text}\tc\n"))) == [(text, "c")]
    assert fields(read_csv(write(f"{text},c\n"))) == [(text, "c")]
    assert fields(read_csv(write(f'"{text}",c\r\n'))) == [(text, "c")]
    [(value, _)] = read_jsonl(write(f'{{"x": "{text}"}}\r\n'))
    assert value == {"x": text}


def test_lines_are_all_there_with_their_ends(write):
    texts = [" a \r\n", "\n", "b\rc\u2028\n", " \t\n", "\ufeffd"]
    path = write("\ufeff" + "".join(texts))
    assert list(read_lines(path)) == [
        (text, number) for number, text in enumerate(texts, start=1)
    ]


def test_blank_lines_are_passed_over_and_counted(write):
    assert lines(read_tsv(write("\na\r\n\r\n  \nb\n\n"))) == [2, 5]
    assert lines(read_csv(write("\na\r\n\r\n\nb\n\n"))) == [2, 5]
    places = [w for _, w in read_jsonl(write("\n{}\r\n \r\n\t\n{}\n"))]
    assert [place.rpartition(":")[2] for place in places] == ["2", "5"]


def test_a_row_of_empty_fields_is_no_blank_line(write):
    assert fields(read_tsv(write("\t\n"))) == [("", "")]
    assert fields(read_csv(write(',\n""\n'))) == [("", ""), ("",)]


def test_fields_of_any_length(write):
    text = "x" * 131_073 * 3
    limit = csv.field_size_limit()
    assert fields(read_tsv(write(f"{text}\ta\n"))) == [(text, "a")]
    assert fields(read_csv(write(f'"{text}",a\n'))) == [(text, "a")]
    assert csv.field_size_limit() == limit


def test_the_limit_of_others_stays_while_a_file_is_open(write):
    limit = csv.field_size_limit()
    rows = read_csv(write("a\nb\n"))
    next(rows)
    assert csv.field_size_limit() == limit
    with pytest.raises(InputError):
        list(read_csv(write('"a')))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("reader", READERS)
def test_empty_files_have_no_rows(write, reader):
    assert not list(reader(write("")))
    assert not list(reader(write("\ufeff\r\n")))


@pytest.mark.parametrize("reader", READERS)
def test_compressed_files(write, reader):
    content = b'{"a": 1}\n'
    path = write(gzip.compress(content), "a.gz")
    assert len(list(reader(path))) == 1
    with pytest.raises(InputError, match="whole gzip file"):
        list(reader(write(gzip.compress(content)[:-5], "b.gz")))


@pytest.mark.parametrize("reader", READERS)
def test_files_on_other_file_systems(write, reader):
    path = "file://" + write('{"a": 1}\n{"a": 2}')
    assert len(list(reader(path))) == 2


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_utf8_is_told_with_its_line(write, reader):
    path = write(b'{"a": 1}\n\n{"a": "\xe9"}\n')
    with pytest.raises(InputError, match=r"0xe9 at .*a\.txt:3; convert"):
        list(reader(path))
    with pytest.raises(InputError, match=r"0xff at .*a\.txt:1"):
        list(reader(write("a,b\n".encode("utf-16"))))


@pytest.mark.parametrize("reader", READERS)
def test_missing_files_are_told(tmp_path, reader):
    with pytest.raises(InputError, match=r"no\.txt: No such file"):
        list(reader(str(tmp_path / "no.txt")))


@pytest.mark.parametrize("text", ['a\nb\n"c\nd\n', 'a\nb\n"c"d,e\nf\n'])
def test_wrong_quoting_is_told_with_the_row_it_starts_at(write, text):
    with pytest.raises(InputError, match=r"a\.txt:3$"):
        list(read_csv(write(text)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'a': 1}", r"double quotes at .*:2 \(column 2\)"),
        ("[", "one JSON object on every line.* an array at .*:2; write "),
        (' [{"a": 1}]', "an array at .*:2; write its objects one a line"),
        ('"a"', "a str at .*:2$"),
        ('{"a": ' * 100_000, "at .*:2 that goes too far"),
        ('{"a": ' + "9" * 5000 + "}", "at .*:2 that goes too far"),
        (r'{"a": {"b": ["\ud83d"]}}', r"\\ud83d, half .* at .*:2$"),
    ],
)
def test_what_is_no_json_object_is_told(write, line, message):
    with pytest.raises(InputError, match=message) as caught:
        list(read_jsonl(write(f"{{}}\n{line}\n")))
    assert "\n" not in str(caught.value)
