"""Records to batches with tf.data: an endless stream to train on, and every
example exactly once to evaluate on.

The training stream is one global sequence of examples, the same for any number
of hosts and devices; each takes its share. It is a function of the files and
the seed alone, so that training can stop, and go on at an example's number.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.randomness import permute
from bert_tf.data.records import RecordFiles, RecordRanges
from bert_tf.data.schema import VOCABULARY_FEATURES, Schema
from bert_tf.data.sequence_packing import Fill, SequencePacking, size_schema
from bert_tf.errors import InputError

# Plans of batches: which rows of a data set go together, and in what order.


# A stretch of the training stream is sorted by length. Longer ones have less
# padding, and in shorter ones chance decides more on who shares a batch. A
# hundred batches of 32 leave within 3 % of what a sorted epoch would; where an
# epoch is short, a quarter of it keeps the company changing (within 3 % for
# MRPC, too).
_MOST_BATCHES_SORTED = 100
_STRETCHES_PER_EPOCH = 4

# What random numbers are for, beside the seed.
_EPOCH, _STRETCH = range(2)


class EvaluationPlan(NamedTuple):
    """Every row once, in batches.

    Attributes:
      batches: For each batch its rows, integers [shards, rows of a shard];
        -1 where a place is left over.
      lengths: The length that each batch is padded to, integers [batches].
    """

    batches: list[np.ndarray]
    lengths: np.ndarray


def training_plan(
    lengths: np.ndarray, *, num_batches: int, batch_size: int, seed: int
) -> np.ndarray:
    """Plans batches of an endless stream of epochs, each shuffled anew.

    Batches may straddle epochs. Sorting by length exchanges rows within
    stretches of the stream, so the rows of the whole plan stay the same.

    Args:
      lengths: The length of each row, integers [n]. Rows of one length stay in
        random order.
      num_batches: Batches to plan. A longer plan starts like a shorter one,
        but for the shorter one's last stretch.
      batch_size: Rows of a batch.
      seed: Not negative; equal seeds give equal plans.

    Returns:
      Row numbers, int32 [num_batches, batch_size].
    """
    stream = _stream(len(lengths), num_batches * batch_size, seed)
    plan = stream.reshape(num_batches, batch_size)
    per_stretch = _batches_per_stretch(len(lengths), batch_size)
    for first in range(0, num_batches, per_stretch):
        stretch = plan[first : first + per_stretch]
        stretch[:] = _by_length(stretch, lengths, (seed, _STRETCH, first))
    return plan


def evaluation_plan(
    lengths: np.ndarray, *, max_length: int, batch_size: int, num_shards: int
) -> EvaluationPlan:
    """Plans batches of equally long rows, the longest first.

    Thus a batch that is too large for the memory shows at once. Shorter rows
    come in larger batches: `batch_size * max_length` places are the most that
    a shard's batch may have. Rows of one length keep their order.

    Args:
      lengths: The padded length of each row, from 1 to `max_length`, [n].
      max_length: The longest possible.
      batch_size: Rows of `max_length` in a shard's batch; those of every other
        batch are a multiple.
      num_shards: Readers that share the rows. Every batch has as many rows
        for each, and one length for all.

    Returns:
      The plan; only its last batch has places left over.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int32)
    batches, batch_lengths = [], []
    start = 0
    while start < len(order):
        length = lengths[order[start]]
        size = num_shards * batch_size * (max_length // length)
        batches.append(_dealt(order[start : start + size], size, num_shards))
        batch_lengths.append(length)
        start += size
    return EvaluationPlan(batches, np.array(batch_lengths, np.int32))


def shares(plan: np.ndarray, num_shards: int, batch_size: int) -> np.ndarray:
    """Deals the rows of global batches to shards, then to their replicas.

    They are dealt in turn, so that each gets equally long ones of a sorted
    batch.

    Args:
      plan: Integers [batches, shards * replicas * batch_size].
      num_shards: How many shards there are.
      batch_size: Rows of a replica's batch.

    Returns:
      Integers [shards, batches * replicas, batch_size]: the replicas' batches
      follow each other.
    """
    num_batches = len(plan)
    by_place = plan.reshape(num_batches, batch_size, -1, num_shards)
    by_shard = by_place.transpose(3, 0, 2, 1)  # [shards, batches, replicas, B]
    return by_shard.reshape(num_shards, -1, batch_size)


def _stream(num_examples: int, size: int, seed: int) -> np.ndarray:
    """The first `size` rows of epoch after epoch, int32 [size]."""
    rows = np.arange(num_examples)
    num_epochs = -(-size // num_examples)
    epochs = np.empty((num_epochs, num_examples), np.int32)
    for epoch in range(num_epochs):
        epochs[epoch] = permute(rows, num_examples, (seed, _EPOCH, epoch))
    return epochs.reshape(-1)[:size]


def _batches_per_stretch(num_examples: int, batch_size: int) -> int:
    quarter = num_examples // (_STRETCHES_PER_EPOCH * batch_size)
    return max(1, min(quarter, _MOST_BATCHES_SORTED))


def _by_length(
    stretch: np.ndarray, lengths: np.ndarray, seed: tuple[int, ...]
) -> np.ndarray:
    """The same rows [batches, B], alike ones together, batches shuffled."""
    rows = stretch.reshape(-1)
    order = np.argsort(lengths[rows], kind="stable")
    batches = rows[order].reshape(stretch.shape)
    num_batches = len(batches)
    return batches[permute(np.arange(num_batches), num_batches, seed)]


def _dealt(rows: np.ndarray, size: int, num_shards: int) -> np.ndarray:
    """Rows, -1 up to `size`, in turn to each shard: [shards, rows of each]."""
    padded = np.full(size, -1, np.int32)
    padded[: len(rows)] = rows
    return padded.reshape(-1, num_shards).T


# Records to batches with tf.data: an endless stream to train on, and every.


# Records held while shuffling: about 15 MB of them at 128 tokens.
_SHUFFLE_BUFFER = 16_384

# Files read in turns, and records of one in a turn. Not left to TensorFlow's
# autotuning: the order of the examples follows from them.
_FILES_AT_ONCE = 16
_RECORDS_IN_TURN = 4

_OUTSIDE_VOCABULARY = "token ids outside the vocabulary"
_OUTSIDE_VOCABULARY_REPORT = re.compile(
    rf"\[{_OUTSIDE_VOCABULARY}\] \[(\w+)\] \[(-?\d+)\] \[(-?\d+)\] \[(\d+)\]"
)
_PARSE_REPORT = re.compile(r"Name: <unknown>, ((?:Key|Feature): .*)")

_Batch = dict[str, tf.Tensor]


def training_dataset(
    files: Sequence[str],
    schema: Schema,
    *,
    batch_size: int,
    seed: int,
    start_example: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    vocab_size: int | None = None,
    packing: SequencePacking | None = None,
    ranges: RecordRanges | None = None,
) -> tf.data.Dataset:
    """An endless, shuffled stream of batches that can be entered anywhere.

    Each epoch shuffles the order of the files and, in a buffer, the records.
    How depends on `seed` and the epoch's number alone.

    Args:
      files: TFRecord files, compressed where the name ends in `.gz`.
      schema: The features to parse; others in the files are ignored.
      batch_size: The number of examples in each batch of this shard.
      seed: Any integer; equal seeds give equal streams.
      start_example: The number, in the stream of all shards, of the first
        example to give: how many have been used so far. Whole epochs are passed
        over by arithmetic, the rest is read but not parsed.
      num_shards: The number of readers that share the stream.
      shard: This reader's number, from 0. It takes every `num_shards`-th
        example, so that the k-th batches of all shards are together the k-th
        batch of `num_shards * batch_size` examples of a single reader.
      vocab_size: If given, token ids from there on are an error (which
        `input_errors` explains).
      packing: If given, the stream is one of rows that several examples share:
        what is counted above are rows. To pass over whole epochs, all files
        are read once for the lengths of their examples.
      ranges: The intact records, from `records.find_readable`; None if the
      ranges: The intact records, from `records.find_readable`; None if the
        files are undamaged.
    Returns:
      Batches: a dict of tensors [batch_size, *shape], int32 or float32, of the
      schema's features or of those that `SequencePacking.join` names.

    Raises:
      InputError: A file cannot be read, or its records do not fit the schema.
    """
    found = RecordFiles(files, schema, ranges)
    first_epoch, rest = 0, 0
    if start_example:
        total = _epoch_length(found, schema, packing)
        first_epoch, rest = divmod(start_example, total)
    read = found.read
    if packing is not None:
        read = _row_reader(found, schema, packing)
    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    examples = epochs.flat_map(lambda epoch: _epoch(found, seed, epoch, read))
    examples = examples.skip(rest).shard(num_shards, shard)
    batches = examples.batch(batch_size, drop_remainder=True)
    return map_ahead(batches, parser(schema, vocab_size, packing))


def evaluation_dataset(
    files: Sequence[str],
    schema: Schema,
    *,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
    max_examples: int | None = None,
    vocab_size: int | None = None,
    packing: SequencePacking | None = None,
    ranges: RecordRanges | None = None,
) -> tf.data.Dataset:
    """Every example once, in the order of the files.

    All shards give equally many batches, as replicas in step need; examples of
    zeros fill what is missing.

    Args:
      files: TFRecord files, compressed where the name ends in `.gz`.
      schema: The features to parse; others in the files are ignored.
      batch_size: The number of examples in each batch of this shard.
      num_shards: The number of readers that share the examples.
      shard: This reader's number, from 0; it takes every `num_shards`-th one.
      max_examples: Where to stop, over all shards; None for all there are.
      vocab_size: As for `training_dataset`.
      packing: If given, several examples share a row: `batch_size`, `shard`
        and what is numbered below are of rows. The examples are the same.
      ranges: As for `training_dataset`.

    Returns:
      Batches: a dict of tensors [batch_size, *shape], int32 or float32, with
      two more, int32 [batch_size]: `is_real_example`, 0 where an example is
      only there to fill, be it that the file says so; and `example_index`,
      the number of the example among those of all shards, -1 where there is
      none.

    Raises:
      InputError: A file cannot be read, or its records do not fit the schema.
    """
    found = RecordFiles(files, schema, ranges)
    total = found.count(max_examples)
    examples, filler = found.numbers().flat_map(found.read).take(total), b""
    if packing is None:
        filler = _zero_example(schema)
    else:
        parse_sizes = parser(size_schema(schema))
        total = Fill.sum(packing.tallies(examples, parse_sizes)).rows
        examples = packing.rows(examples, parse_sizes)
        filler = packing.empty_row
    num_batches = -(-total // (batch_size * num_shards))
    examples = examples.concatenate(_endless(filler))
    numbers = tf.data.Dataset.range(total, output_type=tf.int32)
    batches = (
        tf.data.Dataset.zip(examples, numbers.concatenate(_endless(-1)))
        .shard(num_shards, shard)
        .batch(batch_size, drop_remainder=True)
        .take(num_batches)
    )
    parse = parser(schema, vocab_size, packing)
    return map_ahead(batches, _numbered(parse)).apply(
        tf.data.experimental.assert_cardinality(num_batches)
    )


def fill(
    files: Sequence[str],
    schema: Schema,
    packing: SequencePacking,
    max_examples: int | None = None,
    ranges: RecordRanges | None = None,
) -> Fill:
    """How full the rows of the first examples are.

    Args:
      files: TFRecord files, compressed where the name ends in `.gz`.
      schema: Of pre-training.
      packing: How they share rows.
      max_examples: How many to look at; None for all there are.
      ranges: As for `training_dataset`.

    Raises:
      InputError: A file cannot be read, or its records do not fit the schema.
    """
    found = RecordFiles(files, schema, ranges)
    examples = found.numbers().flat_map(found.read).take(max_examples or -1)
    with input_errors(files):
        return Fill.sum(packing.tallies(examples, parser(size_schema(schema))))


def whole_file(
    file: str,
    schema: Schema,
    *,
    batch_size: int,
    vocab_size: int | None = None,
) -> tf.data.Dataset:
    """Every example of one file once, in order, to be read as a whole.

    Args:
      file: A TFRecord file, compressed where the name ends in `.gz`.
      schema: The features to parse; others in the file are ignored.
      batch_size: The number of examples in each batch but the last.
      vocab_size: As for `training_dataset`.

    Returns:
      Batches: a dict of tensors [b, *shape], int32 or float32.

    Raises:
      InputError: The file cannot be read, or its records do not fit.
    """
    found = RecordFiles([file], schema)
    batches = found.numbers().flat_map(found.read).batch(batch_size)
    return map_ahead(batches, parser(schema, vocab_size))


@contextlib.contextmanager
def input_errors(files: Sequence[str]) -> Iterator[None]:
    """Explains what tf.data says about bad records, while batches are drawn.

    Args:
      files: The files the batches come from.

    Raises:
      InputError: A file was damaged, or removed since it was found; it is
        named. Or token ids do not fit the vocabulary, or a record not the
        schema.
    """
    try:
        yield
    except tf.errors.DataLossError as error:
        for file in files:
            records.verify(file)
        raise InputError(f"Cannot read a record: {error.message}") from error
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError):
        for file in files:
            _require_readable(file)
        raise
    except tf.errors.InvalidArgumentError as error:
        if explanation := _explain(error.message):
            raise InputError(explanation) from error
        raise


def _require_readable(file: str) -> None:
    try:
        records.count_records(file, at_most=1)
    except InputError as error:
        raise InputError(
            f"{error} It was there when this run began; restore it, then "
            "rerun the same command."
        ) from error


def _explain(message: str) -> str | None:
    """One line for the user, if a record is at fault; else None."""
    if report := _OUTSIDE_VOCABULARY_REPORT.search(message):
        name, smallest, largest, vocab_size = report.groups()
        return (
            f"Expected {name} from 0 to {int(vocab_size) - 1}, as vocab_size "
            f"is {vocab_size}. Received: {name} from {smallest} to {largest}. "
            "Make the records with the vocabulary of this model."
        )
    if report := _PARSE_REPORT.search(message):
        return f"A record does not fit the others: {report[1]}"
    return None


def _epoch_length(
    files: RecordFiles, schema: Schema, packing: SequencePacking | None
) -> int:
    """The number of examples in all files, or of the rows that they fill."""
    if packing is None:
        return files.count()
    parse_sizes = parser(size_schema(schema))
    tallies = files.numbers().interleave(
        lambda number: packing.tallies(files.read(number), parse_sizes),
        cycle_length=_FILES_AT_ONCE,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return Fill.sum(tallies).rows


def _epoch(
    files: RecordFiles,
    seed: int,
    epoch: tf.Tensor,
    read: Callable[[tf.Tensor], tf.data.Dataset],
) -> tf.data.Dataset:
    """Every serialized example once, in an order made from (seed, epoch).

    Or every row of them: what `read` gives of a file's number.
    """
    # tf.data mixes the program's global seed into each seed it is given. This
    # sets that of the graph which flat_map is tracing, and no other: the order
    # does not change with what else the program does.
    tf.random.set_seed(1)
    file_seed, record_seed = tf.unstack(
        tf.random.stateless_uniform(
            [2], [seed, epoch], None, None, tf.int64, alg="philox"
        )
    )
    numbers = _shuffle(files.numbers(), len(files), file_seed)
    examples = numbers.interleave(
        read,
        cycle_length=_FILES_AT_ONCE,
        block_length=_RECORDS_IN_TURN,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return _shuffle(examples, _SHUFFLE_BUFFER, record_seed)


def _shuffle(
    dataset: tf.data.Dataset, buffer_size: int, seed: tf.Tensor
) -> tf.data.Dataset:
    """Shuffles in one fixed way: each epoch has a data set of its own."""
    return dataset.shuffle(buffer_size, seed, reshuffle_each_iteration=False)


def _row_reader(
    files: RecordFiles, schema: Schema, packing: SequencePacking
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """As `RecordFiles.read`, of rows: each file is packed by itself."""
    parse_sizes = parser(size_schema(schema))
    return lambda number: packing.rows(files.read(number), parse_sizes)


def _endless(value: bytes | list[bytes] | int) -> tf.data.Dataset:
    """The same element for ever; numbers as int32."""
    return tf.data.Dataset.from_tensors(tf.constant(value)).repeat()


def _zero_example(schema: Schema) -> bytes:
    """An example of zeros, serialized."""
    zeros = {
        feature.name: np.zeros((1, *feature.shape), feature.dtype)
        for feature in schema
    }
    (example,) = records.encode_batch(schema, zeros)
    return example


def parser(
    schema: Schema,
    vocab_size: int | None = None,
    packing: SequencePacking | None = None,
) -> Callable[[tf.Tensor], _Batch]:
    """A function from serialized examples to their features.

    Args:
      schema: The features to parse.
      vocab_size: As for `training_dataset`.
      packing: How examples share rows, if they do.

    Returns:
      A function from strings [B], or rows of them [B, K] with `packing`, to a
      batch as `training_dataset` gives it.
    """
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in schema
    }

    def parse(serialized: tf.Tensor) -> _Batch:
        features = tf.io.parse_example(serialized, spec)
        if vocab_size is not None:
            _check_vocabulary(features, vocab_size)
        return {name: _narrow(values) for name, values in features.items()}

    if packing is not None:
        return lambda slots: packing.join(slots, parse)
    return parse


def _numbered(
    parse: Callable[[tf.Tensor], _Batch],
) -> Callable[[tf.Tensor, tf.Tensor], _Batch]:
    """Adds which examples these are: their numbers [B], -1 for none."""

    def parse_numbered(serialized: tf.Tensor, numbers: tf.Tensor) -> _Batch:
        features = parse(serialized)
        # The original's files for TPUs hold examples that are not to count.
        is_real = features.get("is_real_example", tf.ones_like(numbers))
        return {
            **features,
            "is_real_example": tf.where(numbers >= 0, is_real, 0),
            "example_index": numbers,
        }

    return parse_numbered


def _narrow(values: tf.Tensor) -> tf.Tensor:
    """int64, the only integers of the file format, as int32."""
    return tf.cast(values, tf.int32) if values.dtype == tf.int64 else values


def _check_vocabulary(features: _Batch, vocab_size: int) -> None:
    """Fails where an embedding table would give NaN, zeros or another row."""
    for name in VOCABULARY_FEATURES:
        if name in features:
            smallest = tf.reduce_min(features[name])
            largest = tf.reduce_max(features[name])
            tf.debugging.Assert(
                (smallest >= 0) & (largest < vocab_size),
                [_OUTSIDE_VOCABULARY, name, smallest, largest, vocab_size],
            )


def map_ahead(
    batches: tf.data.Dataset, function: Callable[..., _Batch]
) -> tf.data.Dataset:
    """Makes batches ahead of their use, without changing their order.

    Args:
      batches: What they are made from.
      function: Makes one from an element.
    """
    options = tf.data.Options()
    options.deterministic = True
    # The thread that tunes sleeps for up to a minute at a time, and the end of
    # the data waits until it wakes.
    options.autotune.enabled = False
    # The shards are made here; a strategy is not to make them once more.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return (
        batches.map(function, tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
