"""What the card says, and that JSON can hold it."""

import dataclasses
import hashlib
import json
import types

import numpy as np
import pytest

from bert_tf.heads import BertClassifier
from bert_tf.serving.readme import WEIGHTS, model_card, to_json
from bert_tf.tasks.encoding import TextEncoding
from tests.serving.small_served import CONFIG, ENCODING, VOCAB


@dataclasses.dataclass(frozen=True)
class Strided(TextEncoding):
    """A kind of encoding with more to tell, and labels, told elsewhere."""

    doc_stride: int = 5
    labels: tuple[str, ...] = ("no",)


@pytest.fixture(scope="module")
def model():
    model = BertClassifier(CONFIG, 3, dtype="mixed_bfloat16")
    model.build()
    return model


@pytest.fixture
def card_of(model, tmp_path):
    weights = tmp_path / WEIGHTS
    weights.parent.mkdir()
    weights.write_bytes(b"weights")

    def card_of(encoding=ENCODING, **more):
        served = types.SimpleNamespace(
            model=model,
            encoding=encoding,
            labels=("é", "b", "c"),
            kind="classifier",
        )
        return model_card(served, str(tmp_path), "mine", **more)

    return card_of


def test_what_it_says(card_of, model):
    card = card_of(source="a/model.ckpt-7", metrics={"f1": 0.25})
    assert card["name"] == "mine"
    assert card["kind"] == "classifier"
    assert card["metrics"] == {"f1": 0.25}
    assert card["labels"] == ["é", "b", "c"]
    assert card["vocab_size"] == len(VOCAB)
    assert card["parameters"] == model.count_params()
    assert card["dtype_policy"] == "mixed_bfloat16"
    digest = hashlib.sha256(b"weights").hexdigest()
    assert card["weights"] == {"file": WEIGHTS, "sha256": digest}
    assert {"bert_tf", "tensorflow", "keras"} < card["versions"].keys()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/home/me/uncased/bert_model.ckpt", "bert_model.ckpt"),
        ("out/model.ckpt-7", "model.ckpt-7"),
        ("releases/uncased_L-2/", "uncased_L-2"),
        ("hf://google/bert-base@main", "hf://google/bert-base@main"),
        ("gs://bucket/bert_model.ckpt", "gs://bucket/bert_model.ckpt"),
        ("file:///home/me/bert_model.ckpt", "bert_model.ckpt"),
    ],
)
def test_the_source_names_no_local_folder(card_of, source, expected):
    assert card_of(source=source)["source"] == expected


def test_how_texts_become_ids(card_of):
    assert card_of()["encoding"] == {
        "do_lower_case": True,
        "strip_accents": None,
        "max_seq_length": ENCODING.max_seq_length,
    }
    encoding = Strided(VOCAB, False, True, 17)
    assert card_of(encoding)["encoding"] == {
        "do_lower_case": False,
        "strip_accents": True,
        "max_seq_length": 17,
        "doc_stride": 5,
    }


def test_nothing_is_known(card_of):
    card = card_of()
    assert card["source"] is None
    assert card["metrics"] == {}


def test_json_can_hold_every_metric(card_of):
    card = card_of(
        metrics={
            "loss": np.float32(0.1),
            "mcc": float("nan"),
            "odds": float("-inf"),
            "total": np.int64(12),
            "count": 3,
            "f1": None,
        }
    )
    text = to_json(card)
    assert "é" in text
    assert text.endswith("}\n")
    assert json.loads(text) == card
    assert card["metrics"] == {
        "loss": 0.1,
        "mcc": None,
        "odds": None,
        "total": 12,
        "count": 3,
        "f1": None,
    }
