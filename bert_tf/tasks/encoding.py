"""From texts to features: examples of sentences become records."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf.data import cache, processes
from bert_tf.data.schema import Schema, classification_schema
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    require_choice,
    wrong_value,
)
from bert_tf.tasks.examples import Example
from bert_tf.tasks.windows import POOLINGS, split_texts, window_spans
from bert_tf.tokenization.packing import pack, truncated_lengths
from bert_tf.tokenization.vocabulary_file import require_special_tokens
from bert_tf.tokenization.wordpiece import FullTokenizer


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
        """The tokenizer, which is built once in each process.

        Raises:
          InputError: The vocabulary lacks a special token.
        """
        return _tokenizer(self.vocab, self.do_lower_case, self.strip_accents)


@functools.lru_cache(maxsize=1)
def _tokenizer(
    vocab: tuple[str, ...], do_lower_case: bool, strip_accents: bool | None
) -> FullTokenizer:
    tokenizer = FullTokenizer(vocab, do_lower_case, strip_accents)
    require_special_tokens(tokenizer.vocab, ["[CLS]", "[SEP]"])
    return tokenizer


# The number of examples that one process tokenizes at a time.
_EXAMPLES_PER_PART = 1 << 12
# One process tokenizes these in 3 or 4 s; starting more takes 1 s.
_EXAMPLES_FOR_ONE = 1 << 17

_NUM_SAMPLES = 3

# A pair with a token of each text.
_LEAST_OF_PAIR = 5


@dataclasses.dataclass(frozen=True)
class Encoding(TextEncoding):
    """How sentence-level examples become features.

    Attributes, beside those of `TextEncoding`:
      problem: One of `examples.PROBLEMS`, or "similarity": the label is the
        similarity of two texts, each with a sequence of its own.
      labels: The names of the classes, or of the choices, in the order of
        their ids; none for regression.
      num_choices: The number of choices for multiple choice, otherwise 0.
      doc_stride: If given, longer texts become windows, which start this many
        tokens apart, and each window is a row. Of a pair that is too long, the
        longer text (of equal ones the second) becomes windows, and the other
        one is truncated as without windows. None truncates texts.
      window_pooling: How the logits of windows become those of their text, one
        of `windows.POOLINGS`.

    Raises:
      InputError: There are windows for multiple choice, or without room.
    """

    problem: str
    labels: tuple[str, ...]
    num_choices: int = 0
    doc_stride: int | None = None
    window_pooling: str = "mean"

    def __post_init__(self) -> None:
        if self.doc_stride is None:
            return
        require_choice("window_pooling", self.window_pooling, POOLINGS)
        if self.problem in ("multiple_choice", "similarity"):
            raise InputError(f"doc_stride does not support {self.problem}.")
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


class Encoded(NamedTuple):
    """The features of examples.

    Attributes:
      batch: For each feature of the schema an array [n, *shape].
      num_cut: The number of examples, or of words, that were cut to fit.
    """

    batch: dict[str, np.ndarray]
    num_cut: int


class _Sequence(NamedTuple):
    """A text or a pair with special tokens, without padding."""

    input_ids: list[int]
    segment_ids: list[int]
    is_cut: bool


def write_features(
    path: str,
    examples: Sequence[Example],
    encoding: Encoding,
    *,
    sources: Iterable[str] = (),
    num_workers: int = 1,
) -> bool:
    """Writes the records of examples, unless the file has them already.

    Args:
      path: The TFRecord file; see `cache.write_records`.
      examples: The examples, in the order of the records.
      encoding: How examples become features.
      sources: The files that the examples were read from.
      num_workers: The number of processes for large data sets. The records do
        not depend on it.

    Returns:
      Whether the file was written: False if it was reused.

    Raises:
      InputError: A label or a number of choices does not fit the encoding; a
        file cannot be read or written.
    """
    # Records do not depend on the pooling.
    shaping = dataclasses.replace(encoding, window_pooling="mean")
    key = cache.key(shaping, map(content, examples), sources)
    kept = cache.write_records(
        path, key, lambda: _parts(examples, encoding, num_workers)
    )
    in_windows = ""
    if encoding.doc_stride is not None:
        in_windows = f" in {kept.num_records:,} windows"
    logging.info(
        "%s: %s examples%s, %s (%.1f %%) of them cut to max_seq_length=%d",
        path,
        f"{len(examples):,}",
        in_windows,
        f"{kept.num_cut:,}",
        100 * kept.num_cut / max(len(examples), 1),
        encoding.max_seq_length,
    )
    return kept.is_new


def count_rows(examples: Sequence[Example], encoding: Encoding) -> int:
    """Returns the number of rows of examples: windows, if there are any."""
    if encoding.doc_stride is None:
        return len(examples)
    tokenizer = encoding.tokenizer
    return sum(
        sum(1 for _ in _sequences(example, encoding, tokenizer))
        for example in examples
    )


def content(example: Example) -> bytes:
    """Returns the fields of an example that determine its record."""
    return repr(
        (example.text_a, example.text_b, example.choices, example.label)
    ).encode()


def make_features(examples: Sequence[Example], encoding: Encoding) -> Encoded:
    """Tokenizes, packs and pads examples.

    An example without a label has label 0, as in the original, or NaN for
    similarities. The windows of an example are adjacent rows. Raises
    InputError if a label or a number of choices does not fit the encoding.
    """
    tokenizer = encoding.tokenizer
    made = [[*_sequences(e, encoding, tokenizer)] for e in examples]
    sequences = [sequence for found in made for sequence in found]
    counts = [1] * len(made)
    if encoding.doc_stride is not None:
        counts = [len(found) for found in made]
    width = encoding.max_seq_length
    input_ids, input_mask = pad([s.input_ids for s in sequences], width)
    segment_ids, _ = pad([s.segment_ids for s in sequences], width)
    batch = {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": segment_ids,
        "label_ids": np.repeat(_label_ids(examples, encoding), counts, axis=0),
        "is_real_example": np.ones(sum(counts), np.int32),
        "window_numbers": np.array([n for c in counts for n in range(c)], int),
        "num_windows": np.repeat(counts, counts),
    }
    batch = {
        feature.name: batch[feature.name].reshape(-1, *feature.shape)
        for feature in encoding.schema
    }
    num_cut = sum(any(s.is_cut for s in found) for found in made)
    return Encoded(batch, num_cut)


def _parts(
    examples: Sequence[Example], encoding: Encoding, num_workers: int
) -> Iterator[cache.RecordBlock]:
    """Yields the blocks of the file in order."""
    _log_samples(examples[:_NUM_SAMPLES], encoding)
    if len(examples) <= _EXAMPLES_FOR_ONE:
        num_workers = 1
    pieces = split_examples(examples, encoding)
    with processes.Pool(num_workers) as pool:
        yield from processes.track(
            pool.run(pieces, functools.partial(_make_block, encoding)),
            lambda block: block.num_records,
            "Tokenizing",
            "examples" if encoding.doc_stride is None else "windows",
            len(examples) if encoding.doc_stride is None else None,
        )


def split_examples(
    examples: Iterable[Example], encoding: Encoding, num_rows: int | None = None
) -> Iterator[list[Example]]:
    """Yields examples in parts of about `num_rows` rows, which limits memory.

    The number of windows is estimated without tokenizing.
    """
    num_rows = num_rows or _EXAMPLES_PER_PART
    if encoding.doc_stride is not None:
        yield from split_texts(
            examples,
            lambda example: len(example.text_a) + len(example.text_b or ""),
            encoding.doc_stride,
            num_rows,
        )
        return
    examples = iter(examples)
    while part := list(itertools.islice(examples, num_rows)):
        yield part


def _make_block(
    encoding: Encoding, examples: Sequence[Example]
) -> cache.RecordBlock:
    return cache.make_block(encoding.schema, *make_features(examples, encoding))


def _sequences(
    example: Example, encoding: Encoding, tokenizer: FullTokenizer
) -> Iterator[_Sequence]:
    """Yields the sequence of an example, or of each choice, text or window."""
    cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    ids_a = tokenizer.encode(example.text_a)
    if encoding.problem == "similarity":
        # Each text is a sequence of its own.
        for text in (example.text_a, example.text_b or ""):
            alone = dataclasses.replace(example, text_a=text, text_b=None)
            single = dataclasses.replace(encoding, problem="regression")
            yield from _sequences(alone, single, tokenizer)
        return
    for text_b in _seconds(example, encoding):
        # As in the original, a second text without tokens is ignored.
        ids_b = tokenizer.encode(text_b or "") or None
        for a, b, is_cut in _windows(ids_a, ids_b, encoding):
            packed = pack(a, b, encoding.max_seq_length, cls_id, sep_id)
            yield _Sequence(*packed, is_cut)


def _windows(
    ids_a: list[int], ids_b: list[int] | None, encoding: Encoding
) -> Iterator[tuple[list[int], list[int] | None, bool]]:
    """Yields the texts of each window, and whether any text is truncated."""
    length_a, length_b = len(ids_a), len(ids_b or ())
    room = encoding.max_seq_length - (2 if ids_b is None else 3)
    keep_a, keep_b = truncated_lengths(length_a, length_b, room)
    stride = encoding.doc_stride
    if stride is None:
        yield ids_a, ids_b, (keep_a, keep_b) != (length_a, length_b)
    elif ids_b is None or length_a > length_b:
        for start, end in window_spans(length_a, keep_a, stride):
            second = None if ids_b is None else ids_b[:keep_b]
            yield ids_a[start:end], second, keep_b < length_b
    else:
        for start, end in window_spans(length_b, keep_b, stride):
            yield ids_a[:keep_a], ids_b[start:end], keep_a < length_a


def _seconds(example: Example, encoding: Encoding) -> tuple[str | None, ...]:
    if encoding.problem != "multiple_choice":
        return (example.text_b,)
    if len(example.choices) != encoding.num_choices:
        raise in_file(
            example.where,
            f"expected {encoding.num_choices} choices, found "
            f"{len(example.choices)}.",
        )
    return example.choices


def pad(
    rows: Sequence[Sequence[int]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns padded rows and their mask, both int32 [n, width]."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    mask = np.arange(width) < lengths[:, np.newaxis]
    padded = np.zeros(mask.shape, np.int32)
    padded[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return padded, mask.astype(np.int32)


def _label_ids(examples: Sequence[Example], encoding: Encoding) -> np.ndarray:
    """Returns label ids [n]; for multi-label problems 0 or 1, [n, labels]."""
    numbers = {name: number for number, name in enumerate(encoding.labels)}
    [feature] = [f for f in encoding.schema if f.name == "label_ids"]
    unknown = np.nan if encoding.problem == "similarity" else 0
    label_ids = np.full([len(examples), *feature.shape], unknown, feature.dtype)
    for row, example in enumerate(examples):
        if example.label is None:
            continue
        try:
            label_ids[row] = label_id(example.label, encoding.problem, numbers)
        except (KeyError, TypeError, ValueError):
            expected, hint = "a finite number", ""
            if numbers:
                names = listed(encoding.labels, last="or", most=20)
                expected = f"one of {names}"
            if isinstance(example.label, str):
                hint = did_you_mean(example.label, numbers)
            raise in_file(
                example.where,
                f"the label must be {expected}; got {example.label!r}.{hint}",
            ) from None
    return label_ids


def label_id(label: Any, problem: str, numbers: Mapping[str, int]) -> Any:
    """Returns a label as a number, or as 0 and 1, [labels], for multi-label.

    `numbers` are the ids of the labels. A label that does not fit raises a
    KeyError, TypeError or ValueError.
    """
    if problem in ("regression", "similarity"):
        number = float(label)
        # NaN and infinity would make every weight NaN.
        if not abs(number) <= np.finfo(np.float32).max:
            raise ValueError
        return number
    if problem == "multi_label":
        label_ids = np.zeros(len(numbers), int)
        label_ids[[numbers[name] for name in label]] = 1
        return label_ids
    return numbers[label]


def _log_samples(examples: Sequence[Example], encoding: Encoding) -> None:
    """Logs examples like the original, but without padding."""
    tokenizer = encoding.tokenizer
    label_ids = _label_ids(examples, encoding).tolist()
    for example, number in zip(examples, label_ids, strict=True):
        logging.info("*** Example ***")
        logging.info("guid: %s", example.id)
        for sequence in _sequences(example, encoding, tokenizer):
            ids = sequence.input_ids
            tokens = tokenizer.convert_ids_to_tokens(ids)
            logging.info("tokens: %s", " ".join(tokens))
            logging.info("input_ids: %s", " ".join(map(str, ids)))
        logging.info("label: %s (id = %s)", example.label, number)
