"""One training of a task, or several, and the model that is kept.

A single training lies in the output folder itself, as in the original. Several
lie in `trials/`, each in a folder of its own; the weights of the best are kept.

    output_dir/
        model.ckpt-STEP, checkpoint     or   trials/NAME/model.ckpt-STEP ...
        evaluations.jsonl, best/             trials.json, trials.tsv
        release/                        the model to use, with what it needs
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.data import buckets
from bert_tf.data.buckets import Features, Padding
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import Pretrained, write_metadata
from bert_tf.jobs import output_folder, settings, trials
from bert_tf.jobs.output_folder import RELEASE, WEIGHTS
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.jobs.start import Start, open_start
from bert_tf.jobs.trials import Trial
from bert_tf.serving.export import export
from bert_tf.serving.served import Served
from bert_tf.tasks.encoding import Encoding, write_features
from bert_tf.tasks.examples import Example
from bert_tf.training import results
from bert_tf.training.distribution import agreement, is_chief
from bert_tf.training.estimator import (
    Estimator,
    EvaluationData,
    TrainingData,
    batch_per_replica,
)
from bert_tf.training.hooks import BEST, Evaluation, Hook, Progress, Summaries
from bert_tf.training.results import write_json, write_results
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.workers import by_chief, require_shared

# One training of a task, or several, and the model that is kept.


# What a server loads, made from the model that a run has kept.


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


# One training of a task, or several, and the model that is kept.


# What is large in the folder of a training.
_LARGE = re.compile(r"model\.ckpt-.*|checkpoint|best")


@dataclasses.dataclass(frozen=True)
class FineTuningResult:
    """What a fine-tuning job has made.

    Attributes:
      metrics: The metrics by name, as in `eval_results.json`; empty without
        evaluation.
      release: The folder of the fine-tuned model, which `init_checkpoint` and
        `load_model` accept; None without training.
      export: The folder of the SavedModel; None without export.
    """

    metrics: dict[str, float]
    release: str | None = None
    export: str | None = None


def finish(
    config: FineTuningOptions,
    estimator: Estimator,
    metrics: dict[str, float],
    name: str,
    serve: Callable[[keras.Model], Served],
) -> FineTuningResult:
    """Exports the model, if the options ask for it; returns what was made.

    Args:
      config: The options of the job.
      estimator: The model that is kept.
      metrics: The metrics of its evaluation.
      name: The model's name on the server.
      serve: Makes a `Served` of a model.
    """
    return FineTuningResult(
        metrics,
        release=os.path.join(config.output_dir, RELEASE)
        if config.do_train
        else None,
        export=export_fine_tuned(config, estimator, name, serve),
    )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long a model is trained, and which one is kept.

    Attributes:
      num_train_epochs: May be a fraction.
      warmup_proportion: Share of the steps in which the rate rises.
      eval_steps: Steps between evaluations; 0 for none, or for one an epoch
        with `save_best`.
      save_best: Metric whose best evaluation gives the weights; None for the
        last weights.
      early_stopping_patience: Evaluations without a better one after which
        training stops; 0 for never.
      num_seeds: How many trainings there are, each with its own seed.
      search: Name of a grid of settings that are tried, or None.
      log_steps: Steps between two log lines; 0 for none.
    """

    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1
    eval_steps: int = 0
    save_best: str | None = None
    early_stopping_patience: int = 0
    num_seeds: int = 1
    search: str | None = None
    log_steps: int = 100

    def __post_init__(self):
        _require_number("num_train_epochs", self.num_train_epochs)
        _require_number("warmup_proportion", self.warmup_proportion, 1.0)

    def plan(
        self,
        config: TrainingConfig,
        num_examples: int,
        strategy: tf.distribute.Strategy,
    ) -> dict[Trial, TrainingConfig]:
        """The trainings, and how each of them is done.

        A training has int(n / batch * epochs) steps, as in the original.

        Args:
          config: What they have in common, and the batch size, the rate and
            the seed that they start from.
          num_examples: Size n of the training set.
          strategy: The devices.

        Raises:
          InputError: One of them has no step, or cannot be done on these
            devices.
        """
        base = Trial(
            train_batch_size=config.train_batch_size,
            learning_rate=config.learning_rate,
            num_train_epochs=self.num_train_epochs,
            random_seed=config.random_seed,
        )
        plan = {
            trial: self._config(config, trial, num_examples)
            for trial in trials.plan(base, self.num_seeds, self.search)
        }
        for planned in plan.values():
            batch_per_replica(planned, strategy)
        return plan

    def _config(
        self, config: TrainingConfig, trial: Trial, num_examples: int
    ) -> TrainingConfig:
        epochs, batch_size = trial.num_train_epochs, trial.train_batch_size
        if not epochs:
            raise InputError(
                "--num_train_epochs must be more than 0 to train; got "
                f"{epochs:g}. Leave out --do_train to use a model as it is."
            )
        steps = int(num_examples / batch_size * epochs)
        if steps < 1:
            raise InputError(
                f"expected a batch of at most {num_examples} examples times "
                f"{epochs} epochs. Received: {batch_size} (--train_batch_size "
                "or --search)"
            )
        return dataclasses.replace(
            config,
            train_batch_size=batch_size,
            learning_rate=trial.learning_rate,
            random_seed=trial.random_seed,
            num_train_steps=steps,
            num_warmup_steps=int(steps * self.warmup_proportion),
        )


