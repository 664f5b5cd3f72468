"""From what stands in a file to a label."""

import collections
import dataclasses
import decimal
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bert_tf.errors import InputError

# A message lists no more names than that.
_MAX_LISTED = 20

# An integer as pandas writes it in a column with gaps.
_WHOLE_FLOAT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")


@dataclasses.dataclass(frozen=True)
class Target:
    """What the labels of a task are and how its files spell them.

    Attributes:
      problem: One of `bert_tf.data.examples.PROBLEMS`.
      labels: Their names in the order of their numbers; () for regression,
        and where they are still to be found: any name will do then.
      aliases: Other spellings, to the name each stands for.
      undecided: What stands for "the annotators disagreed"; rows with it are
        no examples.
      separator: What is between the names in a multi-label column.
    """

    problem: str
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    undecided: str | None = None
    separator: str = ","

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        """The label of every spelling; a label's own spelling goes first."""
        integers = {without_decimals(name): name for name in self.labels}
        return integers | {name: name for name in self.labels}

    def label_of(
        self, value: Any, where: str
    ) -> str | float | tuple[str, ...] | None:
        """Reads the label of one example.

        Args:
          value: A field of a table, or any value of JSON.
          where: `path:line`, for the message.

        Returns:
          A name, a number or several names, by the problem. None where there
          is no label; no names at all are a multi-label example's label.

        Raises:
          InputError: It is no label of this task.
        """
        if self.problem == "multi_label":
            return self._names(value, where)
        if is_missing(value):
            return None
        if self.problem == "regression":
            return _number(value, where)
        return self._name(value, where)

    def _names(self, value: Any, where: str) -> tuple[str, ...]:
        if isinstance(value, str):
            value = value.split(self.separator)
        elif not isinstance(value, list):
            value = [value]
        # Once each, in the order in which they stand there.
        return tuple(
            dict.fromkeys(
                self._name(v, where) for v in value if not is_missing(v)
            )
        )

    def _name(self, value: Any, where: str) -> str:
        name = name_of(value, where)
        name = self.aliases.get(name, name)
        if not self.labels:
            return name
        label = self._known.get(name) or self._known.get(without_decimals(name))
        if label is None:
            raise InputError(
                f"Expected a label out of {listed(self.labels)}. Received: "
                f"{_shortened(name)} at {where}"
            )
        return label

    def is_undecided(self, value: Any) -> bool:
        """True for the label of a row that is to be left out."""
        return self.undecided is not None and value == self.undecided


def is_missing(value: Any) -> bool:
    """True for nothing at all, and for white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def name_of(value: Any, where: str) -> str:
    """The text of a label or id that JSON may write as a number or truth.

    Raises:
      InputError: It is a list or an object.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise InputError(
        "Expected text or a number. Received: a "
        f"{type(value).__name__} at {where}"
    )


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            "Expected a finite number as the label of a regression. Received: "
            f"{_shortened(value)} at {where}"
        )
    return number


_TRUTHS = {"0": False, "1": True, "false": False, "true": True}


def is_set(value: Any, column: str, where: str) -> bool:
    """Reads a column that says whether an example has a label.

    Raises:
      InputError: It is neither 0 nor 1.
    """
    name = "" if value is None else name_of(value, where).lower()
    truth = _TRUTHS.get(without_decimals(name))
    if truth is None:
        found = f"holds {_shortened(name)}" if name else "is empty"
        raise InputError(
            f"{where}: the label column {column!r} {found}; write 0 or 1"
        )
    return truth


def without_decimals(name: str) -> str:
    """Returns "1" for "1.0" and every other name as it is.

    "01", "1e0" and "1.10" may be codes or versions: they stay different names.
    """
    match = _WHOLE_FLOAT.fullmatch(name)
    return match[1] if match else name


def unified(
    counts: Mapping[str, int], places: Mapping[str, str]
) -> collections.Counter[str]:
    """Counts labels that are equal as numbers as one.

    Where a label is written both as 1 and as 1.0, all labels are written as
    integers: {"0": 2, "0.0": 1, "1.0": 4} -> {"0": 3, "1": 4}.

    Args:
      counts: The number of times that each name occurs.
      places: Where each name occurs first, `path:line`.

    Raises:
      InputError: Two names are equal as numbers in another way: "01" and "1".
    """
    are_mixed = any(name != without_decimals(name) in counts for name in counts)
    merged: collections.Counter[str] = collections.Counter()
    first: dict[decimal.Decimal, tuple[str, str]] = {}
    for name, count in counts.items():
        label = without_decimals(name) if are_mixed else name
        merged[label] += count
        number = _exact(label)
        if number is None:
            continue
        other, place = first.setdefault(number, (label, places[name]))
        if other != label:
            raise InputError(
                f"{places[name]}: the label {name!r} is the same number as "
                f"{other!r} at {place}; write both alike, or list them with "
                "--labels if they are different labels"
            )
    return merged


def _exact(name: str) -> decimal.Decimal | None:
    """The number that a name is, with all its digits; None for "1_0"."""
    if "_" in name:
        return None
    try:
        number = decimal.Decimal(name)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts names once each: by value if all are numbers, else as text."""
    names = sorted(set(names))
    try:
        return tuple(sorted(names, key=_finite))
    except ValueError:
        return tuple(names)


def _finite(name: str) -> float:
    number = float(name)
    if not math.isfinite(number):
        raise ValueError(f"{name!r} is a word here")
    return number


def listed(names: Iterable[str]) -> str:
    """Names for a message, not too many of them."""
    names = list(names)
    shown = ", ".join(map(repr, names[:_MAX_LISTED]))
    more = len(names) - _MAX_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _shortened(value: Any) -> str:
    """What came, on one line and not the whole of a novel."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
