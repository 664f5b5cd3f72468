"""TensorBoard's event files; the one that cannot be written is named."""

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.checkpoints import first_line


class EventFile:
    """A new event file.

    Args:
      folder: Where it goes; None for a process that writes none.

    Raises:
      InputError: It cannot be written, at any time.
    """

    def __init__(self, folder: str | None):
        self._folder = folder
        with self._told():
            self._writer = (
                tf.summary.create_noop_writer()
                if folder is None
                else tf.summary.create_file_writer(folder)
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers by their names, and waits until they are written."""
        with self._told(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        with self._told():
            self._writer.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise InputError(
                f"Cannot write TensorBoard's events to {self._folder}: "
                f"{first_line(error).rpartition('; ')[2]}."
            ) from error
