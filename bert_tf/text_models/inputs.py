"""What users pass as texts and labels: lists, arrays, columns, data sets."""

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from bert_tf.config import positive_integer
from bert_tf.errors import InputError, did_you_mean, listed, wrong_value
from bert_tf.tasks.classification import are_class_weights
from bert_tf.tasks.examples import have_values, spelled_label

# How far the sum of label probabilities may be from 1.
_MOST_ROUNDING = 1e-3


def x_y_weights(data: Any) -> tuple[Any, Any, Any]:
    """Splits validation data into x, y and sample_weight; None if missing."""
    if not isinstance(data, tuple) or is_single(data) or len(data) > 3:
        return data, None, None
    return *data, *[None] * (3 - len(data))


class Part(NamedTuple):
    """Some texts with their labels and weights, if they have any."""

    x: Any
    y: list | None
    weights: Any


def is_dataset(x: Any) -> bool:
    """Returns whether `x` is a `tf.data.Dataset`."""
    return hasattr(x, "as_numpy_iterator")


def has_labels(data: Part) -> bool:
    """Returns whether texts, or the elements of a data set, have labels."""
    if is_dataset(data.x):
        spec = data.x.element_spec
        # None instead of labels has no dtype.
        has_y = isinstance(spec, tuple) and len(spec) > 1
        return has_y and hasattr(spec[1], "dtype")
    return data.y is not None


def split_dataset(x: Any, y: Any, weights: Any, required: bool = True) -> Part:
    """Returns texts, labels and weights; reads `x` if it is a data set.

    Raises:
      InputError: If labels are required and missing, or the elements of the
        data set are not pairs of texts and labels.
    """
    if is_dataset(x):
        return next(parts_of(x, y, weights, required, None), Part([], [], None))
    if y is None and required:
        raise InputError("Labels are missing: pass x and y.")
    return Part(x, None if y is None else plain(y), weights)


def parts_of(
    x: Any, y: Any, weights: Any, required: bool, size: int | None
) -> Iterator[Part]:
    """Yields a `tf.data.Dataset` in parts of `size` texts; None: as a whole.

    Args:
      x: The data set of texts and, if `required`, labels and perhaps weights.
      y: Must be None, since the data set has the labels.
      weights: The weight of each text, if the data set has none.
      required: Whether there must be labels.
      size: The number of texts of a part; None: all.

    Raises:
      InputError: If labels are missing, labels or weights are passed twice, or
        there are more weights than texts.
    """
    if y is not None:
        raise InputError("The data set has the labels: leave out y.")
    rows = itertools.chain.from_iterable(
        _elements(element, required) for element in x.as_numpy_iterator()
    )
    start = 0
    while elements := list(itertools.islice(rows, size)):
        texts, labels, own = map(list, zip(*elements, strict=True))
        if own[0] is not None and weights is not None:
            raise InputError(
                "The data set has the weights: leave out sample_weight."
            )
        part_weights = own if own[0] is not None else weights
        if own[0] is None and weights is not None and size is not None:
            part_weights = _rows(weights, slice(start, start + len(elements)))
        start += len(elements)
        is_labeled = required or labels[0] is not None
        yield Part(texts, labels if is_labeled else None, part_weights)
    if size is not None and weights is not None:
        # Each text had a weight, but weights may be left over.
        sample_weights(weights, start)


def first_steps(data: Part, batch_size: int, steps: int) -> Part:
    """Returns the texts of the first `steps` batches.

    Raises:
      InputError: If a number is not a positive integer, or there are more or
        fewer labels or weights than texts.
    """
    count = positive_integer("steps", steps)
    count *= positive_integer("batch_size", batch_size)
    if is_single(data.x):
        return data
    data, _ = _equally_long(data)
    return Part(*(_rows(values, slice(count)) for values in data))


def _equally_long(data: Part) -> tuple[Part, int]:
    """Returns data that can be sliced, and the number of texts.

    Raises:
      InputError: If there are more or fewer labels or weights than texts.
    """
    x = _rows([data.x] if is_single(data.x) else data.x, slice(None))
    columns = (*x.values(),) if isinstance(x, Mapping) else x
    if not isinstance(columns, tuple):
        columns = (columns,)
    count = len(columns[0]) if columns else 0
    if data.y is not None:
        require_as_many_labels(data.y, count)
    weights = data.weights
    if weights is not None:
        weights = sample_weights(weights, count)
    return Part(x, data.y, weights), count


