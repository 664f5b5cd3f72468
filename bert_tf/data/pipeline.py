"""Batches with tf.data, of record files, of files in memory and of arrays.

The training stream is one global sequence of examples; each host reads its
share. The sequence depends only on the files and the seed, not on the number of
hosts and devices, so that training can resume at any example.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import records
from bert_tf.data.batching import (
    Features,
    Padding,
    evaluation_plan,
    in_memory,
    shares,
    training_plan,
)
from bert_tf.data.records import VOCABULARY_FEATURES, RecordFiles, Schema
from bert_tf.data.sequence_packing import Fill, SequencePacking, size_schema
from bert_tf.errors import InputError

# The size of the shuffle buffer: about 15 MB of records at 128 tokens.
_SHUFFLE_BUFFER = 16_384

# Files read in parallel, and records read from one file at a time. TensorFlow
# must not tune these, because the order of the examples depends on them.
_FILES_AT_ONCE = 16
_RECORDS_PER_TURN = 4

# Examples of a file in memory that are parsed at once: tf.data is fastest with
# large batches.
_EXAMPLES_PER_PARSE = 2048

# Keras's default.
_DEFAULT_BATCH_SIZE = 32
# Arguments with which Keras has to read arrays itself.
_READ_BY_KERAS = (
    "class_weight",
    "steps",
    "steps_per_epoch",
    "validation_split",
    "validation_steps",
)

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
    counts: Mapping[str, int] | None = None,
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
        example. The k-th batches of all shards together have the examples of
        the k-th batch of a single reader.
      vocab_size: If given, token ids outside the vocabulary are an error, which
        `input_errors` explains.
      packing: If given, several examples share a row, and `batch_size` and
        `start_example` count rows. To skip whole epochs, all files are read
        once for the lengths of their examples.
      counts: How many records of each file to read, from
        `records.find_readable`; None if the files are undamaged.

    Returns:
      Batches: a dict of tensors [batch_size, *shape], int32 or float32: the
      features of the schema or, with `packing`, of `SequencePacking.join`.

    Raises:
      InputError: A file cannot be read, or its records do not fit the schema.
    """
    record_files = RecordFiles(files, schema, counts)
    parse_sizes = parser(size_schema(schema))
    first_epoch, rest = 0, 0
    if start_example and packing is None:
        first_epoch, rest = divmod(start_example, record_files.count())
    elif start_example:
        tallies = tf.data.Dataset.range(len(record_files)).interleave(
            lambda n: packing.tallies(record_files.read(n), parse_sizes),
            cycle_length=_FILES_AT_ONCE,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        first_epoch, rest = divmod(start_example, Fill.sum(tallies).rows)

    def read(number: tf.Tensor) -> tf.data.Dataset:
        if packing is None:
            return record_files.read(number)
        # Each file is packed separately.
        return packing.rows(record_files.read(number), parse_sizes)

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
    counts: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
    """Returns every example once, in the order of the files.

    All shards have the same number of batches, because replicas work in
    lockstep; examples of zeros fill the last ones.

    Arguments and errors are the same as for `training_dataset`, except:

    Args:
      max_examples: The largest number of examples to read over all shards;
        None for all.
      packing: If given, several examples share a row, and `batch_size`, `shard`
        and `example_index` count rows. The examples are the same.

    Returns:
      Batches as from `training_dataset`, with two more features, int32
      [batch_size]: `is_real_example`, 0 for padding examples, including those
      marked so in the file; and `example_index`, the number of the example
      among all shards' examples, -1 for padding.
    """
    record_files = RecordFiles(files, schema, counts)
    total = record_files.count(max_examples)
    examples = record_files.examples().take(total)
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
        filler = [b""] * packing.max_examples
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
    counts: Mapping[str, int] | None = None,
) -> Fill:
    """Measures how full the rows of the first `max_examples` examples are.

    The other arguments and the errors are the same as for `training_dataset`.
    """
    examples = RecordFiles(files, schema, counts).examples()
    examples = examples.take(max_examples or -1)
    with input_errors(files):
        return Fill.sum(packing.tallies(examples, parser(size_schema(schema))))


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
    numbers = tf.data.Dataset.range(len(files)).shuffle(
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
        # An id outside the embedding table would get NaN, zeros or another row.
        for name in VOCABULARY_FEATURES:
            if vocab_size is not None and name in features:
                smallest = tf.reduce_min(features[name])
                largest = tf.reduce_max(features[name])
                tf.debugging.Assert(
                    (smallest >= 0) & (largest < vocab_size),
                    [_OUTSIDE_VOCABULARY, name, smallest, largest, vocab_size],
                )
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


# -------------------------------------- files in memory, by length of examples


def load(path: str, schema: Schema, vocab_size: int | None = None) -> Features:
    """Reads a whole file of records; `schema` must have `input_mask`.

    Raises:
      InputError: The file is unreadable or damaged, or does not fit the schema
        or the vocabulary.
    """
    examples = RecordFiles([path], schema).examples()
    batches = map_ahead(
        examples.batch(_EXAMPLES_PER_PARSE), parser(schema, vocab_size)
    )
    with input_errors([path]):
        return in_memory(batches.as_numpy_iterator(), schema)


def training_batches(
    features: Features,
    *,
    padding: Padding,
    global_batch_size: int,
    num_batches: int,
    seed: int,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
    start_example: int = 0,
) -> tf.data.Dataset:
    """Returns a shuffled stream of batches that can start anywhere.

    A batch holds examples of similar length, the same ones for any padding. For
    the other arguments see `training_dataset`.

    Args:
      features: The examples.
      global_batch_size: Examples of a batch over all shards and replicas.
      num_batches: Global batches of the whole run. After them the stream
        repeats.
      seed: Not negative; equal seeds give equal streams.
      batch_size: Examples of one replica's batch.

    Returns:
      Batches for one replica after the other, each a dict of tensors
      [batch_size, *shape], int32 or float32. All batches of one global batch
      have the same length, which is static only if the padding is.
    """
    # Sorted by true lengths: training must not depend on the padding.
    plan = training_plan(
        features.lengths,
        num_batches=num_batches,
        batch_size=global_batch_size,
        seed=seed,
    )
    plan_lengths = padding.padded(features)[plan].max(axis=1)
    mean = features.lengths[plan].mean()
    logging.info(
        "Padding is %.0f %% of the training batches; it would be %.0f %% if "
        "all batches had length %d",
        100 * (1 - mean / plan_lengths.mean()),
        100 * (1 - mean / features.max_seq_length),
        features.max_seq_length,
    )
    rows = shares(plan, num_shards, batch_size)[shard]
    replicas = len(rows) // num_batches
    first = start_example // global_batch_size * replicas
    numbers = tf.data.Dataset.range(len(rows)).repeat().skip(first)
    gather = _Gatherer(features, padding)
    with tf.device("CPU:0"):
        batch_rows = tf.constant(rows)
        batch_lengths = tf.constant(np.repeat(plan_lengths, replicas))
    return map_ahead(numbers, lambda i: gather(batch_rows[i], batch_lengths[i]))


def evaluation_batches(
    features: Features,
    *,
    padding: Padding,
    batch_size: int,
    num_shards: int = 1,
    shard: int = 0,
    is_filled: bool = True,
) -> tf.data.Dataset:
    """Returns every example once, in the order of the file or longest first.

    The order of the file is kept if the padding is static. All shards get
    equally many batches of the same shapes.

    Args:
      features: The examples.
      batch_size: Examples of full length in a batch of this shard. A batch of
        shorter examples holds a multiple of this number, with at most as many
        tokens.
      is_filled: See `batching.evaluation_plan`.

    Returns:
      Batches: a dict of tensors [b, *shape], int32 or float32, with
      `example_index` int32 [b]: the row of each example, -1 where zeros fill
      the last batch. `is_real_example` is 0 for these zeros, and for examples
      that the file marks as padding.
    """
    plan = evaluation_plan(
        padding.padded(features),
        max_length=features.max_seq_length,
        batch_size=batch_size,
        num_shards=num_shards,
        is_filled=is_filled,
    )
    gather = _Gatherer(features, padding)
    rows = [batch[shard] for batch in plan.batches]
    with tf.device("CPU:0"):
        if padding.static:
            batch_rows = tf.constant(np.stack(rows))
        else:
            batch_rows = tf.RaggedTensor.from_row_lengths(
                np.concatenate(rows), list(map(len, rows))
            )
        batch_lengths = tf.constant(plan.lengths)

    def numbered(i: tf.Tensor) -> _Batch:
        return {
            "is_real_example": tf.cast(batch_rows[i] >= 0, tf.int32),
            **gather(batch_rows[i], batch_lengths[i]),
            "example_index": batch_rows[i],
        }

    return map_ahead(tf.data.Dataset.range(len(plan.batches)), numbered)


class _Gatherer:
    """Gathers rows of a data set inside a graph."""

    def __init__(self, features: Features, padding: Padding) -> None:
        self._sequences = () if padding.static else features.sequences
        with tf.device("CPU:0"):  # Otherwise a GPU would hold the data set.
            self._tensors = {
                name: tf.constant(values)
                for name, values in features.arrays.items()
            }

    def __call__(self, rows: tf.Tensor, length: tf.Tensor) -> _Batch:
        """Returns the rows [b], zeros for -1, truncated to a length."""
        batch = {}
        for name, values in self._tensors.items():
            taken = tf.gather(values, tf.maximum(rows, 0))
            if name in self._sequences:
                taken = taken[..., :length]
            if taken.dtype.is_integer:
                taken = tf.cast(taken, tf.int32)
            exists = tf.reshape(rows >= 0, [-1] + [1] * (len(taken.shape) - 1))
            batch[name] = tf.where(exists, taken, tf.zeros([], taken.dtype))
        return batch


# ------------------------------------------------------------ arrays for Keras


def with_datasets(
    arguments: Mapping[str, Any], shuffle: bool
) -> dict[str, Any]:
    """Replaces the arrays among the arguments of a method of Keras.

    Keras makes such data sets too, but a thread of TensorFlow tunes them. This
    thread sleeps for up to a minute, and the data cannot end before it wakes
    up: `fit`, `evaluate` and `predict` took up to twice as long as their steps.

    Args:
      arguments: The arguments of `fit`, `evaluate` or `predict` by name.
      shuffle: The default of the argument `shuffle`.

    Returns:
      Equivalent arguments; the same ones if a dataset cannot replace the
      arrays.
    """
    if any(arguments.get(name) for name in _READ_BY_KERAS):
        return dict(arguments)
    others = dict(arguments)
    columns = [others.pop(name, None) for name in ("x", "y", "sample_weight")]
    batch_size = others.pop("batch_size", None) or _DEFAULT_BATCH_SIZE
    dataset = _array_dataset(
        columns, batch_size, others.pop("shuffle", shuffle)
    )
    if dataset is None:
        return dict(arguments)
    if isinstance(others.get("validation_data"), tuple):
        size = others.pop("validation_batch_size", None) or batch_size
        held_out = _array_dataset(others["validation_data"], size, False)
        if held_out is None:
            return dict(arguments)
        others["validation_data"] = held_out
    if shuffle:
        others["shuffle"] = False  # The dataset shuffles.
    return {**others, "x": dataset}


def _array_dataset(
    columns, batch_size: int, shuffle: bool
) -> tf.data.Dataset | None:
    """Returns batches of inputs, targets and weights, or None.

    `columns` are an array or a dict of arrays, then arrays or None.
    """
    given = [x for x in columns if x is not None]
    inputs, *others = given or [None]
    leaves = [*inputs.values()] if isinstance(inputs, dict) else [inputs]
    leaves += others
    # Keras also takes nested inputs, and arrays of other libraries.
    if (
        any(x is None for x in columns[: len(given)])
        or shuffle not in (True, False)
        or not all(map(_is_plain, leaves))
        or len({len(x) for x in leaves}) != 1
    ):
        return None
    with tf.device("CPU"):
        tensors = tf.nest.map_structure(_as_tensor, tuple(given))
    count = len(leaves[0])
    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count)
    return map_ahead(
        rows.batch(batch_size),
        lambda ids: tf.nest.map_structure(lambda x: tf.gather(x, ids), tensors),
    )


def _is_plain(x) -> bool:
    """Returns whether `x` is a tensor or an array of numbers, not empty."""
    is_plain = isinstance(x, tf.Tensor) or (
        isinstance(x, np.ndarray) and x.dtype.kind in "biuf"
    )
    return is_plain and x.ndim > 0 and len(x) > 0


def _as_tensor(x) -> tf.Tensor:
    """Returns a tensor, with Keras's default dtype for floats."""
    x = tf.convert_to_tensor(x)
    return tf.cast(x, keras.config.floatx()) if x.dtype.is_floating else x
