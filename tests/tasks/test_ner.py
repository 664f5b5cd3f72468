"""CoNLL files, features of tagged sentences, labels and scores."""

import dataclasses
import gzip
import logging
import random
import re

import numpy as np
import pytest

from bert_tf import metrics
from bert_tf.data import records
from bert_tf.errors import InputError
from bert_tf.tasks import ner
from bert_tf.tasks.ner import (
    Sentence,
    TaggingEncoding,
    count_rows,
    labels_of,
    make_tagging_features,
    read_conll,
    to_iob2,
    word_tags,
    write_conll,
    write_tagging_features,
)
from bert_tf.tasks.tagging import TaggingTask
from bert_tf.tokenization.wordpiece import FullTokenizer
from tests.tasks.small_training import CONFIG

EXAMPLE = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Ann NNP I-NP I-PER
Bo NNP I-NP B-PER
"""


def words(file):
    return [" ".join(sentence.words) for sentence in file.sentences]


def tags(file):
    return [" ".join(sentence.tags) for sentence in file.sentences]


def written(file, predicted):
    """Returns the text that `write_conll` writes."""
    path = f"{file.path}.out"
    write_conll(path, file, predicted)
    with open(path, "rb") as stream:
        return stream.read().decode()


def conlleval_rows(text):
    """Returns the columns of each line, read as conlleval.pl reads them.

    It removes the line feed, splits at each space, and fails if two lines have
    different numbers of columns.
    """
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    rows = [line.split(" ") if line else [] for line in lines]
    assert len({len(row) for row in rows if row}) == 1
    assert all(feature.split() == [feature] for row in rows for feature in row)
    return rows


# --------------------------------------------------------- reading CoNLL files


def test_reads_an_official_file(write):
    for path in (
        write(EXAMPLE),
        write(gzip.compress(EXAMPLE.encode()), "a.txt.gz"),
    ):
        file = read_conll(path)
        assert words(file) == ["EU rejects German", "Ann Bo"]
        assert tags(file) == ["B-ORG O B-MISC", "B-PER B-PER"]
        assert [s.lines for s in file.sentences] == [(3, 4, 5), (7, 8)]
        assert file.sentences[1].original_tags == ("I-PER", "B-PER")
        assert {s.path for s in file.sentences} == {path}


SENTENCES = "a x O\nb y B-P\n{}c z I-P\nd x O\n"


@pytest.mark.parametrize(
    "border",
    [
        "\n",
        "\n\n \n\t\n",
        "-DOCSTART- -X- O\n",
        "\n-DOCSTART- -X- O\n\n",
        "-DOCSTART-\n",
        " \t \n",
    ],
)
@pytest.mark.parametrize(("bom", "end"), [("", "\n"), ("\ufeff", "\r\n")])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_borders_and_line_ends(write, border, bom, end, separator):
    text = border + SENTENCES.format(border)
    text = bom + text.replace("\n", end).replace(" ", separator)
    for content in (text, text.rstrip(), text + end * 3):
        file = read_conll(write(content))
        assert words(file) == ["a b", "c d"]
        assert tags(file) == ["O B-P", "B-P O"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *[
            (row, ("b",))
            for row in (
                *("a  b   O", "a\tb\tO", "a b O  "),
                *(" a b O", "a \t b\t O", "a\tb \tO"),
            )
        ],
        ("x\tNew York\tO\ny\t\tO", ("New York", "")),
        *[
            (f"x a{character}b O\ny c O", (f"a{character}b", "c"))
            for character in "\x85\u2028\u3000\xa0\x0c\x1c\r\ufeff"
        ],
        # "#" begins comments only before a sentence.
        ("# newdoc\n# t = a b\na\tb\tO\n#b\tc\tO", ("b", "c")),
        ("# # O\n#tag #x O", ("#", "#x")),
    ],
)
def test_columns(write, content, expected):
    file = read_conll(write(f"{content}\n"), word_column=1)
    [sentence] = file.sentences
    assert sentence.words == expected
    assert sentence.tags == ("O",) * len(expected)


@pytest.mark.parametrize(
    ("word_column", "tag_column", "expected"),
    [
        (0, -1, ("a", "B-X")),
        (-3, 2, ("a", "B-X")),
        (1, 2, ("b", "B-X")),
        (0, None, ("a", None)),
    ],
)
def test_columns_by_number(write, word_column, tag_column, expected):
    path, (word, tag) = write("a b B-X\n"), expected
    file = read_conll(path, word_column=word_column, tag_column=tag_column)
    assert words(file) == [word]
    assert file.sentences[0].tags == (tag and (tag,))


def test_comments(write):
    text = "# newdoc\na\tO\n#b\tO\n\n#\thttp://x\t[1]\nc\tO\n\n#end it now\n"
    file = read_conll(write(text))
    assert words(file) == ["a #b", "c"]
    assert [s.lines for s in file.sentences] == [(2, 3), (6,)]
    assert words(read_conll(write("#\n#\n"), tag_column=None)) == ["# #"]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", {}, r"{}: expected a word on each line, found no word"),
        ("\n \r\n-DOCSTART- O\n", {}, r"{}: .* found no word"),
        ("a b O\n\nc O\n", {},
         r"{}:3: expected 3 columns .* spaces, as in line 1; found 2"),
        ("\na\tO\nb O\n", {},
         r"{}:3: expected 2 columns .* tabs, as in line 2; found 1"),
        ("a O\n# what is this\nb O\n", {}, r"{}:2: expected 2 .*; found 4"),
        ("\na x O\n", {"tag_column": 3},
         r"tag_column must be from -3 to 2 .* 3 columns of {}:2; got 3"),
        ("a O\n", {"word_column": -3},
         r"word_column must be from -2 to 1 .* of {}:1; got -3"),
        ("a\n", {}, r"tag_column must be another .*{}:1; got -1"),
        ("a O\n", {"word_column": 1}, r"tag_column must be another .*; got -1"),
        (b"a O\n\nb\xe9 O\n", {}, r"{}:3: byte 0xe9"),
        ("a O\nb NNP\n", {}, r"{}:2: expected a tag, O or B- .* found 'NNP'"),
        ("B-X b a\n", {"word_column": 2, "tag_column": 1}, r"{}:1: .* 'b'"),
        ("a O\nb B-\n", {}, r"{}:2: expected a tag, .* found 'B-'"),
        ("a o\n", {}, r"{}:1: expected a tag, .* found 'o'"),
        ("a X-PER\n", {}, r"{}:1: expected a tag, .* found 'X-PER'"),
        ("a\tO\nb\t\n", {}, r"{}:2: expected a tag, .* found ''"),
    ],
)  # fmt: skip
def test_errors_name_the_line(write, content, columns, message):
    path = write(content)
    with pytest.raises(InputError) as caught:
        read_conll(path, **columns)
    assert re.search(message.replace("{}", re.escape(path)), str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no\.txt"):
        read_conll(str(tmp_path / "no.txt"))


# ------------------------------------------------------------- tagging schemes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-A", "B-A B-A I-A"),
        ("I-A I-B I-A", "B-A B-B B-A"),
        ("O I-A-b I-A", "O B-A-b B-A"),
        ("B-A I-A E-A S-A S-A B-A E-A", "B-A I-A I-A B-A B-A B-A I-A"),
        ("B-A I-A L-A U-A O U-B", "B-A I-A I-A B-A O B-B"),
        ("B-A M-A E-A B-A E-A", "B-A I-A I-A B-A I-A"),
        ("I-A E-A I-A E-A", "B-A I-A B-A I-A"),
        ("O I I B I", "O B I B I"),
        ("", ""),
    ],
)
def test_schemes_become_iob2(given, expected):
    assert to_iob2(given.split()) == tuple(expected.split())


MARKS = {
    "iob1": lambda length, again: ("B" if again else "I") + "I" * (length - 1),
    "iob2": lambda length, _: "B" + "I" * (length - 1),
    "iobes": lambda n, _: "S" if n == 1 else "B" + "I" * (n - 2) + "E",
    "bilou": lambda n, _: "U" if n == 1 else "B" + "I" * (n - 2) + "L",
    "bmes": lambda n, _: "S" if n == 1 else "B" + "M" * (n - 2) + "E",
    "ioe2": lambda length, _: "I" * (length - 1) + "E",
}


def spell(spans, scheme):
    """Returns the tags of spans, (type or "", length), in a scheme."""
    found, before = [], None
    for kind, length in spans:
        if not kind:
            found += ["O"] * length
        else:
            marks = MARKS[scheme](length, kind == before)
            found += [f"{mark}-{kind}" for mark in marks]
        before = kind
    return found


@pytest.mark.parametrize("scheme", MARKS)
def test_all_schemes_agree(scheme):
    draw = random.Random(5)
    for _ in range(199):
        spans = [
            (draw.choice(["", "A", "B", "B-x"]), draw.randrange(1, 4))
            for _ in range(draw.randrange(7))
        ]
        iob2 = tuple(spell(spans, "iob2"))
        assert to_iob2(spell(spans, scheme)) == iob2
        given = draw.choices(["O", "I-A", "B-A", "I-B", "B-B"], k=7)
        converted = to_iob2(given)
        found = metrics.entities(given)
        assert metrics.entities(converted) == found
        assert to_iob2(converted) == converted
        assert [tag[0] for tag in converted].count("B") == len(found)


# --------------------------------------------------------- writing CoNLL files


def test_predicted_tags_follow_gold_tags_in_iob2(write):
    file = read_conll(write(EXAMPLE))
    predicted = [("B-ORG", "O", "B-X"), ("B-PER", "I-PER")]
    assert written(file, predicted) == (
        "-DOCSTART- -X- O O O\n\n"
        "EU NNP I-NP B-ORG B-ORG\n"
        "rejects VBZ I-VP O O\n"
        "German JJ I-NP B-MISC B-X\n\n"
        "Ann NNP I-NP B-PER B-PER\n"
        "Bo NNP I-NP B-PER I-PER\n"
    )
    for wrong in ([], predicted[:1], [*predicted, ("O",)], [("O",), ("O",)]):
        with pytest.raises(ValueError, match="zip"):
            written(file, wrong)


BILOU = """\
# newdoc