def require_as_many_labels(labels: Sequence[Any], count: int) -> None:
    """Raises InputError unless there are as many labels as texts."""
    if len(labels) != count:
        raise wrong_value(
            "The number of labels", f"{count}, the number of texts", len(labels)
        )


def count_texts(dataset: Any) -> int:
    """Counts the texts of a `tf.data.Dataset`; may read all of it.

    Raises:
      InputError: If the data set has no end.
    """
    # -1 is endless, -2 unknown.
    count = int(dataset.cardinality())
    if count == -1:
        raise InputError("The data set has no end: pass steps_per_epoch.")
    one, *_ = keras.tree.flatten(dataset.element_spec)
    if count >= 0 and one.shape.rank == 0:
        return count
    return sum(
        len(_elements(element, False))
        for element in dataset.as_numpy_iterator()
    )


def hold_out(x: Any, y: Any, weights: Any, share: float) -> tuple[Part, Part]:
    """Splits x, y and weights into rows to train on and the last `share`.

    Raises:
      InputError: If `share` is not between 0 and 1, or a part has no rows, or
        there are more or fewer labels or weights than texts.
    """
    if not isinstance(share, numbers.Real) or not 0 < share < 1:
        raise wrong_value("validation_split", "at least 0 and below 1", share)
    data, count = _equally_long(Part(x, y, weights))
    first = math.floor(count * (1 - float(share)))
    if first in (0, count):
        raise InputError(
            f"validation_split={share} of {count} texts leaves no text to "
            "train or to evaluate on."
        )
    parts = slice(first), slice(first, None)
    train, held_out = (
        Part(*(_rows(values, part) for values in data)) for part in parts
    )
    return train, held_out


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
      InputError: If there are not `count` weights, or one is not a number, or
        is negative.
    """
    try:
        weights = np.array(plain(values), np.float32)
    except (OverflowError, TypeError, ValueError):
        weights = np.array(np.nan)
    is_valid = np.isfinite(weights) & (weights >= 0)
    if weights.shape != (count,) or not is_valid.all():
        raise wrong_value(
            "sample_weight",
            f"{count} numbers of at least 0, one for each text",
            values,
        )
    return weights


def class_weights(
    weights: Mapping[Any, float], labels: Sequence[str]
) -> np.ndarray:
    """Returns the weight of each label, float32 [C]; by default 1.

    Raises:
      InputError: If a label is not known, or a weight is not a number, or is
        negative, or all weights are 0.
    """
    if not labels:
        raise InputError("class_weight needs one label for each text or word.")
    expected = f"numbers for {listed(labels, last='or')}"
    try:
        named = {label_name(k, labels): float(w) for k, w in weights.items()}
    except (AttributeError, OverflowError, TypeError, ValueError):
        named = {None: 1.0}
    array = np.array([named.get(name, 1.0) for name in labels], np.float32)
    unknown = [str(name) for name in named if name not in labels]
    if unknown or not are_class_weights(array):
        raise wrong_value(
            "class_weight",
            f"'balanced' or a dict of {expected}, not negative and not all 0",
            weights,
            did_you_mean(unknown[0], labels).strip() if unknown else "",
        )
    return array


def label_shares(
    values: Sequence[Any], labels: Sequence[str]
) -> np.ndarray | None:
    """Returns the probabilities of labels, floats [n, C], if `values` has them.

    Args:
      values: The label of each text: a name, a number, or a row of numbers
        from 0 to 1, such as [0, 1] or [0.25, 0.75].
      labels: The names of the C labels.

    Raises:
      InputError: If a row does not have a number for each label, or the sum of
        its numbers is not 1.
    """
    is_row = [_is_row_of_numbers(value) for value in values]
    if not any(is_row):
        return None
    for number, (value, has_numbers) in enumerate(
        zip(values, is_row, strict=True)
    ):
        shares = np.array(value if has_numbers else [np.nan], np.float64)
        is_valid = shares.shape == (len(labels),) and (shares >= 0).all()
        if not is_valid or not abs(shares.sum() - 1) <= _MOST_ROUNDING:
            raise wrong_value(
                f"The label of example {number}",
                f"{len(labels)} numbers whose sum is 1, as in other rows",
                value,
            )
    return np.array([*values], np.float32)


def _is_row_of_numbers(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple, np.ndarray))
        and len(value) > 0
        and all(isinstance(x, numbers.Real) for x in value)
    )


def _elements(element: Any, required: bool) -> list[tuple[Any, Any, Any]]:
    """Returns texts, labels and weights of one element, batched or not."""
    x, *others = element if isinstance(element, tuple) else (element,)
    if len(others) > 2 or (required and not others):
        raise InputError(
            "A tf.data.Dataset must have pairs of texts and labels."
        )
    texts = texts_of(x)
    if np.ndim(_first(x)):
        values = [
            [None] * len(texts)
            if column is None
            else np.asarray(column).tolist()
            for column in others
        ]
    else:
        values = [[np.asarray(value).tolist()] for value in others]
    missing = [[None] * len(texts)] * (2 - len(values))
    return list(zip(texts, *values, *missing, strict=True))


def texts_of(x: Any) -> list:
    """Returns the texts, or pairs, of one element, batched or not."""
    if isinstance(x, tuple):
        return list(zip(*map(_flat, x), strict=True))
    return _flat(x)


def rows_to_predict(
    x: Any, takes_pairs: bool, batch_size: int, steps: int | None
) -> Iterator[Any]:
    """Yields the texts of a `tf.data.Dataset` or of an iterator.

    As in Keras, elements of a data set may have labels, which are ignored. An
    element of an iterator is a text, or an array with a batch of them.

    Args:
      x: The data set or the iterator.
      takes_pairs: Whether two strings are a pair, not a text and its label.
      batch_size: The number of texts of a batch, if elements are texts.
      steps: The number of batches to read; None: all.
    """
    from_dataset = is_dataset(x)
    elements = x.as_numpy_iterator() if from_dataset else x
    for number, element in enumerate(elements, 1):
        if from_dataset and isinstance(element, tuple):
            is_pair = takes_pairs and len(element) == 2
            if not is_pair or isinstance(element[0], tuple):
                element = element[0]
        one = _first(element)
        is_batch = np.ndim(one) if from_dataset else hasattr(one, "__array__")
        if is_batch or from_dataset:
            yield from texts_of(element)
        else:
            yield element
        if steps and number == (steps if is_batch else steps * batch_size):
            return


def is_empty(x: Any) -> bool:
    """Returns whether there are no texts."""
    # A scalar array is an error later.
    if is_single(x) or getattr(x, "shape", None) == ():
        return False
    if isinstance(x, (tuple, Mapping)):
        columns = [*x.values()] if isinstance(x, Mapping) else x
        return all(map(is_empty, columns))
    return hasattr(x, "__len__") and not len(x)


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _flat(values: Any) -> list:
    return np.atleast_1d(np.asarray(values, dtype=object)).tolist()


def plain(values: Any) -> list:
    """Returns a column of any library as a list of Python values.

    Raises:
      InputError: If `values` is a single value, a dict, or has no order.
    """
    # TensorFlow's tensors have `numpy`, and pandas's tables `to_numpy`.
    for name in ("numpy", "to_numpy"):
        if hasattr(values, name) and not hasattr(values, "tolist"):
            values = getattr(values, name)()
    if hasattr(values, "tolist"):
        values = values.tolist()
    no_columns = (str, bytes, Mapping, set, frozenset)
    if isinstance(values, no_columns) or not hasattr(values, "__iter__"):
        raise wrong_value("Texts or labels", "in a list or a column", values)
    return list(values)


def plain_row(values: Any, where: str) -> list:
    """Returns the labels of one text as a list.

    Raises:
      InputError: If `values` is a single label, or a dict.
    """
    no_rows = (str, bytes, Mapping)
    if isinstance(values, no_rows) or not hasattr(values, "__iter__"):
        raise wrong_value(f"The labels of {where}", "a list", values)
    return plain([*values] if isinstance(values, (set, frozenset)) else values)


def label_name(value: Any, labels: Sequence[str]) -> Any:
    """Returns the name that a label is, spells, or whose position it is.

    1 and 1.0 spell "1", and True spells "True" or "true". A position counts
    only if no name looks like a number or a boolean. Other values are returned
    as they are: the encoding refuses them.
    """
    if is_missing(value):
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    labels = tuple(labels)
    name = spelled_label(str(value), labels)
    is_number = isinstance(value, (numbers.Real, np.bool_)) and value % 1 == 0
    # pandas turns integers into floats in a column with missing values.
    if name is None and is_number and not have_values(labels):
        name = dict(enumerate(labels)).get(int(value))
    return value if name is None else name


def is_missing(value: Any) -> bool:
    """Returns whether a label is None, NaN or pandas's NA."""
    # Of NumPy's floats, only float64 is a Python float.
    is_nan = isinstance(value, (float, np.floating)) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ == "NAType"


