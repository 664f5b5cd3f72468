"""Opens exports: their signatures, assets and model cards."""

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf import files
from bert_tf.errors import in_file, shortened
from bert_tf.packages import tensorflow_required
from bert_tf.serving.export import EXTRA, MODEL_FILE
from bert_tf.serving.readme import CHECKED, MODEL_CARD, WARM_UP

Arrays = dict[str, np.ndarray]

# Required files.
_FILES = ("assets/vocab.txt", f"{EXTRA}/{MODEL_CARD}", f"{EXTRA}/{WARM_UP}")
_LABELS = "assets/labels.txt"
_TEXTS_AT_A_TIME = 256

# What TensorFlow raises for damaged files.
_DAMAGES = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(tf.errors.OpError, DecodeError),
)

# The values of a model card that readers use.
_CARD: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "name": ("a string", str),
    "kind": ("a string", str),
    "source": ("a string or null", (str, type(None))),
    "labels": ("a list", list),
    "encoding": ("an object", dict),
    "vocab_size": ("a number", int),
    "parameters": ("a number", int),
    "dtype_policy": ("a string", str),
    "weights": ("an object", dict),
}
_ENCODING: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "max_seq_length": ("a number", int),
    "do_lower_case": ("true or false", bool),
    "strip_accents": ("true, false or null", (bool, type(None))),
}
# For each kind of model, an output of `tokens` that only this kind has.
_OUTPUTS = {
    "multi-label classifier": "is_present",
    "regression": "score",
    "multiple choice": "choice",
    "tagger": "tag_ids",
    "question answering": "start_logits",
}


