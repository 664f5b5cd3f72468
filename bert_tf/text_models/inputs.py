"""What users pass as texts and labels: lists, arrays, columns, data sets."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import InputError, wrong_value


def x_and_y(data: Any) -> tuple[Any, Any]:
    """Returns (x, y) of validation data: a tuple of both, or `x` alone."""
    if isinstance(data, tuple) and len(data) == 2 and not is_single(data):
        return data
    return data, None


def split_dataset(x: Any, y: Any, required: bool = True) -> tuple[Any, Any]:
    """Returns texts and labels, read from a `tf.data.Dataset` if it is one.

    Raises:
      InputError: If labels are required and missing, or the elements of the
        data set are not pairs of texts and labels.
    """
    if hasattr(x, "as_numpy_iterator"):
        rows = [_elements(element) for element in x.as_numpy_iterator()]
        x = [text for texts, _ in rows for text in texts]
        y = [label for _, labels in rows for label in labels]
    if y is None and required:
        raise InputError("Labels are missing: pass x and y.")
    return x, y


def _elements(element: Any) -> tuple[list, list]:
    """Returns the texts and labels of one element, batched or not."""
    if not isinstance(element, tuple) or len(element) != 2:
        raise InputError(
            "A tf.data.Dataset must have pairs of texts and labels."
        )
    x, y = element
    texts = (
        list(zip(*map(_flat, x), strict=True))
        if isinstance(x, tuple)
        else _flat(x)
    )
    y = np.asarray(y)
    labels = y.tolist()
    return texts, labels if np.ndim(_first(x)) else [labels]


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _flat(values: Any) -> list:
    return np.atleast_1d(np.asarray(values, dtype=object)).tolist()


def plain(values: Any) -> list:
    """Returns a column of any library as a list of Python values."""
    if hasattr(values, "tolist"):
        return list(values.tolist())
    # TensorFlow's tensors have `numpy`, and pandas's tables `to_numpy`.
    for name in ("numpy", "to_numpy"):
        if hasattr(values, name):
            return list(getattr(values, name)().tolist())
    return list(values)


def plain_row(values: Any, where: str) -> list:
    """Returns the labels of one text as a list.

    Raises:
      InputError: If `values` is a single label.
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise wrong_value(f"The labels of {where}", "a list", values)
    return plain(values)


def label_name(value: Any, labels: Sequence[str]) -> Any:
    """Returns the name of a label that is a name or a number.

    Other values are returned as they are: the encoding refuses them.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    is_number = isinstance(value, numbers.Integral)
    return labels[value] if is_number and 0 <= value < len(labels) else value


def is_single(x: Any) -> bool:
    """Returns whether `x` is one text, or one pair of texts as a tuple."""
    if isinstance(x, tuple) and x:
        return isinstance(x[0], (str, bytes))
    return isinstance(x, (str, bytes))


def text_of(value: Any, where: int) -> str:
    """Returns a string; bytes that are not UTF-8 become U+FFFD.

    Raises:
      InputError: If the value is neither a string nor bytes.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if not isinstance(value, str):
        raise wrong_value(f"Text {where}", "a string", value)
    return value


def as_columns(x: Any, names: Sequence[str]) -> list[list[str]]:
    """Returns the columns of texts or pairs.

    Args:
      x: A column of strings; or of pairs; or a tuple or a dict of two columns.
        A single string, or a tuple of two, is one row.
      names: The keys of a dict: one name, or two.

    Returns:
      One list of strings, or two.

    Raises:
      InputError: If a text is not a string, or there are more than two
        columns, or the columns differ in length.
    """
    if isinstance(x, Mapping):
        missing = [name for name in names if name not in x]
        if missing:
            raise wrong_value("The texts", f"a dict with {names}", [*x])
        x = tuple(x[name] for name in names)
    if is_single(x):
        x = [x]
    if isinstance(x, tuple):
        columns = [plain(column) for column in x] or [[]]
    else:
        rows = plain(x)
        if rows and isinstance(rows[0], (tuple, list)):
            columns = _transposed(rows)
        else:
            columns = [rows]
    if len(columns) > 2:
        raise InputError(
            f"Expected texts or pairs of texts; got {len(columns)} columns. "
            "Pass several texts as a list, not as a tuple."
        )
    if len({*map(len, columns)}) > 1:
        raise wrong_value(
            "The columns of texts", "equally long", [*map(len, columns)]
        )
    return [
        [text_of(value, number) for number, value in enumerate(column)]
        for column in columns
    ]


def _transposed(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    try:
        return [list(column) for column in zip(*rows, strict=True)]
    except ValueError:
        raise InputError("Some texts are pairs and others are not.") from None
