"""From texts to rows: encodings, texts with labels, windows of long texts."""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from absl import logging

from bert_tf.base import processes
from bert_tf.base.processes import Faults
from bert_tf.config import TOKEN_POOLINGS
from bert_tf.data import cache
from bert_tf.data.batching import Features, in_memory
from bert_tf.data.records import Schema, classification_schema
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    require_choice,
    wrong_value,
)
from bert_tf.tasks.examples import Example
from bert_tf.tokenization.packing import pack, truncated_lengths
from bert_tf.tokenization.vocabulary_file import require_special_tokens
from bert_tf.tokenization.wordpiece import FullTokenizer

Item = TypeVar("Item")

# How the outputs of a text's windows become the outputs of the text; see
# `task.Rows.pool`.
WINDOW_POOLINGS = tuple(name for name in TOKEN_POOLINGS if name != "cls")

# One process tokenizes this many in 3 to 4 s; starting more takes 1 s.
_EXAMPLES_FOR_ONE = 1 << 17

_NUM_SAMPLES = 3

# The length of a pair whose texts have one token each.
_LEAST_OF_PAIR = 5


@dataclasses.dataclass(frozen=True)
class TextEncoding:
    """How texts become sequences of token ids, for every kind of task.

    Attributes:
      vocab: The tokens, in the order of their ids.
      do_lower_case: Whether to lower-case texts.
      strip_accents: Whether to remove accents; default: `do_lower_case`.
      max_seq_length: The sequence length, including special tokens.
    """

    vocab: tuple[str, ...]
    do_lower_case: bool
    strip_accents: bool | None
    max_seq_length: int

    @property
    def tokenizer(self) -> FullTokenizer:
        """The tokenizer; a process keeps the latest one.

        Raises:
          InputError: The vocabulary lacks a special token.
        """
        global _latest
        arguments = self.vocab, self.do_lower_case, self.strip_accents
        latest = _latest  # Other threads may replace it meanwhile.
        if latest is None or latest[0] != arguments:
            tokenizer = FullTokenizer(*arguments)
            require_special_tokens(tokenizer.vocab, ["[CLS]", "[SEP]"])
            _latest = latest = arguments, tokenizer
        return latest[1]


# The latest tokenizer and its arguments. `functools.cache` would hash every
# token at each call, which takes longer than tokenizing a text. Comparing a
# tuple with itself takes no time.
_latest: tuple[tuple, FullTokenizer] | None = None


class Encoded(NamedTuple):
    """The rows of some examples.

    Attributes:
      batch: For each feature of the schema an array [R, *shape].
      counts: The number of rows of each example, int [n].
      num_cut: The number of examples, or of words, that were truncated.
      faults: Flaws of the examples, if any, to be logged.
    """

    batch: dict[str, np.ndarray]
    counts: np.ndarray
    num_cut: int = 0
    faults: Faults | None = None


