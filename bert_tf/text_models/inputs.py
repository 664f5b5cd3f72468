"""Reads texts and labels of users: lists, arrays, columns, data sets."""

import itertools
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from bert_tf.config import positive_integer
from bert_tf.errors import InputError, did_you_mean, listed, wrong_value
from bert_tf.tasks.examples import have_values, spelled_label
from bert_tf.tasks.task import are_class_weights

# How many texts of a data set are shuffled and tokenized at a time.
TEXTS_AT_A_TIME = 10_000
# How far the sum of label probabilities may be from 1.
_MOST_ROUNDING = 1e-3
_NO_LABELS = "Labels are missing: pass x and y, or a data set of both."


class Part(NamedTuple):
    """Some texts with their labels and weights, if they have any."""

    x: Any
    y: Any = None
    weights: Any = None

    @classmethod
    def of(cls, data: Any) -> "Part":
        """Returns validation data as a `Part`."""
        if not isinstance(data, tuple) or is_single(data) or len(data) > 3:
            return cls(data)
        return cls(*data)


def is_dataset(x: Any) -> bool:
    """Returns whether `x` is a `tf.data.Dataset` or a `PyDataset`."""
    is_of_keras = isinstance(x, keras.utils.PyDataset)
    return is_of_keras or hasattr(x, "as_numpy_iterator")


def require_data(data: Part, name: str, steps: int | None) -> None:
    """Checks the form of data, and `steps`, the argument called `name`.

    Raises:
      InputError: If the data are a table or an iterator; if there are labels or
        weights beside a data set; if a data set has no end and `steps` is None;
        or if `steps` is not a positive integer.
    """
    x = data.x
    if steps is not None:
        positive_integer(name, steps)
    if not is_dataset(x):
        # Tables of Hugging Face and pyarrow; of pandas and polars.
        columns = getattr(x, "column_names", getattr(x, "columns", None))
        if columns is not None:
            raise InputError(
                f"The texts are a table with the columns {listed(columns)}. "
                'Pass one of them, such as ds["text"], or a tuple of them.'
            )
        if not hasattr(x, "__len__"):
            raise _not_in_a_list(x)
        return
    if data.y is not None or data.weights is not None:
        raise InputError(
            "The data set has the labels and weights: leave out y and "
            "sample_weight."
        )
    is_endless = (
        int(x.cardinality()) == -1
        if hasattr(x, "cardinality")
        else x.num_batches is None
    )
    if steps is None and is_endless:
        raise InputError(f"The data set has no end: pass {name}.")


def whole(
    data: Part, required: bool, batch_size: int = 1, steps: int | None = None
) -> Part:
    """Reads a data set, or the first steps of a list; see `rows_of`.

    Raises:
      InputError: If labels are required and missing, or there are more or
        fewer labels or weights than texts.
    """
    if is_dataset(data.x):
        rows = rows_of(data.x, required, batch_size, steps)
        return next(parts_of(rows), Part([], []))
    if data.y is None and required:
        raise InputError(_NO_LABELS)
    if steps is None or is_single(data.x):
        return data._replace(y=None if data.y is None else plain(data.y))
    data, _ = equally_long(data)
    count = positive_integer("steps", steps) * batch_size
    return Part(*(_rows(values, slice(count)) for values in data))


def texts_of(
    x: Any, batch_size: int, steps: int | None, takes_pairs: bool
) -> Iterator[Any]:
    """Yields the texts to predict; a data set is read in parts."""
    if is_dataset(x):
        rows = rows_of(x, False, batch_size, steps, takes_pairs)
        yield from (part.x for part in parts_of(rows, TEXTS_AT_A_TIME))
    elif equally_long(Part(x))[1]:
        yield whole(Part(x), False, batch_size, steps).x


def parts_of(rows: Iterator[tuple], size: int | None = None) -> Iterator[Part]:
    """Yields rows in parts of `size` texts; None: all of them in one."""
    while part := list(itertools.islice(rows, size)):
        texts, *others = map(list, zip(*part, strict=True))
        y, weights = (
            None if all(value is None for value in values) else values
            for values in others
        )
        yield Part(texts, y, weights)


