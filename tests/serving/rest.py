"""A stand-in for TensorFlow Serving: one process, one version of one model.

    python tests/serving/rest.py EXPORT_DIR/VERSION

It loads the version as the server does, in a session of TensorFlow 1, runs the
warm-up requests and then answers REST requests: a body a line, an answer a
line. It must not import this project. What it does with a body, and how it
writes an answer, are the rules of the server's documentation and its
`json_tensor.cc`.

    with Server(path) as server:
        server.predict({"instances": ["a text"]})
"""

import base64
import binascii
import json
import os
import subprocess
import sys

import numpy as np

DEFAULT = "serving_default"
# TensorFlow's types, as far as the server puts them into JSON.
WHOLE_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
DECIMALS = {"float32": 9, "float64": 17}


class Refused(Exception):
    """What the server says with status 400."""


class Server:
    """Such a process, for a `with` block.

    Attributes:
      loaded: What it told when it was ready: the warm-up requests that it ran,
        what else is in the model, and what it imported of this project.
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
        """Answers a request, given as its text or as what stands in it."""
        text = body if isinstance(body, str) else json.dumps(body)
        assert "\n" not in text
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, f"no model can be loaded from {self.path}"
        return json.loads(line)


class Model:
    """What the server holds: a session, and the signatures."""

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
        """Runs the requests in a file; refusing one, it would not serve.

        Returns:
          For each, the name of the model and the size of the batch.
        """
        from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

        done = []
        records = self._tf.data.TFRecordDataset(path).as_numpy_iterator()
        for record in records:
            log = PredictionLog.FromString(record)
            assert log.WhichOneof("log_type") == "predict_log"
            request = log.predict_log.request
            name = request.model_spec.signature_name or DEFAULT
            inputs = {
                key: self._tf.make_ndarray(value)
                for key, value in request.inputs.items()
            }
            outputs = self.run(name, inputs)
            [size] = {len(values) for values in (inputs | outputs).values()}
            done.append([request.model_spec.name, size])
        return done

    def as_object(self, path):
        """What TensorFlow 2 finds in it: its functions and variables."""
        loaded = self._tf.saved_model.load(path)
        return {
            "signatures": sorted(loaded.signatures),
            "weights": {
                name: variable.dtype.name
                for name, variable in loaded.weights.items()
            },
        }

    def run(self, name, inputs):
        """Arrays to arrays, by their names in a signature."""
        signature = self._signatures[name]
        if inputs.keys() != signature.inputs.keys():
            raise Refused("input size does not match signature")
        feeds = {
            signature.inputs[key].name: value for key, value in inputs.items()
        }
        fetches = {key: value.name for key, value in signature.outputs.items()}
        try:
            return self._session.run(fetches, feeds)
        except (ValueError, self._tf.errors.OpError) as error:
            raise Refused(str(error)) from error

    def answer(self, body):
        """The answer to the text of a request, as JSON's values."""
        try:
            request = parsed(body)
            name = request.get("signature_name", DEFAULT)
            if not isinstance(name, str):
                raise Refused("'signature_name' key must be a string value")
            if name not in self._signatures:
                raise Refused(f'Serving signature key "{name}" not found.')
            types = {
                key: self._tf.as_dtype(info.dtype).name
                for key, info in self._signatures[name].inputs.items()
            }
            if "instances" in request:
                outputs = self.run(name, from_rows(request["instances"], types))
                return {"predictions": to_rows(outputs)}
            outputs = self.run(name, from_columns(request["inputs"], types))
            return {"outputs": to_columns(outputs)}
        except Refused as error:
            return {"error": str(error)}


def parsed(body):
    try:
        request = json.loads(body)
    except ValueError as error:
        raise Refused(f"JSON Parse error: {error}") from error
    if not isinstance(request, dict):
        raise Refused("Is not object")
    if ("instances" in request) == ("inputs" in request):
        raise Refused("expecting one of 'inputs' or 'instances'")
    return request


def is_base64(value):
    return (
        isinstance(value, dict)
        and list(value) == ["b64"]
        and isinstance(value["b64"], str)
    )


def is_row(value):
    return isinstance(value, dict) and not is_base64(value)


