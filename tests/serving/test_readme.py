"""What stands in the README of an export, from answers made by hand."""

import json
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.readme import (
    Signature,
    column_answer,
    readme,
    row_answer,
)

CARD = {
    "name": "mine",
    "kind": "classifier",
    "source": None,
    "labels": ["a|b", "c"],
    "metrics": {"f1": 0.25, "mcc": None},
    "encoding": {"max_seq_length": 7},
}
ANSWER = {
    "label": np.array([b"c", b"\xc3\xa9 \xff"], object),
    "score": np.float32([1 / 3, -1e-7]),
}
TOKENS = {"tokens": np.array([[b"[CLS]"], [b"[SEP]"]], object)}
SIGNATURES = {
    "serving_default": Signature(
        {"text": tf.TensorSpec([None], tf.string)},
        {
            "label": tf.TensorSpec([None], tf.string),
            "score": tf.TensorSpec([None, None, 3], tf.float32),
            "odd": tf.TensorSpec(None, tf.int32),
        },
    )
}


def page(example, answer=ANSWER):
    answers = {"serving_default": answer, "tokenize": TOKENS}
    return readme(CARD, SIGNATURES, example, answers)


def exchanges(text):
    """The requests and answers of a README, as JSON."""
    blocks = re.findall(r"^```\n(.*?)\n```$", text, re.M | re.S)
    asked = [i for i, block in enumerate(blocks) if block.startswith("curl")]
    for index in asked:
        words = shlex.split(blocks[index].replace("\\\n", ""))
        assert words[:2] == ["curl", "-d"]
        assert words[3:] == ["http://localhost:8501/v1/models/mine:predict"]
        yield json.loads(words[2]), json.loads(blocks[index + 1])


def test_requests_of_one_input():
    texts = ["it's", 'a "b" $HOME `ls` \\ é']
    [rows, columns, tokens] = exchanges(page({"text": texts}))
    assert rows[0] == {"instances": texts}
    assert columns[0] == {"inputs": {"text": texts}}
    assert tokens[0] == {"signature_name": "tokenize", "instances": texts}


def test_requests_of_several_inputs():
    example = {"text": ["a", "b"], "choices": [["c", "d"], ["e", "f"]]}
    [rows, columns, tokens] = exchanges(page(example))
    instances = [
        {"text": "a", "choices": ["c", "d"]},
        {"text": "b", "choices": ["e", "f"]},
    ]
    assert rows[0] == {"instances": instances}
    assert columns[0] == {"inputs": example}
    assert tokens[0]["instances"] == instances


def test_answers():
    [rows, columns, tokens] = exchanges(page({"text": ["a", "b"]}))
    assert rows[1] == {
        "predictions": [
            {"label": "c", "score": 0.333333},
            {"label": "é \ufffd", "score": -1e-7},
        ]
    }
    assert columns[1] == {
        "outputs": {"label": ["c", "é \ufffd"], "score": [0.333333, -1e-7]}
    }
    # What there is only one of goes without its name.
    assert tokens[1] == {"predictions": [["[CLS]"], ["[SEP]"]]}


def test_one_output_by_columns():
    assert json.loads(column_answer({"x": np.int32([[1], [2]])})) == {
        "outputs": [[1], [2]]
    }


@pytest.mark.parametrize("answer", [row_answer, column_answer])
def test_long_lists_are_cut(answer):
    for size, is_cut in ((16, False), (17, True), (768, True)):
        text = answer({"x": np.ones((2, size), "int32"), "y": np.zeros(2)})
        assert text.count("[1, 1, 1, 1, ...]") == 2 * is_cut
        assert text.count("1") == 2 * (4 if is_cut else size)


def test_what_the_signatures_take_and_give():
    assert (
        "| `serving_default` | `text` string [B] | `label` string [B]<br>"
        "`score` float32 [B, ?, 3]<br>`odd` int32 [B, ...] |"
    ) in page({"text": ["a"]})


def test_the_card_is_a_table():
    text = page({"text": ["a"]})
    for line in (
        r"| labels | a\|b, c |",
        "| source | - |",
        "| metrics: f1 | 0.25 |",
        "| metrics: mcc | - |",
        "| encoding: max_seq_length | 7 |",
    ):
        assert f"\n{line}\n" in text
    assert text.startswith("# mine: classifier\n")
    assert text.endswith("|\n")


def test_commands_to_start_a_server():
    text = page({"text": ["a"]})
    commands = re.findall(r"^```\n(docker .*?)\n```$", text, re.M | re.S)
    plain, batching = (shlex.split(command) for command in commands)
    assert plain[-3:] == ["-e", "MODEL_NAME=mine", "tensorflow/serving"]
    [place] = [
        w for w in batching if w.endswith(":/batching_parameters.txt:ro")
    ]
    assert place.startswith("$PWD/assets.extra/batching_parameters.txt:")
    assert batching[-2:] == [
        "--enable_batching",
        "--batching_parameters_file=/batching_parameters.txt",
    ]


def test_python_is_python():
    texts = ["it's", 'é "b"\n']
    [code] = re.findall(
        r"^```\n(import .*?)\n```$", page({"text": texts}), re.M | re.S
    )
    compile(code, "README", "exec")
    assert f"text=tf.constant({texts!r})" in code
