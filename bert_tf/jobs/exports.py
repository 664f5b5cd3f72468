"""What a server loads, made from the model that a run has kept."""

import os
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from bert_tf import files
from bert_tf.jobs import output_folder, settings
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.serving.export import export
from bert_tf.serving.served import Served
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import by_chief


def export_fine_tuned(
    config: FineTuningOptions,
    estimator: Estimator,
    name: str,
    serve: Callable[[keras.Model], Served],
) -> str | None:
    """Writes a SavedModel of the model that is kept, with --do_export.

    Args:
      config: The options of the run.
      estimator: The model that is kept.
      name: The model's name on the server.
      serve: Makes a `Served` of a model.

    Returns:
      The folder of the new version, or None.
    """
    if not config.do_export:
        return None
    known = output_folder.known(config.output_dir)
    return export_kept(
        estimator,
        serve,
        settings.export_dir(config),
        name=name,
        metrics=scores_of(config.output_dir, estimator),
        source=known.get("init_checkpoint") or config.init_checkpoint,
    )


def export_kept(
    estimator: Estimator,
    serve: Callable[[keras.Model], Served],
    export_dir: str,
    *,
    name: str,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> str | None:
    """Writes a new version for TensorFlow Serving on the chief.

    Args:
      estimator: The model that is kept.
      serve: From a model to how it answers.
      export_dir: Folder of the versions.
      name: The model's name on the server.
      metrics: How good it is, for the model card.
      source: The checkpoint that it was trained from, for the model card.

    Returns:
      The folder of the new version; None on other workers than the chief.

    Raises:
      InputError: The folder cannot be written to.
    """
    written = []

    def write() -> None:
        served = serve(_on_one_device(estimator))
        written.append(
            export(
                served, export_dir, name=name, metrics=metrics, source=source
            )
        )

    by_chief(estimator.strategy, write, "export the model")
    return written[0] if written else None


def _on_one_device(estimator: Estimator) -> keras.Model:
    """A copy of the model, whatever it was trained on: a server has one."""
    task = estimator.task
    with tf.device("CPU:0"):
        model = task.build_model()
    trained = task.checkpoint_variables(estimator.model)
    for path, variable in task.checkpoint_variables(model).items():
        variable.assign(trained[path].numpy())
    return model


def scores_of(
    output_dir: str, estimator: Estimator
) -> dict[str, float | None] | None:
    """The scores in `eval_results.json`, if they are of the model's weights.

    Later trainings leave the file where it is, and models from elsewhere all
    have the same step: it is the weights' checksum that tells.
    """
    path = os.path.join(output_dir, "eval_results.json")
    found = files.read_json(path) if files.exists(path) else {}
    if found.pop("weights_sha256", None) != estimator.weights_checksum():
        return None
    del found["train_seconds"]  # No score.
    return found