New York\tNNP\tB-LOC
City\tNNP\tL-LOC
\t.\tO
-DOCSTART-\tdoc
# a comment
#1\tCD\tU-X y
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("needs_tags", [True, False])
def test_conlleval_reads_the_output(write, end, needs_tags):
    """Comments, tabs, spaces in columns, empty columns, carriage returns."""
    path = write(BILOU.replace("\n", end))
    file = read_conll(path, needs_tags=needs_tags)
    text = written(file, [("B-LOC", "I-LOC", "O"), ("B-X y",)])
    assert conlleval_rows(text) == [
        [],
        ["New_York", "NNP", "B-LOC", "B-LOC"],
        ["City", "NNP", "I-LOC", "I-LOC"],
        ["_", ".", "O", "O"],
        ["-DOCSTART-", "doc", "O", "O"],
        ["#1", "CD", "B-X_y", "B-X_y"],
    ]
    path = write(f"-DOCSTART-{end}I-A x a{end}I-A y b{end}")
    columns = {"word_column": 2, "tag_column": 0, "needs_tags": needs_tags}
    text = written(read_conll(path, **columns), [("O", "B-A")])
    assert text == "-DOCSTART- O O O\nx a B-A O\ny b I-A B-A\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a \nb\n\n\nc\r\n", "a O\nb B-X\n\n\nc O\n"),
        ("a O\nb NN\n \nc O", "a O O\nb NN B-X\n\nc O O\n"),
    ],
)
def test_a_file_without_gold_tags(write, content, expected):
    path = write(content)
    for columns in (
        {"tag_column": None},
        {"needs_tags": False},
        {"tag_column": 7, "needs_tags": False},
    ):
        file = read_conll(path, **columns)
        assert {sentence.tags for sentence in file.sentences} == {None}
        assert written(file, [("O", "B-X"), ("O",)]) == expected


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_the_output_has_the_same_sentences(write, separator):
    draw = random.Random(7)
    kinds = ["", "-DOCSTART-", f"w{separator}O", f"é#{separator}I-X", "", " "]
    for _ in range(49):
        end = draw.choice(["\n", "\r\n"])
        chosen = draw.choices(kinds, k=draw.randrange(1, 29))
        last = draw.choice(["", " "])
        content = end.join([*chosen, f"w{separator}O", last])
        file = read_conll(write(content))
        text = written(file, [["NEW"] * len(s.words) for s in file.sentences])
        rows = conlleval_rows(text)
        again = read_conll(write(text, "again.txt"), tag_column=-2)
        assert words(again) == words(file)
        assert tags(again) == tags(file)
        num_words = sum(len(s.words) for s in file.sentences)
        assert sum("NEW" in row for row in rows) == num_words
        num_documents = sum(line.startswith("-DOC") for line in file.lines)
        assert sum("-DOCSTART-" in row for row in rows) == num_documents


