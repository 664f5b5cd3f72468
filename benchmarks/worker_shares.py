"""Which examples each of several workers reads: every one, and none twice."""

import collections
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from bert_tf.data import pipeline
from bert_tf.data.schema import Schema

Examples = list[bytes]


@dataclasses.dataclass(frozen=True)
class Shares:
    """How many examples each worker has read.

    Attributes:
      trained: In the first epoch of training.
      evaluated: In an evaluation.
    """

    trained: tuple[int, ...]
    evaluated: tuple[int, ...]


def shares(
    train_files: Sequence[str],
    eval_files: Sequence[str],
    schema: Schema,
    num_workers: int,
) -> Shares:
    """Reads as the workers of one run do.

    Args:
      train_files: Records, of which no two are alike.
      eval_files: The same.
      schema: Of both.
      num_workers: How many share them.

    Raises:
      ValueError: They do not read each example once.
    """
    workers = [
        {"num_shards": num_workers, "shard": shard}
        for shard in range(num_workers)
    ]
    every = _evaluated(train_files, schema)
    trained = []
    for shard, worker in enumerate(workers):
        stream = pipeline.training_dataset(
            train_files, schema, batch_size=1, seed=0, **worker
        )
        # The workers' examples in turn are the stream, epoch after epoch.
        count = len(range(shard, len(every), num_workers))
        trained.append(_examples(stream.take(count)))
    held_out = _evaluated(eval_files, schema)
    evaluated = [_evaluated(eval_files, schema, **own) for own in workers]
    return Shares(each_once(trained, every), each_once(evaluated, held_out))


def each_once(parts: Sequence[Examples], every: Examples) -> tuple[int, ...]:
    """Their sizes.

    Raises:
      ValueError: Together they are not all that there are, or more.
    """
    found = collections.Counter(example for part in parts for example in part)
    expected = collections.Counter(every)
    if found != expected or found.total() != len(found):
        raise ValueError(
            f"expected each of {len(every)} examples once. Received: "
            f"{len(expected - found)} of them not, "
            f"{found.total() - len(found)} again"
        )
    return tuple(map(len, parts))


def _evaluated(files: Sequence[str], schema: Schema, **worker: int) -> Examples:
    stream = pipeline.evaluation_dataset(files, schema, batch_size=1, **worker)
    return _examples(stream.filter(lambda row: row["is_real_example"][0] > 0))


def _examples(stream: tf.data.Dataset) -> Examples:
    """What tells each from all others."""
    return [row["input_ids"].tobytes() for row in stream.as_numpy_iterator()]
