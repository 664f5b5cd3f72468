"""Reads the code blocks of Markdown pages, and the commands in them.

The language of a fence decides what a block is:

    python   runs, all blocks of a page in one namespace, in order; a `text`
             block right after it is the expected output
    sh       contains commands

`<!-- not run: REASON -->` on the line above a block skips it.
"""

import contextlib
import dataclasses
import io
import pathlib
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from checkout import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"(?P<note><!-- not run: [^>]+ -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_SCRIPT = re.compile(
    r"^(?:\$ )?(?:\S*/)?python (examples/paper/)?(\w+)\.py( .*)?$", re.DOTALL
)
_JOB = re.compile(r"^(?:\$ )?bert-tf (?!env$)(\w+)( .*)?$", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the line of its fence, its text, its expected output."""

    page: pathlib.Path
    line: int
    text: str
    output: str | None
    is_run: bool

    def commands(self) -> Iterator[str]:
        """Yields the commands; continued lines and quotations belong to one."""
        command = ""
        for line in self.text.splitlines(keepends=True):
            if not command and (not line.strip() or line.startswith("#")):
                continue
            command += line
            with contextlib.suppress(ValueError):  # an open quotation
                shlex.split(command)
                if not command.endswith("\\\n"):
                    yield command.rstrip("\n")
                    command = ""
        if command:
            yield command


def name_of(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def blocks(page: pathlib.Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["text"],
            found["output"],
            not found["note"],
        )
        for found in _BLOCK.finditer(text)
        if found["language"] == language
    ]


def prose(page: pathlib.Path) -> str:
    """Returns a page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def run_python(some: Iterable[Block], namespace: dict) -> None:
    """Runs blocks in one namespace and compares their output."""
    for block in some:
        # The traceback names the page and its line.
        code = "\n" * block.line + block.text
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(block.page), "exec"), namespace)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"line {block.line}"


class Script(NamedTuple):
    """A script of a job, or a program in examples/paper, and its arguments.

    The arguments are whole if none of them is "...".
    """

    name: str
    words: list[str]
    is_whole: bool


def script_of(command: str) -> Script | None:
    """Returns the script that a command runs, or None.

    `bert-tf JOB` runs the same job as a script in the root folder.
    """
    if found := _JOB.match(command):
        start = f'run_job("{found[1]}")'
        [path] = [p for p in ROOT.glob("*.py") if start in p.read_text("utf-8")]
        name, rest = path.stem, found[2]
    elif found := _SCRIPT.match(command):
        if not (ROOT / (found[1] or "") / f"{found[2]}.py").exists():
            return None
        name, rest = found[2], found[3]
    else:
        return None
    words = shlex.split((rest or "").replace("\\\n", " "))
    given = [word for word in words if word != "..."]
    return Script(name, given, is_whole=len(given) == len(words))