@pytest.mark.parametrize(
    ("name", "num_sentences", "num_words", "num_documents"),
    [("eng.testa", 3250, 51362, 216), ("eng.train", 14041, 203621, 946)],
)
def test_official_files(
    shared_data, tmp_path, name, num_sentences, num_words, num_documents
):
    path = shared_data / "conll2003" / name
    file = read_conll(str(path))
    assert len(file.sentences) == num_sentences
    assert sum(len(s.words) for s in file.sentences) == num_words
    out = tmp_path / "out.txt"
    write_conll(str(out), file, [s.tags for s in file.sentences])
    theirs = [line.split(" ")[:-1] for line in path.read_text().splitlines()]
    ours = conlleval_rows(out.read_text())
    assert [row[:-2] for row in ours] == theirs
    assert all(row[-2:-1] == row[-1:] for row in ours)
    assert sum("-DOCSTART-" in row for row in ours) == num_documents
    again = read_conll(str(out))
    assert [s.tags for s in again.sentences] == [s.tags for s in file.sentences]


@pytest.mark.parametrize(
    ("split", "name", "expected"),
    [
        ("train", None, "eng.train"),
        ("dev", None, "dev.txt"),
        ("test", None, "eng.testb.gz"),
        ("test", "mine.conll", "mine.conll"),
    ],
)
def test_finds_the_file_of_a_split(tmp_path, split, name, expected):
    for other in ("dev.txt", "mine.conll", "valid.txt", "eng.train"):
        (tmp_path / other).touch()
    (tmp_path / "eng.testb.gz").touch()
    folder = str(tmp_path)
    path = str(tmp_path / expected)
    assert ner.find_file(split, folder, name) == path
    assert ner.find_file(split, None, path) == path
    assert ner.find_file(split, "elsewhere", path) == path
    assert ner.find_file(split, folder, "none.txt") == "none.txt"
    with pytest.raises(InputError, match=rf"--data_dir or --{split}_file"):
        ner.find_file(split)
    for other in tmp_path.iterdir():
        other.unlink()
    message = rf"{folder}: .*{split}.txt, .* or eng\..*--{split}_file"
    with pytest.raises(InputError, match=message):
        ner.find_file(split, folder)