def require_present(values: Sequence[Any], row: str, name: str) -> None:
    """Raises InputError if a label is None, NaN or pandas's NA."""
    for number, value in enumerate(values):
        if is_missing(value):
            raise InputError(f"{row} {number}: the {name} is missing.")


def is_single(x: Any) -> bool:
    """Returns whether `x` is one text, or one pair of texts as a tuple."""
    if isinstance(x, tuple) and x:
        return isinstance(x[0], (str, bytes))
    return isinstance(x, (str, bytes))


def text_of(value: Any, where: int) -> str:
    """Returns a string; drops invalid UTF-8 from bytes, as an export does.

    Raises:
      InputError: If the value is neither a string nor bytes.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="ignore")
    if not isinstance(value, str):
        raise wrong_value(f"Text {where}", "a string", value)
    return value


def as_columns(
    x: Any, names: Sequence[str], are_lists: bool = False
) -> list[list[Any]]:
    """Returns the columns of texts or pairs.

    Args:
      x: A column of strings; or of pairs; or a tuple or a dict of two columns.
        A single string, or a tuple of two, is one row.
      names: The keys of a dict: one name, or two.
      are_lists: Whether there may be any number of columns, and rows of
        different lengths. The shorter ones end with None.

    Returns:
      One list of strings, or two; with `are_lists` any number.

    Raises:
      InputError: If a text is not a string, or there are too many columns, or
        the columns differ in length.
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
            columns = _transposed(rows, are_lists) or [[]]
        else:
            columns = [rows]
    if len(columns) > 2 and not are_lists:
        raise InputError(
            f"Expected texts or pairs of texts; got {len(columns)} columns. "
            "Pass several texts as a list, not as a tuple."
        )
    if len({*map(len, columns)}) > 1:
        raise wrong_value(
            "The columns of texts", "equally long", [*map(len, columns)]
        )
    return [
        [
            None if are_lists and value is None else text_of(value, number)
            for number, value in enumerate(column)
        ]
        for column in columns
    ]


