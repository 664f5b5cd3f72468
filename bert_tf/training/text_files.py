"""Small text files that are there as a whole or not at all."""

import os

import tensorflow as tf


def write_text(path: str, text: str) -> None:
    """Writes a file aside and renames it, over an older one if there is one.

    Args:
      path: Local, or anything that TensorFlow writes to.
      text: What it shall hold.

    Raises:
      OSError: It could not be written; an older file is as it was.
    """
    aside = f"{path}.tmp-{os.getpid()}"
    try:
        with tf.io.gfile.GFile(aside, "w") as file:
            file.write(text)
        tf.io.gfile.rename(aside, path, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(f"cannot write {path}: {error.message}") from error
    finally:
        if tf.io.gfile.exists(aside):
            tf.io.gfile.remove(aside)