# -------------------------------------------------------------------- features

PAD, UNK, CLS, SEP, A, B, C, D = range(8)
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", "é", "-")
LABELS = ("O", "B-X", "I-X")
ENCODING = TaggingEncoding(VOCAB, True, None, 7, LABELS)


def sentence(words, tags=None, first_line=1):
    words = words.split(" ")
    return Sentence(
        tuple(words),
        tuple(tags.split()) if tags else None,
        tuple(range(first_line, first_line + len(words))),
        "x.txt",
    )


def rows(sentences, **changes):
    """Returns the features of sentences as plain lists."""
    encoding = dataclasses.replace(ENCODING, **changes)
    made = make_tagging_features(sentences, encoding)
    return {name: values.tolist() for name, values in made.batch.items()}


def test_the_first_token_of_a_word_has_the_label():
    sentences = [sentence("a bdd c", "O B-X I-X"), sentence("ad", "I-X")]
    assert rows(sentences) == {
        "input_ids": [
            [CLS, A, B, D, D, C, SEP],
            [CLS, A, D, SEP, PAD, PAD, PAD],
        ],
        "input_mask": [[1] * 7, [1] * 4 + [0] * 3],
        "segment_ids": [[0] * 7, [0] * 7],
        "label_ids": [[0, 0, 1, 0, 0, 2, 0], [0, 2, 0, 0, 0, 0, 0]],
        "label_mask": [[0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]],
    }
    # The tokenizer splits a word at punctuation.
    made = rows([sentence("a-b c", "B-X O")])
    assert made["input_ids"] == [[CLS, A, 9, B, C, SEP, PAD]]
    assert made["label_ids"] == [[0, 1, 0, 0, 0, 0, 0]]
    assert made["label_mask"] == [[0, 1, 0, 0, 1, 0, 0]]
    # Words without tags have label 0.
    made = rows([sentence("ad b")])
    assert made["label_mask"] == [[0, 1, 0, 1, 0, 0, 0]]
    assert made["label_ids"] == [[0] * 7]


