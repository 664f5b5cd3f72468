"""The files of an export for people and servers.

The README, whose commands work as written; the model card; warm-up requests and
batching parameters. Requests and answers are in the format of TensorFlow
Serving's REST interface: by rows (`instances` and `predictions`) or by columns
(`inputs` and `outputs`). In both, a single input or output has no name.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf import files
from bert_tf.packages import tensorflow_required
from bert_tf.serving.served import Served
from bert_tf.variables import checkpoint_variables
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
        **{
            name: {
                "file": path,
                "sha256": files.checksum(os.path.join(folder, path)),
            }
            for name, path in CHECKED.items()
        },
        "versions": {
            "bert_tf": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }


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
    """Returns a Python number with the digits of `str`; None for NaN."""
    if value is None or not math.isfinite(value):
        return None
    return json.loads(str(value))


# Files for the server.

# The name that a server looks for in a version's `assets.extra`.
WARM_UP = "tf_serving_warmup_requests"
BATCHING = "batching_parameters.txt"

MAX_BATCH_SIZE = 32
# A server refuses the model if it refuses one of these requests, for example
# because it is larger than the largest batch.
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
    """Writes warm-up requests: several batch sizes, and a long text."""
    with tensorflow_required("An export"):
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    with tf.io.TFRecordWriter(path) as writer:
        for rows in _batches(served):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = "serving_default"
            for key, spec in served.inputs.items():
                request.inputs[key].CopyFrom(
                    tf.make_tensor_proto(rows[key], spec.dtype)
                )
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
    yield {
        name: [_lengthened(rows[0], length)] for name, rows in example.items()
    }


def _lengthened(texts: Any, num_words: int) -> Any:
    """Repeats a text, or each text of a list, to at least `num_words`."""
    if isinstance(texts, list | tuple):
        return [_lengthened(text, num_words) for text in texts]
    return " ".join([texts] * -(-num_words // max(1, len(texts.split()))))


# The README.

README = "README.md"
# The first server with the op of the tokenizer.
OLDEST_SERVER = "2.12"

# Longer lists, for example embeddings, are shown with their first values.
_MOST_VALUES, _SHOWN_VALUES = 16, 4
_CUT = "\0 and so on"

# Filled in by str.format.
_TEMPLATE = """\
# {name}: {kind}

A SavedModel that takes raw text, made by bert_tf. Run the commands in this
version's folder, which contains `saved_model.pb`.

## Start a server

The official image, {oldest} or newer. It serves the highest version and loads
new ones. To use another name than `{name}`, change it in the mounted folder,
`MODEL_NAME` and the URLs.

```
{docker}
  {image}
```

To combine requests of several users into batches of at most {batch_size} texts:

```
{docker}
  -v "$PWD/assets.extra/{batching}":/{batching}:ro \\
  {image} \\
  --enable_batching --batching_parameters_file=/{batching}
```

The server does not pad then: it refuses a batch of requests whose inputs have
different shapes. Texts have the same shape; pad inputs of `tokens` to
`max_seq_length`. Answers are padded to the longest of the batch; outputs called
`num_...` give the length of yours.

The requests in `assets.extra/{warm_up}` are run before a version is
served.

On two CPU cores, one text at a time takes the least time with an export of
`--export_parts=2` and the server's `--tensorflow_intra_op_parallelism=1
--tensorflow_inter_op_parallelism=2`; without these flags parts gain nothing.
On x86 CPUs without AVX-512, `-e TF_ENABLE_ONEDNN_OPTS=1` makes batches faster.

## Query it

By rows:

{rows}

By columns:

{columns}

Its tokens and ids:

{tokens}

These answers were computed with this export; the last digits depend on the
machine. Long lists are shortened here. Send text that is not UTF-8 as
`{{"b64": "..."}}`; invalid bytes are dropped.

## Without a server

```
import tensorflow as tf
import tensorflow_text  # Registers the op of the tokenizer.

