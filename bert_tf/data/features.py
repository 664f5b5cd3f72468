"""Examples to records of features, kept for as long as nothing changes.

The records are the original's (`file_based_convert_examples_to_features` of
`run_classifier.py`). A manifest beside them tells all that shaped them; when
any of it differs they are made anew, whatever the times of the files say.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf import files
from bert_tf.data import jobs, progress, records
from bert_tf.data.examples import Example
from bert_tf.data.schema import Schema, classification_schema
from bert_tf.errors import InputError
from bert_tf.text.packing import pack
from bert_tf.text.wordpiece import FullTokenizer, require_special_tokens

# To be raised when the same examples are to give other records.
_FORMAT = 1

_EXAMPLES_PER_PART = 1 << 12
# So many take one process 3 or 4 seconds; several need one to get going.
_EXAMPLES_FOR_ONE = 1 << 17

_NUM_SAMPLES = 3
_BLOCK_SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How examples become features.

    Attributes:
      vocab: The tokens, in the order of their ids.
      do_lower_case: Whether it is an uncased vocabulary.
      strip_accents: Whether to drop accents; None does as `do_lower_case`.
      max_seq_length: Places of a sequence, special tokens included.
      problem: One of `examples.PROBLEMS`.
      labels: Names of the classes in the order of their numbers; of the
        choices for multiple choice; none for regression.
      num_choices: How many choices there are; 0 but for multiple choice.
    """

    vocab: tuple[str, ...]
    do_lower_case: bool
    strip_accents: bool | None
    max_seq_length: int
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


class _Part(NamedTuple):
    """A piece of the file: its bytes, and what they hold."""

    data: bytes
    num_examples: int
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
    key = _key(examples, encoding, sources, reading or {})
    reason = _reason_to_write(path, key)
    if reason:
        logging.info("Writing %s: %s", path, reason)
        _log_samples(examples[:_NUM_SAMPLES], encoding)
        manifest = _write(path, key, examples, encoding, num_workers)
    else:
        logging.info(
            "Using %s again: same examples, vocabulary and settings", path
        )
        manifest = files.read_json(files.manifest_path(path))
    logging.info(
        "%s: %s examples, %s (%.1f %%) of them cut to max_seq_length=%d",
        path,
        f"{len(examples):,}",
        f"{manifest['cut']:,}",
        100 * manifest["cut"] / max(len(examples), 1),
        encoding.max_seq_length,
    )
    return reason is not None


def make_features(examples: Sequence[Example], encoding: Encoding) -> Encoded:
    """Tokenizes, packs and pads examples.

    An example without a label has label 0, as in the original.

    Raises:
      InputError: A label or a number of choices does not fit the encoding.
    """
    tokenizer = _tokenizer(encoding)
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


# ------------------------------------------------------------------ the cache


def _key(
    examples: Sequence[Example],
    encoding: Encoding,
    sources: Iterable[str],
    reading: Mapping[str, Any],
) -> dict[str, Any]:
    """All that shapes the records, as JSON gives it back."""
    settings = {
        field.name: getattr(encoding, field.name)
        for field in dataclasses.fields(encoding)
    }
    vocab = settings.pop("vocab")
    key = {
        "format": _FORMAT,
        "sources": list(map(_file_checksum, sources)),
        "reading": reading,
        "examples": checksum(examples),
        "vocabulary": _checksum(f"{token}\n".encode() for token in vocab),
        **settings,
    }
    return json.loads(json.dumps(key))


def checksum(examples: Iterable[Example]) -> str:
    """What tells examples from others: texts, choices and labels; hex."""
    return _checksum(map(_content, examples))


def _content(example: Example) -> bytes:
    """What of an example shows in its record."""
    return repr(
        (example.text_a, example.text_b, example.choices, example.label)
    ).encode()


def _checksum(blocks: Iterable[bytes]) -> str:
    checksum = hashlib.sha256()
    for block in blocks:
        checksum.update(block)
    return checksum.hexdigest()


def _file_checksum(path: str) -> str:
    with files.open_read(path) as file, files.gzip_faults(path):
        return _checksum(_blocks(file))


def _blocks(file: io.BufferedIOBase) -> Iterator[bytes]:
    while block := file.read(_BLOCK_SIZE):
        yield block


def _reason_to_write(path: str, key: Mapping[str, Any]) -> str | None:
    """Why records of this key are not there, or None if they are."""
    if not files.exists(path):
        return "it is not there yet"
    manifest_path = files.manifest_path(path)
    if not files.exists(manifest_path):
        return "there is no manifest beside the one that is there"
    try:
        manifest = files.read_json(manifest_path)
    except InputError as error:
        return f"the manifest of the one that is there is damaged: {error}"
    if differing := _differing(manifest.get("key"), key):
        return f"the one that is there has other {', '.join(differing)}"
    if manifest.get("sha256") != _file_checksum(path):
        return "the one that is there is damaged"
    return None


def _differing(found: Any, key: Mapping[str, Any]) -> list[str]:
    """Names of the parts in which two keys differ."""
    if not isinstance(found, dict):
        return list(key)
    names = dict.fromkeys([*key, *found])
    missing = object()
    return [
        name
        for name in names
        if found.get(name, missing) != key.get(name, missing)
    ]


# ---------------------------------------------------------------- the records


def _write(
    path: str,
    key: Mapping[str, Any],
    examples: Sequence[Example],
    encoding: Encoding,
    num_workers: int,
) -> dict[str, Any]:
    """Writes records and manifest; returns the latter."""
    checksum, num_bytes, num_cut = hashlib.sha256(), 0, 0
    with (
        # The manifest first, which makes it the last to be renamed.
        files.atomic_writer(files.manifest_path(path)) as manifest_file,
        files.atomic_writer(path) as record_file,
    ):
        for part in _parts(examples, encoding, num_workers):
            record_file.write(part.data)
            checksum.update(part.data)
            num_bytes += len(part.data)
            num_cut += part.num_cut
        manifest = {
            "key": key,
            "records": len(examples),
            "cut": num_cut,
            "bytes": num_bytes,
            "sha256": checksum.hexdigest(),
        }
        manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")
    return manifest


def _parts(
    examples: Sequence[Example], encoding: Encoding, num_workers: int
) -> Iterator[_Part]:
    """The pieces of the file, in order."""
    if len(examples) <= _EXAMPLES_FOR_ONE:
        num_workers = 1
    pieces = (
        examples[start : start + _EXAMPLES_PER_PART]
        for start in range(0, len(examples), _EXAMPLES_PER_PART)
    )
    with jobs.Pool(num_workers) as pool:
        yield from progress.track(
            pool.run(pieces, functools.partial(_make_part, encoding)),
            lambda part: part.num_examples,
            "Tokenizing",
            "examples",
            len(examples),
        )


def _make_part(encoding: Encoding, examples: Sequence[Example]) -> _Part:
    """A pure function of its arguments, for any process to run."""
    encoded = make_features(examples, encoding)
    serialized = records.encode_batch(encoding.schema, encoded.batch)
    return _Part(records.frame(serialized), len(examples), encoded.num_cut)


# --------------------------------------------------------------- the features


@functools.lru_cache(maxsize=1)
def _tokenizer(encoding: Encoding) -> FullTokenizer:
    """Made once in each process.

    Raises:
      InputError: The vocabulary lacks a special token.
    """
    tokenizer = FullTokenizer(
        encoding.vocab, encoding.do_lower_case, encoding.strip_accents
    )
    require_special_tokens(tokenizer.vocab, ["[CLS]", "[SEP]"])
    return tokenizer


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
    tokenizer = _tokenizer(encoding)
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