def rows_of(
    dataset: Any,
    required: bool = False,
    batch_size: int = 1,
    steps: int | None = None,
    takes_pairs: bool = False,
) -> Iterator[tuple[Any, Any, Any]]:
    """Yields the text, label and weight of each row of a data set.

    Args:
      dataset: Its elements are texts, or tuples of texts, labels and weights.
      required: Whether there must be labels.
      batch_size: The number of texts of a step, if elements are single texts.
      steps: The number of steps to read, each a batch of the data set or
        `batch_size` texts; None: all.
      takes_pairs: Whether an element of two strings of a `tf.data.Dataset` is a
        pair, not a text and its label.

    Raises:
      InputError: If an element has another form.
    """
    is_of_keras = isinstance(dataset, keras.utils.PyDataset)
    elements = dataset if is_of_keras else dataset.as_numpy_iterator()
    for number, element in enumerate(elements, 1):
        x, *others = element if isinstance(element, tuple) else (element,)
        is_flat = len(others) == 1 and not isinstance(x, tuple)
        if takes_pairs and is_flat and not is_of_keras:
            x, others = (x, *others), []
        if required and not others:
            raise InputError(_NO_LABELS)
        if isinstance(x, Mapping) or len(others) > 2:
            raise wrong_value(
                "An element of a data set",
                "(texts, labels) or (texts, labels, sample_weight)",
                element,
            )
        is_one = is_single(x)
        if is_one:
            x = [x]
            others = [[np.asarray(value).tolist()] for value in others]
        (x, *others), count = equally_long(Part(x, *others))
        texts = zip(*x, strict=True) if isinstance(x, tuple) else x
        missing = [None] * count
        columns = (missing if y is None else y for y in others)
        yield from zip(texts, *columns, strict=True)
        if steps and number == (steps * batch_size if is_one else steps):
            return


def equally_long(data: Part) -> tuple[Part, int]:
    """Returns data in lists, and the number of texts.

    Raises:
      InputError: If columns of texts differ in length, or there are more or
        fewer labels or weights than texts.
    """
    x = _rows([data.x] if is_single(data.x) else data.x, slice(None))
    columns = (*x.values(),) if isinstance(x, Mapping) else x
    if not isinstance(columns, tuple):
        columns = (columns,)
    require_one_length(columns)
    count = len(columns[0]) if columns else 0
    y, weights = data.y, data.weights
    if y is not None:
        y = labels_of(y, count)
    if weights is not None:
        weights = sample_weights(weights, count)
    return Part(x, y, weights), count


def require_one_length(columns: Sequence[list]) -> None:
    """Raises InputError unless columns of texts are equally long."""
    if len({*map(len, columns)}) > 1:
        raise wrong_value(
            "The columns of texts", "equally long", [*map(len, columns)]
        )


def labels_of(y: Any, count: int) -> list:
    """Returns a label for each of `count` texts: None if `y` is None."""
    labels = [None] * count if y is None else plain(y)
    if len(labels) != count:
        raise wrong_value(
            "The number of labels", f"{count}, the number of texts", len(labels)
        )
    return labels


def hold_out(data: Part, share: float) -> tuple[Part, Part]:
    """Splits data into rows to train on and the last `share`.

    Raises:
      InputError: If `share` is not between 0 and 1, or a part has no rows, or
        there are more or fewer labels or weights than texts.
    """
    if not isinstance(share, numbers.Real) or not 0 < share < 1:
        raise wrong_value("validation_split", "at least 0 and below 1", share)
    data, count = equally_long(data)
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
        raise InputError("class_weight needs texts or words with classes.")
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


def plain(values: Any) -> list:
    """Returns a column of any library as a list of Python values.

    Raises:
      InputError: If `values` is a single value, an iterator, a dict, or has no
        order.
    """
    # TensorFlow's tensors have `numpy`, and other columns `to_numpy`.
    for name in ("numpy", "to_numpy"):
        if hasattr(values, name) and not hasattr(values, "tolist"):
            values = getattr(values, name)()
    if hasattr(values, "tolist"):
        values = values.tolist()
    no_columns = (str, bytes, Mapping, set, frozenset)
    if isinstance(values, no_columns) or not hasattr(values, "__len__"):
        raise _not_in_a_list(values)
    return list(values)


def _not_in_a_list(values: Any) -> InputError:
    return wrong_value(
        "Texts or labels",
        "in a list, a column or a data set",
        values,
        "Turn an iterator into a list, a tf.data.Dataset with from_generator, "
        "or a keras.utils.PyDataset.",
    )


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
    """Returns the name of a label, given its name, a spelling or its position.

    1 and 1.0 spell "1", and True spells "True" or "true". Positions are allowed
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


def as_columns(x: Any, names: Sequence[str]) -> list[list[str]]:
    """Returns the columns of texts or pairs.

    Args:
      x: A column of strings; or of pairs; or a tuple or a dict of two columns.
        A single string, or a tuple of two, is one row.
      names: The keys of a dict: one name, or two.

    Returns:
      One list of strings, or two.

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
            columns = _transposed(rows) or [[]]
        else:
            columns = [rows]
    if len(columns) > 2:
        raise InputError(
            f"Expected texts or pairs of texts; got {len(columns)} columns. "
            "Pass several texts as a list, not as a tuple. Lists of documents "
            "are for fit and evaluate of a CrossEncoder, without y."
        )
    require_one_length(columns)
    return [
        [text_of(value, number) for number, value in enumerate(column)]
        for column in columns
    ]


def _transposed(rows: Iterable[Any]) -> list[list[Any]]:
    try:
        # A string of two characters is not a pair.
        pairs = [() if isinstance(x, (str, bytes)) else x for x in rows]
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