def from_rows(instances, types):
    """Tensors from `instances`: objects, or bare values of the only input."""
    if not isinstance(instances, list) or not instances:
        raise Refused("No values in 'instances' array")
    with_names = is_row(instances[0])
    if not with_names and len(types) > 1:
        raise Refused("instances is a plain list, but expecting objects")
    [*names] = types
    rows = []
    for row in instances:
        if is_row(row) != with_names:
            raise Refused("instances are both objects and values")
        row = row if with_names else {names[0]: row}
        if row.keys() != types.keys():
            raise Refused(f"must only have keys: {','.join(types)}")
        rows.append(row)
    return {
        name: tensor([row[name] for row in rows], dtype)
        for name, dtype in types.items()
    }


def from_columns(inputs, types):
    """Tensors from `inputs`: an object, or the bare value of the only one."""
    if not is_row(inputs):
        if len(types) > 1:
            raise Refused("inputs is a plain value/list, but expecting object")
        inputs = dict.fromkeys(types, inputs)
    for name in types:
        if name not in inputs:
            raise Refused(f"Missing named input: {name}")
    return {name: tensor(inputs[name], types[name]) for name in types}


def tensor(value, dtype):
    """A dense array of nested lists, whose shape the first of them gives."""
    shape, first = [], value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    flat = []
    fill(value, shape, dtype, flat)
    array = np.empty(len(flat), object if dtype == "string" else dtype)
    array[:] = flat
    return array.reshape(shape)


def fill(value, shape, dtype, flat):
    if not isinstance(value, list):
        if shape:
            raise Refused("JSON Value found at incorrect level")
        flat.append(scalar(value, dtype))
    elif not shape or len(value) != shape[0]:
        raise Refused("Encountered list at unexpected level or size")
    else:
        for item in value:
            fill(item, shape[1:], dtype, flat)


def scalar(value, dtype):
    kind = type(value)
    if dtype == "string":
        if is_base64(value):
            try:
                return base64.b64decode(value["b64"], validate=True)
            except binascii.Error as error:
                raise Refused("Unable to base64 decode") from error
        if kind is str:
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise Refused("The surrogate pair is invalid") from error
    elif dtype in WHOLE_NUMBERS:
        if kind is int and value in range(
            np.iinfo(dtype).min, int(np.iinfo(dtype).max) + 1
        ):
            return value
    elif dtype in DECIMALS:
        if kind in (int, float):
            return value
    elif dtype == "bool" and kind is bool:
        return value
    raise Refused(f"JSON Value: {value!r} is not of expected type: {dtype}")


def to_rows(outputs):
    sizes = {values.shape[:1] for values in outputs.values()}
    if len(sizes) != 1 or sizes <= {(), (0,)}:
        raise Refused("a tensor has an invalid or inconsistent batch size")
    columns = {name: to_json(name, values) for name, values in outputs.items()}
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def to_columns(outputs):
    columns = {name: to_json(name, values) for name, values in outputs.items()}
    return columns if len(columns) > 1 else next(iter(columns.values()))


def to_json(name, values):
    dtype = values.dtype.name
    if dtype in DECIMALS:
        flat = [decimal(value, DECIMALS[dtype]) for value in values.flat]
    elif dtype in WHOLE_NUMBERS or dtype == "bool":
        return values.tolist()
    elif dtype == "object" and name.endswith("_bytes"):
        flat = [{"b64": base64.b64encode(v).decode()} for v in values.flat]
    elif dtype == "object":
        flat = [
            v.decode("utf-8", errors="surrogateescape") for v in values.flat
        ]
    else:
        raise Refused(f"Failed to write JSON value for tensor type: {dtype}")
    nested = np.empty(len(flat), object)
    nested[:] = flat
    return nested.reshape(values.shape).tolist()


def decimal(value, most_digits):
    """Six digits, or as many as it takes to be the same number again."""
    short = float(f"{value:.6g}")
    if value.dtype.type(short) == value or not np.isfinite(value):
        return short
    return float(f"{value:.{most_digits}g}")


def main(path):
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)

        def say(values):
            text = json.dumps(values, ensure_ascii=False)
            out.write(text.encode("utf-8", errors="surrogateescape") + b"\n")
            out.flush()

        model = Model(path)
        requests = os.path.join(
            path, "assets.extra", "tf_serving_warmup_requests"
        )
        done = model.warm_up(requests)
        ours = [name for name in sys.modules if name.startswith("bert_tf")]
        say({"warmed_up": done, "modules": ours, **model.as_object(path)})
        for line in sys.stdin.buffer:
            say(model.answer(line.decode("utf-8")))


if __name__ == "__main__":
    main(sys.argv[1])
