"""Files of records as tf.data reads them, whole or without damaged places."""

from collections.abc import Mapping, Sequence
from concurrent import futures

import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.data import records, salvage
from bert_tf.data.salvage import Stretch
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError

_FILES_AT_ONCE = 16

# Of each file, by its path, what of it is sound.
Stretches = Mapping[str, Sequence[Stretch]]


class RecordFiles:
    """The files that hold records, after a look at the first of each.

    Args:
      paths: TFRecord files, compressed where the name ends in `.gz`.
      schema: What their records have to fit.
      stretches: What of them is sound, from `salvage`; None to take it that all
        is.

    Attributes:
      paths: Those with records.

    Raises:
      InputError: A file cannot be read, its records do not fit the schema, or
        there is none.
    """

    def __init__(
        self,
        paths: Sequence[str],
        schema: Schema,
        stretches: Stretches | None = None,
    ):
        self._stretches = stretches
        for path in paths:
            if not files.is_utf8(path):
                raise InputError(
                    "The names of record files must be UTF-8; got "
                    f"{path!r}. Rename it."
                )
        with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = pool.map(lambda path: self._holds(path, schema), paths)
            holds_records = dict(zip(paths, found, strict=True))
        for path in paths:
            if not holds_records[path]:
                logging.warning("%s holds no records.", path)
        self.paths = [path for path in paths if holds_records[path]]
        if not self.paths:
            raise InputError(
                f"Expected files with records. Received: {', '.join(paths)}, "
                "without any."
            )

    def __len__(self) -> int:
        return len(self.paths)

    def _holds(self, path: str, schema: Schema) -> bool:
        offset = 0
        if self._stretches is not None:
            if not self._stretches[path]:
                return False
            offset = self._stretches[path][0].offset
        return records.check_first_record(path, schema, offset)

    def count(self, at_most: int | None = None) -> int:
        """The number of records in all files, or `at_most` if it is less."""
        total = 0
        for path in self.paths:
            left = None if at_most is None else at_most - total
            if self._stretches is None:
                total += records.count_records(path, left)
            else:
                here = sum(one.count for one in self._stretches[path])
                total += here if left is None else min(here, left)
        return total

    def numbers(self) -> tf.data.Dataset:
        """What `read` takes: each file once, in their order."""
        return tf.data.Dataset.range(len(self.paths))

    def read(self, number: tf.Tensor) -> tf.data.Dataset:
        """The serialized examples of a file."""
        path = tf.constant(self.paths)[number]
        compression = tf.constant(
            ["GZIP" if path.endswith(".gz") else "" for path in self.paths]
        )[number]
        if self._stretches is None:
            return tf.data.TFRecordDataset(path, compression)
        sound = tf.ragged.constant(
            [self._stretches[path] for path in self.paths],
            tf.int64,
            ragged_rank=1,
            inner_shape=(2,),
        )[number]  # [stretches, 2]
        return tf.data.Dataset.from_tensor_slices(sound).flat_map(
            lambda one: salvage.read(path, compression, one[0]).take(one[1])
        )
