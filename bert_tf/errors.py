"""The error for what a user can fix, and functions that build messages.

An error message says in one line what is wrong, where, and what to do. There
are three forms:

- a wrong value: `wrong_value("`top_k`", "at least 1", 0)` gives
  "`top_k` must be at least 1; got 0."
- a file, with the line where known: `in_file("train.tsv", "expected 4 columns,
  found 3.", line=17)` gives "train.tsv:17: expected 4 columns, found 3."
- an event, as a full sentence: "Worker 1 exited during training. Restart all
  workers with the same command to resume from step 3,000."

A message names an argument in backquotes, with its value where that helps, as
Python code would pass it: "`labels`", "`problem=regression`", "`header=False`".
On a command line `bert_tf.cli` turns them into flags: "--labels",
"--problem=regression", "--noheader". No other module needs to know whether a
user runs a script or Python code.
"""

import contextlib
import difflib
import importlib.metadata
import json
import os
import re
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import Any


class InputError(ValueError):
    """Input or options that the user can fix.

    Scripts print the message, one line, without a traceback. An exception that
    is neither an InputError nor an OSError is a bug.
    """


def printable(text: str) -> str:
    """Escapes control characters, which a terminal would obey."""
    # Line feeds become spaces in `cli`.
    controls = r"[\x00-\x09\x0b-\x1f\x7f-\x9f]"
    return re.sub(controls, lambda match: repr(match[0])[1:-1], text)


def wrong_value(
    name: str, requirement: str, value: Any, advice: str = ""
) -> InputError:
    """Returns an error for a value that breaks a requirement.

    Args:
      name: What has the value: an argument such as "`top_k`", or a noun phrase.
      requirement: What the value must be: "at least 1", "one of a, b or c".
      value: The value received.
      advice: A sentence on what to do.
    """
    text = f"{name} must be {requirement}; got {shortened(value, 200)}."
    return InputError(f"{text} {advice}" if advice else text)


