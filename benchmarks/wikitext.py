"""WikiText, as it is published, to a sentence a line, for data creation."""

import pathlib
import re
from collections.abc import Iterator

# An article's title has one sign on each side, a section's has more.
_ARTICLE = re.compile(r"= [^=].* =")
# In this corpus tokens stand apart, so that only an end of a sentence looks so.
_END_OF_SENTENCE = re.compile(r"(?<= [.!?]) ")

Document = list[str]


def articles(path: pathlib.Path) -> list[Document]:
    """The sentences of each article."""
    return list(_documents(path, is_title=_ARTICLE.fullmatch))


def sections(path: pathlib.Path) -> list[Document]:
    """The sentences below each heading: as short as most of Wikipedia is."""
    return list(_documents(path, is_title=lambda line: line.startswith("= ")))


def write(documents: list[Document], path: pathlib.Path) -> None:
    """Writes them with blank lines between."""
    text = "\n\n".join("\n".join(sentences) for sentences in documents)
    path.write_text(f"{text}\n", encoding="utf-8")


def _documents(path: pathlib.Path, is_title) -> Iterator[Document]:
    """Those of two sentences or more, from title to title."""
    sentences: Document = []
    for line in map(str.strip, path.open(encoding="utf-8")):
        if is_title(line):
            if len(sentences) > 1:
                yield sentences
            sentences = []
        elif line and not line.startswith("= "):
            sentences += _END_OF_SENTENCE.split(line)
    if len(sentences) > 1:
        yield sentences