class RowEncoding(TextEncoding, abc.ABC, Generic[Item]):
    """How the examples of one kind of task become rows of features.

    A subclass is a frozen dataclass. Everything that affects rows is a field,
    since records are reused as long as the fields and the examples stay the
    same.

    Attributes, in addition to `TextEncoding`'s:
      labels: The names of the labels, ordered by id; () if there are none.
      doc_stride: The number of tokens from one window to the next; None if an
        example has no windows.
      unit: What an example is called in the log, in the plural.
      cut_unit: What `Encoded.num_cut` counts, in the plural.
      rows_per_part: About how many rows are made at a time.
    """

    labels: tuple[str, ...] = ()
    doc_stride: int | None = None
    unit: ClassVar[str] = "examples"
    cut_unit: ClassVar[str] = "examples"
    rows_per_part: ClassVar[int] = 1 << 12

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """The features of a row."""

    @abc.abstractmethod
    def encode(self, examples: Sequence[Item]) -> Encoded:
        """Tokenizes, packs and pads examples.

        The rows of an example are adjacent. An example without rows is
        skipped. The memory needed grows with the number of rows: see `split`.

        Raises:
          InputError: An example does not fit the encoding.
        """

    @abc.abstractmethod
    def fingerprint(self, example: Item) -> bytes:
        """Returns the parts of an example that determine its rows."""

    def split(
        self, examples: Iterable[Item], num_rows: int | None = None
    ) -> Iterator[list[Item]]:
        """Yields parts of one example or more, with about `num_rows` rows.

        The default is `rows_per_part`. The number of windows is estimated at
        three characters per token, without tokenizing.
        """
        part: list[Item] = []
        size, most, count = 0, num_rows or self.rows_per_part, 1
        for example in examples:
            if self.doc_stride is not None:
                length = self.num_characters(example)
                count = 1 + length // (3 * self.doc_stride)
            if part and size + count > most:
                yield part
                part, size = [], 0
            part.append(example)
            size += count
            if size >= most:
                yield part
                part, size = [], 0
        if part:
            yield part

    def num_characters(self, example: Item) -> int:
        """Returns the number of characters to split; 0 if unknown."""
        del example
        return 0

    def count_rows(self, examples: Sequence[Item]) -> int:
        """Returns the number of rows; logs the faults of examples."""
        return sum(int(e.counts.sum()) for e in self._encode_parts(examples))

    def features(self, examples: Sequence[Item]) -> Features:
        """Returns the rows of all examples, in memory.

        The array `example_index` has the index of each row's example.

        Raises:
          InputError: An example does not fit the encoding, or none has a row.
        """
        counts: list[np.ndarray] = []

        def batches() -> Iterator[dict[str, np.ndarray]]:
            for encoded in self._encode_parts(examples):
                counts.append(encoded.counts)
                yield encoded.batch

        features = in_memory(batches(), self.schema)
        features.arrays["example_index"] = np.repeat(
            np.arange(len(examples), dtype=np.int32), np.concatenate(counts)
        )
        return features

    def _encode_parts(self, examples: Iterable[Item]) -> Iterator[Encoded]:
        """Encodes examples in parts, then warns of their faults."""
        faults = Faults()
        for encoded in map(self.encode, self.split(examples)):
            faults.update(encoded.faults or Faults())
            yield encoded
        faults.log()

    def write(
        self,
        path: str,
        examples: Sequence[Item],
        *,
        sources: Iterable[str] = (),
        num_workers: int = 1,
    ) -> bool:
        """Writes the rows of examples as records, unless the file has them.

        Args:
          path: The TFRecord file; see `cache.write_records`.
          examples: The examples, in the order of the records.
          sources: The files that the examples were read from.
          num_workers: The number of processes for large data sets. The records
            do not depend on it.

        Returns:
          Whether the file was written: False if it was reused.

        Raises:
          InputError: An example does not fit the encoding; a file cannot be
            read or written.
        """
        key = cache.key(self, map(self.fingerprint, examples), sources)
        if len(examples) <= _EXAMPLES_FOR_ONE:
            num_workers = 1
        cached = cache.write_records(
            path, key, lambda: self._tracked_blocks(examples, num_workers)
        )
        logging.info(
            "%s: %s %s in %s rows of at most %d tokens; truncated %s: %s",
            path,
            f"{len(examples):,}",
            self.unit,
            f"{cached.num_records:,}",
            self.max_seq_length,
            self.cut_unit,
            f"{cached.num_cut:,}",
        )
        return cached.is_new

    def make_blocks(
        self, parts: Iterable[Sequence[Item]], num_workers: int
    ) -> Iterator[cache.RecordBlock]:
        """Yields the records of each part, in order."""
        with processes.Pool(num_workers) as pool:
            yield from pool.run(parts, self._make_block)

    def _make_block(self, examples: Sequence[Item]) -> cache.RecordBlock:
        encoded = self.encode(examples)
        return cache.make_block(
            self.schema, encoded.batch, encoded.num_cut, len(examples)
        )

    def _tracked_blocks(
        self, examples: Sequence[Item], num_workers: int
    ) -> Iterator[cache.RecordBlock]:
        for example in examples[:_NUM_SAMPLES]:
            logging.info("*** Example ***")
            batch = self.encode([example]).batch
            for line in self.sample_lines(example, batch):
                logging.info("%s", line)
        yield from processes.track(
            self.make_blocks(self.split(examples), num_workers),
            lambda block: block.num_examples,
            "Tokenizing",
            self.unit,
            len(examples),
        )

    def sample_lines(
        self, example: Item, batch: Mapping[str, np.ndarray]
    ) -> Iterator[str]:
        """Yields lines that show an example and its rows, without padding."""
        length = self.max_seq_length
        for row, mask in zip(
            batch["input_ids"].reshape(-1, length),
            batch["input_mask"].reshape(-1, length) > 0,
            strict=True,
        ):
            ids = row[mask].tolist()
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            yield f"tokens: {' '.join(tokens)}"
            yield f"input_ids: {' '.join(map(str, ids))}"


