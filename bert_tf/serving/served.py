"""Models with their tokenizer: strings in, answers out.

An export has three signatures: `serving_default` calls `Served.answer`,
`tokens` calls `answer_tokens`, and `tokenize` calls `tokenize`. All accept any
number of texts, including none. They may use only core ops and the ops of
TensorFlow Text in `tokenization.graph`, since servers lack others.
"""

import abc
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.data.records import INPUTS
from bert_tf.errors import in_file, require_names
from bert_tf.tasks.encoding import Encoding, TextEncoding
from bert_tf.tasks.masked_words import MASK, MaskedWordsTask, mask_cut_off
from bert_tf.tasks.task import FineTuningTask, Rows
from bert_tf.tokenization.graph import BertTokenizer
from bert_tf.tokenization.packing import truncated_lengths
from bert_tf.tokenization.vocabulary_file import require_special_tokens

# A longer text would keep a server busy, and other clients waiting.
MAX_TEXT_BYTES = 100_000


Tensors = Mapping[str, tf.Tensor]

# Limits the memory of a request.
BATCH_SIZE = 32


class Names(tf.Module):
    """Names by number, which a SavedModel also has as a text file.

    A table of `tf.lookup` would be named after the path of its file, and the
    export would contain this path.

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
        # Half of a surrogate pair, which JSON can contain, becomes "?".
        lines = [name.encode("utf-8", errors="replace") for name in names]
        # Readers of vocabularies strip lines, and may skip empty ones.
        path.write_bytes(b"".join((line or b" ") + b"\n" for line in lines))
        self._file = tf.saved_model.Asset(str(path))
        self._names = np.array([*lines, b""], object)

    def __call__(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the names of integers of any shape, "" for unknown ones."""
        last = len(self._names) - 1
        numbers = tf.cast(numbers, tf.int64)
        is_known = (numbers >= 0) & (numbers < last)
        return tf.gather(self._names, tf.where(is_known, numbers, last))


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
        would describe its own inputs, or no op would fail.

        Raises:
          tf.errors.InvalidArgumentError: If an input does not have the shape
            in `inputs`, or the number of rows of the first input; or if a
            text is longer than `MAX_TEXT_BYTES`.
        """
        first, *_ = self.inputs
        checked = {}
        for name, spec in self.inputs.items():
            # As text, since tensors of different lengths cannot be compared.
            expected = _as_text([tf.size(texts[first]), *spec.shape[1:]])
            received = _as_text(tf.shape(texts[name]))
            rows = "" if name == first else f", a row for each {first}"
            message = [
                *(f"Expected {name} of shape [", expected, "]", rows),
                *(". Received: [", received, "]"),
            ]
            checked[name] = _asserted(
                texts[name], expected == received, tf.strings.join(message)
            )
            lengths = tf.strings.length(checked[name])
            checked[name] = _asserted(
                checked[name],
                tf.reduce_all(lengths <= MAX_TEXT_BYTES),
                f"Expected {name} of at most {MAX_TEXT_BYTES:,} bytes. Split "
                "longer texts.",
            )
        return checked

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

        If a text may have several rows, the shapes are [B, N, S], padded to the
        largest number of rows, N. The output named `count_name` is then each
        text's number of rows, int32 [B].
        """
        text, features = self.rows(texts)
        counts = {}
        if text is not None:
            first, *_ = self.inputs
            num_texts = tf.size(texts[first], tf.int64)
            padding = {"input_ids": self.encoding.vocab.index("[PAD]")}
            for name, values in features.items():
                by_text = tf.RaggedTensor.from_value_rowids(
                    values, text, num_texts, validate=False
                )
                features[name] = by_text.to_tensor(padding.get(name, 0))
            counts[self.count_name] = tf.cast(by_text.row_lengths(), tf.int32)
        names = self.token_names(features["input_ids"])
        return {**counts, "tokens": names, **features}


