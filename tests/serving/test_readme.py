"""The README, the model card and the server's files of an export."""

import dataclasses
import hashlib
import json
import re
import shlex
import types

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.heads import BertClassifier
from bert_tf.serving.readme import (
    BATCHING_PARAMETERS,
    MAX_BATCH_SIZE,
    WARM_UP_SIZES,
    WEIGHTS,
    Signature,
    column_answer,
    model_card,
    readme,
    row_answer,
    to_json,
    write_warm_up,
)
from bert_tf.tasks.encoding import TextEncoding
from tests.serving.small_served import CONFIG, ENCODING, VOCAB

# The README.


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


def test_requests_with_one_input():
    texts = ["it's", 'a "b" $HOME `ls` \\ é']
    [rows, columns, tokens] = exchanges(page({"text": texts}))
    assert rows[0] == {"instances": texts}
    assert columns[0] == {"inputs": {"text": texts}}
    assert tokens[0] == {"signature_name": "tokenize", "instances": texts}


def test_requests_with_several_inputs():
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


def test_a_single_output_has_no_name():
    assert json.loads(column_answer({"x": np.int32([[1], [2]])})) == {
        "outputs": [[1], [2]]
    }


@pytest.mark.parametrize("answer", [row_answer, column_answer])
def test_long_lists_are_cut(answer):
    for size, is_cut in ((16, False), (17, True), (768, True)):
        text = answer({"x": np.ones((2, size), "int32"), "y": np.zeros(2)})
        assert text.count("[1, 1, 1, 1, ...]") == 2 * is_cut
        assert text.count("1") == 2 * (4 if is_cut else size)


def test_the_table_of_signatures():
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


def test_the_python_code_compiles():
    texts = ["it's", 'é "b"\n']
    [code] = re.findall(
        r"^```\n(import .*?)\n```$", page({"text": texts}), re.M | re.S
    )
    compile(code, "README", "exec")
    assert f"text=tf.constant({texts!r})" in code


# The model card.


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


def test_the_contents(card_of, model):
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
def test_the_source_contains_no_local_folder(card_of, source, expected):
    assert card_of(source=source)["source"] == expected


def test_the_encoding_in_the_card(card_of):
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


def test_unknown_source_and_metrics(card_of):
    card = card_of()
    assert card["source"] is None
    assert card["metrics"] == {}


def test_every_metric_is_valid_json(card_of):
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


# Warm-up requests and batching parameters.


STRING = tf.TensorSpec([None], tf.string)


def served(length=7, **example):
    """What is asked of a `Served` to warm it up."""
    return types.SimpleNamespace(
        example=example,
        inputs=dict.fromkeys(example, STRING),
        encoding=types.SimpleNamespace(max_seq_length=length),
    )


@pytest.fixture
def written(tmp_path):
    def write(model, name="m"):
        path = str(tmp_path / "requests")
        write_warm_up(path, model, name)
        records = tf.data.TFRecordDataset(path).as_numpy_iterator()
        logs = [PredictionLog.FromString(record) for record in records]
        return [log.predict_log.request for log in logs]

    return write


def arrays(request):
    return {key: tf.make_ndarray(v) for key, v in request.inputs.items()}


def test_requests_of_several_sizes_and_a_long_one(written):
    *sized, long = written(served(question=["q", "é"], context=["c", "d e"]))
    assert len(sized) == len(WARM_UP_SIZES) == len(set(WARM_UP_SIZES))
    for size, request in zip(WARM_UP_SIZES, sized, strict=True):
        columns = arrays(request)
        assert columns.keys() == {"question", "context"}
        assert columns["question"].shape == (size,)
        assert columns["context"].tolist()[:2] == [b"c", b"d e"][:size]
    assert arrays(long)["context"].tolist() == [b" ".join([b"c"] * 7)]


def test_the_long_request_exceeds_the_maximum_length(written):
    for text in ("", " ", "a", "a b", "a b c"):
        [long] = arrays(written(served(13, text=[text]))[-1])["text"]
        assert len(long.split()) >= 13 or not text.strip()


def test_texts_in_lists(written):
    model = served(text=["a", "b"], choices=[["a", "b"], ["c", "d e"]])
    requests = written(model)
    assert arrays(requests[1])["choices"].shape == (WARM_UP_SIZES[1], 2)
    assert arrays(requests[-1])["choices"].shape == (1, 2)


def test_requests_contain_model_and_signature(written):
    for request in written(served(text=["a"]), "mine"):
        assert request.model_spec.name == "mine"
        assert request.model_spec.signature_name == "serving_default"
        assert request.inputs["text"].dtype == tf.string.as_datatype_enum


def batching_parameters():
    """The server's message, whose definition its Python package lacks."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batching_for_a_test.proto",
        package="batching_for_a_test",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    field = descriptor_pb2.FieldDescriptorProto
    names = (
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
    )
    for number, name in enumerate(names, start=1):
        message.field.add(
            name=name,
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=".google.protobuf.Int64Value",
            label=field.LABEL_OPTIONAL,
        )
    message.field.add(
        name="pad_variable_length_inputs",
        number=7,
        type=field.TYPE_BOOL,
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{message.name}")
    )


def test_batching_parameters_are_valid():
    parameters = text_format.Parse(BATCHING_PARAMETERS, batching_parameters()())
    # Warm-up requests beyond it would keep the server from loading the model.
    assert parameters.max_batch_size.value == MAX_BATCH_SIZE
    assert max(WARM_UP_SIZES) <= MAX_BATCH_SIZE
    assert parameters.num_batch_threads.value > 0
    assert parameters.max_enqueued_batches.value > 0
    assert parameters.HasField("batch_timeout_micros")
    assert not parameters.pad_variable_length_inputs
