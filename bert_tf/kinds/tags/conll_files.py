"""Reads and writes CoNLL files, and turns tagged sentences into rows.

A CoNLL file has one word per line, with its columns, and a blank line between
sentences:

    -DOCSTART- -X- O O

    EU NNP I-NP I-ORG
    rejects VBZ I-VP O

Columns are separated by any number of spaces and tabs. A line that begins with
`-DOCSTART-` also ends a sentence. A line that begins with "#" is a comment if
it precedes the words of a sentence and has a different number of columns: "#"
and "#tag" may be words too.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_tf.base import files
from bert_tf.data.records import Schema, tagging_schema
from bert_tf.data.tables import read_lines
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    wrong_value,
)
from bert_tf.tasks.datasets import find_first
from bert_tf.tasks.encoding import Encoded, RowEncoding
from bert_tf.tasks.metrics import entities
from bert_tf.tokenization.wordpiece import FullTokenizer

OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"

# The tags of all schemes. M means the same as I; L and E mark the end; U and S
# mark a single word. Files with only one type may omit the type.
_TAG = re.compile("O|[BIMELSU](-.+)?")
_BEGIN, _END = frozenset("BSU"), frozenset("OELSU")

# File names of the splits; the official ones come last.
_STEMS = {
    "train": ("train",),
    "dev": ("dev", "valid", "devel"),
    "test": ("test",),
}
_EXTENSIONS = ("txt", "tsv", "conll")
_OFFICIAL = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}

# The number of a line with a word, from 1, and its columns.
_Row = tuple[int, list[str]]


# ----------------------------------------------------------------- CoNLL files


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a CoNLL file.

    Attributes:
      words: At least one in a file.
      tags: The tag of each word in IOB2; None if they were not read.
      lines: The line number of each word, from 1.
      path: The file.
      spans: The characters [start, end) of each word in the text; None if the
        sentence is a list of words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]
    path: str
    spans: tuple[tuple[int, int], ...] | None = None


@dataclasses.dataclass(frozen=True)
class ConllFile:
    """A CoNLL file with all that `write_conll` needs.

    Attributes:
      path: The file.
      rows: The columns of all lines.
      num_columns: The number of columns of each word.
      tag_column: Index of the column of the tags; None without tags.
      sentences: The sentences in order, at least one.
    """

    path: str
    rows: tuple[list[str], ...]
    num_columns: int
    tag_column: int | None
    sentences: tuple[Sentence, ...]


def read_conll(
    path: str,
    *,
    word_column: int = 0,
    tag_column: int = -1,
    needs_tags: bool = True,
) -> ConllFile:
    """Reads the words of a file and their tags.

    Args:
      path: The file; decompressed if the name ends in `.gz`.
      word_column: Index of the column of the words; -1 is the last.
      tag_column: Index of the column of the tags, in any scheme that
        `to_iob2` accepts.
      needs_tags: If False, the file may lack tags, and the sentences get none.
        `write_conll` still writes the tags of a file if all words have one.

    Raises:
      InputError: If the file cannot be read, is not UTF-8, has no word, lacks
        a column, or has a line with a different number of columns or an invalid
        tag.
    """
    rows = tuple(
        re.findall("[^ \t]+", line.rstrip(" \r\n"))
        for line, _ in read_lines(path)
    )
    numbers = [n for n, row in enumerate(rows) if not _is_border(row)]
    if not numbers:
        raise in_file(path, "expected a word on each line, found no word.")
    # A line with "#" determines the columns only if there are no other lines.
    no_comments = (n for n in numbers if not rows[n][0].startswith("#"))
    first = next(no_comments, numbers[0])
    num_columns = len(rows[first])
    where = f"{path}:{first + 1}"

    def index(name: str, column: int) -> int:
        if -num_columns <= column < num_columns:
            return column % num_columns
        raise wrong_value(
            f"`{name}`",
            f"from {-num_columns} to {num_columns - 1} for the {num_columns} "
            f"columns of {where}",
            column,
        )

    word, tag = index("word_column", word_column), None
    if needs_tags:
        tag = index("tag_column", tag_column)
    if tag == word:
        raise wrong_value(
            "`tag_column`",
            f"a column other than `word_column` in {where}",
            tag_column,
        )
    blocks = list(_blocks(rows, num_columns))
    for number, columns in itertools.chain.from_iterable(blocks):
        if len(columns) != num_columns:
            raise in_file(
                path,
                f"expected {num_columns} columns separated by spaces or tabs, "
                f"as in line {first + 1}; found {len(columns)}.",
                number,
            )
    sentences = tuple(_sentence(path, block, word, tag) for block in blocks)
    if not needs_tags:
        tag = _find_tags(blocks, word, tag_column)
    return ConllFile(path, rows, num_columns, tag, sentences)


def is_entity_tag(tag: str) -> bool:
    """Returns whether a tag belongs to one of the schemes of `to_iob2`."""
    return _TAG.fullmatch(tag) is not None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Converts the tags of a sentence to IOB2, where entities begin with B-.

    In IOB1, the scheme of the official CoNLL-2003 files, an entity begins with
    I-, and with B- only right after another one of its type: I-PER I-PER B-PER
    are two people. IOBES, BILOU, BMES and IOE mark the last word: a tag after
    it begins an entity. Tags in IOB2 stay the same. The marks are B, I, M, E,
    L, S and U, with or without "-TYPE".
    """
    converted, previous = [], OUTSIDE
    for tag in tags:
        begins = (
            tag[0] in _BEGIN or previous[0] in _END or tag[1:] != previous[1:]
        )
        mark = OUTSIDE if tag == OUTSIDE else "B" if begins else "I"
        converted.append(mark + tag[1:])
        previous = tag
    return tuple(converted)


