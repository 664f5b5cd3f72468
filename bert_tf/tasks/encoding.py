"""What every way from texts to features has: a vocabulary and a length."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf.data import cache, processes
from bert_tf.data.schema import Schema, classification_schema
from bert_tf.errors import InputError
from bert_tf.tasks.examples import Example
from bert_tf.tokenization.packing import pack
from bert_tf.tokenization.wordpiece import FullTokenizer, require_special_tokens

# What every way from texts to features has: a vocabulary and a length.


@dataclasses.dataclass(frozen=True)
class TextEncoding:
    """How texts become sequences of ids; each kind of task adds its own.

    Attributes:
      vocab: The tokens, in the order of their ids.
      do_lower_case: Whether it is an uncased vocabulary.
      strip_accents: Whether to drop accents; None does as `do_lower_case`.
      max_seq_length: Places of a sequence, special tokens included.
    """

    vocab: tuple[str, ...]
    do_lower_case: bool
    strip_accents: bool | None
    max_seq_length: int

    @property
    def tokenizer(self) -> FullTokenizer:
        """Of this vocabulary and casing; made once in each process.

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


# Sentence-level examples to records of features.


_EXAMPLES_PER_PART = 1 << 12
# So many take one process 3 or 4 seconds; several need one to get going.
_EXAMPLES_FOR_ONE = 1 << 17

_NUM_SAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Encoding(TextEncoding):
    """How examples become features.

    Attributes, beside those of `TextEncoding`:
      problem: One of `examples.PROBLEMS`.
      labels: Names of the classes in the order of their numbers; of the
        choices for multiple choice; none for regression.
      num_choices: How many choices there are; 0 but for multiple choice.
    """

    problem: str
    labels: tuple[str, ...]
    num_choices: int = 0

    @property
    def schema(self) -> Schema:
        """What the records hold."""
        return classification_schema(
            self.max_seq_length,
            self.problem,
            len(self.labels),
            self.num_choices,
        )


class Encoded(NamedTuple):
    """What becomes of some examples.

    Attributes:
      batch: For each feature of the schema an array [n, *shape].
      num_cut: How many did not fit into `max_seq_length`.
    """

    batch: dict[str, np.ndarray]
    num_cut: int


class _Sequence(NamedTuple):
    """A text or a pair, packed, not padded."""

    input_ids: list[int]
    segment_ids: list[int]
    is_cut: bool


def write_features(
    path: str,
    examples: Sequence[Example],
    encoding: Encoding,
    *,
    sources: Iterable[str] = (),
    reading: Mapping[str, Any] | None = None,
    num_workers: int = 1,
) -> bool:
    """Writes the records of examples, unless they are there already.

    Several processes may do so at once: each writes aside and renames, and the
    same examples give the same bytes.

    Args:
      path: The TFRecord file; `files.manifest_path` of it is written too.
      examples: What to write, in this order.
      encoding: How.
      sources: The files that the examples came from.
      reading: What else decided on the examples; whatever JSON can hold.
      num_workers: Processes to use if there are many examples. It does not
        show in the result.

    Returns:
      Whether anything was written: False if the file was good already.

    Raises:
      InputError: A label or a number of choices does not fit the encoding; a
        file cannot be read or written.
    """
    key = cache.key(encoding, map(content, examples), sources, reading)
    kept = cache.write_records(
        path, key, lambda: _parts(examples, encoding, num_workers)
    )
    logging.info(
        "%s: %s examples, %s (%.1f %%) of them cut to max_seq_length=%d",
        path,
        f"{kept.num_records:,}",
        f"{kept.num_cut:,}",
        100 * kept.num_cut / max(kept.num_records, 1),
        encoding.max_seq_length,
    )
    return kept.is_new


def content(example: Example) -> bytes:
    """What of an example shows in its record: texts, choices and label."""
    return repr(
        (example.text_a, example.text_b, example.choices, example.label)
    ).encode()


def make_features(examples: Sequence[Example], encoding: Encoding) -> Encoded:
    """Tokenizes, packs and pads examples.

    An example without a label has label 0, as in the original.

    Raises:
      InputError: A label or a number of choices does not fit the encoding.
    """
    tokenizer = encoding.tokenizer
    sequences = [
        sequence
        for example in examples
        for sequence in _sequences(example, encoding, tokenizer)
    ]
    width = encoding.max_seq_length
    input_ids, input_mask = _pad([s.input_ids for s in sequences], width)
    segment_ids, _ = _pad([s.segment_ids for s in sequences], width)
    batch = {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": segment_ids,
        "label_ids": _label_ids(examples, encoding),
        "is_real_example": np.ones(len(examples), np.int32),
    }
    batch = {
        feature.name: batch[feature.name].reshape(-1, *feature.shape)
        for feature in encoding.schema
    }
    is_cut = np.reshape([s.is_cut for s in sequences], [len(examples), -1])
    return Encoded(batch, int(is_cut.any(axis=1).sum()))


