"""A stand-in for TensorFlow Serving: one process, one version of one model.

    python tests/serving/rest.py EXPORT_DIR/VERSION

It loads the version as the server does, in a session of TensorFlow 1, runs the
warm-up requests and then answers REST requests: one body per line, one answer
per line. It must not import this project. The formats follow the server's
documentation and its `json_tensor.cc`.

    with Server(path) as server:
        server.predict({"instances": ["a text"]})
"""

import base64
import json
import os
import subprocess
import sys

import numpy as np

DEFAULT = "serving_default"


class Server:
    """The process, for a `with` block.

    Attributes:
      loaded: The warm-up requests that it ran, the signatures and weights of
        the model, and the modules of this project that it imported.
    """

    def __init__(self, path):
        self.path = str(path)

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        )
        self.loaded = self._read()
        return self

    def __exit__(self, *unused):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(timeout=60) == 0

    def predict(self, body):
        """Returns the answer to a request."""
        self._process.stdin.write(f"{json.dumps(body)}\n".encode())
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, f"no model can be loaded from {self.path}"
        return json.loads(line)


class Model:
    """The server's session and the signatures of the model."""

    def __init__(self, path):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 (for its op)

        self._tf = tf
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta_graph = tf.compat.v1.saved_model.load(
                self._session, ["serve"], path
            )
        self._signatures = meta_graph.signature_def

    def warm_up(self, path):
        """Runs the requests in a file; returns the model and size of each."""
        from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

        done = []
        records = self._tf.data.TFRecordDataset(path).as_numpy_iterator()
        for record in records:
            request = PredictionLog.FromString(record).predict_log.request
            inputs = {
                key: self._tf.make_ndarray(value)
                for key, value in request.inputs.items()
            }
            outputs = self.run(request.model_spec.signature_name, inputs)
            [size] = {len(values) for values in (inputs | outputs).values()}
            done.append([request.model_spec.name, size])
        return done

    def as_object(self, path):
        """Returns the functions and variables that TensorFlow 2 loads."""
        loaded = self._tf.saved_model.load(path)
        weights = {n: v.dtype.name for n, v in loaded.weights.items()}
        return {"signatures": sorted(loaded.signatures), "weights": weights}

    def run(self, name, inputs):
        signature = self._signatures[name]
        assert inputs.keys() == signature.inputs.keys()
        feeds = {
            signature.inputs[key].name: value for key, value in inputs.items()
        }
        fetches = {key: value.name for key, value in signature.outputs.items()}
        return self._session.run(fetches, feeds)

    def answer(self, request):
        """Returns the answer to a request, both as values of JSON."""
        name = request.get("signature_name", DEFAULT)
        specs = self._signatures[name].inputs
        types = {k: self._tf.as_dtype(v.dtype).name for k, v in specs.items()}
        if "instances" in request:
            columns = as_columns(request["instances"], types)
        else:
            columns = request["inputs"]
        if not isinstance(columns, dict):
            # A single input needs no name.
            [key] = types
            columns = {key: columns}
        inputs = {k: tensor(columns[k], dtype) for k, dtype in types.items()}
        outputs = self.run(name, inputs)
        answer = {k: to_json(values) for k, values in outputs.items()}
        if "inputs" in request:
            return {"outputs": alone(answer) or answer}
        # The server refuses outputs whose first dimensions differ.
        assert len({values.shape[:1] for values in outputs.values()}) == 1
        rows = zip(*answer.values(), strict=True)
        rows = [dict(zip(answer, row, strict=True)) for row in rows]
        return {"predictions": alone(answer) or rows}


def as_columns(instances, types):
    """Converts `instances`, objects or bare values of a single input."""
    if isinstance(instances[0], dict) and "b64" not in instances[0]:
        return {name: [row[name] for row in instances] for name in types}
    return instances


def alone(answer):
    """Returns the values of a single output, which goes without its name."""
    return next(iter(answer.values())) if len(answer) == 1 else None


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


def main(path):
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)

        def say(values):
            out.write(f"{json.dumps(values)}\n".encode())
            out.flush()

        model = Model(path)
        extra = os.path.join(path, "assets.extra")
        done = model.warm_up(os.path.join(extra, "tf_serving_warmup_requests"))
        ours = [name for name in sys.modules if name.startswith("bert_tf")]
        say({"warmed_up": done, "modules": ours, **model.as_object(path)})
        for line in sys.stdin.buffer:
            say(model.answer(json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1])