def _asserted(x: tf.Tensor, condition: tf.Tensor, message: Any) -> tf.Tensor:
    """Returns `x`, which is computed only if the condition is true."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(x)


def _as_text(shape: tf.Tensor) -> tf.Tensor:
    """Returns sizes, int32 [N], as one string: "2,3"."""
    return tf.strings.reduce_join(tf.strings.as_string(shape), separator=",")


class ServedTask(Served):
    """Serves the answers of any kind of task, as `predict` computes them.

    With a `doc_stride`, texts are split into windows, as in training; otherwise
    they are truncated.

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
        self.kind = task.kind
        if is_pair:
            self.text_names = ("text_a", "text_b")

    def rows(
        self, texts: Tensors
    ) -> tuple[tf.Tensor | None, dict[str, tf.Tensor]]:
        """See `Served`; the rows of split texts are windows."""
        # A `TextEncoding` has no windows.
        if getattr(self.encoding, "doc_stride", None) is None:
            return super().rows(texts)
        # String ops only have CPU kernels.
        with tf.device("CPU:0"):
            texts = self.checked(texts)
            ids = self.ids([texts[name] for name in self.inputs])
            return pack_windows(self.tokenizer, ids, self.encoding)

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


class ServedMaskedLM(Served):
    """Maps texts with `[MASK]` tokens to the words that fit.

    Args:
      model: A `BertPretrainer`, built.
      encoding: How texts became ids in training.
      top_k: The number of candidates for each mask, k, at most all tokens.

    Raises:
      InputError: If `top_k` is below 1, or the vocabulary has no `[MASK]`.
    """

    kind = "masked language model"

    def __init__(
        self, model: keras.Model, encoding: TextEncoding, top_k: int = 5
    ):
        vocab = encoding.tokenizer.vocab
        require_special_tokens(vocab, [MASK])
        super().__init__(model, encoding)
        self._task = MaskedWordsTask(model.config, encoding, top_k=top_k)
        self._mask_id = vocab[MASK]

    @property
    def example(self) -> dict[str, list]:
        return {
            "text": [
                f"The capital of France is {MASK}.",
                f"She put the {MASK} on the table and sat {MASK}.",
            ]
        }

    def features(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns `INPUTS`, int32 [B, S], in which `[MASK]` is one token.

        Raises:
          tf.errors.InvalidArgumentError: If a mask is truncated.
        """
        texts = self.checked(texts)
        ids = self.tokenizer.tokenize(texts["text"], keep=MASK)
        features = self.tokenizer.pack([ids])
        before, after = (
            tf.math.count_nonzero(tokens == self._mask_id)
            for tokens in (ids.values, features["input_ids"])
        )
        message = mask_cut_off(self.encoding.max_seq_length)
        tf.debugging.Assert(before == after, [message])
        return features

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Predicts the words of each mask while the other masks stay in place.

        Returns:
          `num_blanks`, the number of masks of each text, at most M, int32 [B];
          and for each mask, in text order, `words`, the most likely first,
          strings [B, M, k], and their `probabilities`, float32 [B, M, k]. Texts
          with fewer than M masks are padded with "" and 0.
        """
        positions = tf.where(features["input_ids"] == self._mask_id)  # [N, 2]
        bert = self.model.bert
        vectors = tf.gather_nd(bert(features)["sequence_output"], positions)
        # The head takes them as one text in which every token is masked.
        logits = self.model.cls.masked_lm(
            vectors[tf.newaxis], None, bert.embeddings.word_embeddings
        )
        answer = self._task.best_words(logits[0])

        def by_text(values):
            return tf.RaggedTensor.from_value_rowids(
                values,
                positions[:, 0],
                nrows=tf.shape(features["input_ids"], tf.int64)[0],
                validate=False,
            )

        num_blanks = by_text(answer["ids"]).row_lengths()
        return {
            "num_blanks": tf.cast(num_blanks, tf.int32),
            "words": by_text(self.token_names(answer["ids"])).to_tensor(),
            "probabilities": by_text(answer["probabilities"]).to_tensor(),
        }


# Texts that take several rows of a model: the same windows as `tasks.encoding`
# and `tasks.windows` make in NumPy.


def in_batches(
    compute: Callable[[dict[str, tf.Tensor]], Tensors],
    features: Tensors,
    nothing: Tensors | None = None,
) -> dict[str, tf.Tensor]:
    """Returns the result of `compute` for all rows, `BATCH_SIZE` at a time.

    Args:
      compute: Maps one or more rows of the features to rows of outputs.
      features: Tensors [R, ...] by name.
      nothing: Initial rows, usually empty, [0, ...]; their keys select outputs.
        By default no rows of each output; other sizes must then be known.

    Returns:
      Tensors with the keys of `nothing`.
    """
    num_rows = tf.shape(next(iter(features.values())))[0]
    if nothing is None:
        specs = {
            name: tf.TensorSpec([None, *ids.shape[1:]], ids.dtype)
            for name, ids in features.items()
        }
        graph = tf.function(compute, autograph=False)
        outputs = graph.get_concrete_function(specs).structured_outputs
        nothing = {
            name: tf.zeros([0, *output.shape[1:]], output.dtype)
            for name, output in outputs.items()
        }

    def step(first, outputs):
        last = first + BATCH_SIZE
        some = compute(
            {name: ids[first:last] for name, ids in features.items()}
        )
        return last, {
            name: tf.concat([values, some[name]], axis=0)
            for name, values in outputs.items()
        }

    shapes = {
        name: tf.TensorShape([None, *values.shape[1:]])
        for name, values in nothing.items()
    }
    _, outputs = tf.while_loop(
        lambda first, outputs: first < num_rows,
        step,
        (0, dict(nothing)),
        shape_invariants=(tf.TensorShape([]), shapes),
        # Parallel iterations would need more memory.
        parallel_iterations=1,
    )
    return outputs


def window_ranges(
    num_tokens: tf.Tensor, room: tf.Tensor, doc_stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits texts like `tasks.windows.window_spans`.

    Args:
      num_tokens: The number of tokens of each text, int64 [B].
      room: The largest number of tokens in a window of each text, int64 [B].
      doc_stride: Tokens from the start of a window to the start of the next.

    Returns:
      For each window the index of its text, the number of its first token in
      the text, and its number of tokens, int64 [W].
    """
    step = tf.maximum(tf.minimum(room, doc_stride), 1)
    # The negative signs round the division up.
    steps = -(-tf.maximum(num_tokens - room, 0) // step)
    numbers = tf.ragged.range(steps + 1)
    text = numbers.value_rowids()  # [W]
    start = numbers.values * tf.gather(step, text)
    length = tf.minimum(
        tf.gather(room, text), tf.gather(num_tokens, text) - start
    )
    return text, start, length


def max_context(
    tokens: tf.RaggedTensor, num_tokens: tf.Tensor
) -> tf.RaggedTensor:
    """Returns whether each window owns each of its tokens.

    Vectorized `_check_is_max_context` of the original: the score of a token in
    a window is the smaller number of tokens to its left and right, plus 1 % of
    the window's length. The first window with the highest score owns it.
    """
    window = tokens.value_rowids()  # [P], all tokens of all windows
    left = tf.ragged.range(tokens.row_lengths()).values
    length = tf.gather(tokens.row_lengths(), window)
    around = tf.minimum(left, length - 1 - left)
    # In float64, as in NumPy, so that the same scores are equal in both.
    score = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    token = tokens.values
    best = tf.math.unsorted_segment_max(score, token, num_tokens)
    is_best = score == tf.gather(best, token)
    owner = tf.math.unsorted_segment_min(
        tf.where(is_best, window, window.dtype.max), token, num_tokens
    )
    return tokens.with_values(tf.gather(owner, token) == window)


def pack_windows(
    tokenizer: BertTokenizer,
    ids: Sequence[tf.RaggedTensor],
    encoding: Encoding,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the windows of texts or pairs, as `tasks.encoding` makes them.

    Args:
      tokenizer: Packs the tokens.
      ids: The tokens of the texts, or of the first and second texts of pairs,
        int32, ragged [B, (T)].
      encoding: Has `max_seq_length` and `doc_stride`.

    Returns:
      The index of the text of each window, int64 [W], and the inputs of the
      model, int32 [W, S].
    """
    # A text without a second one is a pair with an empty one.
    parts = [ids[0], ids[1] if len(ids) > 1 else ids[0][:, :0]]
    first, second = (part.row_lengths() for part in parts)
    room = encoding.max_seq_length - tf.where(second > 0, 3, 2)
    keeps = truncated_lengths(
        first, second, tf.cast(room, tf.int64), tf.minimum, tf.maximum
    )
    is_split = [first > second, first <= second]
    text, start, length = window_ranges(
        tf.where(is_split[0], first, second),
        tf.where(is_split[0], *keeps),
        encoding.doc_stride,
    )

    def shown(part, keep, is_split):
        is_split = tf.gather(is_split, text)
        begin = tf.gather(part.row_starts(), text)
        begin += tf.where(is_split, start, 0)
        size = tf.where(is_split, length, tf.gather(keep, text))
        return tf.gather(part.values, tf.ragged.range(begin, begin + size))

    rows = map(shown, parts, keeps, is_split)
    return text, tokenizer.pack([*rows], empty_second=False)
