"""CoNLL files: a word a line with its columns, a blank line between sentences.

    -DOCSTART- -X- O O

    EU NNP I-NP I-ORG
    rejects VBZ I-VP O

Columns are between tabs, an empty one counting, where the first word's line
has a tab; else between any number of spaces. A line of `-DOCSTART-` ends a
sentence as a blank line does. Lines with "#" at their start are comments where
they stand before the words of a sentence and have another number of columns
than those: "#" is a word as well, and "#tag" another. Lines are those of
`tables.read_lines`; spaces before their ends are no part of a column.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from absl import logging

from bert_tf import files
from bert_tf.data.tables import read_lines
from bert_tf.errors import InputError

DOCUMENT = "-DOCSTART-"

# The tags of all schemes. M is I, and L is E, and U is S under another name;
# there may be no type where all entities are of one.
_TAG = re.compile("O|[BIMELSU](-.+)?")
_BEGIN, _END = frozenset("BSU"), frozenset("OELSU")


# A line with a word: its number, from 1, and its columns.
_Row = tuple[int, list[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """Words between two blank lines.

    Attributes:
      words: At least one.
      tags: The tag of each word in IOB2; None where none were read.
      lines: The line of each word, from 1.
      path: The file.
      original_tags: The tags as the file has them, for messages.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]
    path: str
    original_tags: tuple[str, ...] | None = None

    def where(self, word: int) -> str:
        """The place of a word, `path:line`, for messages."""
        return f"{self.path}:{self.lines[word]}"


@dataclasses.dataclass(frozen=True)
class ConllFile:
    """A file, with all that `write_conll` needs.

    Attributes:
      path: Where it was read.
      lines: All lines, without their ends.
      separator: What separates two columns, a tab or a space.
      num_columns: The number of columns of each word.
      tag_column: The column of the tags, from 0; None if there are no tags.
      sentences: In their order; at least one.
    """

    path: str
    lines: tuple[str, ...]
    separator: str
    num_columns: int
    tag_column: int | None
    sentences: tuple[Sentence, ...]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How the lines of a file are read.

    Attributes:
      path: The file.
      separator: What stands between two columns, a tab or a space.
      num_columns: As many has each word.
      line: The line that says so.
    """

    path: str
    separator: str
    num_columns: int
    line: int

    def column(self, name: str, wanted: int) -> int:
        """The number of a column, from 0.

        Raises:
          InputError: There is none of that number.
        """
        if not -self.num_columns <= wanted < self.num_columns:
            raise InputError(
                f"Expected {name} from {-self.num_columns} to "
                f"{self.num_columns - 1}, for there are {self.num_columns} "
                f"columns at {self.path}:{self.line}. Received: {wanted}"
            )
        return wanted % self.num_columns

    def is_comment(self, row: tuple[int, str]) -> bool:
        """Whether a line before the first word of a sentence is none itself."""
        content = row[1]
        return content.startswith("#") and self.num_columns != len(
            _columns(content, self.separator)
        )

    def columns(self, number: int, content: str) -> list[str]:
        """The columns of a line.

        Raises:
          InputError: They are more or fewer than those of the first word.
        """
        columns = _columns(content, self.separator)
        if len(columns) != self.num_columns:
            name = "tabs" if self.separator == "\t" else "spaces"
            raise InputError(
                f"Expected {self.num_columns} columns between {name}, as at "
                f"{self.path}:{self.line}. Received: {len(columns)} at "
                f"{self.path}:{number}"
            )
        return columns


def read_conll(
    path: str,
    *,
    word_column: int = 0,
    tag_column: int | None = -1,
    needs_tags: bool = True,
) -> ConllFile:
    """Reads the words of a file, and their tags.

    Args:
      path: The file, compressed where the name ends in `.gz`.
      word_column: Number of the column of the words from 0; negative numbers
        count from the last one, -1.
      tag_column: Number of the column of the tags, in any scheme that
        `to_iob2` knows; None: the tags are not read, nor need there be any.
      needs_tags: If False, the sentences get no tags and the file need not
        have any; if all its words have one, `write_conll` writes it.

    Raises:
      InputError: The file cannot be read, is not UTF-8 or has no word; it lacks
        a column; a line has another number of columns; a tag is none.
    """
    contents = [_content(line) for line, _ in read_lines(path)]
    layout = _layout(path, contents)
    word = layout.column("word_column", word_column)
    tag = None
    if tag_column is not None and needs_tags:
        tag = layout.column("tag_column", tag_column)
    if tag == word:
        raise InputError(
            "Expected words and tags in columns of their own. Received: number "
            f"{word} for both, of {layout.num_columns} at {path}:{layout.line}"
        )
    blocks = [
        [(number, layout.columns(number, content)) for number, content in block]
        for block in _blocks(layout, contents)
    ]
    sentences = tuple(_sentence(path, block, word, tag) for block in blocks)
    if tag_column is not None and not needs_tags:
        tag = _find_tags(blocks, word, tag_column)
    return ConllFile(
        path,
        tuple(contents),
        layout.separator,
        layout.num_columns,
        tag,
        sentences,
    )


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags of a sentence in IOB2, where each entity begins with B-.

    The official CoNLL-2003 files are in IOB1: an entity begins with I-, and
    with B- only where one of the same type ends right before it. IOBES, BILOU,
    BMES and IOE mark ends, too: an entity begins behind each. What is in IOB2
    already stays as it is.

    Args:
      tags: "O", or B, I, M, E, L, S or U, then "-" and a type, or no type.
    """
    converted, previous = [], "O"
    for tag in tags:
        begins = (
            tag[0] in _BEGIN or previous[0] in _END or tag[1:] != previous[1:]
        )
        mark = "O" if tag == "O" else "B" if begins else "I"
        converted.append(mark + tag[1:])
        previous = tag
    return tuple(converted)