class Exported:
    """One version of an export.

    Args:
      path: The folder.
      card: The model card.
      model: The result of `tf.saved_model.load`.
    """

    def __init__(self, path: str, card: Mapping[str, Any], model: Any):
        self.path = path
        self.card = card
        self.model = model
        self._tokens = model.signatures["tokens"]
        self._tokenize = model.signatures["tokenize"]

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The string inputs: name -> shape [None, ...]."""
        return _specs(self._tokenize)

    @property
    def token_inputs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of the signature `tokens`: int32 [None, ..., None]."""
        return _specs(self._tokens)

    @property
    def numbers(self) -> dict[str, tf.TensorSpec]:
        """The outputs of the signature `tokens` that are not strings."""
        outputs = sorted(self._tokens.structured_outputs.items())
        return {k: spec for k, spec in outputs if spec.dtype != tf.string}

    @property
    def assets(self) -> dict[str, str]:
        """The paths of the assets, such as vocab.txt, by name."""
        folder = os.path.join(self.path, "assets")
        return {
            name: os.path.join(folder, name)
            for name in sorted(files.listdir(folder))
        }

    @property
    def size(self) -> int:
        """The size of the folder in bytes."""
        return sum(
            tf.io.gfile.stat(os.path.join(folder, name)).length
            for folder, _, names in tf.io.gfile.walk(self.path)
            for name in names
        )

    @property
    def ops(self) -> set[str]:
        """The operations of the signature `tokens`."""
        graph = self._tokens.graph.as_graph_def()
        bodies = (function.node_def for function in graph.library.function)
        nodes = itertools.chain(graph.node, *bodies)
        return {node.op for node in nodes}

    @property
    def num_segments(self) -> int:
        """The number of segments that have embeddings."""
        return self.model.weights[
            "bert/embeddings/token_type_embeddings"
        ].shape[0]

    def example(self) -> Arrays:
        """Returns the first warm-up request, one row, by name of the input."""
        with tensorflow_required("An export"):
            from tensorflow_serving.apis import prediction_log_pb2

        path = os.path.join(self.path, EXTRA, WARM_UP)
        try:
            [record] = tf.data.TFRecordDataset(path).take(1)
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            texts = log.predict_log.request.inputs
            return {name: tf.make_ndarray(texts[name]) for name in self.inputs}
        except _DAMAGES as error:
            raise in_file(
                path,
                "the warm-up requests are damaged. Export the model again.",
            ) from error

    def features(self, texts: Mapping[str, np.ndarray]) -> Arrays:
        """Tokenizes `inputs` of at least one row with the signature `tokenize`.

        Returns:
          `token_inputs`, int32 [R, ..., S], padded to the longest: a row for
          each text, or several in order if a text is long.
        """
        [num_texts] = {len(values) for values in texts.values()}
        starts = range(0, num_texts, _TEXTS_AT_A_TIME)
        parts = [slice(start, start + _TEXTS_AT_A_TIME) for start in starts]
        return join_rows(
            self._rows({name: values[part] for name, values in texts.items()})
            for part in parts
        )

    def answer_tokens(self, features: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the signature `tokens`; returns `numbers`."""
        answer = _call(self._tokens, self.token_inputs, features)
        return {name: answer[name].numpy() for name in self.numbers}

    def _rows(self, texts: Mapping[str, np.ndarray]) -> Arrays:
        outputs = _call(self._tokenize, self.inputs, texts)
        specs = self.token_inputs
        rows = {name: outputs[name].numpy() for name in specs}
        counts = [outputs[name] for name in outputs if name.startswith("num_")]
        if not counts:
            return rows
        # Rows of padding follow the rows of a text.
        [num_rows] = counts
        most = rows["input_ids"].shape[1]
        is_row = np.arange(most) < num_rows.numpy()[:, np.newaxis]  # [B, R]
        return {name: values[is_row] for name, values in rows.items()}


def open_export(export_dir: str) -> Exported:
    """Opens an export.

    Args:
      export_dir: The folder of one version, or of all versions, of which the
        newest is opened.

    Raises:
      InputError: If there is no export, or it is damaged.
    """
    with tensorflow_required("An export"):
        import tensorflow_text  # noqa: F401  Registers the tokenizer's op.

    path = _version_in(export_dir)
    for name in _FILES:
        if not files.exists(os.path.join(path, name)):
            raise in_file(
                path,
                f"this is not an export of bert_tf: no {name}. Pass the folder "
                "that an export wrote.",
            )
    card_path = os.path.join(path, EXTRA, MODEL_CARD)
    card = files.read_json(card_path)
    _require_values(card, _CARD, card_path)
    _require_values(card["encoding"], _ENCODING, card_path)
    try:
        exported = Exported(path, card, tf.saved_model.load(path))
        wrong = _mismatch(exported)
    except _DAMAGES as error:
        reason = " ".join(str(error).split()).partition(" You may be try")[0]
        raise in_file(
            path,
            f"the SavedModel cannot be loaded: {reason.rstrip('.')}. Export "
            "the model again.",
        ) from error
    if wrong:
        raise in_file(card_path, f"{wrong}. Export the model again.")
    return exported


def _require_values(
    values: Mapping[str, Any],
    requirements: Mapping[str, tuple[str, type | tuple[type, ...]]],
    path: str,
) -> None:
    """Raises InputError if a value is missing or has another type."""
    for name, (what, kind) in requirements.items():
        value = values.get(name)
        is_bool = isinstance(value, bool) and kind is int
        if name not in values or not isinstance(value, kind) or is_bool:
            got = shortened(value) if name in values else "nothing"
            raise in_file(
                path,
                f"{name!r} must be {what}; got {got}. Export the model again.",
            )


def _mismatch(exported: Exported) -> str | None:
    """Returns how the card contradicts its export, or None."""
    card, weights = exported.card, exported.model.weights
    for name, path in CHECKED.items():
        # Exports of earlier versions have no checksum of their vocabulary.
        checksum = card.get(name, {}).get("sha256")
        if checksum and checksum != files.checksum(
            os.path.join(exported.path, path)
        ):
            return f"{path} does not have the checksum in this card"
    words = weights["bert/embeddings/word_embeddings"].shape[0]
    if not 0 < card["vocab_size"] <= words:
        return f"vocab_size does not fit the model's {words:,} words"
    longest = weights["bert/embeddings/position_embeddings"].shape[0]
    if not 0 < card["encoding"]["max_seq_length"] <= longest:
        return f"max_seq_length does not fit the model's {longest:,} positions"
    if _OUTPUTS.get(card["kind"], "") not in {"", *exported.numbers}:
        return "the kind does not fit the model's outputs"
    if card["labels"]:
        lines = files.read_text(os.path.join(exported.path, _LABELS))
        # An empty name is stored as a space.
        if lines.splitlines() != [label or " " for label in card["labels"]]:
            return f"the labels differ from {_LABELS}"
    return None


def _version_in(export_dir: str) -> str:
    """Returns the folder itself, or its version with the highest number."""
    if files.exists(os.path.join(export_dir, MODEL_FILE)):
        return export_dir
    # Some file systems list folders with a trailing slash.
    names = [name.rstrip("/") for name in files.listdir(export_dir)]
    versions = [
        name
        for name in names
        if name.isdecimal()
        and files.exists(os.path.join(export_dir, name, MODEL_FILE))
    ]
    if not versions:
        raise in_file(
            export_dir,
            f"there is no {MODEL_FILE} and no version of an export.",
        )
    return os.path.join(export_dir, max(versions, key=int))


def join_rows(parts: Iterable[Mapping[str, np.ndarray]]) -> Arrays:
    """Concatenates dicts of arrays [b, ...], padded with zeros."""
    parts = list(parts)
    return {name: _stack([part[name] for part in parts]) for name in parts[0]}


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0)[1:]
    padded = [
        np.pad(array, [(0, 0), *((0, n) for n in shape - array.shape[1:])])
        for array in arrays
    ]
    return np.concatenate(padded)


def _specs(signature: Any) -> dict[str, tf.TensorSpec]:
    """Returns the inputs by name; a SavedModel does not keep their order."""
    return dict(sorted(signature.structured_input_signature[1].items()))


def _call(
    signature: Any,
    specs: Mapping[str, tf.TensorSpec],
    values: Mapping[str, np.ndarray],
) -> dict[str, tf.Tensor]:
    return signature(
        **{
            name: tf.constant(values[name], spec.dtype)
            for name, spec in specs.items()
        }
    )
