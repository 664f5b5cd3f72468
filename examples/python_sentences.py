"""Data for the other examples: sentences, each with its subject.

They come from the docstrings of Python's standard library: some 3,400 sentences
about numbers, files, networks and processes. `learn_vocabulary` makes a
vocabulary of them.
"""

import ast
import pathlib
import random
import re
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence

STANDARD_LIBRARY = pathlib.Path(sysconfig.get_path("stdlib"))
MODULES = {
    "numbers": "_pydecimal fractions numbers random statistics",
    "files": "fileinput glob os pathlib posixpath shutil tarfile tempfile "
    "zipfile",
    "networks": "ftplib http imaplib poplib smtplib socket socketserver ssl "
    "urllib",
    "processes": "asyncio concurrent/futures multiprocessing queue sched "
    "subprocess threading",
}
SUBJECTS = list(MODULES)

SENTENCE_END = re.compile(r"(?<=[.:])\s+(?=[A-Z])")
HELD_OUT = 5  # One sentence in five is held out.

# Sentences, and the index of the subject of each.
Part = tuple[list[str], list[int]]


def load() -> tuple[Part, Part]:
    """Returns the training set and the held-out set."""
    subject_of = {
        sentence: index
        for index, subject in enumerate(SUBJECTS)
        for path in sources(MODULES[subject])
        for sentence in sentences(path)
    }
    pairs = list(subject_of.items())
    random.Random(1).shuffle(pairs)
    size = len(pairs) // HELD_OUT
    return split(pairs[size:]), split(pairs[:size])


def split(pairs: list[tuple[str, int]]) -> Part:
    """Returns the sentences and the subjects of pairs."""
    return [text for text, _ in pairs], [index for _, index in pairs]


def sources(modules: str) -> Iterator[pathlib.Path]:
    """Yields the files of modules and packages."""
    for name in modules.split():
        yield from STANDARD_LIBRARY.glob(f"{name}.py")
        yield from sorted(STANDARD_LIBRARY.glob(f"{name}/*.py"))


def sentences(path: pathlib.Path) -> Iterator[str]:
    """Yields the sentences in the docstrings of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        for paragraph in (text or "").split("\n\n"):
            words = " ".join(paragraph.split())
            if words.endswith((".", ":")) and ">>>" not in words:
                found = SENTENCE_END.split(words)
                yield from (s for s in found if len(s.split()) > 4)


def learn_vocabulary(texts: Sequence[str], vocab_size: int = 2000) -> list[str]:
    """Returns an uncased WordPiece vocabulary of texts."""
    # Needs the package tokenizers; jax_training.py does not.
    from bert_tf.jobs import vocabulary

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "texts.txt"
        path.write_text("\n".join(texts), encoding="utf-8")
        return vocabulary.run(
            vocabulary.VocabularyConfig(
                input_file=str(path),
                output_file=str(folder / "vocab.txt"),
                vocab_size=vocab_size,
            )
        )
