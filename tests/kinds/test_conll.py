"""CoNLL files, features of tagged sentences, labels and scores."""

import dataclasses
import gzip
import logging
import random
import re

import pytest

from bert_tf.errors import InputError
from bert_tf.kinds.tags import conll_files as conll
from bert_tf.kinds.tags.conll_files import Sentence, TaggingEncoding, read_conll
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.tasks import metrics
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
    path = f"{file.path}.out"
    conll.write_conll(path, file, predicted)
    with open(path, "rb") as stream:
        return stream.read().decode()


def conlleval_rows(text):
    """Returns the columns of each line, split at each space as by conlleval.

    It fails if two lines have different numbers of columns.
    """
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    rows = [line.split(" ") if line else [] for line in lines]
    assert len({len(row) for row in rows if row}) == 1
    assert all(feature.split() == [feature] for row in rows for feature in row)
    return rows


def test_reads_and_writes_an_official_file(write):
    write(gzip.compress(EXAMPLE.encode()), "a.txt.gz")
    path = write(EXAMPLE)
    file = read_conll(path)
    assert words(file) == words(read_conll(f"{path}.gz"))
    assert words(file) == ["EU rejects German", "Ann Bo"]
    assert tags(file) == ["B-ORG O B-MISC", "B-PER B-PER"]
    assert [s.lines for s in file.sentences] == [(3, 4, 5), (7, 8)]
    predicted = [("B-ORG", "O", "B-X"), ("B-PER", "I-PER")]
    assert written(file, predicted) == (
        "-DOCSTART- -X- O O O\n\n"
        "EU NNP I-NP B-ORG B-ORG\n"
        "rejects VBZ I-VP O O\n"
        "German JJ I-NP B-MISC B-X\n\n"
        "Ann NNP I-NP B-PER B-PER\n"
        "Bo NNP I-NP B-PER I-PER\n"
    )
    with pytest.raises(ValueError, match="zip"):
        written(file, predicted[:1])


@pytest.mark.parametrize(
    "border",
    ["\n\n \n\t\n", "-DOCSTART- -X- O\n", "\n-DOCSTART-\n\n", " \t \n"],
)
@pytest.mark.parametrize(("bom", "end"), [("", "\n"), ("\ufeff", "\r\n")])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_borders_and_line_ends(write, border, bom, end, separator):
    text = f"{border}a x O\nb y B-P\n{border}c z I-P\nd x O\n"
    text = bom + text.replace("\n", end).replace(" ", separator)
    for content in (text, text.rstrip(), text + end * 3):
        file = read_conll(write(content))
        assert words(file) == ["a b", "c d"]
        assert tags(file) == ["O B-P", "B-P O"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a  b   O", ("b",)),
        ("a \t b\t O", ("b",)),
        (" a b O  ", ("b",)),
        ("x a\x85\u2028\u3000\xa0\x0c\x1c\r\ufeffb O\ny c O",
         ("a\x85\u2028\u3000\xa0\x0c\x1c\r\ufeffb", "c")),
        # "#" begins comments only before a sentence.
        ("# newdoc\n# t = a b\na\tb\tO\n#b\tc\tO\n\n#end it", ("b", "c")),
        ("# # O\n#tag #x O", ("#", "#x")),
    ],
)  # fmt: skip
def test_columns(write, content, expected):
    file = read_conll(write(f"{content}\n"), word_column=1)
    [sentence] = file.sentences
    assert sentence.words == expected
    assert sentence.tags == ("O",) * len(expected)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", {}, "{}: expected a word on each line, found no word"),
        ("a b O\n\nc O\n", {},
         "{}:3: expected 3 columns .* spaces or tabs, as in line 1; found 2"),
        ("a O\n# what is this\nb O\n", {}, "{}:2: expected 2 .*; found 4"),
        ("\na x O\n", {"tag_column": 3},
         "tag_column` must be from -3 to 2 .* 3 columns of {}:2; got 3"),
        ("a\n", {}, "tag_column` must be a column .*{}:1; got -1"),
        (b"a O\n\nb\xe9 O\n", {}, "{}:3: byte 0xe9"),
        ("a O\nb NNP\n", {}, "{}:2: expected a tag: O, or .* found 'NNP'"),
    ],
)  # fmt: skip
def test_errors_name_the_line(write, content, columns, message):
    path = write(content)
    with pytest.raises(
        InputError, match=message.replace("{}", re.escape(path))
    ):
        read_conll(path, **columns)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("needs_tags", [True, False])