@pytest.mark.parametrize("count", [0, 2])
def test_the_batch_has_the_shapes_of_the_schema(count):
    batch = make_tagging_features([sentence("a")] * count, ENCODING).batch
    assert [(n, a.dtype, a.shape) for n, a in batch.items()] == [
        (f.name, np.int32, (count, 7)) for f in ENCODING.schema
    ]


@pytest.mark.parametrize("nothing", ["\x00", "\ufffd", "\u200b", "", "\u0301"])
def test_a_word_without_tokens_is_unknown(nothing):
    made = rows([sentence(f"a {nothing} b", "O B-X I-X")])
    assert made["input_ids"] == [[CLS, A, UNK, B, SEP, PAD, PAD]]
    assert made["label_ids"] == [[0, 0, 1, 2, 0, 0, 0]]


def test_casing():
    words = [sentence("É A")]
    assert rows(words)["input_ids"][0][1:3] == [UNK, A]
    assert rows(words, strip_accents=False)["input_ids"][0][1:3] == [8, A]
    assert rows(words, do_lower_case=False)["input_ids"][0][1:3] == [UNK, UNK]


def test_a_long_sentence_takes_several_rows():
    """Five tokens a row; a word that does not fit begins the next row."""
    made = rows(
        [sentence("a b add cdd a", "B-X I-X B-X O B-X"), sentence("b", "I-X")]
    )
    assert made["input_ids"] == [
        [CLS, A, B, A, D, D, SEP],
        [CLS, C, D, D, A, SEP, PAD],
        [CLS, B, SEP, PAD, PAD, PAD, PAD],
    ]
    assert made["label_ids"] == [
        [0, 1, 2, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 2, 0, 0, 0, 0, 0],
    ]
    assert made["label_mask"] == [
        [0, 1, 1, 1, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 0, 0],
    ]


def test_a_word_longer_than_a_row_is_truncated():
    words = sentence("a bddddddd c", "O B-X I-X")
    made = make_tagging_features([words], ENCODING)
    assert made.num_cut == 1
    assert made.batch["input_ids"].tolist() == [
        [CLS, A, SEP, PAD, PAD, PAD, PAD],
        [CLS, B, D, D, D, D, SEP],
        [CLS, C, SEP, PAD, PAD, PAD, PAD],
    ]
    assert made.batch["label_ids"][:, 1].tolist() == [0, 1, 2]


def test_a_row_needs_room_for_a_token():
    made = rows([sentence("a b")], max_seq_length=3)
    assert made["input_ids"] == [[CLS, A, SEP], [CLS, B, SEP]]
    with pytest.raises(InputError, match=r"max_seq_length .* 3, .*; got 2"):
        rows([sentence("a b")], max_seq_length=2)


def random_sentences(seed, count=97):
    draw = random.Random(seed)
    forms = ["a", "bd", "cddd", "a-b", "\x00", "?", "ddd", "a" + "d" * 20]
    sentences = []
    for _ in range(count):
        words = draw.choices(forms, k=draw.randrange(1, 30))
        tags = draw.choices(LABELS, k=len(words))
        sentences.append(sentence(" ".join(words), " ".join(tags)))
    return sentences


def row_by_row(sentences, encoding):
    """Returns the rows and the number of truncated words, word by word."""
    tokenizer = FullTokenizer(encoding.vocab, encoding.do_lower_case)
    room, found, num_cut = encoding.max_seq_length - 2, [], 0
    for each in sentences:
        row = []
        for word in each.words:
            ids = tokenizer.encode(word) or [UNK]
            num_cut += len(ids) > room
            if len(row) + len(ids[:room]) > room:
                found.append(row)
                row = []
            row = row + ids[:room]
        found.append(row)
    return [[CLS, *row, SEP] for row in found], num_cut


