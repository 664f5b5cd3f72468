"""Sections of a page that programs write, among sentences that people write.

A section stands between two lines that a reader does not see:

    <!-- corpus: benchmarks/corpus_scale.py writes this section -->
    ...
    <!-- end of corpus -->
"""

import pathlib
import re
from collections.abc import Iterable, Sequence

from bert_tf import files
from bert_tf.errors import InputError


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown; the first row is the titles."""
    titles, *lines = rows
    return [
        f"| {' | '.join(cells)} |"
        for cells in (titles, ["---"] * len(titles), *lines)
    ]


def write_section(path: str | pathlib.Path, name: str, text: str) -> None:
    """Puts `text` in the place of a page's section.

    Args:
      path: A Markdown file that has the two lines.
      name: What they call the section.
      text: Markdown.

    Raises:
      InputError: The page cannot be read, or does not have the section once.
    """
    section = re.compile(
        rf"(<!-- {re.escape(name)}:[^\n]*-->\n).*?"
        rf"(?=<!-- end of {re.escape(name)} -->)",
        re.DOTALL,
    )
    page, count = section.subn(
        lambda found: f"{found[1]}\n{text.strip()}\n\n",
        files.read_text(str(path)),
    )
    if count != 1:
        raise InputError(
            f"expected one section from <!-- {name}: ... --> to "
            f"<!-- end of {name} --> in {path}. Received: {count}"
        )
    files.write_text(str(path), page)


def publish(text: str, page: str | None, name: str) -> None:
    """Puts `text` into the section of a page, or prints it if there is none."""
    if page is None:
        print(text, end="")
    else:
        write_section(page, name, text)
