"""Fine-tuning, for any kind of task: from lists of examples to files.

A job reads the files of its data, makes a task and calls `fine_tune`:

    config, start = resolve(config, "token")
    task = TaggingTask(start.config, start.encoding(TaggingEncoding, ...))
    fine_tune(config, start, task, [Split("train", ...), Split("dev", ...)],
              name="ner")

The output folder:

    output_dir/
        train.tf_record, eval.tf_record, predict.tf_record
        model.ckpt-STEP, ...            see trainings.py
        eval_results.txt, .json         the metrics, of the "dev" splits
        release/                        the model, its vocabulary and labels
        export/                         SavedModels
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.base import files, processes
from bert_tf.data import cache, pipeline
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, in_file
from bert_tf.jobs import output_folder, settings, trainings
from bert_tf.jobs.output_folder import RELEASE
from bert_tf.jobs.settings import DistillationOptions, FineTuningOptions
from bert_tf.jobs.start import Start, find_teacher
from bert_tf.jobs.trainings import (
    TrainingResult,
    Trainings,
    export_kept,
)
from bert_tf.serving.served import Served
from bert_tf.tasks.task import FineTuningTask
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.results import write_json, write_results
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.workers import chief_first

# The original's names of the record files, by split.
_RECORDS = {"train": "train", "dev": "eval", "test": "predict"}


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A split of a data set, or a part of it, such as MNLI's matched part.

    Attributes:
      name: "train"; "dev", which is evaluated; or "test", which is predicted.
      examples: The examples, in the form that the task's encoding takes.
      sources: The files that the examples were read from.
      suffix: The suffix of metric and file names, such as "_mismatched".
      num_rows: The number of rows of the examples, if known.
      is_predicted: Whether to write its predictions, as for "test". For a "dev"
        split, one pass then computes metrics and predictions.
      features: The rows of the examples, once they are loaded.
    """

    name: str
    examples: Sequence[Any]
    sources: Sequence[str] = ()
    suffix: str = ""
    num_rows: int | None = None
    is_predicted: bool = False
    features: Features | None = None

    def __post_init__(self) -> None:
        if self.name == "test":
            object.__setattr__(self, "is_predicted", True)


# Maps rows to the task's `predictions` for these rows.
Predict = Callable[[Features], dict[str, np.ndarray]]