def _require_number(flag: str, value: float, most: float = math.inf) -> None:
    if not (0 <= value <= most and math.isfinite(value)):
        limit = f" up to {most:g}" if math.isfinite(most) else " up"
        raise InputError(f"expected --{flag} of 0{limit}. Received: {value}")


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """What all trainings of a task share, and how to run them.

    Attributes:
      task: What to learn, a `bert_tf.tasks.task.Task`.
      strategy: The devices.
      start: What training starts from.
      output_dir: Where everything goes.
      plan: The trainings, from `Schedule.plan`.
      schedule: Which model is kept.
      training_data: From a training's config to its data.
      evaluate: Gives the metrics of an estimator's model.
      metric: What decides between trainings if `schedule` does not say.
      tokens_per_example: The mean, for TensorBoard.
    """

    task: Any
    strategy: tf.distribute.Strategy
    start: Start
    output_dir: str
    plan: Mapping[Trial, TrainingConfig]
    schedule: Schedule
    training_data: Callable[[TrainingConfig], TrainingData]
    evaluate: Callable[[Estimator], dict[str, float]]
    metric: str
    tokens_per_example: float

    def train(self) -> Estimator:
        """Trains as often as was asked for; what is done is not done again.

        Returns:
          The estimator of the training that is kept, with its best weights.
        """
        folder = self.output_dir
        if self.schedule.save_best or len(self.plan) > 1:
            require_shared(self.strategy, folder)
        if len(self.plan) == 1:
            [trial] = self.plan
            estimator = self._train(trial, folder)
        else:
            best_one = trials.run(
                list(self.plan),
                self._try,
                folder,
                self.schedule.save_best or self.metric,
                self._discard,
                writes=is_chief(self.strategy),
            ).best
            folder = trials.folder_of(folder, best_one.trial)
            estimator = self._estimator(best_one.trial, folder)
            estimator.train_seconds = best_one.metrics["train_seconds"]
        _take_best(estimator, folder)
        if is_chief(self.strategy):
            output_folder.note_kept(self.output_dir, folder)
        return estimator

    def _estimator(self, trial: Trial, folder: str) -> Estimator:
        return _estimator(
            self.task,
            self.strategy,
            self.start,
            self.plan[trial],
            folder,
            is_trained=True,
        )

    def _train(self, trial: Trial, folder: str) -> Estimator:
        """One training, from its start or from where it was stopped."""
        files.makedirs(folder)
        estimator = self._estimator(trial, folder)
        if self.schedule.save_best is None and is_chief(self.strategy):
            results.remove_best(os.path.join(folder, BEST))
        estimator.train(
            self.training_data(estimator.config),
            self._hooks(estimator, folder, trial),
        )
        return estimator

    def _try(self, trial: Trial, folder: str) -> dict[str, float]:
        """One training of several: its metrics."""
        estimator = self._train(trial, folder)
        _take_best(estimator, folder)
        metrics = self.evaluate(estimator)
        metrics["train_seconds"] = estimator.train_seconds
        del metrics["global_step"]
        # Each model brings its variables and its traced functions.
        del estimator
        keras.utils.clear_session()
        return metrics

    def _discard(self, folder: str) -> None:
        """Removes the weights of a training that is not the best."""
        for name in files.listdir(folder):
            if _LARGE.fullmatch(name):
                files.remove_tree(os.path.join(folder, name))

    def _hooks(
        self, estimator: Estimator, folder: str, trial: Trial
    ) -> list[Hook]:
        """What watches a training."""
        writes = is_chief(self.strategy)
        config, schedule = estimator.config, self.schedule
        hooks: list[Hook] = []
        if writes:
            hooks.append(Progress(config.num_train_steps, schedule.log_steps))
        if writes and schedule.log_steps:
            hooks.append(
                Summaries(
                    folder,
                    schedule.log_steps,
                    examples_per_step=config.train_batch_size,
                    tokens_per_example=self.tokens_per_example,
                )
            )
        every = schedule.eval_steps
        if schedule.save_best and not every:
            every = math.ceil(config.num_train_steps / trial.num_train_epochs)
        if every:
            hooks.append(
                Evaluation(
                    functools.partial(self.evaluate, estimator),
                    folder,
                    every=every,
                    last_step=config.num_train_steps,
                    writes=writes,
                    metric=schedule.save_best,
                    export=estimator.export_weights
                    if schedule.save_best
                    else None,
                    patience=schedule.early_stopping_patience,
                )
            )
        return hooks