def write_conll(
    path: str, file: ConllFile, predicted: Iterable[Sequence[str]]
) -> None:
    """Writes the words with their predicted tags, as conlleval reads them.

    One space separates columns and an empty line sentences, whatever the file
    has. The last column is the predicted tag, the one before it the tag of the
    file, if it has tags, in IOB2. A line of a document has the tag "O" in both.
    Comments are left out. White space in a column becomes "_", and so does an
    empty column.

    Args:
      path: Where to; it appears as a whole.
      file: What `read_conll` gave.
      predicted: The tags of each sentence, one a word.
    """
    rows: dict[int, list[str]] = {}
    for sentence, tags in zip(file.sentences, predicted, strict=True):
        tagged = zip(
            sentence.lines, _rows_with_gold(file, sentence), tags, strict=True
        )
        rows |= {number: [*row, tag] for number, row, tag in tagged}
    for number, content in enumerate(file.lines, start=1):
        if content.startswith(DOCUMENT):
            rows[number] = _document_row(file, content)
        elif _is_border(content):
            rows[number] = []
    lines = (" ".join(map(_field, row)) for _, row in sorted(rows.items()))
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def _rows_with_gold(file: ConllFile, sentence: Sentence) -> list[list[str]]:
    """The columns of each word; the last one is its tag in IOB2."""
    rows = [
        _columns(file.lines[number - 1], file.separator)
        for number in sentence.lines
    ]
    if file.tag_column is None:
        return rows
    gold = to_iob2([row.pop(file.tag_column) for row in rows])
    return [[*row, tag] for row, tag in zip(rows, gold, strict=True)]


def _document_row(file: ConllFile, content: str) -> list[str]:
    """A line of -DOCSTART- with as many columns as a word has."""
    num_others = file.num_columns - (file.tag_column is not None)
    others = content.split()[:num_others]
    return others + ["O"] * (file.num_columns + 1 - len(others))


def _field(column: str) -> str:
    """A column without white space, at which conlleval would split it."""
    return "_".join(column.split()) or "_"


def _content(line: str) -> str:
    """What there is to read on a line."""
    return line.rstrip(" \r\n")


def _columns(content: str, separator: str) -> list[str]:
    if separator == "\t":
        return [column.strip(" ") for column in content.split("\t")]
    return re.findall("[^ \t]+", content)


def _is_border(content: str) -> bool:
    """Whether a line lies between sentences."""
    return not content.strip(" \t") or content.startswith(DOCUMENT)


def _layout(path: str, contents: Sequence[str]) -> _Layout:
    """What the first word shows; a line with "#" only if there is no other."""
    rows = [n for n, content in enumerate(contents) if not _is_border(content)]
    if not rows:
        raise InputError(
            f"Expected a file with a word on a line. Received: {path}, which "
            "has none"
        )
    first = next((n for n in rows if not contents[n].startswith("#")), rows[0])
    separator = "\t" if "\t" in contents[first] else " "
    num_columns = len(_columns(contents[first], separator))
    return _Layout(path, separator, num_columns, first + 1)


def _blocks(
    layout: _Layout, contents: Iterable[str]
) -> Iterator[list[tuple[int, str]]]:
    """The lines of each sentence with their numbers, from 1."""
    num_comments = 0
    for is_border, block in itertools.groupby(
        enumerate(contents, start=1), lambda row: _is_border(row[1])
    ):
        if is_border:
            continue
        rows = list(block)
        words = list(itertools.dropwhile(layout.is_comment, rows))
        num_comments += len(rows) - len(words)
        if words:
            yield words
    if num_comments:
        logging.info(
            "%s: %d lines with # are comments", layout.path, num_comments
        )


def _sentence(
    path: str, rows: Sequence[_Row], word: int, tag: int | None
) -> Sentence:
    sentence = Sentence(
        words=tuple(columns[word] for _, columns in rows),
        tags=None,
        lines=tuple(number for number, _ in rows),
        path=path,
    )
    if tag is None:
        return sentence
    tags = tuple(columns[tag] for _, columns in rows)
    _require_tags(tags, sentence)
    return dataclasses.replace(sentence, tags=to_iob2(tags), original_tags=tags)


def _find_tags(
    blocks: Sequence[Sequence[_Row]], word: int, tag_column: int
) -> int | None:
    """The column of the tags, from 0, or None if a word has no tag there."""
    rows = [columns for block in blocks for _, columns in block]
    num_columns = len(rows[0])
    tag = tag_column % num_columns
    if tag == word or not -num_columns <= tag_column < num_columns:
        return None
    return tag if all(_TAG.fullmatch(row[tag]) for row in rows) else None


def _require_tags(tags: Iterable[str], sentence: Sentence) -> None:
    for word, tag in enumerate(tags):
        if not _TAG.fullmatch(tag):
            raise InputError(
                "Expected a tag, O, or B- or I- with a type as in B-PER. "
                f"Received: {tag!r} at {sentence.where(word)}; correct it, or "
                "name the column of the tags"
            )
