"""The stand-in for the server follows the examples of its documentation."""

import numpy as np
import pytest

from tests.serving.rest import (
    Refused,
    decimal,
    from_columns,
    from_rows,
    parsed,
    to_columns,
    to_rows,
)

TYPES = {"tag": "string", "signal": "int32", "sensor": "float32"}
ROWS = [
    {"tag": "foo", "signal": [1, 2, 3], "sensor": [[1, 2], [3, 4]]},
    {"tag": "bar", "signal": [3, 4, 1], "sensor": [[4, 5], [6, 8]]},
]


def test_rows_and_columns_are_the_same_tensors():
    columns = {name: [row[name] for row in ROWS] for name in TYPES}
    for tensors in (from_rows(ROWS, TYPES), from_columns(columns, TYPES)):
        assert tensors["tag"].tolist() == [b"foo", b"bar"]
        assert tensors["signal"].dtype == "int32"
        assert tensors["signal"].shape == (2, 3)
        np.testing.assert_array_equal(
            tensors["sensor"], np.float32(columns["sensor"])
        )


def test_the_only_input_goes_without_its_name():
    texts = ["foo", {"b64": "/w=="}, ""]
    for tensors in (
        from_rows(texts, {"text": "string"}),
        from_columns(texts, {"text": "string"}),
        from_columns({"text": texts}, {"text": "string"}),
        from_rows([{"text": text} for text in texts], {"text": "string"}),
    ):
        assert tensors["text"].tolist() == [b"foo", b"\xff", b""]
    assert from_columns([], {"text": "string"})["text"].shape == (0,)
    assert from_columns("a", {"text": "string"})["text"].shape == ()


@pytest.mark.parametrize(
    ("rows", "types"),
    [
        ([], {"a": "string"}),
        ("a", {"a": "string"}),
        ([1], {"a": "string"}),
        (["a", ["a"]], {"a": "string"}),
        ([["a"], ["a", "b"]], {"a": "string"}),
        ([{"b64": "?"}], {"a": "string"}),
        (["\ud800"], {"a": "string"}),
        ([1.0], {"a": "int32"}),
        ([True], {"a": "int32"}),
        ([2**31], {"a": "int32"}),
        ([1], {"a": "bool"}),
        (["a"], {"a": "string", "b": "string"}),
        ([{"a": "a"}], {"a": "string", "b": "string"}),
        ([{"a": "a", "b": "b"}], {"a": "string"}),
        ([{"a": "a"}, "a"], {"a": "string"}),
    ],
)
def test_rows_that_are_refused(rows, types):
    with pytest.raises(Refused):
        from_rows(rows, types)


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{", "{}", '{"inputs": [], "instances": [1]}', '{"input": []}'],
)
def test_bodies_that_are_refused(body):
    with pytest.raises(Refused):
        parsed(body)


def test_columns_that_are_refused():
    for inputs in (["a"], {"a": ["a"]}, {"b64": "YQ=="}):
        with pytest.raises(Refused):
            from_columns(inputs, {"a": "string", "b": "string"})


def test_answers_of_one_output_are_not_wrapped():
    one = {"x": np.arange(6, dtype="int32").reshape(2, 3)}
    assert to_rows(one) == to_columns(one) == [[0, 1, 2], [3, 4, 5]]
    two = {"s": np.array([b"a", b"\xc3\xa9"], object), **one}
    assert to_columns(two) == {"s": ["a", "é"], "x": [[0, 1, 2], [3, 4, 5]]}
    assert to_rows(two)[1] == {"s": "é", "x": [3, 4, 5]}
    assert to_rows({"s_bytes": two["s"]})[0] == {"b64": "YQ=="}


def test_rows_need_a_batch():
    assert to_columns({"x": np.zeros((0, 2), "int32")}) == []
    for sizes in ((0,), (2, 3), (0, 0)):
        outputs = {str(i): np.zeros(size) for i, size in enumerate(sizes)}
        with pytest.raises(Refused):
            to_rows(outputs)
    with pytest.raises(Refused):
        to_columns({"x": np.zeros(2, "float16")})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.2), 0.2),
        (np.float32(1) / 3, 0.333333343),
        (np.float32(9e6), 9e6),
        (np.float64(1) / 3, 1 / 3),
        (-np.float32(np.inf), -np.inf),
    ],
)
def test_decimals_are_as_short_as_they_can_be(value, expected):
    assert decimal(value, {4: 9, 8: 17}[value.itemsize]) == expected