def open_model(
    task: Any,
    strategy: tf.distribute.Strategy,
    start: Start,
    output_dir: str,
    config: TrainingConfig,
) -> Estimator:
    """A model that was trained before, to evaluate it and to predict.

    It is the one that was kept in the output folder, else `init_checkpoint`,
    else the release in the output folder, where that alone is left.

    Raises:
      InputError: There is neither, or it has no head.
    """
    folder = output_folder.kept(output_dir)
    estimator = _estimator(
        task, strategy, start, config, folder, is_trained=False
    )
    _take_best(estimator, folder)
    release = os.path.join(output_dir, RELEASE, WEIGHTS)
    if estimator.weights_from is None and files.exists(f"{release}.index"):
        estimator.load_weights(release)
    if estimator.weights_from is None:
        raise output_folder.no_model(output_dir)
    lacking = [
        name
        for name in estimator.random_variables
        if not re.match(task.unused_variables, name)
    ]
    if lacking:
        raise InputError(
            "expected a fine-tuned model, or --do_train. Received: "
            f"{estimator.weights_from}, which lacks {lacking[0]}"
        )
    return estimator


def _estimator(
    task: Any,
    strategy: tf.distribute.Strategy,
    start: Start,
    config: TrainingConfig,
    folder: str,
    is_trained: bool,
) -> Estimator:
    return Estimator(
        task,
        strategy,
        config,
        folder,
        start.init_checkpoint,
        functools.partial(
            open_start, config=start.config, task=task, is_trained=is_trained
        ),
    )


def _take_best(estimator: Estimator, folder: str) -> None:
    """Puts the weights of the best evaluation in, if they were kept."""
    kept = os.path.join(folder, BEST)
    agree = agreement(estimator.strategy)
    if is_chief(estimator.strategy):
        results.finish_saving_best(kept)
    agree([1])
    found = results.find_best(kept)
    is_there = int(found is not None)
    if agree([is_there, 1 - is_there]) == [0, 0]:
        raise InputError(
            "expected --output_dir to be one folder for all workers. "
            f"Received: {folder}, where some find weights and others none"
        )
    if found is not None:
        estimator.load_weights(results.best_prefix(kept))
        estimator.step = found.step
        logging.info(
            "Using the weights of step %d, %s %.4f",
            found.step,
            found.metric,
            found.value,
        )