def test_conlleval_reads_the_output(write, end, needs_tags):
    text = (
        "# newdoc\n\nNew\xa0York\tNNP\tB-LOC\nCity\tNNP\tL-LOC\n\xa0\t.\tO\n"
        "-DOCSTART-\tdoc\n# a long comment\n#1\tCD\tU-X\xa0y\n"
    )
    path = write(text.replace("\n", end))
    file = read_conll(path, needs_tags=needs_tags)
    assert (file.sentences[0].tags is None) != needs_tags
    text = written(file, [("B-LOC", "I-LOC", "O"), ("B-X\xa0y",)])
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


def test_a_file_without_gold_tags(write):
    path = write("a O\nb NN\n \nc O")
    for column in (-1, 7):
        file = read_conll(path, tag_column=column, needs_tags=False)
        assert {sentence.tags for sentence in file.sentences} == {None}
        text = written(file, [("O", "B-X"), ("O",)])
        assert text == "a O O\nb NN B-X\n\nc O O\n"


def test_finds_the_file_of_a_split(tmp_path):
    folder = str(tmp_path)
    for split, name in {
        "train": "eng.train",
        "dev": "dev.txt",
        "test": "eng.testb.gz",
    }.items():
        (tmp_path / name).touch()
        (tmp_path / "valid.txt").touch()
        path = str(tmp_path / name)
        assert conll.find_file(split, folder) == path
        assert conll.find_file(split, folder, name) == path
        assert conll.find_file(split, "elsewhere", path) == path
        assert conll.find_file(split, folder, "none.txt") == "none.txt"


# The marks of an entity, from its length and whether it follows its own type.
MARKS = {
    "iob1": lambda length, again: ("B" if again else "I") + "I" * (length - 1),
    "iob2": lambda length, _: "B" + "I" * (length - 1),
    "iobes": lambda n, _: "S" if n == 1 else "B" + "I" * (n - 2) + "E",
    "bilou": lambda n, _: "U" if n == 1 else "B" + "I" * (n - 2) + "L",
    "bmes": lambda n, _: "S" if n == 1 else "B" + "M" * (n - 2) + "E",
    "ioe2": lambda length, _: "I" * (length - 1) + "E",
}


@pytest.mark.parametrize("scheme", MARKS)
def test_schemes_become_iob2(scheme):
    draw = random.Random(5)
    for _ in range(199):
        found, expected, before = [], [], None
        for _ in range(draw.randrange(7)):
            kind, length = draw.choice(["", "A", "B-x"]), draw.randrange(1, 4)
            for name, tags in ((scheme, found), ("iob2", expected)):
                marks = MARKS[name](length, kind == before) if kind else "O"
                tags += [f"{mark}-{kind}".rstrip("-") for mark in marks]
            before = kind
        assert conll.to_iob2(found) == tuple(expected)
        untyped = [tag[0] for tag in expected]
        assert conll.to_iob2(untyped) == tuple(untyped)
        given = draw.choices(["O", "I-A", "B-A", "I-B", "B-B"], k=7)
        assert metrics.entities(conll.to_iob2(given)) == metrics.entities(given)


PAD, UNK, CLS, SEP, A, B, C, D = range(8)
VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", "é", "-")
LABELS = ("O", "B-X", "I-X")
ENCODING = TaggingEncoding(VOCAB, True, None, 7, LABELS)


def sentence(words, tags=None):
    words = tuple(words.split(" "))
    tags = tuple(tags.split()) if tags else None
    return Sentence(words, tags, tuple(range(len(words))), "x.txt")


