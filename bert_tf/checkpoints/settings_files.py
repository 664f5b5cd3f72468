"""Reads and checks the JSON files of models from other sources.

A check is a test of a value, and a description of what passes it. Keys without
a check are ignored, and null means that a key is absent.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bert_tf.base import files
from bert_tf.config import is_number, is_positive
from bert_tf.errors import in_file, wrong_value

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Check(NamedTuple):
    """What the value of a key must be.

    Attributes:
      is_valid: The test.
      requirement: Its description, for messages.
    """

    is_valid: Callable[[Any], bool]
    requirement: str


Checks = Mapping[str, Check]


def is_count(value: Any) -> bool:
    """Returns whether a value is a positive integer, also written as a float.

    Many tokenizers have the length 1e30, which means no limit.
    """
    return is_number(value) and value >= 1 and value == int(value)


def are_texts(values: Any) -> bool:
    """Returns whether a value is a list of strings."""
    return isinstance(values, list) and all(isinstance(x, str) for x in values)


BOOLEAN = Check(lambda value: isinstance(value, bool), "true, false or null")
TEXT = Check(lambda value: isinstance(value, str), "a string")
TEXTS = Check(are_texts, "a list of strings")
COUNT = Check(is_count, "a positive integer")
POSITIVE = Check(is_positive, "a positive number")
RATE = Check(lambda x: is_number(x) and 0 <= x < 1, "a number in [0, 1)")
OBJECT = Check(lambda value: isinstance(value, dict), "an object")
TEXT_BY_NAME = Check(
    lambda value: isinstance(value, dict) and are_texts([*value.values()]),
    "an object whose values are strings",
)


def read(folder: str, name: str, checks: Checks) -> dict[str, Any]:
    """Reads a file of a folder; returns {} if it is missing.

    Raises:
      InputError: If the path leads out of the folder, or is not a file; if the
        file has no JSON object, or a value fails its check.
    """
    path = files.find_in(folder, name)
    return {} if path is None else read_file(path, checks)


def read_file(path: str, checks: Checks) -> dict[str, Any]:
    """Reads a file that must exist; see `read`."""
    values = read_json(path)
    check(values, checks, path)
    return values


def read_json(path: str, kind: type = dict) -> Any:
    """Reads a JSON file whose value is a `kind`; does not check its parts."""
    files.require_file(path)
    return parse(files.read_text(path), path, kind)


def parse(text: str, where: str, kind: type = dict) -> Any:
    """Parses the JSON of a file from another source; `where` is its name."""
    expected = "a JSON object" if kind is dict else "a list"
    value = files.parse_json(text, where, expected, kind)
    # Half of a pair would fail much later, where it becomes UTF-8.
    if _SURROGATE.search(text) and not files.is_utf8(
        json.dumps(value, ensure_ascii=False)
    ):
        raise in_file(where, "a string has half of a surrogate pair.")
    return value


def check(values: Mapping[str, Any], checks: Checks, where: str) -> None:
    """Raises InputError if a value fails its check."""
    for key, (is_valid, requirement) in checks.items():
        value = values.get(key)
        if value is not None and not is_valid(value):
            raise wrong_value(f"{where}: {key}", requirement, value)