class _Sequence(NamedTuple):
    """A text or a pair with special tokens, without padding."""

    input_ids: list[int]
    segment_ids: list[int]
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class Encoding(RowEncoding[Example]):
    """How sentence-level examples become features.

    Attributes, in addition to `TextEncoding`'s:
      problem: One of `examples.PROBLEMS`, or "similarity": the label is the
        similarity of two texts, each with its own sequence.
      labels: The names of the classes, or of the choices, in the order of
        their ids; () for regression.
      num_choices: The number of choices for multiple choice, otherwise 0.
      doc_stride: If given, texts that are too long become windows, which start
        this many tokens apart. Each window is a row. In a pair that is too
        long, the longer text (the second on ties) becomes windows, and the
        other is truncated as without windows. By default texts are truncated.
      window_pooling: How the logits of a text's windows are pooled, one of
        `WINDOW_POOLINGS`.

    Raises:
      InputError: `doc_stride` is given for multiple choice or similarity, or
        `max_seq_length` is too small for it, or `window_pooling` is unknown.
    """

    problem: str
    labels: tuple[str, ...] = ()
    num_choices: int = 0
    doc_stride: int | None = None
    window_pooling: str = "mean"

    def __post_init__(self) -> None:
        if self.doc_stride is None:
            return
        require_choice("window_pooling", self.window_pooling, WINDOW_POOLINGS)
        if self.problem in ("multiple_choice", "similarity"):
            raise InputError(
                f"`doc_stride` does not support {self.problem}. Leave it out."
            )
        if self.max_seq_length < _LEAST_OF_PAIR:
            raise wrong_value(
                "max_seq_length",
                f"at least {_LEAST_OF_PAIR} with doc_stride",
                self.max_seq_length,
            )

    @property
    def schema(self) -> Schema:
        return classification_schema(
            self.max_seq_length,
            self.problem,
            len(self.labels),
            self.num_choices,
            has_windows=self.doc_stride is not None,
        )

    def fingerprint(self, example: Example) -> bytes:
        return repr(
            (example.text_a, example.text_b, example.choices, example.label)
        ).encode()

    def num_characters(self, example: Example) -> int:
        return len(example.text_a) + len(example.text_b or "")

    def count_rows(self, examples: Sequence[Example]) -> int:
        if self.doc_stride is None:
            return len(examples)
        return super().count_rows(examples)

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """Tokenizes, packs and pads examples.

        An example without a label has label 0, as in the original, or NaN for
        similarities. Raises InputError if a label or a number of choices does
        not fit the encoding.
        """
        # Looking up the tokenizer takes as long as tokenizing a short text.
        tokenizer = self.tokenizer
        sequences_of = [[*self._sequences(e, tokenizer)] for e in examples]
        sequences = [*itertools.chain.from_iterable(sequences_of)]
        counts = np.ones(len(sequences_of), int)
        if self.doc_stride is not None:
            counts = np.array([*map(len, sequences_of)], int)
        width = self.max_seq_length
        input_ids, input_mask = pad([s.input_ids for s in sequences], width)
        segment_ids, _ = pad([s.segment_ids for s in sequences], width)
        batch = {
            "input_ids": input_ids,
            "input_mask": input_mask,
            "segment_ids": segment_ids,
            "label_ids": np.repeat(self._label_ids(examples), counts, axis=0),
            "is_real_example": np.ones(counts.sum(), np.int32),
            "window_numbers": np.array(
                [number for count in counts for number in range(count)], int
            ),
            "num_windows": np.repeat(counts, counts),
        }
        # The two texts to compare, or the choices, are sequences of one row.
        # Without windows, the schema lacks the last two features.
        batch = {
            feature.name: batch[feature.name].reshape(-1, *feature.shape)
            for feature in self.schema
        }
        num_cut = sum(
            any(s.is_cut for s in of_example) for of_example in sequences_of
        )
        return Encoded(batch, counts, num_cut)

    def sample_lines(
        self, example: Example, batch: Mapping[str, np.ndarray]
    ) -> Iterator[str]:
        yield f"guid: {example.id}"
        yield from super().sample_lines(example, batch)
        number = batch["label_ids"][0].tolist()
        yield f"label: {example.label} (id = {number})"

    def _sequences(
        self, example: Example, tokenizer: FullTokenizer
    ) -> Iterator[_Sequence]:
        """Yields the sequence of an example, or of each choice or window."""
        cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
        pairs = self._texts(example)
        # Choices share their first text.
        ids = {
            text: tokenizer.encode(text or "")
            for pair in pairs
            for text in pair
        }
        for text_a, text_b in pairs:
            # As in the original, a second text without tokens is ignored.
            for a, b, is_cut in self._windows(ids[text_a], ids[text_b] or None):
                packed = pack(a, b, self.max_seq_length, cls_id, sep_id)
                yield _Sequence(*packed, is_cut)

    def _texts(self, example: Example) -> list[tuple[str, str | None]]:
        """Returns one or two texts for each sequence of an example."""
        if self.problem == "similarity":
            return [(example.text_a, None), (example.text_b or "", None)]
        if self.problem != "multiple_choice":
            return [(example.text_a, example.text_b)]
        if len(example.choices) != self.num_choices:
            raise in_file(
                example.where,
                f"expected {self.num_choices} choices, found "
                f"{len(example.choices)}.",
            )
        return [(example.text_a, choice) for choice in example.choices]

    def _windows(
        self, ids_a: list[int], ids_b: list[int] | None
    ) -> Iterator[tuple[list[int], list[int] | None, bool]]:
        """Yields the texts of each window, and whether any is truncated."""
        length_a, length_b = len(ids_a), len(ids_b or ())
        room = self.max_seq_length - (2 if ids_b is None else 3)
        keep_a, keep_b = truncated_lengths(length_a, length_b, room)
        stride = self.doc_stride
        if stride is None:
            yield ids_a, ids_b, (keep_a, keep_b) != (length_a, length_b)
        elif ids_b is None or length_a > length_b:
            for start, end in window_spans(length_a, keep_a, stride):
                second = None if ids_b is None else ids_b[:keep_b]
                yield ids_a[start:end], second, keep_b < length_b
        else:
            for start, end in window_spans(length_b, keep_b, stride):
                yield ids_a[:keep_a], ids_b[start:end], keep_a < length_a

    def _label_ids(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns labels as numbers, [n]; for multi-label 0 or 1, [n, C]."""
        numbers = {name: number for number, name in enumerate(self.labels)}
        [feature] = [f for f in self.schema if f.name == "label_ids"]
        unknown = np.nan if self.problem == "similarity" else 0
        label_ids = np.full(
            [len(examples), *feature.shape], unknown, feature.dtype
        )
        for row, example in enumerate(examples):
            if example.label is None:
                continue
            try:
                value = label_id(example.label, self.problem, numbers)
            except (KeyError, OverflowError, TypeError, ValueError):
                expected = "a finite number"
                if self.labels:
                    names = listed(self.labels, last="or", most=20)
                    expected = f"one of {names}"
                hint = did_you_mean(str(example.label), self.labels)
                raise in_file(
                    example.where,
                    f"the label must be {expected}; got {example.label!r}."
                    f"{hint}",
                ) from None
            label_ids[row] = value
        return label_ids


def pad(
    rows: Sequence[Sequence[int]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns padded rows and their mask, both int32 [n, width]."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    mask = np.arange(width) < lengths[:, np.newaxis]
    padded = np.zeros(mask.shape, np.int32)
    padded[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return padded, mask.astype(np.int32)


def label_id(label: Any, problem: str, numbers: Mapping[str, int]) -> Any:
    """Returns a label as a number, or as 0 and 1, [labels], for multi-label.

    `numbers` are the ids of the labels. A label that does not fit raises a
    KeyError, OverflowError, TypeError or ValueError.
    """
    if problem in ("regression", "similarity"):
        number = float(label)
        # NaN and infinity would make every weight NaN.
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise ValueError
        return number
    if problem == "multi_label":
        label_ids = np.zeros(len(numbers), int)
        label_ids[[numbers[name] for name in label]] = 1
        return label_ids
    return numbers[label]


# Windows: parts of texts that are longer than the model's sequences.


def window_spans(
    num_tokens: int, room: int, doc_stride: int
) -> list[tuple[int, int]]:
    """Returns the tokens [start, end) of each window over a text.

    Windows advance by `doc_stride`, but never by more than their length, until
    one reaches the end: 10 tokens, room for 4 and a stride of 3 give
    [(0, 4), (3, 7), (6, 10)]. A text without tokens has one empty window.
    """
    step = max(1, min(room, doc_stride))
    starts = range(0, max(num_tokens - room, 0) + step, step)
    return [(start, min(start + room, num_tokens)) for start in starts]


def max_context(
    spans: Sequence[tuple[int, int]], num_tokens: int
) -> list[np.ndarray]:
    """Returns for each window whether it owns each of its tokens, bool [n].

    Vectorized `_check_is_max_context` of the original: the score of a token in
    a window is the smaller number of tokens to its left and right, plus 1 % of
    the window's length. The first window with the highest score owns it.
    """
    best, owner = np.full(num_tokens, -1.0), np.zeros(num_tokens, int)
    for number, (start, end) in enumerate(spans):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * len(left)
        is_better = score > best[start:end]
        best[start:end][is_better] = score[is_better]
        owner[start:end][is_better] = number
    return [
        owner[start:end] == number for number, (start, end) in enumerate(spans)
    ]
