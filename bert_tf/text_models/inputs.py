"""What users pass as texts and labels: lists, arrays, columns, data sets."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import InputError, did_you_mean, listed, wrong_value


def x_y_weights(data: Any) -> tuple[Any, Any, Any]:
    """Returns validation data: x, and y and sample_weight or None."""
    if isinstance(data, tuple) and len(data) in (2, 3) and not is_single(data):
        x, y, *weights = data
        return x, y, *(weights or [None])
    return data, None, None


def split_dataset(
    x: Any, y: Any, weights: Any, required: bool = True
) -> tuple[Any, Any, Any]:
    """Returns texts, labels and weights, read from a `tf.data.Dataset`.

    The labels are a list, or None.

    Raises:
      InputError: If labels are required and missing, or the elements of the
        data set are not pairs of texts and labels.
    """
    if hasattr(x, "as_numpy_iterator"):
        if y is not None:
            raise InputError("The data set has the labels: leave out y.")
        rows = [_elements(e, required) for e in x.as_numpy_iterator()]
        x = [text for texts, _ in rows for text in texts]
        labels = [label for _, labels in rows for label in labels]
        y = labels if labels or required else None
    if y is None and required:
        raise InputError("Labels are missing: pass x and y.")
    return x, None if y is None else plain(y), weights


def hold_out(
    x: Any, y: Any, weights: Any, share: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Returns the first rows of x, y and weights, and the last `share`.

    Raises:
      InputError: If `share` is not between 0 and 1, or a part has no rows.
    """
    if not isinstance(share, numbers.Real) or not 0 < share < 1:
        raise wrong_value("validation_split", "at least 0 and below 1", share)
    x = _rows([x] if is_single(x) else x, slice(None))
    columns = (*x.values(),) if isinstance(x, Mapping) else x
    count = len(columns[0] if isinstance(columns, tuple) else columns)
    first = math.floor(count * (1 - float(share)))
    if first in (0, count):
        raise InputError(
            f"validation_split={share} of {count} texts leaves no text to "
            "train or to evaluate on."
        )
    parts = slice(first), slice(first, None)
    kept, held_out = (
        (_rows(x, part), _rows(y, part), _rows(weights, part)) for part in parts
    )
    return kept, held_out


def _rows(values: Any, part: slice) -> Any:
    """Returns some rows of a column, or of each column of a tuple or dict."""
    if isinstance(values, Mapping):
        return {name: _rows(column, part) for name, column in values.items()}
    if isinstance(values, tuple):
        return tuple(_rows(column, part) for column in values)
    return None if values is None else plain(values)[part]


def sample_weights(values: Any, count: int) -> np.ndarray:
    """Returns the weight of each text, float32 [count].

    Raises:
      InputError: If there are more or fewer, or one is not a number.
    """
    try:
        weights = np.array(plain(values), np.float32)
    except (TypeError, ValueError):
        weights = np.array(np.nan)
    if weights.shape != (count,) or not np.isfinite(weights).all():
        raise wrong_value(
            "sample_weight", f"{count} numbers, one for each text", values
        )
    return weights


def class_weights(
    weights: Mapping[Any, float], labels: Sequence[str]
) -> np.ndarray:
    """Returns the weight of each label, float32 [C]; by default 1.

    Raises:
      InputError: If a label is not known, or a weight is not a number.
    """
    if not labels:
        raise InputError("class_weight needs one label for each text or word.")
    expected = f"numbers for {listed(labels, last='or')}"
    try:
        named = {label_name(k, labels): float(w) for k, w in weights.items()}
    except (AttributeError, TypeError, ValueError):
        named = {None: 1.0}
    unknown = [str(name) for name in named if name not in labels]
    if unknown or not np.isfinite([*named.values()]).all():
        hint = did_you_mean(unknown[0], labels).strip() if unknown else ""
        raise wrong_value(
            "class_weight", f"a dict of {expected}", weights, hint
        )
    return np.array([named.get(name, 1.0) for name in labels], np.float32)


def _elements(element: Any, required: bool) -> tuple[list, list]:
    """Returns the texts and labels of one element, batched or not."""
    x, *labels = element if isinstance(element, tuple) else (element,)
    if len(labels) > 1 or (required and not labels):
        raise InputError(
            "A tf.data.Dataset must have pairs of texts and labels."
        )
    texts = (
        list(zip(*map(_flat, x), strict=True))
        if isinstance(x, tuple)
        else _flat(x)
    )
    values = [np.asarray(y).tolist() for y in labels]
    return texts, values[0] if values and np.ndim(_first(x)) else values


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _flat(values: Any) -> list:
    return np.atleast_1d(np.asarray(values, dtype=object)).tolist()


def plain(values: Any) -> list:
    """Returns a column of any library as a list of Python values.

    Raises:
      InputError: If `values` is a single value.
    """
    # TensorFlow's tensors have `numpy`, and pandas's tables `to_numpy`.
    for name in ("numpy", "to_numpy"):
        if hasattr(values, name) and not hasattr(values, "tolist"):
            values = getattr(values, name)()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise wrong_value("Texts or labels", "in a list or a column", values)
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
    # pandas turns integers into floats in a column with missing values.
    is_number = isinstance(value, numbers.Real) and value % 1 == 0
    is_known = is_number and 0 <= value < len(labels)
    return labels[int(value)] if is_known else value


def require_present(values: Sequence[Any], row: str, name: str) -> None:
    """Raises InputError if a label is None, NaN or pandas's NA."""
    for number, value in enumerate(values):
        is_nan = isinstance(value, float) and math.isnan(value)
        if value is None or is_nan or type(value).__name__ == "NAType":
            raise InputError(f"{row} {number}: the {name} is missing.")


def is_single(x: Any) -> bool:
    """Returns whether `x` is one text, or one pair of texts as a tuple."""
    if isinstance(x, tuple) and x:
        return isinstance(x[0], (str, bytes))
    return isinstance(x, (str, bytes))


def text_of(value: Any, where: int) -> str:
    """Returns a string, without invalid UTF-8 as in an export.

    Raises:
      InputError: If the value is neither a string nor bytes.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="ignore")
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


def _transposed(rows: Iterable[Any]) -> list[list[Any]]:
    try:
        # Two characters are not a pair.
        pairs = [() if isinstance(x, (str, bytes)) else x for x in rows]
        return [list(column) for column in zip(*pairs, strict=True)]
    except (TypeError, ValueError):
        raise InputError("Some texts are pairs and others are not.") from None
