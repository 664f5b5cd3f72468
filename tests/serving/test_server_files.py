"""Warm-up requests and batching parameters, without a model."""

import types

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

from bert_tf.serving.readme import (
    BATCHING_PARAMETERS,
    MAX_BATCH_SIZE,
    WARM_UP_SIZES,
    write_warm_up,
)

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


def test_long_texts_have_as_many_words_as_the_model_has_places(written):
    for text in ("", " ", "a", "a b", "a b c"):
        [long] = arrays(written(served(13, text=[text]))[-1])["text"]
        assert len(long.split()) >= 13 or not text.strip()


def test_texts_in_lists(written):
    model = served(text=["a", "b"], choices=[["a", "b"], ["c", "d e"]])
    requests = written(model)
    assert arrays(requests[1])["choices"].shape == (WARM_UP_SIZES[1], 2)
    assert arrays(requests[-1])["choices"].shape == (1, 2)


def test_requests_name_the_model_and_the_signature(written):
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


def test_the_server_can_read_the_batching_parameters():
    parameters = text_format.Parse(BATCHING_PARAMETERS, batching_parameters()())
    # Warm-up requests beyond it would keep the server from loading the model.
    assert parameters.max_batch_size.value == MAX_BATCH_SIZE
    assert max(WARM_UP_SIZES) <= MAX_BATCH_SIZE
    assert parameters.num_batch_threads.value > 0
    assert parameters.max_enqueued_batches.value > 0
    assert parameters.HasField("batch_timeout_micros")
    assert not parameters.pad_variable_length_inputs
