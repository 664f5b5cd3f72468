"""The files that say how good a model is."""

import json
from collections.abc import Mapping

from absl import logging

from bert_tf import files
from bert_tf.training.evaluations import finite_or_null


def write_results(path: str, metrics: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the original does: sorted `key = value`.

    Args:
      path: The file; it appears as a whole.
      metrics: Dict from name to number.

    Raises:
      InputError: It could not be written.
    """
    lines = [f"{name} = {metrics[name]!s}" for name in sorted(metrics)]
    files.write_text(path, "".join(f"{line}\n" for line in lines))
    logging.info("***** Eval results *****")
    for line in lines:
        logging.info("  %s", line)


def write_json(path: str, metrics: Mapping[str, float], **facts: str) -> None:
    """Writes `eval_results.json`: one object, sorted by name.

    JSON has no word for what is not a number or infinite: such a value, the
    correlation with a constant say, is null.

    Args:
      path: The file; it appears as a whole.
      metrics: Dict from name to number.
      **facts: What else is to be said, in words.

    Raises:
      InputError: It could not be written.
    """
    values = {**finite_or_null(metrics), **facts}
    text = json.dumps(values, indent=2, sort_keys=True)
    files.write_text(path, text + "\n")
