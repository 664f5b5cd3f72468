"""The file that says how good a model is."""

from collections.abc import Mapping

from absl import logging

from bert_tf import files


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