def write_conll(
    path: str, file: ConllFile, predicted: Iterable[Sequence[str]]
) -> None:
    """Writes the words with their predicted tags, as conlleval reads them.

    Columns are separated by one space and sentences by an empty line. The last
    column is the predicted tag. Before it is the tag of the file, if any, in
    IOB2. A `-DOCSTART-` line has "O" for both. Comments are dropped.
    White space inside a column, such as a no-break space, becomes "_".
    """
    rows: dict[int, list[str]] = {}
    for sentence, tags in zip(file.sentences, predicted, strict=True):
        columns = [[*file.rows[number - 1]] for number in sentence.lines]
        if file.tag_column is not None:
            gold = to_iob2([row.pop(file.tag_column) for row in columns])
            columns = [[*c, g] for c, g in zip(columns, gold, strict=True)]
        for number, row, tag in zip(sentence.lines, columns, tags, strict=True):
            rows[number] = [*row, tag]
    num_others = file.num_columns - (file.tag_column is not None)
    for number, row in enumerate(file.rows, start=1):
        if row and _is_border(row):
            others = row[:num_others]
            num_tags = file.num_columns + 1 - len(others)
            rows[number] = others + [OUTSIDE] * num_tags
        elif not row:
            rows[number] = []
    # conlleval would split a column at white space.
    lines = (
        " ".join("_".join(column.split()) or "_" for column in row)
        for _, row in sorted(rows.items())
    )
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def _is_border(row: Sequence[str]) -> bool:
    """Returns whether a line separates sentences."""
    return not row or row[0].startswith(DOCUMENT)


def _blocks(
    rows: Iterable[list[str]], num_columns: int
) -> Iterator[list[_Row]]:
    """Yields the lines of each sentence."""

    def is_comment(row: _Row) -> bool:
        return row[1][0].startswith("#") and len(row[1]) != num_columns

    for is_border, block in itertools.groupby(
        enumerate(rows, start=1), lambda row: _is_border(row[1])
    ):
        if is_border:
            continue
        if words := list(itertools.dropwhile(is_comment, block)):
            yield words


def _sentence(
    path: str, rows: Sequence[_Row], word: int, tag: int | None
) -> Sentence:
    numbers = tuple(number for number, _ in rows)
    words = tuple(columns[word] for _, columns in rows)
    if tag is None:
        return Sentence(words, None, numbers, path)
    tags = tuple(columns[tag] for _, columns in rows)
    for number, name in zip(numbers, tags, strict=True):
        if not is_entity_tag(name):
            raise in_file(
                path,
                f"expected a tag: O, or a prefix and a type as in B-PER; found "
                f"{name!r}. Fix the tag or set `tag_column`.",
                number,
            )
    return Sentence(words, to_iob2(tags), numbers, path)


def _find_tags(
    blocks: Sequence[Sequence[_Row]], word: int, tag_column: int
) -> int | None:
    """Returns the index of the tags, or None if a word has no tag there."""
    rows = [columns for block in blocks for _, columns in block]
    num_columns = len(rows[0])
    tag = tag_column % num_columns
    if tag == word or not -num_columns <= tag_column < num_columns:
        return None
    return tag if all(is_entity_tag(row[tag]) for row in rows) else None


def find_file(
    split: str, data_dir: str | None = None, name: str | None = None
) -> str:
    """Returns the path of a split's CoNLL file, possibly compressed (.gz).

    `name` is a file in the folder or a path; `split` is "train", "dev" or
    "test". Without `name`, raises InputError if no file has a usual name.
    """
    if name:
        inside = os.path.join(data_dir or "", name)
        return inside if files.exists(inside) else name
    if not data_dir:
        raise InputError(f"Pass `data_dir` or `{split}_file`.")
    names = [f"{s}.{e}" for s in _STEMS[split] for e in _EXTENSIONS]
    names.append(_OFFICIAL[split])
    path = find_first(names, data_dir)
    if path is None:
        raise in_file(
            data_dir,
            f"expected one of {listed(names, last='or')}. Pass `{split}_file` "
            "for a file of another name.",
        )
    return path


# -------------------------------------------------------------------- features


