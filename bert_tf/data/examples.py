"""`Example`: one text, or several, with a label, before any tokenization."""

import dataclasses
import re
from collections.abc import Iterable

# What a label is: one name of several, any number of names, a number, or the
# number of the right ending.
PROBLEMS = ("single_label", "multi_label", "regression", "multiple_choice")


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One example of a sentence-level task, as it stands in its file.

    Attributes:
      id: The file's own id, where its layout has one, else the number of the
        row, from 0.
      text_a: The first text, or the only one.
      text_b: The second text of a pair.
      choices: For multiple choice: each pairs with `text_a`.
      label: The name of the class; for regression a number; for multi-label
        problems the names; None where the file tells none.
      where: The place it was read from, `path:line`, for messages.
    """

    id: str
    text_a: str
    text_b: str | None = None
    choices: tuple[str, ...] = ()
    label: str | float | tuple[str, ...] | None = None
    where: str = ""


def have_names(labels: Iterable[str]) -> bool:
    """Whether a model names its labels: LABEL_0, LABEL_1 ... are numbers.

    Hugging Face writes those for classes without names.
    """
    return not all(re.fullmatch(r"LABEL_\d+", label) for label in labels)