model = tf.saved_model.load(".")
model.signatures["serving_default"]({arguments})
# By their names in a TF1 checkpoint. Kernels and biases in parts are called
# `kernel/part_0`, `kernel/part_1` and so on.
model.weights
```

## Signatures

B is the number of texts, "?" the length of the longest.

| signature_name | inputs | outputs |
|---|---|---|
{signatures}

## Model card

| what | value |
|---|---|
{card}
"""


class Signature(NamedTuple):
    """The inputs and outputs of a signature: specs by name."""

    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]


def readme(
    card: Mapping[str, Any],
    signatures: Mapping[str, Signature],
    example: Mapping[str, list],
    answers: Mapping[str, Mapping[str, np.ndarray]],
) -> str:
    """Returns the README of an export, in Markdown.

    Args:
      card: See `model_card`.
      signatures: All signatures by name.
      example: Rows of the inputs of `serving_default` and `tokenize`.
      answers: The outputs of these two for the example.
    """
    name, answer = card["name"], answers["serving_default"]
    by_rows = {"instances": _rows_of(example)}
    tokens = {"signature_name": "tokenize", **by_rows}
    return _TEMPLATE.format(
        name=name,
        kind=card["kind"],
        oldest=OLDEST_SERVER,
        docker="docker run --rm -p 8500:8500 -p 8501:8501 \\\n"
        f'  -v "$(dirname "$PWD")":/models/{name}:ro \\',
        image=f"-e MODEL_NAME={name} tensorflow/serving",
        batching=BATCHING,
        batch_size=MAX_BATCH_SIZE,
        warm_up=WARM_UP,
        rows=_exchange(name, by_rows, row_answer(answer)),
        columns=_exchange(name, {"inputs": example}, column_answer(answer)),
        tokens=_exchange(name, tokens, row_answer(answers["tokenize"])),
        arguments=", ".join(
            f"{name}=tf.constant({values!r})"
            for name, values in example.items()
        ),
        signatures="\n".join(
            f"| `{name}` | {specs_of(inputs)} | {specs_of(outputs)} |"
            for name, (inputs, outputs) in signatures.items()
        ),
        card="\n".join(_card_rows(card)),
    )


def _exchange(name: str, request: Mapping[str, Any], answer: str) -> str:
    body = shlex.quote(json.dumps(request, ensure_ascii=False))
    url = f"http://localhost:8501/v1/models/{name}:predict"
    return f"```\ncurl -d {body} \\\n  {url}\n```\n\n```\n{answer}\n```"


def _rows_of(columns: Mapping[str, Sequence]) -> list:
    """Returns `instances`: dicts of all inputs, or values of a single one."""
    if len(columns) == 1:
        [values] = columns.values()
        return list(values)
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def row_answer(outputs: Mapping[str, np.ndarray]) -> str:
    """Returns the answer to `instances`, a line for each, lists shortened."""
    rows = _rows_of({n: _shortened(values) for n, values in outputs.items()})
    lines = ",\n  ".join(map(in_json, rows))
    return f'{{"predictions": [\n  {lines}\n]}}'


def column_answer(outputs: Mapping[str, np.ndarray]) -> str:
    """Returns the answer to `inputs`, a line for each output."""
    if len(outputs) == 1:
        [values] = outputs.values()
        return f'{{"outputs": {in_json(values)}}}'
    lines = ",\n  ".join(
        f'"{name}": {in_json(values)}' for name, values in outputs.items()
    )
    return f'{{"outputs": {{\n  {lines}\n}}}}'


def in_json(values: Any) -> str:
    """Returns values as JSON in one line, lists shortened."""
    text = json.dumps(_shortened(values), ensure_ascii=False)
    return text.replace(json.dumps(_CUT), "...")


def _shortened(values: Any) -> Any:
    """Converts arrays to lists, cuts long ones, rounds floats to 6 digits."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list):
        if len(values) > _MOST_VALUES:
            return [*map(_shortened, values[:_SHOWN_VALUES]), _CUT]
        return [_shortened(value) for value in values]
    if isinstance(values, bytes):
        return values.decode("utf-8", errors="replace")
    return float(f"{values:.6g}") if isinstance(values, float) else values


def specs_of(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Returns names, types and shapes, for a table cell."""
    cells = []
    for name, spec in specs.items():
        shape = "[B, ...]"
        if spec.shape.rank is not None:
            sizes = ["?" if size is None else str(size) for size in spec.shape]
            shape = f"[{', '.join(['B', *sizes[1:]])}]"
        cells.append(f"`{name}` {spec.dtype.name} {shape}")
    return "<br>".join(cells)


def _card_rows(card: Mapping[str, Any]) -> Iterator[str]:
    for key, value in card.items():
        if isinstance(value, Mapping):
            for k, v in value.items():
                yield f"| {key}: {k} | {_cell(v)} |"
        else:
            yield f"| {key} | {_cell(value)} |"


def _cell(value: Any) -> str:
    """Returns a value as a table cell: one line, with escaped borders."""
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return "-"
    return " ".join(str(value).split()).replace("|", r"\|")
