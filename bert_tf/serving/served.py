"""A model that takes strings: what every kind of export has in common.

A server knows three functions of a SavedModel by their names: `answer` is its
`serving_default`, `answer_tokens` its `tokens`, `tokenize` its `tokenize`. All
take any number of texts, none too. Nothing in them may need a kernel that a
server lacks: core ops, and of TensorFlow Text those of `text.graph`.
"""

import abc
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tokenization.graph import BertTokenizer

# A model that takes strings: what every kind of export has in common.


# Stands for a name of no characters: tables take no blank lines. Google's
# Chinese vocabulary has one, and whoever reads vocabularies strips lines.
_BLANK = " "

# What a model takes, and the signature `tokens` with it.
FEATURES = ("input_ids", "input_mask", "segment_ids")


class Names(tf.Module):
    """Names by number, which a SavedModel keeps as a text file.

    Args:
      names: A line each.
      path: Where the file is written; it has to stay until the export is
        done, and its last part is the file's name there.

    Raises:
      InputError: A name has more than one line.
    """

    def __init__(self, names: Iterable[str], path: pathlib.Path):
        super().__init__()
        names = list(names)
        require_lines(names, path.name)
        self._has_blank = "" in names
        lines = "".join(f"{name or _BLANK}\n" for name in names)
        # Half a character, as JSON can spell it, becomes a question mark.
        path.write_bytes(lines.encode("utf-8", errors="replace"))
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                str(path),
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
            ),
            default_value="",
        )

    def __call__(self, numbers: tf.Tensor) -> tf.Tensor:
        """The names of integers of any shape; "" for one that has none."""
        names = self._table.lookup(tf.cast(numbers, tf.int64))
        return (
            tf.where(names == _BLANK, "", names) if self._has_blank else names
        )


def require_lines(names: Iterable[str], file: str) -> None:
    """Raises InputError for names that cannot each be a line of a file."""
    for number, name in enumerate(names):
        if len(f"{name}.".splitlines()) > 1:
            raise InputError(
                f"expected names of one line in {file}. Received: {name!r}, "
                f"number {number}"
            )