@pytest.mark.parametrize("max_seq_length", [3, 4, 7, 13, 29, 101])
def test_every_word_has_its_label_once(max_seq_length):
    sentences = random_sentences(seed=max_seq_length)
    encoding = dataclasses.replace(ENCODING, max_seq_length=max_seq_length)
    batch, num_cut = make_tagging_features(sentences, encoding)
    ids = [
        row[mask > 0].tolist()
        for row, mask in zip(
            batch["input_ids"], batch["input_mask"], strict=True
        )
    ]
    assert (ids, num_cut) == row_by_row(sentences, encoding)
    assert count_rows(sentences, encoding) == len(ids)
    assert batch["label_mask"].sum() == sum(len(s.words) for s in sentences)
    assert not batch["label_ids"][batch["label_mask"] == 0].any()
    tags = word_tags(batch["label_ids"], batch["label_mask"], sentences, LABELS)
    assert tags == [s.tags for s in sentences]


def test_tags_of_words_are_those_of_their_first_tokens():
    sentences = [sentence("a bd c"), sentence("a b c a b c"), sentence("bd")]
    mask = make_tagging_features(sentences, ENCODING).batch["label_mask"]
    assert len(mask) == 4
    predicted = np.full(mask.shape, 2)
    predicted[mask > 0] = [0, 1, 2, 1, 1, 0, 2, 0, 1, 0]
    assert word_tags(predicted, mask, sentences, LABELS) == [
        ("O", "B-X", "I-X"),
        ("B-X", "B-X", "O", "I-X", "O", "B-X"),
        ("O",),
    ]
    for wrong in (sentences[:2], [*sentences, sentences[0]]):
        with pytest.raises(ValueError, match="10 labels for"):
            word_tags(predicted, mask, wrong, LABELS)


def test_records_hold_the_features(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "absl")
    monkeypatch.setattr(ner, "_SENTENCES_PER_PART", 11)
    sentences = [sentence("a bdd c", "O B-X I-X"), *random_sentences(seed=2)]
    path = str(tmp_path / "a.tf_record")
    assert write_tagging_features(path, sentences, ENCODING)
    batch, num_cut = make_tagging_features(sentences, ENCODING)
    expected = records.frame(records.encode_batch(ENCODING.schema, batch))
    with open(path, "rb") as file:
        assert file.read() == expected
    assert (
        f"98 sentences in {len(batch['input_ids'])} rows of at most 7 tokens; "
        f"{num_cut} words were truncated"
    ) in caplog.text
    assert "tokens: [CLS] a b ##d ##d c [SEP]" in caplog.text
    assert "labels: O B-X I-X" in caplog.text


def test_changes_rewrite_the_records(tmp_path):
    path = str(tmp_path / "a.tf_record")
    sentences = random_sentences(seed=1)
    assert write_tagging_features(path, sentences, ENCODING)
    assert not write_tagging_features(path, sentences, ENCODING)
    retagged = dataclasses.replace(sentences[3], tags=None)
    changed = [*sentences[:3], retagged, *sentences[4:]]
    assert write_tagging_features(path, changed, ENCODING)
    other = dataclasses.replace(ENCODING, max_seq_length=8)
    assert write_tagging_features(path, changed, other)
    assert write_tagging_features(path, changed, other, sources=[__file__])


def test_the_official_file_keeps_all_its_words(shared_data):
    conll = str(shared_data / "conll2003" / "eng.testa")
    vocab = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    sentences = read_conll(conll).sentences
    labels = labels_of(sentences)
    assert len(labels) == 9
    tokens = tuple(vocab.read_text(encoding="utf-8").splitlines())
    encoding = TaggingEncoding(tokens, True, None, 32, labels)
    batch, num_cut = make_tagging_features(sentences, encoding)
    assert num_cut == 0
    assert len(batch["input_ids"]) > len(sentences)
    assert batch["label_mask"].sum() == 51362
    tags = word_tags(batch["label_ids"], batch["label_mask"], sentences, labels)
    assert tags == [s.tags for s in sentences]


