"""The README, the model card and the server's files of an export."""

import hashlib
import json
import math
import re
import shlex
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.kinds.spans.squad_files import SpanEncoding
from bert_tf.modeling.heads import BertClassifier
from bert_tf.serving.export import (
    BATCHING_PARAMETERS,
    MAX_BATCH_SIZE,
    WARM_UP_SIZES,
    WEIGHTS,
    model_card,
    readme,
    to_json,
    write_warm_up,
)
from tests.serving.small_served import CONFIG, VOCAB

# The README ------------------------------------------------------------------

SIGNATURES = {
    "serving_default": (
        {"text": tf.TensorSpec([None], tf.string)},
        {
            "label": tf.TensorSpec([None], tf.string),
            "score": tf.TensorSpec([None, None, 3], tf.float32),
        },
    )
}


@pytest.mark.parametrize(
    ("example", "instance"),
    [
        ({"text": ["it's `ls` \\ é", "b"]}, "it's `ls` \\ é"),
        (
            {"text": ["a", "b"], "choices": [["c", "d"], ["e", "f"]]},
            {"text": "a", "choices": ["c", "d"]},
        ),
    ],
)
def test_the_readme(example, instance):
    """A shell reads the commands as they are meant; a single input is bare."""
    text = readme("mine", "classifier", SIGNATURES, example)
    assert text.startswith("# mine: classifier\n")
    blocks = re.findall(r"^```sh\n(.*?)\n```$", text, re.M | re.S)
    blocks = [block.replace("\\\n", "") for block in blocks]
    server, [*curl, request, url] = map(shlex.split, blocks)
    assert server[-3:] == ["-e", "MODEL_NAME=mine", "tensorflow/serving"]
    assert curl == ["curl", "-d"]
    assert json.loads(request) == {"instances": [instance]}
    assert url == "http://localhost:8501/v1/models/mine:predict"
    cells = "`text` string (None,) | `label` string (None,)<br>"
    assert f"| `serving_default` | {cells}`score` float32 (None" in text
    assert len(text.splitlines()) < 40


# The model card --------------------------------------------------------------


@pytest.fixture(scope="module")
def card_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / WEIGHTS).parent.mkdir()
    (folder / WEIGHTS).write_bytes(b"weights")
    (folder / "assets").mkdir()
    (folder / "assets" / "vocab.txt").write_bytes(b"words")
    model = BertClassifier(CONFIG, 3, dtype="mixed_bfloat16")
    model.build()
    served = types.SimpleNamespace(
        model=model,
        encoding=SpanEncoding(VOCAB, False, True, 17, 5, 7),
        labels=("é", "b", "c"),
        kind="classifier",
    )

    def card_of(**facts):
        return model_card(served, str(folder), "mine", **facts)

    return card_of


def test_the_card(card_of):
    card = card_of()
    assert {"bert_tf", "tensorflow", "keras"} < card.pop("versions").keys()
    assert card.pop("parameters") > 1000
    weights, words = (
        hashlib.sha256(content).hexdigest()
        for content in (b"weights", b"words")
    )
    assert card == {
        "name": "mine",
        "kind": "classifier",
        "source": None,
        "metrics": {},
        "labels": ["é", "b", "c"],
        "encoding": {
            "do_lower_case": False,
            "strip_accents": True,
            "max_seq_length": 17,
            "doc_stride": 5,
            "max_query_length": 7,
        },
        "vocab_size": len(VOCAB),
        "dtype_policy": "mixed_bfloat16",
        "weights": {"file": WEIGHTS, "sha256": weights},
        "vocabulary": {"file": "assets/vocab.txt", "sha256": words},
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/home/me/uncased/bert_model.ckpt", "bert_model.ckpt"),
        ("releases/uncased_L-2/", "uncased_L-2"),
        ("2020_02_20/uncased_L-2", "2020_02_20/uncased_L-2"),
        ("hf://google/bert-base@main", "hf://google/bert-base@main"),
        ("gs://bucket/bert_model.ckpt", "gs://bucket/bert_model.ckpt"),
        ("file:///home/me/bert_model.ckpt", "bert_model.ckpt"),
    ],
)
def test_the_source_contains_no_local_folder(card_of, source, expected):
    assert card_of(source=source)["source"] == expected


def test_every_metric_is_valid_json(card_of):
    numbers = [np.float32(0.1), math.nan, -math.inf, np.int64(12), None]
    card = card_of(metrics=dict(zip("abcde", numbers, strict=True)))
    assert json.loads(to_json(card)) == card
    assert [*card["metrics"].values()] == [0.1, None, None, 12, None]


# Warm-up requests and batching parameters ------------------------------------


def test_warm_up_requests(tmp_path):
    """Several sizes, and a text longer than the maximum."""
    example = {"question": ["q", "é"], "choices": [["a", "b"], ["c", "d e"]]}
    served = types.SimpleNamespace(
        example=example,
        inputs=dict.fromkeys(example, tf.TensorSpec([None], tf.string)),
        encoding=types.SimpleNamespace(max_seq_length=13),
    )
    path = str(tmp_path / "requests")
    write_warm_up(path, served, "mine")
    requests = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        request = PredictionLog.FromString(record).predict_log.request
        assert request.model_spec.name == "mine"
        assert request.model_spec.signature_name == "serving_default"
        values = request.inputs.items()
        requests.append({key: tf.make_ndarray(value) for key, value in values})
    *sized, long = requests
    for size, columns in zip(WARM_UP_SIZES, sized, strict=True):
        assert columns["question"].shape == (size,)
        assert columns["choices"].shape == (size, 2)
        expected = [b"q", "é".encode()][:size]
        assert columns["question"].tolist()[:2] == expected
    assert long["question"].tolist() == [b" ".join([b"q"] * 13)]
    assert long["choices"].shape == (1, 2)


def test_batching_parameters_are_valid():
    lines = BATCHING_PARAMETERS.splitlines()
    given = [line for line in lines if line and not line.startswith("#")]
    assert given.pop() == "pad_variable_length_inputs: false"
    found = [re.fullmatch(r"(\w+) \{ value: (\d+) \}", line) for line in given]
    values = {match[1]: int(match[2]) for match in found}
    assert len(values) == 4
    assert min(values.values()) > 0
    # A server does not load a model with larger warm-up requests.
    assert values["max_batch_size"] == MAX_BATCH_SIZE >= max(WARM_UP_SIZES)
