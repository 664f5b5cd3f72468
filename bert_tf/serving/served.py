"""Models with their tokenizer: strings in, answers out.

An export has three signatures: `serving_default` calls `Served.answer`,
`tokens` calls `answer_tokens`, and `tokenize` calls `tokenize`. All accept any
number of texts, including none. They may use only core ops and the ops of
TensorFlow Text in `tokenization.graph`, since servers lack others.
"""

import abc
import pathlib
import tempfile
from collections.abc import Iterable, Sequence

import keras
import tensorflow as tf

from bert_tf.base import files
from bert_tf.data.schema import INPUTS
from bert_tf.errors import in_file, require_names
from bert_tf.serving.windows import (
    Tensors,
    in_batches,
    pack_windows,
)
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.task import FineTuningTask, Rows
from bert_tf.tokenization.graph import BertTokenizer

# Stands for an empty name, since tables skip empty lines. Google's Chinese
# vocabulary has an empty token, and readers of vocabularies strip lines.
_BLANK = " "

# A longer text would keep a server busy, and other clients waiting.
MAX_TEXT_BYTES = 100_000


class LineTable(tf.saved_model.experimental.TrackableResource):
    """A table of the lines of a file, by line number.

    A table of `tf.lookup` would be named after the path of its file, and the
    export would contain this path.
    """

    def __init__(self, file: tf.saved_model.Asset, name: str):
        super().__init__()
        self._file = file
        self._name = name
        self._initialize()

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.HashTableV2(
            key_dtype=tf.int64, value_dtype=tf.string, shared_name=self._name
        )

    def _initialize(self) -> None:
        tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=self.resource_handle,
            filename=self._file.asset_path,
            key_index=tf.lookup.TextFileIndex.LINE_NUMBER,
            value_index=tf.lookup.TextFileIndex.WHOLE_LINE,
        )

    def lookup(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the lines of line numbers of any shape; "" if unknown."""
        numbers = tf.cast(numbers, tf.int64)
        lines = tf.raw_ops.LookupTableFindV2(
            table_handle=self.resource_handle, keys=numbers, default_value=""
        )
        lines.set_shape(numbers.shape)
        return lines


class Names(tf.Module):
    """Names by number, which a SavedModel stores as a text file.

    Args:
      names: The names, one line each.
      path: The file to write, which must exist until the export is done. The
        file in the export has the same name.

    Raises:
      InputError: If a name has several lines.
    """

    def __init__(self, names: Iterable[str], path: pathlib.Path):
        super().__init__()
        names = list(names)
        require_lines(names, path.name)
        self._has_blank = "" in names
        lines = "".join(f"{name or _BLANK}\n" for name in names)
        # Half of a surrogate pair, which JSON can contain, becomes "?".
        path.write_bytes(lines.encode("utf-8", errors="replace"))
        # A SavedModel contains the assets of modules, but not of resources.
        self._file = tf.saved_model.Asset(str(path))
        # If two models share a session, they share tables of the same name.
        digest = files.checksum(str(path))[:16]
        self._table = LineTable(self._file, f"{path.stem}_{digest}")

    def __call__(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the names of integers of any shape, "" for unknown ones."""
        names = self._table.lookup(numbers)
        return (
            tf.where(names == _BLANK, "", names) if self._has_blank else names
        )


def require_lines(names: Iterable[str], file: str) -> None:
    """Raises InputError if a name cannot be one line of a file."""
    for number, name in enumerate(names):
        if len(f"{name}.".splitlines()) > 1:
            raise in_file(file, f"name {number}, {name!r}, has several lines.")


class Served(tf.Module, abc.ABC):
    """A model with its tokenizer and its labels.

    Args:
      model: A built model from `INPUTS` to a dict of outputs.
      encoding: How texts became token ids in training.
      labels: The names of the classes, if there are any.

    Attributes:
      kind: The kind of model, for the model card.
      text_names: The names of `inputs`, if all of them are strings [B].
      count_name: The output of `tokenize` with each text's number of rows.
    """

    kind: str
    count_name = "num_windows"
    text_names: tuple[str, ...] = ("text",)

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        labels: Iterable[str] = (),
    ):
        super().__init__()
        self.model = model
        self.encoding = encoding
        self.labels = require_names([*labels])
        self.tokenizer = BertTokenizer(
            encoding.vocab,
            encoding.do_lower_case,
            encoding.strip_accents,
            encoding.max_seq_length,
            padding="longest",
        )
        # The files are read when the SavedModel is written.
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        self.token_names = Names(encoding.vocab, folder / "vocab.txt")
        if self.labels:
            self.label_names = Names(self.labels, folder / "labels.txt")

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The strings of `answer`: name -> shape [None, ...]."""
        return {
            name: tf.TensorSpec([None], tf.string, name)
            for name in self.text_names
        }

    @property
    def token_inputs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of `answer_tokens`: `INPUTS`, int32 [B, S]."""
        return {
            name: tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS
        }

    @property
    def example(self) -> dict[str, list]:
        """Two rows of `inputs`, for the README and the warm-up."""
        texts = ["The ferry was late.", "We had to wait for the boat."]
        return dict.fromkeys(self.text_names, texts)

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns readable outputs, name -> [B, ...] of any type."""
        return self.answer_tokens(self.features(texts))

    @abc.abstractmethod
    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs that do not need the texts."""

    def features(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns `INPUTS`, int32 [B, S], truncated and padded.

        Each row has one text or a pair, in the order of `inputs`, as in
        training: a second text without any token is ignored.
        """
        texts = self.checked(texts)
        parts = [texts[name] for name in self.inputs]
        return self.tokenizer.pack(self.ids(parts), empty_second=False)

    def checked(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same tensors after a check of their shapes and lengths.

        Servers pass on any shape. Without the check, the first op that fails
        would describe its own inputs, or none would fail.

        Raises:
          tf.errors.InvalidArgumentError: If an input does not have the shape
            in `inputs`, or the number of rows of the first input; or if a
            text is longer than `MAX_TEXT_BYTES`.
        """
        checks = []
        first, *_ = self.inputs
        for name, spec in self.inputs.items():
            # As text, since tensors of different lengths cannot be compared.
            expected = _as_text([tf.size(texts[first]), *spec.shape[1:]])
            received = _as_text(tf.shape(texts[name]))
            rows = "" if name == first else f", a row for each {first}"
            message = [
                *(f"Expected {name} of shape [", expected, "]", rows),
                *(". Received: [", received, "]"),
            ]
            # A server may pass another rank than the one in `spec`.
            lengths = tf.reshape(tf.strings.length(texts[name]), [-1])
            limit = (
                f"Expected {name} of at most {MAX_TEXT_BYTES:,} bytes. Split "
                "longer texts."
            )
            checks += [
                tf.debugging.Assert(
                    expected == received, [tf.strings.join(message)]
                ),
                tf.debugging.Assert(
                    tf.reduce_all(lengths <= MAX_TEXT_BYTES), [limit]
                ),
            ]
        with tf.control_dependencies(checks):
            return {name: tf.identity(texts[name]) for name in self.inputs}

    def ids(self, texts: Sequence[tf.Tensor]) -> list[tf.RaggedTensor]:
        """Tokenizes one or two tensors of strings, in one call for speed.

        Each tensor [B] has its own B and becomes int32 ids, ragged [B, (T)].
        """
        if len(texts) == 1:
            return [self.tokenizer.tokenize(texts[0])]
        size = tf.size(texts[0])
        ids = self.tokenizer.tokenize(tf.concat(texts, axis=0))
        return [ids[:size], ids[size:]]

    def rows(
        self, texts: Tensors
    ) -> tuple[tf.Tensor | None, dict[str, tf.Tensor]]:
        """Splits texts into rows, by default one for each text.

        Returns:
          The index of the text of each row, int64 [R], ascending, or None if
          each text has one row; and `INPUTS`, int32 [R, S].
        """
        return None, self.features(texts)

    def tokenize(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the inputs of the model, and their `tokens` as strings.

        If a text may have several rows, they are [B, N, S], padded to the
        largest number of rows, and there is the number of rows of each text,
        int32 [B], named `count_name`.
        """
        text, features = self.rows(texts)
        if text is None:
            names = self.token_names(features["input_ids"])
            return {"tokens": names, **features}
        first, *_ = self.inputs
        num_texts = tf.size(texts[first], tf.int64)
        padding = {"input_ids": self.encoding.vocab.index("[PAD]")}
        by_text = {
            name: tf.RaggedTensor.from_value_rowids(
                values, text, num_texts, validate=False
            )
            for name, values in features.items()
        }
        dense = {
            name: values.to_tensor(padding.get(name, 0))
            for name, values in by_text.items()
        }
        num_rows = by_text["input_ids"].row_lengths()
        return {
            self.count_name: tf.cast(num_rows, tf.int32),
            "tokens": self.token_names(dense["input_ids"]),
            **dense,
        }


def _as_text(shape: tf.Tensor) -> tf.Tensor:
    """Returns sizes, int32 [N], as one string: "2,3"."""
    return tf.strings.reduce_join(tf.strings.as_string(shape), separator=",")


class ServedWindows(Served):
    """A model that splits texts into windows, as in training.

    Without a `doc_stride`, texts are truncated instead.
    """

    @property
    def _is_split(self) -> bool:
        # A `TextEncoding` has no windows.
        return getattr(self.encoding, "doc_stride", None) is not None

    def rows(
        self, texts: Tensors
    ) -> tuple[tf.Tensor | None, dict[str, tf.Tensor]]:
        """See `Served`; the rows of split texts are windows."""
        if not self._is_split:
            return super().rows(texts)
        # String ops only have CPU kernels.
        with tf.device("CPU:0"):
            texts = self.checked(texts)
            ids = self.ids([texts[name] for name in self.inputs])
            return pack_windows(self.tokenizer, ids, self.encoding)


class ServedTask(ServedWindows):
    """Serves the answers of any kind of task, as `predict` computes them.

    Args:
      model: A model of the task, built.
      task: The task.
      is_pair: Whether inputs are pairs of texts.
    """

    def __init__(
        self, model: keras.Model, task: FineTuningTask, is_pair: bool = False
    ):
        super().__init__(model, task.encoding, task.labels)
        self._task = task
        self.kind = task.head
        if is_pair:
            self.text_names = ("text_a", "text_b")

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answers of the task for strings [B]."""
        text, features = self.rows(texts)
        if text is None:
            return self.answer_tokens(features)
        outputs = in_batches(self._row_outputs, features)
        rows = Rows(text, tf.size(texts[self.text_names[0]]))
        return self._decoded(self._task.join(outputs, rows))

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answers of the task for `INPUTS`, int32 [B, S]."""
        return self._decoded(self._row_outputs(features))

    def _decoded(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answers for the outputs of examples."""
        return self._task.decode(outputs)

    def _row_outputs(self, features: Tensors) -> dict[str, tf.Tensor]:
        return self._task.row_outputs(features, self.model(features))
