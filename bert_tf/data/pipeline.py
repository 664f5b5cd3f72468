"""Batches of records with tf.data, to train on and to evaluate on.

The training stream is one global sequence of examples, the same for any number
of hosts and devices, each of which reads its share. It depends only on the
files and the seed, so that training can resume at any example.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.data import records
from bert_tf.data.records import RecordFiles, RecordRanges
from bert_tf.data.schema import VOCABULARY_FEATURES, Schema
from bert_tf.data.sequence_packing import Fill, SequencePacking, size_schema
from bert_tf.errors import InputError

# The size of the shuffle buffer: about 15 MB of records at 128 tokens.
_SHUFFLE_BUFFER = 16_384

# Files read in parallel, and records read from one file at a time. TensorFlow
# must not tune these, because the order of the examples depends on them.
_FILES_AT_ONCE = 16
_RECORDS_PER_TURN = 4

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
    """Returns an endless, shuffled stream of batches that can start anywhere.

    Each epoch shuffles the order of the files and, in a buffer, the records.
    The order depends only on `seed` and the number of the epoch.

    Args:
      files: TFRecord files, compressed if the name ends in `.gz`.
      schema: The features to parse; others in the files are ignored.
      batch_size: The number of examples in each batch of this shard.
      seed: Any integer; equal seeds give equal streams.
      start_example: The number of examples that all shards have used so far.
        Whole epochs are skipped by arithmetic; the rest is read, but not
        parsed.
      num_shards: The number of readers that share the stream.
      shard: This reader's number, from 0. It reads every `num_shards`-th
        example, so that the k-th batches of all shards together are the k-th
        batch of `num_shards * batch_size` examples of a single reader.
      vocab_size: If given, token ids outside the vocabulary are an error, which
        `input_errors` explains.
      packing: If given, the stream consists of rows that several examples
        share, and the numbers of examples above count rows. To skip whole
        epochs, all files are read once for the lengths of their examples.
      ranges: The intact records, from `records.find_readable`; None if the
        files are undamaged.

    Returns:
      Batches: a dict of tensors [batch_size, *shape], int32 or float32, of the
      features of the schema or of those that `SequencePacking.join` returns.

    Raises:
      InputError: A file cannot be read, or its records do not fit the schema.
    """
    record_files = RecordFiles(files, schema, ranges)
    first_epoch, rest = 0, 0
    if start_example:
        total = _epoch_length(record_files, schema, packing)
        first_epoch, rest = divmod(start_example, total)

    def read(number: tf.Tensor) -> tf.data.Dataset:
        if packing is None:
            return record_files.read(number)
        # Each file is packed separately.
        return packing.rows(
            record_files.read(number), parser(size_schema(schema))
        )

    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    examples = epochs.flat_map(
        lambda epoch: _epoch(record_files, seed, epoch, read)
    )
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
    """Returns every example once, in the order of the files.

    All shards have the same number of batches, because replicas work in
    lockstep; examples of zeros fill the last ones.

    Arguments and errors are the same as for `training_dataset`, except:

    Args:
      max_examples: The number of examples to read over all shards; None for
        all.
      packing: If given, several examples share a row, and `batch_size`, `shard`
        and `example_index` count rows. The examples are the same.

    Returns:
      Batches: a dict of tensors [batch_size, *shape], int32 or float32, with
      two more, int32 [batch_size]: `is_real_example`, 0 for padding examples,
      including those marked so in the file; and `example_index`, the number of
      the example among all shards' examples, -1 for padding.
    """
    record_files = RecordFiles(files, schema, ranges)
    total = record_files.count(max_examples)
    examples = record_files.numbers().flat_map(record_files.read).take(total)
    filler: Any
    if packing is None:
        zeros = {
            feature.name: np.zeros((1, *feature.shape), feature.dtype)
            for feature in schema
        }
        [filler] = records.encode_batch(schema, zeros)
    else:
        parse_sizes = parser(size_schema(schema))
        total = Fill.sum(packing.tallies(examples, parse_sizes)).rows
        examples = packing.rows(examples, parse_sizes)
        filler = packing.empty_row
    num_batches = -(-total // (batch_size * num_shards))
    numbers = tf.data.Dataset.range(total, output_type=tf.int32)
    batches = (
        tf.data.Dataset.zip(
            examples.concatenate(_endless(filler)),
            numbers.concatenate(_endless(-1)),
        )
        .shard(num_shards, shard)
        .batch(batch_size, drop_remainder=True)
        .take(num_batches)
    )
    parse = parser(schema, vocab_size, packing)

    def parse_numbered(serialized: tf.Tensor, numbers: tf.Tensor) -> _Batch:
        features = parse(serialized)
        # The original's files for TPUs contain examples that must not count.
        is_real = features.get("is_real_example", tf.ones_like(numbers))
        return {
            **features,
            "is_real_example": tf.where(numbers >= 0, is_real, 0),
            "example_index": numbers,
        }

    return map_ahead(batches, parse_numbered).apply(
        tf.data.experimental.assert_cardinality(num_batches)
    )


def fill(
    files: Sequence[str],
    schema: Schema,
    packing: SequencePacking,
    max_examples: int | None = None,
    ranges: RecordRanges | None = None,
) -> Fill:
    """Measures how full the rows of the first `max_examples` examples are.

    The other arguments and the errors are the same as for `training_dataset`.
    """
    record_files = RecordFiles(files, schema, ranges)
    examples = (
        record_files.numbers()
        .flat_map(record_files.read)
        .take(max_examples or -1)
    )
    with input_errors(files):
        return Fill.sum(packing.tallies(examples, parser(size_schema(schema))))


def whole_file(
    file: str,
    schema: Schema,
    *,
    batch_size: int,
    vocab_size: int | None = None,
) -> tf.data.Dataset:
    """Returns every example of one file once, in order.

    Arguments, batches and errors are the same as for `training_dataset`, but
    the last batch may be smaller.
    """
    record_files = RecordFiles([file], schema)
    batches = (
        record_files.numbers().flat_map(record_files.read).batch(batch_size)
    )
    return map_ahead(batches, parser(schema, vocab_size))


@contextlib.contextmanager
def input_errors(files: Sequence[str]) -> Iterator[None]:
    """Explains the errors of tf.data about bad records of some files.

    Raises:
      InputError: A file is damaged or was removed; token ids do not fit the
        vocabulary; or a record does not fit the schema.
    """
    try:
        yield
    except tf.errors.DataLossError as error:
        for file in files:
            records.verify(file)
        raise InputError(f"Cannot read a record: {error.message}") from error
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError):
        for file in files:
            try:
                records.count_records(file, at_most=1)
            except InputError as error:
                raise InputError(
                    f"{error} It existed when this run began. Restore it, "
                    "then rerun the same command."
                ) from error
        raise
    except tf.errors.InvalidArgumentError as error:
        if report := _OUTSIDE_VOCABULARY_REPORT.search(error.message):
            name, smallest, largest, vocab_size = report.groups()
            raise InputError(
                f"{name} must be from 0 to {int(vocab_size) - 1} (vocab_size "
                f"is {vocab_size}); got {smallest} to {largest}. Make the "
                "records with the vocabulary of this model."
            ) from error
        if report := _PARSE_REPORT.search(error.message):
            raise InputError(
                f"A record does not fit the others: {report[1]}"
            ) from error
        raise


def _epoch_length(
    files: RecordFiles, schema: Schema, packing: SequencePacking | None
) -> int:
    """Returns the number of examples in all files, or of the rows they fill."""
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
    """Reads every file with `read`, in the order of one epoch."""
    # tf.data mixes the global seed of the program into every seed. This sets
    # the seed of only the graph that flat_map traces, so that the order does
    # not depend on the rest of the program.
    tf.random.set_seed(1)
    file_seed, record_seed = tf.unstack(
        tf.random.stateless_uniform(
            [2], [seed, epoch], None, None, tf.int64, alg="philox"
        )
    )
    # Each epoch is a separate dataset, so it is shuffled once.
    numbers = files.numbers().shuffle(
        len(files), file_seed, reshuffle_each_iteration=False
    )
    examples = numbers.interleave(
        read,
        cycle_length=_FILES_AT_ONCE,
        block_length=_RECORDS_PER_TURN,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return examples.shuffle(
        _SHUFFLE_BUFFER, record_seed, reshuffle_each_iteration=False
    )


def _endless(value: bytes | list[bytes] | int) -> tf.data.Dataset:
    """Repeats one element endlessly; a number becomes an int32 tensor."""
    return tf.data.Dataset.from_tensors(tf.constant(value)).repeat()


def parser(
    schema: Schema,
    vocab_size: int | None = None,
    packing: SequencePacking | None = None,
) -> Callable[[tf.Tensor], _Batch]:
    """Returns a function from serialized examples to their features.

    Takes the arguments of `training_dataset`. The function takes strings [B],
    or rows of them [B, K] with `packing`, and returns a batch.
    """
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in schema
    }

    def parse(serialized: tf.Tensor) -> _Batch:
        features = tf.io.parse_example(serialized, spec)
        if vocab_size is not None:
            _check_vocabulary(features, vocab_size)
        # int64 is the only integer type of the file format.
        return {
            name: tf.cast(values, tf.int32)
            if values.dtype == tf.int64
            else values
            for name, values in features.items()
        }

    if packing is not None:
        return lambda slots: packing.join(slots, parse)
    return parse


def _check_vocabulary(features: _Batch, vocab_size: int) -> None:
    """Rejects ids whose embedding would be NaN, zeros or another row."""
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
    """Maps a function ahead of the consumer, without changing the order."""
    options = tf.data.Options()
    options.deterministic = True
    # The thread of autotuning sleeps for up to a minute at a time, and the data
    # cannot end before it wakes up.
    options.autotune.enabled = False
    # The data is sharded here; a strategy must not shard it again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    # None of these functions needs AutoGraph, which would convert each.
    function = tf.autograph.experimental.do_not_convert(function)
    return (
        batches.map(function, tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
