"""The files of an export for people and servers.

The README, the model card, warm-up requests and batching parameters.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_tf.base import files
from bert_tf.errors import tensorflow_required
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.serving.served import Served
from bert_tf.version import __version__

# The model card.

MODEL_CARD = "model_card.json"
# The file of a SavedModel with all weights.
WEIGHTS = "variables/variables.data-00000-of-00001"
# The files whose checksums are in the card.
CHECKED = {"weights": WEIGHTS, "vocabulary": "assets/vocab.txt"}


def model_card(
    served: Served,
    folder: str,
    name: str,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> dict[str, Any]:
    """Returns the model card, in values that JSON can represent.

    Args:
      served: The model.
      folder: The SavedModel, whose weights and vocabulary are hashed.
      name: The model's name on the server.
      metrics: Scores; NaN and infinity become None.
      source: The checkpoint. The card has only the last part of a local path,
        so that it is the same on every machine.
    """
    variables = checkpoint_variables(served.model).values()
    encoding = dataclasses.asdict(served.encoding)
    vocab = encoding.pop("vocab")
    encoding.pop("labels", None)
    card = {
        "name": name,
        "kind": served.kind,
        "source": source and _without_folder(source),
        "metrics": {
            key: _number(value) for key, value in (metrics or {}).items()
        },
        "labels": list(served.labels),
        "encoding": encoding,
        "vocab_size": len(vocab),
        "parameters": sum(math.prod(v.shape) for v in variables),
        "dtype_policy": served.model.dtype_policy.name,
        "versions": {
            "bert_tf": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }
    for key, path in CHECKED.items():
        digest = files.checksum(os.path.join(folder, path))
        card[key] = {"file": path, "sha256": digest}
    return card


def to_json(card: Mapping[str, Any]) -> str:
    """Returns the text of the model card's file."""
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def _without_folder(source: str) -> str:
    """Returns the last part of a local path, or a whole remote path.

    The date in `2020_02_20/uncased_L-12_H-768_A-12` stays: Google published
    another model of this name.
    """
    if files.is_remote(source) and not source.startswith("file://"):
        return source
    return re.search(r"(\d{4}_\d\d_\d\d/)?[^/]*$", source.rstrip("/"))[0]


def _number(value: float | None) -> float | None:
    """Returns a number with the digits of `str`; None if it is not finite."""
    is_finite = value is not None and math.isfinite(value)
    return json.loads(str(value)) if is_finite else None


# Files for the server.

# The name that a server looks for in a version's `assets.extra`.
WARM_UP = "tf_serving_warmup_requests"
BATCHING = "batching_parameters.txt"

MAX_BATCH_SIZE = 32
# A server refuses a model for which one of these requests fails, for example
# because the request is larger than the largest batch.
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

# Batches computed at a time. The number of CPUs is a good start.
num_batch_threads {{ value: 4 }}

# The server pads with the first value of an input. For input_mask that is 1:
# padding would count as text, and the answer would be wrong, not refused.
# Requests with raw texts need no padding.
pad_variable_length_inputs: false
"""


def write_warm_up(path: str, served: Served, name: str) -> None:
    """Writes warm-up requests: several batch sizes, and a long text."""
    with tensorflow_required("An export"):
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    with tf.io.TFRecordWriter(path) as writer:
        for rows in _batches(served):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = "serving_default"
            for key, spec in served.inputs.items():
                values = tf.make_tensor_proto(rows[key], spec.dtype)
                request.inputs[key].CopyFrom(values)
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString(deterministic=True))


def _batches(served: Served) -> Iterator[Mapping[str, Sequence]]:
    """Yields rows of the example, by input; the last row is too long."""
    example = served.example
    for size in WARM_UP_SIZES:
        yield {
            name: [rows[index % len(rows)] for index in range(size)]
            for name, rows in example.items()
        }
    length = served.encoding.max_seq_length

    def repeated(text: str) -> str:
        """Returns a text with at least `length` words."""
        return " ".join([text] * -(-length // len(text.split())))

    yield {
        name: keras.tree.map_structure(repeated, [rows[0]])
        for name, rows in example.items()
    }


# The README.

README = "README.md"
# The first server with the op of the tokenizer.
OLDEST_SERVER = "2.12"

# Filled in by str.format.
_TEMPLATE = """\
# {name}: {kind}

A SavedModel that takes raw text, made by bert_tf. Its source, scores, labels
and checksums are in `{card}`, beside this page.

Start TensorFlow Serving {oldest} or newer in this version's folder, which
contains `saved_model.pb`. It serves the highest version and loads new ones:

```sh
docker run --rm -p 8500:8500 -p 8501:8501 \\
  -v "$(dirname "$PWD")":/models/{name}:ro \\
  -e MODEL_NAME={name} tensorflow/serving
```

Send it a request:

```sh
curl -d '{request}' \\
  http://localhost:8501/v1/models/{name}:predict
```

The answer is `{{"predictions": [...]}}`: for each row an object of the outputs
of `serving_default`, or the value of a single output. For another signature,
add `"signature_name"` to the request. In shapes, the first None is the number
of rows; a second None is the length of the longest row of the request.

| signature | inputs | outputs |
|---|---|---|
{signatures}
"""


class Signature(NamedTuple):
    """The inputs and outputs of a signature: specs by name."""

    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]


def readme(
    name: str,
    kind: str,
    signatures: Mapping[str, Signature],
    example: Mapping[str, list],
) -> str:
    """Returns the README of an export, in Markdown.

    Args:
      name: The model's name on the server.
      kind: The kind of model.
      signatures: All signatures by name.
      example: Rows of the inputs of `serving_default`.
    """
    row = {column: values[0] for column, values in example.items()}
    [*values] = row.values()
    # A single input has no name.
    instance = row if len(row) > 1 else values[0]
    request = json.dumps({"instances": [instance]}, ensure_ascii=False)
    return _TEMPLATE.format(
        name=name,
        kind=kind,
        card=MODEL_CARD,
        oldest=OLDEST_SERVER,
        # In JSON, and safe between a shell's single quotes.
        request=request.replace("'", r"\u0027"),
        signatures="\n".join(
            f"| `{name}` | {specs_of(inputs)} | {specs_of(outputs)} |"
            for name, (inputs, outputs) in signatures.items()
        ),
    )


def specs_of(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Returns names, types and shapes, for a table cell."""
    return "<br>".join(
        f"`{name}` {spec.dtype.name} {spec.shape}"
        for name, spec in specs.items()
    )
