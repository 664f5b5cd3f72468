"""Exports for TensorFlow Serving: SavedModels in numbered folders.

    export_dir/
        1763776800/                       a version: seconds since 1970
            saved_model.pb                the functions
            variables/                    the weights, by their TF1 names
            assets/                       vocab.txt, labels.txt
            assets.extra/
                tf_serving_warmup_requests
                batching_parameters.txt
                model_card.json
                README.md                 how to start a server and query it

A server that watches `export_dir` loads a version as soon as it exists. So a
version is written to a folder whose name is not a number, which is renamed when
it is complete. `scheme://` paths often cannot rename folders: there the version
is copied from the local disk, `saved_model.pb` last, since a server ignores a
folder without it.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import logging as standard_logging
import math
import os
import pathlib
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.config import positive_integer
from bert_tf.errors import in_file, tensorflow_required, wrong_value
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.serving.served import Served, Tensors
from bert_tf.version import __version__


@contextlib.contextmanager
def silenced(level: int) -> Iterator[None]:
    """Silences all messages up to a level of Python's `logging`."""
    before = standard_logging.root.manager.disable
    standard_logging.disable(level)
    try:
        yield
    finally:
        standard_logging.disable(before)


# The weights.

# Layer norms and output biases compute in float32 under any policy.
_WIDE = ("/gamma", "/beta", "output_bias")


class StoredWeights:
    """The variables of an export of a built model.

    Attributes:
      by_name: TensorFlow variables by their TF1 names: a copy in the model's
        compute dtype if the model casts the variable, else the model's own.
    """

    def __init__(self, model: keras.Model):
        self.by_name: dict[str, tf.Variable] = {}
        self._cast: list[tuple[keras.Variable, tf.Variable]] = []
        dtype = model.compute_dtype
        for name, variable in checkpoint_variables(model).items():
            stored = variable.value
            if variable.dtype != dtype and not name.endswith(_WIDE):
                stored = tf.Variable(tf.cast(stored, dtype), trainable=False)
                self._cast.append((variable, stored))
            self.by_name[name] = stored

    def scope(self) -> keras.StatelessScope:
        """Returns a scope in which the model uses these variables."""
        scope = keras.StatelessScope()
        for variable, stored in self._cast:
            # The scope's constructor would cast `stored` to float32.
            scope.add_update((variable, stored))
        return scope


# The export.

EXTRA = "assets.extra"
MODEL_FILE = "saved_model.pb"

# The name is part of URLs, paths and command lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Specs = Mapping[str, tf.TensorSpec]


