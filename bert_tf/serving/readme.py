"""The README of an export: commands that work as they stand.

Requests and answers are those of TensorFlow Serving's REST interface. It has
a format by rows, `instances` and `predictions`, and one by columns, `inputs`
and `outputs`; what there is only one of goes without its name in both.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from bert_tf import files
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving.served import Served
from bert_tf.version import __version__

# The model card: what an export is, where it comes from, how good it was.


MODEL_CARD = "model_card.json"
# All weights are in this file of a SavedModel.
WEIGHTS = "variables/variables.data-00000-of-00001"


def model_card(
    served: Served,
    folder: str,
    name: str,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> dict[str, Any]:
    """Says what an export is, in values that JSON can hold.

    Args:
      served: What was exported.
      folder: The SavedModel, whose weights are hashed.
      name: The model's name on the server.
      metrics: How good it was; what is not finite is None in the card, and
        may be so already.
      source: The checkpoint that it was made from. Of a local path the card
        has the last part only, so that it is the same on every machine.

    Returns:
      The card. Its `encoding` is how texts become ids: the length at which
      they are cut, the casing, and whatever else that kind of model needs.
    """
    variables = checkpoint_variables(served.model).values()
    encoding = dataclasses.asdict(served.encoding)
    return {
        "name": name,
        "kind": served.kind,
        "source": source and _without_folder(source),
        "metrics": {
            key: _number(value) for key, value in (metrics or {}).items()
        },
        "labels": list(served.labels),
        "encoding": {
            key: value
            for key, value in encoding.items()
            if key not in ("vocab", "labels")
        },
        "vocab_size": len(served.encoding.vocab),
        "parameters": sum(math.prod(v.shape) for v in variables),
        "dtype_policy": served.model.dtype_policy.name,
        "weights": {
            "file": WEIGHTS,
            "sha256": _sha256(os.path.join(folder, WEIGHTS)),
        },
        "versions": {
            "bert_tf": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }


def to_json(card: Mapping[str, Any]) -> str:
    """The text of the file."""
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def _without_folder(source: str) -> str:
    """A checkpoint's name: of a local path the last part, else all of it."""
    is_elsewhere = files.is_remote(source) and not source.startswith("file://")
    return source if is_elsewhere else os.path.basename(source.rstrip("/"))


def _number(value: float | None) -> float | None:
    """A number of Python with the digits that it shows; JSON has no NaN."""
    if value is None or not math.isfinite(value):
        return None
    return json.loads(str(value))


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What lies beside a SavedModel for the server: warm-up and batching.


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


# The README of an export: commands that work as they stand.


README = "README.md"
# The op of the tokenizer is in every server since.
OLDEST_SERVER = "2.12"

# Of a list that is longer, an embedding for example, the first are shown.
_MOST_VALUES, _SHOWN_VALUES = 16, 4
_CUT = "\0 and so on"


class Signature(NamedTuple):
    """What one of the functions takes and gives: specs by name."""

    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]


def readme(
    card: Mapping[str, Any],
    signatures: Mapping[str, Signature],
    example: Mapping[str, list],
    answers: Mapping[str, Mapping[str, np.ndarray]],
) -> str:
    """Writes what somebody who was handed the folder needs.

    Args:
      card: See `model_card`.
      signatures: All there are, by name.
      example: Rows of the inputs of `serving_default` and `tokenize`.
      answers: What these two answered.

    Returns:
      Markdown.
    """
    name = card["name"]
    parts = [
        f"# {name}: {card['kind']}",
        "A SavedModel that takes raw text, made by bert_tf. Commands are for "
        "this version's folder, the one with `saved_model.pb`.",
        _serving(name),
        _asking(name, example, answers),
        _without_server(example),
        _signatures(signatures),
        _card(card),
    ]
    return "\n\n".join(parts) + "\n"


def _serving(name: str) -> str:
    run = f"""\
docker run --rm -p 8500:8500 -p 8501:8501 \\
  -v "$(dirname "$PWD")":/models/{name}:ro \\"""
    image = f"-e MODEL_NAME={name} tensorflow/serving"
    return f"""\
## Start a server

The official image, {OLDEST_SERVER} or newer. It serves the highest version
and looks for a higher one all the time. The model may have another name than
`{name}`, which is then part of the folder in the server, `MODEL_NAME` and URLs.

```
{run}
  {image}
```

With requests of several users in one batch, of at most {MAX_BATCH_SIZE} texts:

```
{run}
  -v "$PWD/assets.extra/{BATCHING}":/{BATCHING}:ro \\
  {image} \\
  --enable_batching --batching_parameters_file=/{BATCHING}
```

The server pads nothing then: a batch of requests whose inputs differ in shape
is refused as a whole. Texts have one shape; pad what you send to `tokens` to
`max_seq_length`. Answers are padded to the longest of the batch, whose others
you do not see; outputs called `num_...` say how much is yours.

`assets.extra/{WARM_UP}` is run before a version is served."""


