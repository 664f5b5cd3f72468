import gzip
import json
import os

import pytest
import tensorflow as tf

from bert_tf.corpus import text as text_module
from bert_tf.corpus.text import TextBlock, TextFormat
from bert_tf.errors import InputError

LINES = [b"x" * (n * 7 % 31) + b"\n" for n in range(97)] + [b"end"]
JSONL = TextFormat(jsonl_field="text")


def block_of(tmp_path, text, lines_before=0):
    """The end of a file, behind some lines of another block."""
    before = b"abc\n" * lines_before
    path = tmp_path / "a.txt"
    path.write_bytes(before + text)
    return TextBlock(str(path), len(before), text)


def sentences(tmp_path, text, layout=JSONL, lines_before=0):
    block = block_of(tmp_path, text, lines_before)
    return list(text_module.sentences(block, layout))


@pytest.mark.parametrize("size", [1, 2, 13, 64, 10_000])
def test_blocks_hold_whole_lines_and_all_of_them(tmp_path, monkeypatch, size):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", size)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"".join(LINES)))
    blocks = list(text_module.blocks_of_files([str(path)]))
    assert b"".join(block.text for block in blocks) == b"".join(LINES)
    offset = 0
    for block in blocks:
        assert block.offset == offset
        offset += len(block.text)
    assert all(block.text.endswith(b"\n") for block in blocks[:-1])


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("step", [1, 2, 5, 31, 500])
def test_each_line_is_in_the_range_in_which_it_begins(tmp_path, size, step):
    path = tmp_path / "text"
    path.write_bytes(b"".join(LINES))
    starts = [len(b"".join(LINES[:number])) for number in range(len(LINES))]
    for start in range(0, starts[-1] + 10, step):
        blocks = text_module.text_blocks(str(path), start, start + step, size)
        expected = [
            line
            for line, place in zip(LINES, starts, strict=True)
            if start <= place < start + step
        ]
        assert b"".join(block.text for block in blocks) == b"".join(expected)


def test_ranges_of_places_that_tensorflow_reaches():
    text = b"".join(LINES)
    with tf.io.gfile.GFile("ram://ranges/text", "wb") as file:
        file.write(text)
    found = [
        block
        for start in range(0, len(text), 100)
        for block in text_module.text_blocks(
            "ram://ranges/text", start, start + 100
        )
    ]
    assert b"".join(block.text for block in found) == text
    assert found[1].offset == len(found[0].text)


def test_damaged_gzip_files_are_named(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(os.urandom(5000))[:-100])
    with pytest.raises(InputError, match=r"text\.gz"):
        list(text_module.text_blocks(str(path)))


def test_lines_are_sentences(tmp_path):
    text = "a\u2028b\x0bc\r\n \u3000\t\n\nd".encode()
    found = sentences(tmp_path, text, TextFormat())
    assert found == ["a\u2028b\x0bc", "", "", "d"]


def test_objects_are_documents(tmp_path):
    texts = ["One.\n\n Two. \r\nThree.", "\n", "Fünf \u2028."]
    objects = [{"id": n, "text": text} for n, text in enumerate(texts)]
    lines = [json.dumps(value) for value in objects]
    text = "\ufeff" + "\n \r\n".join(lines) + "\n"
    found = sentences(tmp_path, text.encode())
    ends = [i for i, sentence in enumerate(found) if not sentence]
    documents = [
        found[start + 1 : stop]
        for start, stop in zip(ends, [*ends[1:], None], strict=True)
    ]
    assert [d for d in documents if d] == [
        ["One.", "Two.", "Three."],
        ["Fünf \u2028."],
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wa wb", r"one JSON object on every line.*at .*a\.txt:9"),
        ("[1]", r"one JSON object on every line.*array at .*a\.txt:9"),
        ('"text"', r"one JSON object.*a str at .*a\.txt:9"),
        ('{"text": "a"', r"one JSON object.*a\.txt:9 \(column"),
        ('{"id": 3, "body": ""}', r"'text'.*the fields 'id', 'body' at .*:9;"),
        ("{}", r"'text'.*an empty object at .*a\.txt:9; .*--jsonl_field"),
        ('{"text": ["a"]}', r"text in the field 'text'.*a list at .*:9; "),
        ('{"text": null}', r"Received: a NoneType at .*:9; "),
        ('{"text": "\\ud83d"}', r"half of a surrogate pair, at .*a\.txt:9"),
        ("a\xff", r"UTF-8 text.*0xff at .*a\.txt:9.*--errors=replace"),
    ],
)
def test_lines_without_a_document_are_told_with_their_place(
    tmp_path, monkeypatch, line, message
):
    monkeypatch.setattr(text_module, "BLOCK_BYTES", 5)
    text = b'{"text": "a"}\n' + line.encode("latin-1") + b"\n{\n"
    with pytest.raises(InputError, match=message) as raised:
        sentences(tmp_path, text, lines_before=7)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("errors", "expected"), [("replace", "c\ufffdc"), ("ignore", "cc")]
)
def test_bytes_that_are_not_utf8_can_be_passed_over(tmp_path, errors, expected):
    layout = TextFormat(errors)
    assert sentences(tmp_path, b"c\xffc\n", layout) == [expected]