def export(
    served: Served,
    export_dir: str,
    *,
    name: str = "bert",
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
    version: int | None = None,
) -> str:
    """Writes a new version of a model, atomically.

    After an error, existing versions are unchanged and there is no new one.
    Leftovers of processes killed on this machine are removed.

    Args:
      served: The model, with its tokenizer and labels.
      export_dir: The folder of the versions; created if missing.
      name: The model's name on the server.
      metrics: See `model_card`.
      source: See `model_card`.
      version: The version number; None for the time in seconds, or for the
        highest existing number plus 1 if that is larger.

    Returns:
      The folder of the new version.

    Raises:
      InputError: If the version exists, the folder cannot be written to, or the
        name or the version is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        requirement = "letters, digits, '.', '_' and '-'"
        raise wrong_value("The model's name on the server", requirement, name)
    if version is not None:
        positive_integer("version", version, 2**63 - 1)
        path = os.path.join(export_dir, str(version))
        if files.exists(path):
            raise in_file(
                path,
                "this version exists already. Pass another number, or none.",
            )
    with _temporary_folder(export_dir) as folder:
        os.mkdir(folder)
        signatures = save(served, folder)
        card = model_card(served, folder, name, metrics, source)
        texts = {
            "batching_parameters.txt": BATCHING_PARAMETERS,
            MODEL_CARD: to_json(card),
            README: readme(name, served.kind, signatures, served.example),
        }
        extra = pathlib.Path(folder, EXTRA)
        extra.mkdir()
        write_warm_up(str(extra / WARM_UP), served, name)
        for file, text in texts.items():
            (extra / file).write_text(text, "utf-8")
        path = _publish(folder, export_dir, version)
    logging.info("Exported %s as %s", name, path)
    return path


def require_export_dir(export_dir: str) -> None:
    """Creates the folder; raises InputError if it cannot be written to."""
    with _temporary_folder(export_dir):
        pass


def save(served: Served, folder: str) -> dict[str, tuple[Specs, Specs]]:
    """Writes the SavedModel; returns inputs and outputs of its signatures.

    It contains TensorFlow variables and tables, nothing of Keras: loading it
    needs neither Keras nor this package.
    """
    stored = StoredWeights(served.model)

    def answer_tokens(features: Tensors) -> dict[str, tf.Tensor]:
        # TensorFlow's CPU kernels do not check the shape of a mask that is
        # added to attention scores: a request could crash the server.
        shape = tf.shape(features["input_ids"])
        return served.answer_tokens(
            {name: tf.reshape(x, shape) for name, x in features.items()}
        )

    def trace(
        method: Callable[[Tensors], dict[str, tf.Tensor]], specs: Specs
    ) -> tf.types.experimental.ConcreteFunction:
        def call(**values):
            with stored.scope():
                return method(values)

        # No method has Python control flow over tensors, and converting is
        # slow.
        function = tf.function(call, autograph=False)
        return function.get_concrete_function(**specs)

    methods = {
        "serving_default": (served.answer, served.inputs),
        "tokens": (answer_tokens, served.token_inputs),
        "tokenize": (served.tokenize, served.inputs),
    }
    functions = {name: trace(*method) for name, method in methods.items()}
    root = tf.Module()
    root.weights = stored.by_name
    # The tables; their files are the assets.
    root.names = served.submodules
    # TensorFlow logs the files it writes.
    with silenced(standard_logging.INFO):
        tf.saved_model.save(root, folder, signatures=functions)
    return {
        name: (specs, functions[name].structured_outputs)
        for name, (_, specs) in methods.items()
    }


@contextlib.contextmanager
def _temporary_folder(export_dir: str) -> Iterator[str]:
    """Yields the path of a folder to create; removes it after the block.

    The name of its parent contains the machine and the process, since it is
    unknown whether processes of other machines are still alive. Errors of the
    file system become InputErrors.
    """
    with files.input_errors(
        "write the export to", export_dir, tf.errors.OpError
    ):
        files.makedirs(export_dir)
        place, prefix = None, None
        if not files.is_remote(export_dir):
            host = re.sub(r"\W", "_", socket.gethostname())
            prefix = os.path.join(export_dir, f"export-{host}")
            files.remove_leftovers(prefix)
            place, prefix = os.path.split(files.temporary_prefix(prefix))
        # A subfolder, since only this user may read the temporary folder.
        with tempfile.TemporaryDirectory(
            prefix=prefix, dir=place, ignore_cleanup_errors=True
        ) as folder:
            yield os.path.join(folder, "version")


def _publish(folder: str, export_dir: str, version: int | None) -> str:
    """Moves a version to its number; by default the time, or a higher one.

    A server loads the highest number. It may be above the time if a user chose
    it, or if the clock was set back.
    """
    names = (name.rstrip("/") for name in files.listdir(export_dir))
    versions = (
        int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)
    )
    highest = max(versions, default=0)
    number = version or max(int(time.time()), highest + 1)
    if number < highest:
        logging.warning(
            "%s has version %d, which a server loads rather than version %d",
            export_dir,
            highest,
            number,
        )
    path = os.path.join(export_dir, str(number))
    move = _copy if files.is_remote(export_dir) else os.rename
    move(folder, path)
    return path


def _copy(source: str, target: str) -> None:
    """Copies a version, MODEL_FILE last; removes the copy after an error."""
    paths = [path for path in pathlib.Path(source).rglob("*") if path.is_file()]
    with contextlib.ExitStack() as undo:
        files.makedirs(target)
        undo.callback(files.remove_tree, target)
        for path in sorted(paths, key=lambda path: path.name == MODEL_FILE):
            copy = os.path.join(target, path.relative_to(source))
            files.makedirs(os.path.dirname(copy))
            tf.io.gfile.copy(str(path), copy)
        undo.pop_all()


# The model card.

MODEL_CARD = "model_card.json"
# The file of a SavedModel with all weights.
WEIGHTS = "variables/variables.data-00000-of-00001"


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
      source: The checkpoint; of a local path, only the last part is recorded,
        so that the card is the same on every machine.
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
    checked = {"weights": WEIGHTS, "vocabulary": "assets/vocab.txt"}
    for key, path in checked.items():
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

    example = served.example
    batches = [
        {
            key: [rows[n % len(rows)] for n in range(size)]
            for key, rows in example.items()
        }
        for size in WARM_UP_SIZES
    ]
    length = served.encoding.max_seq_length

    def repeated(text: str) -> str:
        """Returns a text with at least `length` words, which is too long."""
        return " ".join([text] * -(-length // len(text.split())))

    batches.append(keras.tree.map_structure(repeated, batches[0]))
    with tf.io.TFRecordWriter(path) as writer:
        for batch in batches:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = "serving_default"
            for key, spec in served.inputs.items():
                values = tf.make_tensor_proto(batch[key], spec.dtype)
                request.inputs[key].CopyFrom(values)
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString(deterministic=True))


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


def readme(
    name: str,
    kind: str,
    signatures: Mapping[str, tuple[Specs, Specs]],
    example: Mapping[str, list],
) -> str:
    """Returns the README of an export, in Markdown.

    `example` has rows of the inputs of `serving_default`; `signatures` are the
    inputs and outputs of all signatures.
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


def specs_of(specs: Specs) -> str:
    """Returns names, types and shapes, for a table cell."""
    return "<br>".join(
        f"`{name}` {spec.dtype.name} {spec.shape}"
        for name, spec in specs.items()
    )