def _asking(
    name: str,
    example: Mapping[str, list],
    answers: Mapping[str, Mapping[str, np.ndarray]],
) -> str:
    answer = answers["serving_default"]
    by_rows = {"instances": _rows_of(example)}
    rows = _exchange(name, by_rows, row_answer(answer))
    columns = _exchange(name, {"inputs": example}, column_answer(answer))
    tokens = _exchange(
        name,
        {"signature_name": "tokenize", **by_rows},
        row_answer(answers["tokenize"]),
    )
    return f"""\
## Ask it

By rows:

{rows}

By columns:

{columns}

What the model sees of it:

{tokens}

These answers were computed with this export; the last digits depend on the
machine. Long lists are cut here. Text that is not UTF-8 is sent as
`{{"b64": "..."}}`; such bytes are dropped."""


def _without_server(example: Mapping[str, list]) -> str:
    arguments = ", ".join(
        f"{name}=tf.constant({values!r})" for name, values in example.items()
    )
    return f"""\
## Without a server

```
import tensorflow as tf
import tensorflow_text  # It knows the op of the tokenizer.

model = tf.saved_model.load(".")
model.signatures["serving_default"]({arguments})
model.weights  # By their names in a TF1 checkpoint.
```"""


def _exchange(name: str, request: Mapping[str, Any], answer: str) -> str:
    body = shlex.quote(json.dumps(request, ensure_ascii=False))
    url = f"http://localhost:8501/v1/models/{name}:predict"
    return f"```\ncurl -d {body} \\\n  {url}\n```\n\n```\n{answer}\n```"


def _rows_of(columns: Mapping[str, Sequence]) -> list:
    """`instances`: objects with all names, or bare values of the only one."""
    if len(columns) == 1:
        [values] = columns.values()
        return list(values)
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def row_answer(outputs: Mapping[str, np.ndarray]) -> str:
    """The answer to `instances`, a line for each; long lists are cut.

    Args:
      outputs: Arrays [B, ...] by name; strings as bytes.
    """
    rows = _rows_of({name: _shown(values) for name, values in outputs.items()})
    lines = ",\n  ".join(map(_to_json, rows))
    return f'{{"predictions": [\n  {lines}\n]}}'


def column_answer(outputs: Mapping[str, np.ndarray]) -> str:
    """The answer to `inputs`, a line for each output; see `row_answer`."""
    columns = {name: _shown(values) for name, values in outputs.items()}
    if len(columns) == 1:
        [values] = columns.values()
        return f'{{"outputs": {_to_json(values)}}}'
    lines = ",\n  ".join(
        f"{_to_json(name)}: {_to_json(values)}"
        for name, values in columns.items()
    )
    return f'{{"outputs": {{\n  {lines}\n}}}}'


def in_json(values: Any) -> str:
    """An array or a list as JSON in one line, shown as in `row_answer`."""
    return _to_json(_shown(values))


def _shown(values: Any) -> Any:
    """Arrays as lists, of which the long ones are cut; floats of six digits."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list):
        if len(values) > _MOST_VALUES:
            return [*map(_shown, values[:_SHOWN_VALUES]), _CUT]
        return [_shown(value) for value in values]
    if isinstance(values, bytes):
        return values.decode("utf-8", errors="replace")
    return float(f"{values:.6g}") if isinstance(values, float) else values


def _to_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text.replace(json.dumps(_CUT), "...")


def _signatures(signatures: Mapping[str, Signature]) -> str:
    lines = [
        f"| `{name}` | {specs_of(inputs)} | {specs_of(outputs)} |"
        for name, (inputs, outputs) in signatures.items()
    ]
    return "\n".join(
        [
            "## Signatures",
            "",
            'B texts, and lengths that are those of the longest: "?".',
            "",
            "| signature_name | takes | gives |",
            "|---|---|---|",
            *lines,
        ]
    )


def specs_of(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Names, types and shapes, for the cell of a table."""
    return "<br>".join(
        f"`{name}` {spec.dtype.name} {_shape(spec)}"
        for name, spec in specs.items()
    )


def _shape(spec: tf.TensorSpec) -> str:
    if spec.shape.rank is None:
        return "[B, ...]"
    sizes = ["?" if size is None else str(size) for size in spec.shape]
    return f"[{', '.join(['B', *sizes[1:]])}]"


def _card(card: Mapping[str, Any]) -> str:
    lines = []
    for key, value in card.items():
        if isinstance(value, Mapping):
            lines += [f"| {key}: {k} | {_cell(v)} |" for k, v in value.items()]
        else:
            lines.append(f"| {key} | {_cell(value)} |")
    table = ["| what | value |", "|---|---|", *lines]
    return "\n".join(["## Model card", "", *table])


def _cell(value: Any) -> str:
    """What a table can hold: one line, without its borders."""
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return "-"
    return " ".join(str(value).split()).replace("|", r"\|")
