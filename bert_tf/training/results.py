"""The file that says how good a model is."""

import os
from collections.abc import Mapping

import tensorflow as tf
from absl import logging


def write_results(path: str, metrics: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the original does: sorted `key = value`.

    Args:
      path: The file; it is written aside and renamed.
      metrics: Dict from name to number.
    """
    lines = [f"{name} = {metrics[name]}" for name in sorted(metrics)]
    aside = f"{path}.tmp-{os.getpid()}"
    with tf.io.gfile.GFile(aside, "w") as file:
        file.write("".join(f"{line}\n" for line in lines))
    tf.io.gfile.rename(aside, path, overwrite=True)
    logging.info("***** Eval results *****")
    for line in lines:
        logging.info("  %s", line)