@dataclasses.dataclass(frozen=True)
class TaggingEncoding(RowEncoding[Sentence]):
    """How sentences become rows; `labels` are the tags, ordered by id."""

    # `field` makes it required, though the base class has a default.
    labels: tuple[str, ...] = dataclasses.field()
    unit = "sentences"
    cut_unit = "words"

    @property
    def schema(self) -> Schema:
        return tagging_schema(self.max_seq_length)

    def fingerprint(self, example: Sentence) -> bytes:
        return repr((example.words, example.tags)).encode()

    def encode(self, examples: Sequence[Sentence]) -> Encoded:
        """Tokenizes, splits and pads sentences.

        A sentence fills as many rows as it needs, each with as many whole words
        as fit. A word with more tokens than fit into a row is truncated, which
        `num_cut` counts. A word without tokens, such as a control character, is
        `[UNK]`. Words without a tag have label 0.

        Raises:
          InputError: If a tag is not among the labels.
        """
        tokenizer, length = self.tokenizer, self.max_seq_length
        cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
        of_sentences = [[*self._rows(s, tokenizer)] for s in examples]
        rows = [*itertools.chain.from_iterable(of_sentences)]
        labels = iter(label_numbers(examples, self.labels))
        batch = {
            feature.name: np.zeros([len(rows), length], np.int32)
            for feature in self.schema
        }
        num_cut = 0
        for number, words in enumerate(rows):
            # Only a word that is alone in its row can be too long.
            ids = [*itertools.chain.from_iterable(words)][: length - 2]
            num_cut += sum(map(len, words)) > len(ids)
            batch["input_ids"][number, : len(ids) + 2] = [cls_id, *ids, sep_id]
            batch["input_mask"][number, : len(ids) + 2] = 1
            firsts = 1 + np.cumsum([0, *map(len, words)])[:-1]
            batch["label_mask"][number, firsts] = 1
            batch["label_ids"][number, firsts] = [next(labels) for _ in words]
        counts = np.array([len(of_example) for of_example in of_sentences], int)
        return Encoded(batch, counts, num_cut)

    def _rows(
        self, sentence: Sentence, tokenizer: FullTokenizer
    ) -> Iterator[list[list[int]]]:
        """Yields the token ids of each word of each row of a sentence.

        With room for 3 tokens, words of 2, 2 and 1 tokens give the rows
        [first] and [second, third]. Without words there is an empty row.
        """
        room = self.max_seq_length - 2
        unknown = [tokenizer.vocab[tokenizer.unk_token]]
        row: list[list[int]] = []
        size = 0
        for word in sentence.words:
            ids = tokenizer.encode(word) or unknown
            if row and size + len(ids) > room:
                yield row
                row, size = [], 0
            row.append(ids)
            size += len(ids)
        if row or not sentence.words:
            yield row

    def sample_lines(
        self, example: Sentence, batch: Mapping[str, np.ndarray]
    ) -> Iterator[str]:
        yield from super().sample_lines(example, batch)
        label_ids = batch["label_ids"][batch["label_mask"] > 0]
        yield f"labels: {' '.join(self.labels[i] for i in label_ids)}"


# ---------------------------------------------------------------------- labels


def labels_of(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """Returns the labels that tagged sentences need.

    They are "O" and, for each type, both B- and I-, even if all entities of
    the type are single words.
    """
    tags = set(itertools.chain.from_iterable(s.tags or () for s in sentences))
    types = {tag[1:] for tag in tags - {OUTSIDE}}
    return OUTSIDE, *sorted(mark + kind for mark in "BI" for kind in types)


def label_numbers(
    sentences: Iterable[Sentence], labels: Sequence[str]
) -> list[int]:
    """Returns the label id of each word, [W]; 0 for words without a tag.

    Raises:
      InputError: If a tag is not among the labels.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    label_ids = []
    for sentence in sentences:
        tags = sentence.tags or (labels[0],) * len(sentence.words)
        for word, tag in enumerate(tags):
            if tag not in numbers:
                hint = did_you_mean(str(tag), labels)
                raise in_file(
                    sentence.path,
                    f"the tag {tag!r} is not one of the labels "
                    f"{listed(labels)}.{hint} Fix the tag, or train with "
                    "`labels` that include it.",
                    sentence.lines[word],
                )
            label_ids.append(numbers[tag])
    return label_ids


def choose_labels(
    given: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    train: Sequence[Sentence] | None = None,
) -> tuple[str, ...]:
    """Returns the labels of a run in the order of their ids.

    They are the given labels, else the labels of the training set, else the
    labels `known` to the model. The order of the model is kept if the labels
    are the same.

    Raises:
      InputError: If there are no labels, or they are not tags of IOB2.
    """
    labels = given or (labels_of(train) if train is not None else known)
    if not labels:
        raise InputError(
            "The labels are unknown. Pass `do_train` or `labels`, or a model "
            "that records its labels."
        )
    try:
        entities(labels)
    except ValueError as error:
        raise InputError(
            f"The labels must be tags of IOB2. {error} Pass them with "
            "`labels`, in the order of the model. bert_tf.TokenTagger takes "
            "models with other tags."
        ) from None
    if len(set(labels)) < len(labels):
        raise wrong_value("`labels`", "different", ",".join(labels))
    if known and sorted(known) == sorted(labels):
        return tuple(known)
    return tuple(labels)