@pytest.mark.parametrize(
    ("words", "tags", "ids", "labels"),
    [
        (
            *("a bdd c", "O B-X I-X"),
            [CLS, A, B, D, D, C, SEP],
            [None, 0, 1, None, None, 2, None],
        ),
        # Words without tokens are unknown; without tags, labels are 0.
        (
            *("\x00  \u0301 b", None),
            [CLS, UNK, UNK, UNK, B, SEP, PAD],
            [None, 0, 0, 0, 0, None, None],
        ),
    ],
)
def test_the_first_token_of_a_word_has_the_label(words, tags, ids, labels):
    batch = ENCODING.encode([sentence(words, tags)]).batch
    assert {name: row.tolist() for name, [row] in batch.items()} == {
        "input_ids": ids,
        "input_mask": [int(token != PAD) for token in ids],
        "segment_ids": [0] * 7,
        "label_ids": [label or 0 for label in labels],
        "label_mask": [int(label is not None) for label in labels],
    }


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


@pytest.mark.parametrize("max_seq_length", [3, 7, 101])
def test_every_word_has_its_label_once(max_seq_length):
    sentences = random_sentences(seed=max_seq_length)
    encoding = dataclasses.replace(ENCODING, max_seq_length=max_seq_length)
    batch, _, num_cut, _ = encoding.encode(sentences)
    rows = zip(batch["input_ids"], batch["input_mask"], strict=True)
    ids = [row[mask > 0].tolist() for row, mask in rows]
    assert (ids, num_cut) == row_by_row(sentences, encoding)
    assert encoding.count_rows(sentences) == len(ids)
    assert not batch["label_ids"][batch["label_mask"] == 0].any()
    mask = batch["label_mask"]
    predictions = {"predicted_ids": batch["label_ids"], "label_mask": mask}
    tags = TaggingTask(CONFIG, encoding).tags(
        predictions | {"probabilities": mask}, sentences
    )
    assert tags == [[*each.tags] for each in sentences]


def test_changes_rewrite_the_records(tmp_path, caplog):
    caplog.set_level(logging.INFO, "absl")
    path = str(tmp_path / "a.tf_record")
    for tags in ("O B-X I-X", "O O I-X", None):
        sentences = [sentence("a bdd c", tags)]
        assert ENCODING.write(path, sentences)
        assert not ENCODING.write(path, sentences)
    assert "1 sentences in 1 rows of at most 7 tokens" in caplog.text
    assert "tokens: [CLS] a b ##d ##d c [SEP]" in caplog.text
    assert "labels: O B-X I-X" in caplog.text


def test_labels_have_both_marks_of_all_types():
    sentences = [sentence("a b c", "I-Z O B-A-b"), sentence("a b", "O B-Z")]
    assert conll.labels_of(sentences) == ("O", "B-A-b", "B-Z", "I-A-b", "I-Z")
    assert conll.labels_of([sentence("a", "B")]) == ("O", "B", "I")
    assert conll.labels_of([sentence("a")]) == ("O",)


TWO_TYPES = ("O", "B-A", "I-A", "B-B", "I-B")
TRAIN = [sentence("a b", "O B-A"), sentence("a b", "B-B I-B")]


@pytest.mark.parametrize(
    ("given", "known", "train", "expected"),
    [
        (None, None, TRAIN, ("O", "B-A", "B-B", "I-A", "I-B")),
        (None, TWO_TYPES, TRAIN, TWO_TYPES),
        (["B-A", "O"], TWO_TYPES, TRAIN, ("B-A", "O")),
        (["B-A", "O"], ("O", "B-A"), None, ("O", "B-A")),
    ],
)
def test_where_labels_come_from(given, known, train, expected):
    assert conll.choose_labels(given, known, train) == expected


@pytest.mark.parametrize(
    ("given", "known", "message"),
    [
        (None, ("LABEL_0", "LABEL_1"), "IOB2.*'LABEL_0'.*`labels`, in the"),
        (None, ("O", "B-A", "E-A"), r"IOB2.*'E-A'.*TokenTagger takes"),
        (["O", "B-A", "O"], None, "`labels` must be different; got 'O,B-A,O'"),
    ],
)
def test_invalid_labels(given, known, message):
    with pytest.raises(InputError, match=message):
        conll.choose_labels(given, known)
