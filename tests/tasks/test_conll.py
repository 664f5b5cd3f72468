import gzip
import random
import re

import pytest

from bert_tf import metrics
from bert_tf.errors import InputError
from bert_tf.tasks.conll import read_conll, to_iob2, write_conll

EXAMPLE = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Ann NNP I-NP I-PER
Bo NNP I-NP B-PER
"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.txt"):
        if isinstance(content, str):
            content = content.encode()
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


def words(file):
    return [" ".join(sentence.words) for sentence in file.sentences]


def tags(file):
    return [" ".join(sentence.tags) for sentence in file.sentences]


def lines(file):
    return [sentence.lines for sentence in file.sentences]


def written(file, predicted):
    """The text that `write_conll` makes of a file."""
    path = f"{file.path}.out"
    write_conll(path, file, predicted)
    with open(path, "rb") as stream:
        return stream.read().decode()


def conlleval_rows(text):
    """The features of each line, read as conlleval.pl reads them.

    It removes the line feed, splits at each space, and ends with an error if
    two lines with features have different numbers of them.
    """
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    rows = [line.split(" ") if line else [] for line in lines]
    assert len({len(row) for row in rows if row}) == 1
    assert all(feature.split() == [feature] for row in rows for feature in row)
    return rows


# Reading.


def test_an_official_file(write):
    file = read_conll(write(EXAMPLE))
    assert words(file) == ["EU rejects German", "Ann Bo"]
    assert tags(file) == ["B-ORG O B-MISC", "B-PER B-PER"]
    assert lines(file) == [(3, 4, 5), (7, 8)]
    assert file.sentences[1].where(1) == f"{file.path}:8"


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
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_ways_to_write_the_same(write, border, bom, end, separator):
    text = border + SENTENCES.format(border)
    text = bom + text.replace("\n", end).replace(" ", separator)
    for content in (text, text.rstrip(), text + end * 3):
        file = read_conll(write(content))
        assert words(file) == ["a b", "c d"]
        assert tags(file) == ["O B-P", "B-P O"]


@pytest.mark.parametrize(
    "row",
    ["a  b   O", "a\tb\tO", "a b O  ", " a b O", "a \t b\t O", "a\tb \tO"],
)
def test_ways_to_separate_columns(write, row):
    file = read_conll(write(f"{row}\n"), word_column=1)
    assert (words(file), tags(file)) == (["b"], ["O"])


def test_between_tabs_columns_may_be_empty_or_hold_spaces(write):
    file = read_conll(write("New York\t\tB-LOC\n\t x \tO\n"))
    [sentence] = file.sentences
    assert sentence.words == ("New York", "")
    assert sentence.tags == ("B-LOC", "O")


@pytest.mark.parametrize("character", "\x85\u2028\u3000\xa0\x0c\x1c\r\ufeff")
def test_odd_characters_are_letters(write, character):
    word = f"a{character}b"
    assert words(read_conll(write(f"{word} O\nc O\n"))) == [f"{word} c"]


@pytest.mark.parametrize(
    ("word_column", "tag_column", "expected"),
    [
        (0, -1, ("a", "B-X")),
        (-3, 2, ("a", "B-X")),
        (1, 2, ("b", "B-X")),
        (2, 0, ("B-X", None)),
        (0, None, ("a", None)),
    ],
)
def test_columns_by_number(write, word_column, tag_column, expected):
    path = write("a b B-X\n")
    word, tag = expected
    if tag_column == 0:
        with pytest.raises(InputError, match=r"'a' at .*a\.txt:1"):
            read_conll(path, word_column=word_column, tag_column=tag_column)
        return
    file = read_conll(path, word_column=word_column, tag_column=tag_column)
    assert words(file) == [word]
    assert file.sentences[0].tags == (tag and (tag,))


def test_a_file_without_tags(write):
    file = read_conll(write("a\nb\n\nc"), tag_column=None)
    assert words(file) == ["a b", "c"]
    assert [sentence.tags for sentence in file.sentences] == [None, None]


def test_a_compressed_file(write):
    path = write(gzip.compress(EXAMPLE.encode()), "a.txt.gz")
    assert words(read_conll(path)) == ["EU rejects German", "Ann Bo"]


# Lines with "#".