def as_lists(x: Any) -> list[tuple[str | None, ...]]:
    """Returns the query, the positive document and the negatives of each row.

    Shorter rows end with None.

    Args:
      x: A column of lists, or a tuple of columns.

    Raises:
      InputError: If a text is not a string, or one is missing.
    """
    columns = as_columns(x, ("text_a", "text_b"), are_lists=True)
    if not columns[0]:
        raise InputError("There are no texts.")
    if len(columns) < 3:
        raise InputError(
            "Labels are missing: pass x and y, or a data set of both. Without "
            "labels, an example is a query, a positive document and at least "
            "one negative document."
        )
    rows = [*zip(*columns, strict=True)]
    for number, row in enumerate(rows):
        if None in row[:2] or {*row[2:]} == {None}:
            raise wrong_value(
                f"Example {number}",
                "a query, a positive document and at least one negative "
                "document",
                [text for text in row if text is not None],
            )
    return rows


def _transposed(rows: Iterable[Any], are_lists: bool) -> list[list[Any]]:
    try:
        # A string of two characters is not a pair.
        pairs = [() if isinstance(x, (str, bytes)) else x for x in rows]
        if are_lists:
            return [[*column] for column in itertools.zip_longest(*pairs)]
        return [list(column) for column in zip(*pairs, strict=True)]
    except (TypeError, ValueError):
        raise InputError("Some texts are pairs and others are not.") from None


def best_texts(
    scores: np.ndarray, texts: Sequence[str], top_k: int | None
) -> list[dict[str, Any]]:
    """Returns dicts of `index`, `score` and `text`, the best first.

    Equal scores keep their order.

    Args:
      scores: Floats [n].
      texts: The n texts.
      top_k: The number of texts to return; None: all.

    Raises:
      InputError: If `top_k` is not a positive integer.
    """
    if top_k is not None:
        positive_integer("top_k", top_k)
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [
        {"index": int(n), "score": float(scores[n]), "text": texts[n]}
        for n in order
    ]
