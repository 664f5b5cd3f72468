"""Serves an export on Triton Inference Server's Python backend.

    models/mood/1/model.py          this file
    models/mood/1/saved_model/      a version of an export

`tritonserver --model-repository=models` then serves `mood`;
docs/guide/serving.md has all commands. The model has the inputs and outputs
of the export's signature `serving_default`. Triton needs TensorFlow and
TensorFlow Text, not bert_tf.
"""

import os
import re

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers the op of the tokenizer.
import triton_python_backend_utils as triton

MAX_BATCH_SIZE = 32
TYPES = {
    tf.bool: "TYPE_BOOL",
    tf.float32: "TYPE_FP32",
    tf.int32: "TYPE_INT32",
    tf.int64: "TYPE_INT64",
    tf.string: "TYPE_STRING",
}


def load(version):
    return tf.saved_model.load(os.path.join(version, "saved_model"))


def described(name, spec):
    """Returns Triton's description of an input or output: its rows, [n]."""
    dims = [size or -1 for size in spec.shape[1:]] or [1]
    return {"name": name, "data_type": TYPES[spec.dtype], "dims": dims}


class TritonPythonModel:
    """The interface of Triton's Python backend."""

    @staticmethod
    def auto_complete_config(config):
        """Adds the inputs and outputs, so that no config.pbtxt is needed."""
        signature = load(os.path.dirname(__file__)).signatures[
            "serving_default"
        ]
        config.set_max_batch_size(MAX_BATCH_SIZE)
        config.set_dynamic_batching()
        _, inputs = signature.structured_input_signature
        for name, spec in inputs.items():
            config.add_input(described(name, spec))
        for name, spec in signature.structured_outputs.items():
            config.add_output(described(name, spec))
        return config

    def initialize(self, args):
        version = os.path.join(args["model_repository"], args["model_version"])
        self.model = load(version)
        self.signature = self.model.signatures["serving_default"]
        _, self.inputs = self.signature.structured_input_signature

    def execute(self, requests):
        """Answers all waiting requests, if possible with one call."""
        try:
            return self.answers(requests)
        except tf.errors.InvalidArgumentError as error:
            if len(requests) > 1:
                # One by one, so that only invalid requests fail.
                return [self.execute([request])[0] for request in requests]
            found = re.search(r"assertion failed: \[(.*)\]", error.message)
            message = found[1] if found else error.message
            return [triton.InferenceResponse([], triton.TritonError(message))]

    def answers(self, requests):
        """Answers all requests with one call of the model."""
        columns = {
            name: [
                triton.get_input_tensor_by_name(request, name).as_numpy()
                for request in requests
            ]
            for name in self.inputs
        }
        sizes = [len(rows) for rows in next(iter(columns.values()))]
        outputs = self.signature(
            **{
                # An input of one text, [rows, 1], becomes [rows].
                name: tf.reshape(
                    np.concatenate(columns[name]), [-1, *spec.shape[1:]]
                )
                for name, spec in self.inputs.items()
            }
        )
        # Triton's outputs have at least two axes: [b] becomes [b, 1].
        arrays = {name: value.numpy() for name, value in outputs.items()}
        arrays = {
            name: rows.reshape(len(rows), *rows.shape[1:] or (1,))
            for name, rows in arrays.items()
        }
        ends = np.cumsum(sizes)
        return [
            triton.InferenceResponse(
                [
                    triton.Tensor(name, rows[end - size : end])
                    for name, rows in arrays.items()
                ]
            )
            for end, size in zip(ends, sizes, strict=True)
        ]
