"""What lies beside a SavedModel for the server: warm-up and batching.

A server runs the requests in `assets.extra/tf_serving_warmup_requests` before
it gives a new version to anybody, so that no user waits for what TensorFlow
does once. How it puts requests of many users into one batch stands in a file
that it is started with.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from bert_tf.serving.served import Served

# What a server looks for in a version's `assets.extra`.
WARM_UP = "tf_serving_warmup_requests"
BATCHING = "batching_parameters.txt"

MAX_BATCH_SIZE = 32
# A server refuses the whole model if it refuses one of these requests, as it
# does with those that are larger than its largest batch.
WARM_UP_SIZES = (1, 8, MAX_BATCH_SIZE)

BATCHING_PARAMETERS = f"""\
# For a server with --enable_batching --batching_parameters_file=THIS FILE.

# Texts in a batch. A request with more of them is refused.
max_batch_size {{ value: {MAX_BATCH_SIZE} }}

# How long the first request of a batch waits for others. 0 is best for one
# user at a time.
batch_timeout_micros {{ value: 1000 }}

# Batches that may wait before requests are refused.
max_enqueued_batches {{ value: 100 }}

# Batches at a time. On CPUs their number is a good start.
num_batch_threads {{ value: 4 }}

# The server pads with the first value of an input. For input_mask that is 1:
# padding would count as text, and the answer would be wrong, not refused.
# Requests with raw texts need no padding.
pad_variable_length_inputs: false
"""


def write_warm_up(path: str, served: Served, name: str) -> None:
    """Writes requests like those to come: a few batch sizes, and a long text.

    Args:
      path: The TFRecord file.
      served: What is exported; its example is asked.
      name: The model's name on the server.
    """
    with tf.io.TFRecordWriter(path) as writer:
        for rows in _batches(served):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = (
                tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
            )
            for key, spec in served.inputs.items():
                request.inputs[key].CopyFrom(
                    tf.make_tensor_proto(rows[key], spec.dtype)
                )
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString(deterministic=True))


def _batches(served: Served) -> Iterator[Mapping[str, Sequence]]:
    """Rows of the example: several sizes, then one that has to be cut."""
    example = served.example
    for size in WARM_UP_SIZES:
        yield {
            name: [rows[index % len(rows)] for index in range(size)]
            for name, rows in example.items()
        }
    length = served.encoding.max_seq_length
    yield {
        name: [_lengthened(rows[0], length)] for name, rows in example.items()
    }


def _lengthened(texts: Any, num_words: int) -> Any:
    """A text, or lists of them, of at least so many words."""
    if isinstance(texts, list | tuple):
        return [_lengthened(text, num_words) for text in texts]
    return " ".join([texts] * -(-num_words // max(1, len(texts.split()))))