# ---------------------------------------------------------------- the records


def _parts(
    examples: Sequence[Example], encoding: Encoding, num_workers: int
) -> Iterator[cache.Part]:
    """The pieces of the file, in order."""
    _log_samples(examples[:_NUM_SAMPLES], encoding)
    if len(examples) <= _EXAMPLES_FOR_ONE:
        num_workers = 1
    pieces = (
        examples[start : start + _EXAMPLES_PER_PART]
        for start in range(0, len(examples), _EXAMPLES_PER_PART)
    )
    with processes.Pool(num_workers) as pool:
        yield from processes.track(
            pool.run(pieces, functools.partial(_make_part, encoding)),
            lambda part: part.num_records,
            "Tokenizing",
            "examples",
            len(examples),
        )


def _make_part(encoding: Encoding, examples: Sequence[Example]) -> cache.Part:
    """A pure function of its arguments, for any process to run."""
    return cache.make_part(encoding.schema, *make_features(examples, encoding))


# --------------------------------------------------------------- the features


def _sequences(
    example: Example, encoding: Encoding, tokenizer: FullTokenizer
) -> Iterator[_Sequence]:
    """The one sequence of an example, or that of each choice."""
    cls_id, sep_id = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    ids_a = tokenizer.encode(example.text_a)
    for text_b in _seconds(example, encoding):
        # As in the original, a second text without any piece is none.
        ids_b = tokenizer.encode(text_b or "") or None
        packed = pack(ids_a, ids_b, encoding.max_seq_length, cls_id, sep_id)
        whole = len(ids_a) + 2 + (len(ids_b) + 1 if ids_b else 0)
        yield _Sequence(*packed, whole > encoding.max_seq_length)


def _seconds(example: Example, encoding: Encoding) -> tuple[str | None, ...]:
    """The texts that `text_a` is paired with."""
    if encoding.problem != "multiple_choice":
        return (example.text_b,)
    if len(example.choices) != encoding.num_choices:
        raise InputError(
            f"Expected {encoding.num_choices} choices. Received: "
            f"{len(example.choices)} at {example.where}"
        )
    return example.choices


def _pad(
    rows: Sequence[Sequence[int]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of any lengths as int32 [n, width], and the mask of what is real."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    mask = np.arange(width) < lengths[:, np.newaxis]
    padded = np.zeros(mask.shape, np.int32)
    padded[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return padded, mask.astype(np.int32)


def _label_ids(examples: Sequence[Example], encoding: Encoding) -> np.ndarray:
    """The labels as numbers, [n], or [n, labels] for a multi-label problem."""
    numbers = {name: number for number, name in enumerate(encoding.labels)}
    [feature] = [f for f in encoding.schema if f.name == "label_ids"]
    label_ids = np.zeros([len(examples), *feature.shape], feature.dtype)
    for row, example in enumerate(examples):
        if example.label is None:
            continue
        try:
            label_ids[row] = _label_id(example.label, encoding.problem, numbers)
        except (KeyError, TypeError, ValueError):
            expected = ", ".join(encoding.labels) or "a number"
            raise InputError(
                f"Expected as a label: {expected}. Received: "
                f"{example.label!r} at {example.where}"
            ) from None
    return label_ids


def _label_id(label: Any, problem: str, numbers: Mapping[str, int]) -> Any:
    """A number, or for a multi-label problem several, [labels]."""
    if problem == "regression":
        return float(label)
    if problem == "multi_label":
        label_ids = np.zeros(len(numbers), int)
        label_ids[[numbers[name] for name in label]] = 1
        return label_ids
    return numbers[label]


# ---------------------------------------------------------------------- a log


def _log_samples(examples: Sequence[Example], encoding: Encoding) -> None:
    """Shows examples as the original does, without the padding."""
    tokenizer = encoding.tokenizer
    label_ids = _label_ids(examples, encoding).tolist()
    for example, label_id in zip(examples, label_ids, strict=True):
        logging.info("*** Example ***")
        logging.info("guid: %s", example.id)
        for sequence in _sequences(example, encoding, tokenizer):
            ids = sequence.input_ids
            tokens = tokenizer.convert_ids_to_tokens(ids)
            logging.info("tokens: %s", " ".join(tokens))
            logging.info("input_ids: %s", " ".join(map(str, ids)))
        logging.info("label: %s (id = %s)", example.label, label_id)