def require_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raises the error of `wrong_value` unless `value` is one of `choices`."""
    # A list: unhashable values cannot be looked up in a dict.
    if value not in [*choices]:
        raise wrong_value(name, f"one of {listed(choices, last='or')}", value)


def require_booleans(**options: Any) -> None:
    """Raises InputError for a word such as "false", which would be true."""
    for name, value in options.items():
        require_choice(name, value, (True, False))


def require_names(names: Sequence[str], advice: str = "") -> tuple[str, ...]:
    """Returns the names of classes, or raises InputError.

    They must be different, non-empty strings in a list or another sequence.
    Otherwise an answer could mean several classes, or no class.
    """
    is_list = isinstance(names, Collection) and not isinstance(
        names, (str, bytes, Mapping, Set)
    )
    if not is_list or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise wrong_value(
            "The labels", "a list of non-empty names", names, advice
        )
    if len({*names}) < len(names):
        raise wrong_value("The labels", "different", [*names], advice)
    return tuple(map(str, names))


def in_file(
    path: str | os.PathLike[str], message: str, line: int | None = None
) -> InputError:
    """Returns an error about a file, with the line number if it is known."""
    place = os.fspath(path) if line is None else f"{os.fspath(path)}:{line}"
    return InputError(printable(f"{place}: {message}"))


def not_utf8(
    error: UnicodeDecodeError,
    path: str,
    line: int,
    advice: str = "Convert the file to UTF-8.",
) -> InputError:
    """Returns the error for a file with a byte that is not UTF-8."""
    if error.object.startswith(b"\x1f\x8b"):
        advice = "The file is compressed with gzip; add .gz to its name."
    byte = error.object[error.start]
    return in_file(path, f"byte 0x{byte:02x} is not UTF-8. {advice}", line)


def listed(
    names: Iterable[Any],
    *,
    last: str = "and",
    most: int = 10,
    quote: bool = False,
) -> str:
    """Returns "a, b and c", or "a, b, c, ... (17 in all)" for a long list.

    Args:
      names: The items.
      last: The word before the last item: "and" or "or".
      most: The number of items above which the list is truncated.
      quote: Whether to put each item in quotes, as `repr` does.
    """
    items = [repr(name) if quote else printable(str(name)) for name in names]
    if len(items) > most:
        return f"{', '.join(items[:most])}, ... ({len(items):,} in all)"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def did_you_mean(name: str, candidates: Collection[str]) -> str:
    """Returns " Did you mean 'x'?" for the nearest known name, or ""."""
    folded = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def shortened(value: Any, most: int = 80) -> str:
    """Returns `repr(value)` in one line, truncated to about `most` characters.

    >>> shortened("x" * 100, most=10)
    "'xxxxxxxxx..."
    """
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= most else f"{text[:most]}..."


# TensorFlow's notes on where an error occurred.
_TENSORFLOW_MARKS = re.compile(r" used by \{\{.*|\{\{.*?\}\} ?| ?\[Op:\w+\].*")

# The path in "/a/b.tmp-123/c; No space left on device": often a temporary one.
_TENSORFLOW_PATH = re.compile(r"^.*; (?=[A-Z][A-Za-z/ -]*$)")


def reason(error: BaseException) -> str:
    """Returns in one line the reason that the system or TensorFlow reports.

    >>> reason(FileNotFoundError(2, "No such file or directory"))
    'No such file or directory'
    """
    text = (
        getattr(error, "strerror", None)
        or getattr(error, "message", None)
        or str(error)
    )
    line = text.strip().partition("\n")[0]
    line = _TENSORFLOW_MARKS.sub("", line).strip()
    return _TENSORFLOW_PATH.sub("", line) or type(error).__name__


# Missing packages. No package index has bert_tf, so the commands in messages
# install its extras from git, or from the checkout: `pip install '.[EXTRA]'`.

# Packages whose wheels require `tensorflow`, which must not be installed next
# to `tensorflow-tpu`.
_WITHOUT_DEPENDENCIES = {
    "tensorflow_serving": "tensorflow-serving-api",
    "tensorflow_text": "tensorflow-text",
}


class MissingPackageError(InputError):
    """A package that an extra of the project installs is missing."""


def missing(
    purpose: str, package: str, extra: str, advice: str = ""
) -> MissingPackageError:
    """Returns the error for a missing package.

    Args:
      purpose: What needs the package: a flag or a noun phrase.
      package: The name of the package or of its module.
      extra: The extra in pyproject.toml that installs it.
      advice: What else the user can do, which follows the command.
    """
    if url := _repository():
        return MissingPackageError(
            f"{purpose} needs the package {package}. Run: pip install "
            f"'bert_tf[{extra}] @ git+{url}'{advice}"
        )
    return MissingPackageError(
        f"{purpose} needs the package {package}. Run, in the checkout of "
        f"bert_tf: pip install '.[{extra}]'{advice}"
    )


def _repository() -> str:
    """Returns the git URL that bert_tf was installed from; "" without one."""
    try:
        found = importlib.metadata.distribution("bert_tf")
    except importlib.metadata.PackageNotFoundError:
        return ""
    # pip writes this file, without passwords.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    is_git = origin.get("vcs_info", {}).get("vcs") == "git"
    return str(origin["url"]) if is_git else ""


@contextlib.contextmanager
def tensorflow_required(
    purpose: str = "This program", advice: str = ""
) -> Iterator[None]:
    """Explains a failed import of TensorFlow or its packages in the block.

    Args:
      purpose, advice: See `missing`.

    Raises:
      MissingPackageError: If TensorFlow, TensorFlow Text or the API of
        TensorFlow Serving is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module == "tensorflow":
            raise missing(purpose, module, "tensorflow", advice) from None
        if module not in _WITHOUT_DEPENDENCIES:
            raise
        raise _missing_companion(purpose, module) from None


def _missing_companion(purpose: str, module: str) -> MissingPackageError:
    """Returns the error for a package of the same release as TensorFlow."""
    import tensorflow as tf

    release = ".".join(tf.__version__.split(".")[:2])
    package = _WITHOUT_DEPENDENCIES[module]
    return MissingPackageError(
        f"{purpose} needs the package {package}. Run: pip install --no-deps "
        f"'{package}=={release}.*'"
    )
