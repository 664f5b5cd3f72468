"""A stand-in for TensorFlow Serving, which answers the requests of its input.

It loads a version as the server does, in a session of TensorFlow 1, runs the
warm-up requests and then answers REST requests. It must not import this
project. The formats follow the server's documentation and `json_tensor.cc`.
"""

import base64
import json
import os
import subprocess
import sys

import numpy as np


def serve(path, requests):
    """Runs `answer_all` in a new process, which must not need this project."""
    done = subprocess.run(
        [sys.executable, __file__, str(path)],
        check=True,
        input=json.dumps(requests).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("modules") == []
    return found


def answer_all(path, requests):
    """Returns the answers, and the name and rows of each warm-up request."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (for its op)
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        meta_graph = tf.compat.v1.saved_model.load(
            session, ["serve"], str(path)
        )
    signatures = meta_graph.signature_def

    def run(name, inputs):
        signature = signatures[name]
        assert inputs.keys() == signature.inputs.keys()
        feeds = {signature.inputs[k].name: value for k, value in inputs.items()}
        fetches = {k: value.name for k, value in signature.outputs.items()}
        return session.run(fetches, feeds)

    def answer(request):
        name = request.get("signature_name", "serving_default")
        types = {
            key: tf.as_dtype(info.dtype).name
            for key, info in signatures[name].inputs.items()
        }
        columns = request.get("inputs", request.get("instances"))
        if columns and "instances" in request and types.keys() <= {*columns[0]}:
            columns = {k: [row[k] for row in columns] for k in types}
        if not isinstance(columns, dict):
            # A single input needs no name.
            columns = dict.fromkeys(types, columns)
        inputs = {key: tensor(columns[key], types[key]) for key in types}
        outputs = run(name, inputs)
        found = {key: to_json(values) for key, values in outputs.items()}
        if "inputs" in request:
            return {"outputs": found}
        # The server refuses outputs with different numbers of rows.
        rows = zip(*found.values(), strict=True)
        return {"predictions": [dict(zip(found, x, strict=True)) for x in rows]}

    warmed_up = []
    file = os.path.join(path, "assets.extra", "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(file).as_numpy_iterator():
        request = PredictionLog.FromString(record).predict_log.request
        values = request.inputs.items()
        inputs = {key: tf.make_ndarray(value) for key, value in values}
        outputs = run(request.model_spec.signature_name, inputs)
        [size] = {len(values) for values in (inputs | outputs).values()}
        warmed_up.append([request.model_spec.name, size])
    answers = [answer(request) for request in requests]
    return {"answers": answers, "warmed_up": warmed_up}


def tensor(values, dtype):
    if dtype != "string":
        return np.array(values, dtype)
    return np.vectorize(as_bytes, [object])(np.array(values, object))


def as_bytes(text):
    if isinstance(text, dict):
        return base64.b64decode(text["b64"], validate=True)
    return text.encode()


def to_json(values):
    if values.dtype == object:
        values = np.vectorize(bytes.decode, [object])(values)
    return values.tolist()


if __name__ == "__main__":
    found = answer_all(sys.argv[1], json.load(sys.stdin))
    found["modules"] = [n for n in sys.modules if n.startswith("bert_tf")]
    print(json.dumps(found))