def release(
    estimator: Estimator, output_dir: str, start: Start, **facts: Any
) -> None:
    """Writes the model that is kept, with all that is needed to use it.

    Args:
      estimator: Its weights.
      output_dir: It becomes `release/` in there.
      start: The configuration, the vocabulary and the casing.
      **facts: What else `Pretrained` knows: labels, the kind of head ...
    """
    if not is_chief(estimator.strategy):
        return
    folder = os.path.join(output_dir, RELEASE)
    files.makedirs(folder)
    prefix = os.path.join(folder, WEIGHTS)
    pretrained = Pretrained(
        prefix,
        {},
        start.config,
        start.vocab,
        do_lower_case=start.do_lower_case,
        strip_accents=start.strip_accents,
        **facts,
    )
    # The weights last: where they are, all is.
    write_metadata(folder, pretrained)
    estimator.export_weights(prefix)
    output_folder.settle(output_dir)


def write_metrics(
    estimator: Estimator, output_dir: str, metrics: Mapping[str, float]
) -> None:
    """Writes `eval_results.txt`; and `.json`, which tells of what weights."""
    if is_chief(estimator.strategy):
        path = os.path.join(output_dir, "eval_results")
        write_results(f"{path}.txt", metrics)
        write_json(
            f"{path}.json",
            {**metrics, "train_seconds": estimator.train_seconds},
            weights_sha256=estimator.weights_checksum(),
        )


# The examples of a split as records, and the records as batches.


# The original's names of the files, by split.
RECORDS = {"train": "train", "dev": "eval", "test": "predict"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a data set, ready to be used.

    Attributes:
      examples: As they were read.
      features: As the model takes them, in the same order.
      suffix: What the part adds to the names of results.
      submission: Its file in a submission to the GLUE leaderboard.
    """

    examples: list[Example]
    features: Features
    suffix: str = ""
    submission: str | None = None


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How examples become batches.

    Attributes:
      folder: Where the records are kept.
      encoding: From texts to ids.
      padding: To what length.
      num_workers: Processes that tokenize.
    """

    folder: str
    encoding: Encoding
    padding: Padding
    num_workers: int = 1

    def load(self, split: str, part: Any, examples: list[Example]) -> Split:
        """Makes the records of a part, unless they are there, and reads them.

        Args:
          split: "train", "dev" or "test".
          part: A `bert_tf.tasks.datasets.Part`.
          examples: What was read of it.

        Raises:
          InputError: A label does not fit, or a file cannot be written.
        """
        name = f"{RECORDS[split]}{part.suffix}.tf_record"
        path = os.path.join(self.folder, name)
        write_features(
            path,
            examples,
            self.encoding,
            sources=part.files,
            num_workers=self.num_workers,
        )
        features = buckets.load(
            path, self.encoding.schema, len(self.encoding.vocab)
        )
        return Split(examples, features, part.suffix, part.submission)

    def training_data(
        self, split: Split, config: TrainingConfig
    ) -> TrainingData:
        """What `Estimator.train` takes."""
        return training_data(split.features, self.padding, config)

    def evaluation_data(self, split: Split) -> EvaluationData:
        """What `Estimator.evaluate` and `predict` take."""
        return evaluation_data(split.features, self.padding)

    def evaluate(
        self, splits: Iterable[Split], estimator: Estimator
    ) -> dict[str, float]:
        """The metrics of all parts, those after the first with its suffix."""
        metrics: dict[str, float] = {}
        for split in splits:
            found = estimator.evaluate(self.evaluation_data(split))
            step = found.pop("global_step")
            metrics |= {f"{k}{split.suffix}": v for k, v in found.items()}
            metrics["global_step"] = step
        return metrics


def training_data(
    features: Features, padding: Padding, config: TrainingConfig
) -> TrainingData:
    """What `Estimator.train` takes: shuffled batches of one length each."""
    return functools.partial(
        buckets.training_dataset,
        features,
        padding=padding,
        global_batch_size=config.train_batch_size,
        num_batches=config.num_train_steps,
        seed=config.random_seed,
    )


def evaluation_data(features: Features, padding: Padding) -> EvaluationData:
    """What `Estimator.evaluate` and `predict` take: each example once."""
    return functools.partial(
        buckets.evaluation_dataset, features, padding=padding
    )
