"""The export of a job's model for TensorFlow Serving."""

from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from bert_tf.jobs import settings
from bert_tf.serving.export import export
from bert_tf.serving.served import Served
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import by_chief


def export_kept(
    estimator: Estimator,
    serve: Callable[[keras.Model], Served],
    config: settings.ExportOptions,
    *,
    name: str,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> str | None:
    """Exports a new version for TensorFlow Serving; only the chief writes.

    Args:
      estimator: The model.
      serve: Wraps a model in a `Served`.
      config: The export options.
      name: The model's name on the server.
      metrics: The model's scores, for the model card.
      source: The checkpoint that it was trained from, for the model card.

    Returns:
      The folder of the new version; None on workers other than the chief.

    Raises:
      InputError: The folder cannot be written to.
    """
    written = []

    def write() -> None:
        served = serve(_on_one_device(estimator))
        facts = {"name": name, "metrics": metrics, "source": source}
        written.append(export(served, settings.export_dir(config), **facts))

    by_chief(estimator.strategy, write, "export the model")
    return written[0] if written else None


def _on_one_device(estimator: Estimator) -> keras.Model:
    """Returns a copy of the model on one device, for a server."""
    task = estimator.task
    with tf.device("CPU:0"):
        model = task.build_model()
    if task.lora_rank:
        # The estimator's adapters are merged.
        model.merge_lora()
    trained = task.checkpoint_variables(estimator.model)
    for path, variable in task.checkpoint_variables(model).items():
        variable.assign(tf.convert_to_tensor(trained[path].value))
    return model