def test_comments_stand_before_a_sentence(write):
    text = "# newdoc\n# text = a b\na\tO\n#b\tO\n\n#\thttp://x\t[1]\nc\tO\n"
    file = read_conll(write(text))
    assert words(file) == ["a #b", "c"]
    assert lines(file) == [(3, 4), (7,)]


def test_a_sharp_is_a_word(write):
    text = "# # O\n#tag NN O\n\n# NN B-X\n"
    file = read_conll(write(text))
    assert words(file) == ["# #tag", "#"]
    assert words(read_conll(write("#\n#\n"), tag_column=None)) == ["# #"]


def test_comments_alone_are_no_sentence(write):
    file = read_conll(write("#begin (x); part 1\na O\n\n#end it now\n"))
    assert words(file) == ["a"]


def test_a_comment_within_a_sentence_is_an_error(write):
    with pytest.raises(InputError, match=r"Received: 4 at .*a\.txt:2"):
        read_conll(write("a O\n# what is this\nb O\n"))


# What is wrong with a file.


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", {}, r"a word on a line. Received: {}, which has none"),
        ("\n \r\n-DOCSTART- O\n", {}, r"Received: {}, which has none"),
        (
            "a b O\n\nc O\n",
            {},
            r"3 columns between spaces, as at {}:1. Received: 2 at {}:3",
        ),
        (
            "\na\tO\nb O\n",
            {},
            r"2 columns between tabs, as at {}:2. Received: 1 at {}:3",
        ),
        (
            "\na x O\n",
            {"tag_column": 3},
            r"tag_column from -3 to 2, .* 3 columns at {}:2. Received: 3",
        ),
        (
            "a O\n",
            {"word_column": -3},
            r"word_column from -2 to 1, .* 2 columns at {}:1. Received: -3",
        ),
        ("a\n", {}, r"columns of their own. Received: number 0 .* 1 at {}:1"),
        (
            "a O\n",
            {"word_column": 1},
            r"columns of their own. Received: number 1 for both, of 2 at {}:1",
        ),
        (b"a O\n\nb\xe9 O\n", {}, r"UTF-8. Received: byte 0xe9 at {}:3"),
        (b"\xff\xfea\x00", {}, r"UTF-8. Received: byte 0xff at {}:1"),
        ("a O\nb NNP\n", {}, r"a tag, O, or B- .* Received: 'NNP' at {}:2"),
        ("a O\nb B-\n", {}, r"a tag, .* Received: 'B-' at {}:2"),
        ("a o\n", {}, r"a tag, .* Received: 'o' at {}:1"),
        ("a X-PER\n", {}, r"a tag, .* Received: 'X-PER' at {}:1"),
        ("a\tb\n\tO\n", {}, r"a tag, .* Received: 'b' at {}:1"),
        ("a\tO\nb\t\n", {}, r"a tag, .* Received: '' at {}:2"),
    ],
)
def test_mistakes_are_told_with_their_place(write, content, columns, message):
    path = write(content)
    with pytest.raises(InputError) as caught:
        read_conll(path, **columns)
    assert re.search(message.replace("{}", re.escape(path)), str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="Cannot read"):
        read_conll(str(tmp_path / "no.txt"))


# Schemes of tags.


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
        ("I-A E-A I-A I-A", "B-A I-A B-A I-A"),
        ("O I I B I", "O B I B I"),
        ("", ""),
    ],
)
def test_schemes_become_iob2(given, expected):
    assert to_iob2(given.split()) == tuple(expected.split())


def random_entities(draw):
    """Types of the words of a sentence: (type, length), "" for no entity."""
    return [
        (draw.choice(["", "A", "B", "B-x"]), draw.randrange(1, 4))
        for _ in range(draw.randrange(7))
    ]


def spell(spans, scheme):
    """Tags of spans of words, in one of the schemes."""
    found, before = [], None
    for kind, length in spans:
        if not kind:
            found += ["O"] * length
        else:
            marks = MARKS[scheme](length, kind == before)
            found += [f"{mark}-{kind}" for mark in marks]
        before = kind
    return found