class Steps:
    """The steps that depend on the kind of task.

    These suffice for a task whose `score` needs only predictions and examples;
    a job overrides what differs.

    Attributes:
      records: The splits whose rows are written as records and loaded.
    """

    records: Sequence[str] = ("train", "dev", "test")

    def __init__(self, task: Any) -> None:
        self.task = task

    def rename(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Maps the labels of a teacher to the spelling of the task."""
        return labels

    def check(
        self, training: TrainingConfig, strategy: tf.distribute.Strategy
    ) -> None:
        """Raises InputError if the task cannot be trained with the settings."""

    def complete(self, split: Split) -> Split:
        """Adds what the records do not contain to a loaded split."""
        return split

    def evaluate(
        self, split: Split, predict: Predict, folder: str | None
    ) -> dict[str, float]:
        """Predicts a split; returns the metrics of a "dev" split, {} of others.

        Args:
          split: The split.
          predict: See `Predict`.
          folder: The folder to write predictions to; None while training, and
            on workers other than the chief.
        """
        assert split.features is not None
        predictions = self.task.of_examples(predict(split.features))
        if folder is not None:
            self.write(split, predictions, folder)
        return self.score(split, predictions) if split.name == "dev" else {}

    def score(
        self, split: Split, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Returns the metrics of the predictions for a split."""
        scores: dict[str, float] = self.task.score(predictions, split.examples)
        return scores

    def write(
        self, split: Split, predictions: Mapping[str, np.ndarray], folder: str
    ) -> None:
        """Writes the predictions for a split, if the job has files for them."""


@settings.precision_restored()
def fine_tune(
    config: FineTuningOptions,
    start: Start,
    task: FineTuningTask,
    splits: Sequence[Split],
    *,
    name: str,
    steps: Steps | None = None,
    serve: Callable[[keras.Model], Served] | None = None,
    metrics: Sequence[str] | None = None,
    facts: Mapping[str, Any] | None = None,
    inputs: Iterable[str] = (),
) -> TrainingResult:
    """Trains, evaluates, predicts and exports, as the options say.

    Args:
      config: The options that `start.resolve` returns, with all defaults.
      start: The checkpoint, vocabulary and casing to start from.
      task: The task.
      splits: The splits that `settings.splits` names, read and checked.
      name: The name of the task, and of an exported model.
      steps: The steps that depend on the kind of task.
      serve: Wraps a model in a `Served`, to export it.
      metrics: The metrics that --save_best may name, with the prefix "eval_".
        Default: the task's. Without --save_best, the first compares trainings.
      facts: Further facts that all runs of one training share. They replace
        facts of the same name that this run computes.
      inputs: Further files that the run reads.

    Raises:
      InputError: If the options, files or devices are invalid or do not fit
        together. The files of an earlier run are then unchanged.
    """
    if config.do_export and serve is None:
        raise InputError(f"Models of {name} cannot be exported.")
    _require_splits(config, splits)
    steps = steps or Steps(task)
    tuning = _prepare(config, start, task, splits, steps, metrics)
    with _claimed(config, tuning, splits, name, facts or {}, inputs):
        loaded = chief_first(
            tuning.strategy,
            functools.partial(_load, config.output_dir, task, splits, steps),
            "write the records",
        )
        estimator, results = _run(config, tuning, loaded, steps)
        release = exported = None
        if config.do_train:
            release = os.path.join(config.output_dir, RELEASE)
        if config.do_export:
            exported = export_trained(config, estimator, name, serve)
        return TrainingResult(results, release, exported)


def _require_splits(config: FineTuningOptions, splits: Sequence[Split]) -> None:
    names = {split.name for split in splits}
    if any(split.is_predicted for split in splits):
        names.add("test")
    for name in settings.splits(config):
        if name not in names:
            raise InputError(
                f"The options need the split {name!r}. Pass its examples."
            )


def _prepare(
    config: FineTuningOptions,
    start: Start,
    task: FineTuningTask,
    splits: Sequence[Split],
    steps: Steps,
    metrics: Sequence[str] | None,
) -> Trainings:
    """Checks all inputs and returns the trainings."""
    num_rows, teacher = None, None
    if config.do_train:
        [train] = (split for split in splits if split.name == "train")
        num_rows = train.num_rows
        if num_rows is None:
            num_rows = task.encoding.count_rows(train.examples)
        if not num_rows:
            raise in_file(
                ", ".join(train.sources) or "The training set",
                f"none of the {task.encoding.unit} can be used for training.",
            )
        if isinstance(config, DistillationOptions) and config.teacher:
            teacher = find_teacher(config.teacher, task, steps.rename)
    if metrics is None:
        metrics = [f"eval_{metric}" for metric in task.metrics]
    tuning = trainings.prepare(config, start, task, metrics, num_rows, teacher)
    for training in tuning.plan.values():
        steps.check(training, tuning.strategy)
    return tuning


def _claimed(
    config: FineTuningOptions,
    tuning: Trainings,
    splits: Sequence[Split],
    name: str,
    facts: Mapping[str, Any],
    inputs: Iterable[str],
) -> Any:
    """Reserves the output folder; see `output_folder.claimed`."""
    task = tuning.task
    problem = getattr(task.encoding, "problem", task.head)
    run_facts = tuning.start.facts(
        task=name, problem=problem, labels=[*task.labels]
    )
    if config.do_train:
        run_facts["teacher"] = tuning.teacher and tuning.teacher.checksum
        train = [split for split in splits if split.name == "train"]
        run_facts["training_set"] = _checksum(task, train)
    sources = itertools.chain(*(split.sources for split in splits), inputs)
    return output_folder.claimed(
        config,
        tuning.strategy,
        {**run_facts, **facts},
        dict.fromkeys(sources),
        _checksum(task, [split for split in splits if split.name == "dev"]),
    )


def _checksum(task: FineTuningTask, splits: Iterable[Split]) -> str:
    examples = itertools.chain.from_iterable(s.examples for s in splits)
    return cache.checksum(map(task.encoding.fingerprint, examples))


def _load(
    folder: str, task: FineTuningTask, splits: Sequence[Split], steps: Steps
) -> list[Split]:
    """Writes the records of splits, unless they exist, and loads them."""
    encoding, loaded = task.encoding, []
    for split in splits:
        if split.name in steps.records:
            name = f"{_RECORDS[split.name]}{split.suffix}.tf_record"
            path = os.path.join(folder, name)
            encoding.write(
                path,
                split.examples,
                sources=split.sources,
                num_workers=processes.available_cpus(),
            )
            features = pipeline.load(path, encoding.schema, len(encoding.vocab))
            split = steps.complete(
                dataclasses.replace(split, features=features)
            )
        loaded.append(split)
    return loaded


def _run(
    config: FineTuningOptions,
    tuning: Trainings,
    splits: Sequence[Split],
    steps: Steps,
) -> tuple[Estimator, dict[str, float]]:
    """Trains or opens a model; evaluates and predicts with it."""
    by_name = {
        name: [split for split in splits if split.name == name]
        for name in _RECORDS
    }

    def evaluate(
        estimator: Estimator, name: str = "dev", is_final: bool = False
    ) -> dict[str, float]:
        """Returns the metrics of a split; writes predictions if `is_final`."""
        writes = is_final and is_chief(tuning.strategy)
        metrics: dict[str, float] = {}
        for split in by_name[name]:
            is_predicted = is_final and split.is_predicted
            size = config.predict_batch_size if is_predicted else None

            def predict(
                features: Features, size: int | None = size
            ) -> dict[str, np.ndarray]:
                data = trainings.evaluation_data(features, tuning.padding)
                return estimator.predict(data, size)

            scores = steps.evaluate(
                split, predict, config.output_dir if writes else None
            )
            metrics |= {f"{k}{split.suffix}": v for k, v in scores.items()}
        return {**metrics, "global_step": estimator.step}

    if config.do_train:
        [train] = by_name["train"]
        assert train.features is not None
        estimator = tuning.train_on(train.features, evaluate)
    else:
        estimator = tuning.open_model()
    metrics: dict[str, float] = {}
    if config.do_eval:
        metrics = evaluate(estimator, is_final=True)
        write_metrics(config.output_dir, estimator, metrics)
    if config.do_predict:
        evaluate(estimator, "test", is_final=True)
    return estimator, metrics


def write_metrics(
    output_dir: str, estimator: Estimator, metrics: Mapping[str, float]
) -> None:
    """Writes `eval_results.txt` and, with a checksum, `.json`."""
    if not is_chief(estimator.strategy):
        return
    path = os.path.join(output_dir, "eval_results")
    checksum = estimator.weights_checksum()
    seconds = estimator.train_seconds
    if math.isnan(seconds):
        # This run only evaluates, so the time of the earlier run is kept.
        before = _results_of(output_dir, checksum)
        seconds = before.get("train_seconds") or math.nan
    write_results(f"{path}.txt", metrics)
    write_json(
        f"{path}.json",
        {**metrics, "train_seconds": seconds},
        weights_sha256=checksum,
    )


def export_trained(
    config: FineTuningOptions,
    estimator: Estimator,
    name: str,
    serve: Callable[[keras.Model], Served],
) -> str | None:
    """Exports the selected model, with its scores and its source."""
    recorded = output_folder.recorded_facts(config.output_dir)
    scores = _results_of(config.output_dir, estimator.weights_checksum())
    scores.pop("train_seconds", None)  # It is not a score.
    return export_kept(
        estimator,
        serve,
        settings.export_dir(config),
        name=name,
        metrics=scores or None,
        source=recorded.get("init_checkpoint") or config.init_checkpoint,
    )


def _results_of(output_dir: str, checksum: str) -> dict[str, Any]:
    """Returns `eval_results.json`; {} if it belongs to an earlier training."""
    path = os.path.join(output_dir, "eval_results.json")
    results = files.read_json(path) if files.exists(path) else {}
    return results if results.pop("weights_sha256", "") == checksum else {}