class Served(tf.Module, abc.ABC):
    """A model with its tokenizer and its names.

    Args:
      model: A built model; it takes `FEATURES` and gives a dict of outputs.
      encoding: How its texts became ids when it was trained.
      labels: Names of what it tells apart, if it does.

    Attributes:
      kind: What it is, in a word or two; for the model card.
    """

    kind: str

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        labels: Iterable[str] = (),
    ):
        super().__init__()
        self.model = model
        self.encoding = encoding
        self.labels = tuple(labels)
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
    @abc.abstractmethod
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The strings that it takes: name -> shape [None, ...]."""

    @property
    def token_inputs(self) -> dict[str, tf.TensorSpec]:
        """What `answer_tokens` takes: `FEATURES`, int32 [B, S]."""
        return {
            name: tf.TensorSpec([None, None], tf.int32, name)
            for name in FEATURES
        }

    @property
    @abc.abstractmethod
    def example(self) -> dict[str, list]:
        """Two rows of `inputs`, to try it with and to warm it up."""

    @abc.abstractmethod
    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What people can read: name -> [B, ...] of any type."""

    @abc.abstractmethod
    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """What can be said without the texts, from `token_inputs`."""

    def features(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`FEATURES`, int32 [B, S]: cut where too long, as long as the longest.

        Those of a text alone or of a pair, in the order of `inputs`, as
        `data.features` makes them: a second text without any piece is none.
        """
        texts = self.checked(texts)
        parts = [texts[name] for name in self.inputs]
        return self.tokenizer.pack(self.ids(parts), empty_second=False)

    def checked(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the same tensors after a check of their shapes.

        Clients send any shape and servers pass it on. Without the check the
        first op that fails would describe its own inputs, or none would fail.

        Raises:
          tf.errors.InvalidArgumentError: An input has not the shape of
            `inputs`, or not as many rows as the first one.
        """
        checks = []
        first, *_ = self.inputs
        for name, spec in self.inputs.items():
            # As text: shapes of different ranks cannot be compared otherwise.
            expected = _as_text([tf.size(texts[first]), *spec.shape[1:]])
            received = _as_text(tf.shape(texts[name]))
            rows = "" if name == first else f", a row for each {first}"
            message = [
                *(f"Expected {name} of shape [", expected, "]", rows),
                *(". Received: [", received, "]"),
            ]
            checks.append(
                tf.debugging.Assert(
                    expected == received, [tf.strings.join(message)]
                )
            )
        with tf.control_dependencies(checks):
            return {name: tf.identity(texts[name]) for name in self.inputs}

    def ids(self, texts: Sequence[tf.Tensor]) -> list[tf.RaggedTensor]:
        """Tokenizes one or two tensors of strings at once, for time.

        Args:
          texts: Strings, each a [B] of its own.

        Returns:
          For each int32 ids, ragged [B, (T)].
        """
        if len(texts) == 1:
            return [self.tokenizer.tokenize(texts[0])]
        size = tf.size(texts[0])
        ids = self.tokenizer.tokenize(tf.concat(texts, axis=0))
        return [ids[:size], ids[size:]]

    def tokenize(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the model sees: `features`, and the tokens by their names."""
        features = self.features(texts)
        return {"tokens": self.token_names(features["input_ids"]), **features}


def _as_text(shape: tf.Tensor) -> tf.Tensor:
    """Sizes, int32 [N], as one string: "2,3"."""
    return tf.strings.reduce_join(tf.strings.as_string(shape), separator=",")


# Texts that take several rows of a model, since they are long.


# The memory that a request takes goes no further than this.
ROWS_AT_A_TIME = 32


def in_parts(
    compute: Callable[[dict[str, tf.Tensor]], Mapping[str, tf.Tensor]],
    features: Mapping[str, tf.Tensor],
    nothing: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """What `compute` gives for all rows, computed some of them at a time.

    Args:
      compute: From some rows of the features to tensors of as many rows; it
        is never called with none.
      features: Dict of tensors [R, S].
      nothing: What it would give for none, by the names of what is wanted:
        [0, S, ...].

    Returns:
      Dict with the keys of `nothing`, tensors [R, S, ...].
    """
    num_rows = tf.shape(features["input_ids"])[0]

    def step(first, done):
        last = first + ROWS_AT_A_TIME
        some = compute(
            {name: ids[first:last] for name, ids in features.items()}
        )
        return last, {
            name: tf.concat([values, some[name]], axis=0)
            for name, values in done.items()
        }

    shapes = {
        name: tf.TensorShape([None, None, *values.shape[2:]])
        for name, values in nothing.items()
    }
    _, done = tf.while_loop(
        lambda first, done: first < num_rows,
        step,
        (0, dict(nothing)),
        shape_invariants=(tf.TensorShape([]), shapes),
        # One after another, as that is what saves memory.
        parallel_iterations=1,
    )
    return done


def shown(
    served: Served,
    features: Mapping[str, tf.Tensor],
    texts: tf.Tensor,
    num_texts: tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The rows of each text, and their tokens.

    Args:
      served: Whose rows they are.
      features: Dict of int32 [R, S].
      texts: The text that each row is of, int64 [R], in order.
      num_texts: B.

    Returns:
      How many rows there are of each text, int32 [B]; and a dict of `tokens`
      and the features, [B, N, S] for the most, N, that a text has: behind its
      last there are such of padding alone.
    """
    padding = {"input_ids": served.encoding.vocab.index("[PAD]")}
    by_text = {
        name: tf.RaggedTensor.from_value_rowids(
            values, texts, tf.cast(num_texts, tf.int64), validate=False
        )
        for name, values in features.items()
    }
    seen = {
        name: values.to_tensor(padding.get(name, 0))
        for name, values in by_text.items()
    }
    num_rows = tf.cast(by_text["input_ids"].row_lengths(), tf.int32)
    return num_rows, {"tokens": served.token_names(seen["input_ids"]), **seen}