# ------------------------------------------------------------ labels and scores


def test_labels_have_both_marks_of_all_types():
    sentences = [sentence("a b c", "I-Z O B-A-b"), sentence("a b", "O B-Z")]
    assert labels_of(sentences) == ("O", "B-A-b", "B-Z", "I-A-b", "I-Z")
    assert labels_of([sentence("a", "B")]) == ("O", "B", "I")
    assert labels_of([sentence("a"), sentence("a", "O")]) == ("O",)


def test_an_unknown_tag(write):
    sentences = [sentence("a"), sentence("a b", "O B-Y", first_line=5)]
    message = r"x\.txt:6: the tag 'B-Y' is not .* O, B-X and I-X\. .*--labels"
    with pytest.raises(InputError, match=message):
        make_tagging_features(sentences, ENCODING)
    # The message has the tag as it is in the file.
    file = read_conll(write("a I-X\nb I-DATE\n"))
    message = r"a\.txt:2: the tag 'I-DATE' \(B-DATE in IOB2\) is"
    with pytest.raises(InputError, match=message):
        make_tagging_features(file.sentences, ENCODING)


TWO_TYPES = ("O", "B-A", "I-A", "B-B", "I-B")
TRAIN = [sentence("a b", "O B-A"), sentence("a b", "B-B I-B")]


@pytest.mark.parametrize(
    ("given", "known", "train", "expected"),
    [
        (None, None, TRAIN, ("O", "B-A", "B-B", "I-A", "I-B")),
        (None, TWO_TYPES, TRAIN, TWO_TYPES),
        (None, ("no", "yes"), TRAIN, ("O", "B-A", "B-B", "I-A", "I-B")),
        (None, TWO_TYPES, None, TWO_TYPES),
        (["B-A", "O"], TWO_TYPES, TRAIN, ("B-A", "O")),
        (["B-A", "O"], ("O", "B-A"), None, ("O", "B-A")),
        (["B-A", "O"], ("LABEL_0", "LABEL_1"), None, ("B-A", "O")),
    ],
)
def test_where_labels_come_from(given, known, train, expected):
    assert ner.choose_labels(given, known, train) == expected


@pytest.mark.parametrize(
    ("given", "known", "message"),
    [
        (None, None, "--do_train or --labels, or a model"),
        (None, ("LABEL_0", "LABEL_1"), r"IOB2.*'LABEL_0'"),
        (["O", "S-A"], None, r"IOB2.*'S-A'"),
        (["O", "B-A", "O"], None, "--labels must be different; got 'O,B-A,O'"),
    ],
)
def test_wrong_labels(given, known, message):
    with pytest.raises(InputError, match=message):
        ner.choose_labels(given, known)


def test_scores_are_of_whole_sentences():
    """An entity that continues in the next row is one entity."""
    sentences = [sentence("a b c d", "O B-A I-A I-A"), sentence("a b", "B-B O")]
    mask = np.zeros([3, 7], int)
    mask[0, [1, 2, 4]] = mask[1, 2] = mask[2, [1, 3]] = 1
    predicted = np.full(mask.shape, 3)
    predicted[mask > 0] = [0, 1, 2, 2, 1, 0]
    predictions = {
        "predicted_ids": predicted,
        "label_mask": mask,
        "label_ids": np.zeros_like(mask),
        "loss": np.array([1.5, 0.5, 1.0], np.float32),
    }
    task = TaggingTask(CONFIG, (), TWO_TYPES)
    assert ner.predicted_tags(task, predictions, sentences) == [
        ("O", "B-A", "I-A", "I-A"),
        ("B-A", "O"),
    ]
    scores = ner.score(task, predictions, sentences)
    assert scores == pytest.approx(
        {
            "eval_precision": 1 / 2,
            "eval_recall": 1 / 2,
            "eval_f1": 1 / 2,
            "eval_accuracy": 5 / 6,
            "eval_loss": 3 / 6,
            "eval_A_precision": 1 / 2,
            "eval_A_recall": 1.0,
            "eval_A_f1": 2 / 3,
            "eval_B_precision": 0.0,
            "eval_B_recall": 0.0,
            "eval_B_f1": 0.0,
        }
    )
    assert {*ner.METRICS} <= {*scores}
