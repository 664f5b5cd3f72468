"""The README of a converted model, of a model that is none."""

import json
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.runtimes import RUNTIMES, runtime_readme

FEATURES = {
    "input_ids": np.array([[2, 7, 3]], np.int32),
    "input_mask": np.ones([1, 3], np.int32),
}
TABLE = "| file | MB |\n|---|---|"


def described(**more):
    texts = {"text_a": np.array([b"\xc3\xa9 sat"], object)}
    facts = {
        "card": {
            "name": "mine",
            "kind": "classifier",
            "source": "a/b",
            "weights": {"sha256": "0a1b"},
            "encoding": {
                "do_lower_case": False,
                "strip_accents": None,
                "max_seq_length": 23,
            },
        },
        "assets": {"labels.txt": "x", "vocab.txt": "y"},
        "token_inputs": {
            name: tf.TensorSpec([None, None], tf.int32) for name in FEATURES
        },
        "numbers": {"probabilities": tf.TensorSpec([None, 2], tf.float32)},
        "example": lambda: texts,
    }
    return types.SimpleNamespace(**{**facts, **more})


def readme_of(name="onnx", **more):
    return runtime_readme(
        described(**more),
        name,
        [f"model{RUNTIMES[name].extension}", "other"],
        TABLE,
        FEATURES,
        {"probabilities": np.array([[0.25, 0.75]], np.float32)},
    )


@pytest.mark.parametrize("name", [*RUNTIMES])
def test_the_contents(name):
    text = readme_of(name)
    assert text.startswith(f"# mine: classifier, for {RUNTIMES[name].title}\n")
    assert TABLE in text
    assert f'"model{RUNTIMES[name].extension}"' in text
    assert "probabilities = [[0.25, 0.75]]" in text
    assert json.dumps({"text_a": "é sat"}, ensure_ascii=False) in text
    assert "`input_ids` int32 [B, ?]" in text
    assert "`probabilities` float32 [B, 2]" in text
    assert "Columns are the lines of `labels.txt`" in text
    assert "do_lower_case=False, strip_accents=None" in text
    assert "longer than 23" in " ".join(text.split())
    assert "sha256: `0a1b`" in text
    assert "Checkpoint: a/b." in text
    for line in text.splitlines():
        assert len(line) <= 80 or line.startswith(("|", "for ", "    "))


def test_the_features_are_valid_python():
    [source] = re.findall(r"features = (\{.*?\n\})", readme_of(), re.DOTALL)
    found = eval(source, {"np": np})
    assert found.keys() == FEATURES.keys()
    for name, values in FEATURES.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == np.int32


def test_labels_and_tags():
    assert "labels.txt" not in readme_of(assets={"vocab.txt": "y"})
    tags = {"tag_ids": tf.TensorSpec([None, None], tf.int32)}
    assert "`tag_ids` are the lines of" in readme_of(numbers=tags)