MARKS = {
    "iob1": lambda length, again: ("B" if again else "I") + "I" * (length - 1),
    "iob2": lambda length, _: "B" + "I" * (length - 1),
    "iobes": lambda n, _: "S" if n == 1 else "B" + "I" * (n - 2) + "E",
    "bilou": lambda n, _: "U" if n == 1 else "B" + "I" * (n - 2) + "L",
    "bmes": lambda n, _: "S" if n == 1 else "B" + "M" * (n - 2) + "E",
    "ioe2": lambda length, _: "I" * (length - 1) + "E",
}


@pytest.mark.parametrize("scheme", MARKS)
def test_all_schemes_say_the_same(scheme):
    draw = random.Random(5)
    for _ in range(499):
        spans = random_entities(draw)
        iob2 = tuple(spell(spans, "iob2"))
        assert to_iob2(spell(spans, scheme)) == iob2


def test_iob1_keeps_its_entities():
    draw = random.Random(6)
    for _ in range(499):
        given = draw.choices(["O", "I-A", "B-A", "I-B", "B-B"], k=7)
        converted = to_iob2(given)
        found = metrics.entities(given)
        assert metrics.entities(converted) == found
        assert to_iob2(converted) == converted
        marks = [tag[0] for tag in converted]
        assert marks.count("B") == len(found)


# Writing.


def test_predicted_tags_stand_beside_gold_tags_in_iob2(write):
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


BILOU = """\
# newdoc

New York\tNNP\tB-LOC
City\tNNP\tL-LOC
\t.\tO
-DOCSTART-\tdoc
# a comment
#1\tCD\tU-X y
"""
PREDICTED = [("B-LOC", "I-LOC", "O"), ("B-X y",)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("needs_tags", [True, False])
def test_conlleval_reads_what_any_file_becomes(write, end, needs_tags):
    """Comments, tabs, spaces in columns, empty columns, carriage returns."""
    path = write(BILOU.replace("\n", end))
    file = read_conll(path, needs_tags=needs_tags)
    text = written(file, PREDICTED)
    assert conlleval_rows(text) == [
        [],
        ["New_York", "NNP", "B-LOC", "B-LOC"],
        ["City", "NNP", "I-LOC", "I-LOC"],
        ["_", ".", "O", "O"],
        ["-DOCSTART-", "doc", "O", "O"],
        ["#1", "CD", "B-X_y", "B-X_y"],
    ]


def test_gold_tags_of_any_column_become_the_one_before_the_last(write):
    path = write("-DOCSTART-\nI-A x a\nI-A y b\n")
    for needs_tags in (True, False):
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
def test_a_file_without_gold_tags_gets_predicted_ones(write, content, expected):
    path = write(content)
    for columns in ({"tag_column": None}, {"needs_tags": False}):
        file = read_conll(path, **columns)
        assert {sentence.tags for sentence in file.sentences} == {None}
        assert written(file, [("O", "B-X"), ("O",)]) == expected
    file = read_conll(path, tag_column=7, needs_tags=False)
    assert written(file, [("O", "B-X"), ("O",)]) == expected


def random_file(draw, separator):
    """Lines of all kinds, in any order."""
    end = draw.choice(["\n", "\r\n"])
    kinds = ["", "-DOCSTART-", f"w{separator}O", f"é#{separator}I-X", "", " "]
    chosen = draw.choices(kinds, k=draw.randrange(1, 29))
    return end.join([*chosen, f"w{separator}O", *draw.choices(["", " "])])


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_what_is_written_has_the_same_sentences(write, separator):
    draw = random.Random(7)
    for _ in range(99):
        file = read_conll(write(random_file(draw, separator)))
        text = written(file, [["NEW"] * len(s.words) for s in file.sentences])
        rows = conlleval_rows(text)
        again = read_conll(write(text, "again.txt"), tag_column=-2)
        assert words(again) == words(file)
        assert tags(again) == tags(file)
        assert (
            sum("NEW" in row for row in rows)
            == " ".join(words(file)).count(" ") + 1
        )
        assert sum("-DOCSTART-" in row for row in rows) == sum(
            line.startswith("-DOC") for line in file.lines
        )


def test_predictions_of_another_number_are_refused(write):
    file = read_conll(write("a O\nb O\n"))
    for predicted in ([], [("O",)], [("O", "O"), ("O",)]):
        with pytest.raises(ValueError, match="zip"):
            written(file, predicted)


# The official files.


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
