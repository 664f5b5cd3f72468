"""Plans and runs the trainings of a fine-tuning job, and keeps one model.

A single training writes to the output folder itself, as in the original.
Several trainings have a folder each, and the weights of the best are kept:

    output_dir/
        model.ckpt-STEP, checkpoint     or   trials/NAME/model.ckpt-STEP ...
        evaluations.jsonl, best/             trials.json, trials.tsv
        release/                        the model, its vocabulary and labels;
                                        with --lora_rank, lora/
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import adapters
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.data import pipeline
from bert_tf.data.batching import Features, Padding
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.jobs import output_folder, settings, trials
from bert_tf.jobs.output_folder import RELEASE, WEIGHTS
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.jobs.start import Start, open_start, trained_with
from bert_tf.jobs.teacher import Teacher
from bert_tf.jobs.trials import Trial
from bert_tf.modeling.optimization import layerwise_rates
from bert_tf.training import results
from bert_tf.training.distribution import agreement, is_chief
from bert_tf.training.estimator import (
    Estimator,
    EvaluationData,
    TrainingData,
    batch_per_replica,
)
from bert_tf.training.hooks import BEST, Evaluation, Hook, Progress, Summaries
from bert_tf.training.results import Metric
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.workers import require_shared, wait_for_all

# Files and folders with weights in the folder of a training.
_HAS_WEIGHTS = re.compile(r"model\.ckpt-.*|checkpoint|best")

# Computes the metrics of an estimator's model.
Evaluate = Callable[[Estimator], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a job that trains.

    Attributes:
      metrics: The metrics by name, as in `eval_results.txt`; empty without
        evaluation.
      release: The folder of the trained model, which `init_checkpoint` and
        `load_model` accept; None without training.
      export: The folder of the SavedModel; None without export.
    """

    metrics: dict[str, float]
    release: str | None = None
    export: str | None = None


class _Inputs(NamedTuple):
    """The arguments of `Trainings.train`."""

    training_data: Callable[[Estimator], TrainingData]
    evaluate: Evaluate
    tokens_per_example: float


@dataclasses.dataclass(frozen=True)
class Trainings:
    """The trainings of a fine-tuning job, and the model that is kept.

    Attributes:
      config: The options of the job.
      start: The checkpoint, vocabulary and casing that it starts from.
      task: The `bert_tf.tasks.task.FineTuningTask` to train.
      strategy: The devices.
      training: The settings of the training, without its number of steps.
      plan: The settings of each training; empty without --do_train.
      save_best: The metric that selects the weights of a training among its
        evaluations; None for the last weights.
      metric: The metric that decides between several trainings.
      padding: How batches are padded.
      teacher: The model to learn from, if any.
    """

    config: FineTuningOptions
    start: Start
    task: Any
    strategy: tf.distribute.Strategy
    training: TrainingConfig
    plan: Mapping[Trial, TrainingConfig]
    save_best: Metric | None
    metric: Metric
    padding: Padding
    teacher: Teacher | None = None

    def facts(
        self, task: str, problem: str, labels: Iterable[str]
    ) -> dict[str, Any]:
        """Returns `Start.facts`, and for a training the teacher's checksum."""
        facts = self.start.facts(task, problem, labels)
        if self.plan:
            facts["teacher"] = self.teacher and self.teacher.checksum
        return facts

    def evaluation_data(self, features: Features) -> EvaluationData:
        """Returns the `make_data` of `Estimator.evaluate` and `predict`."""
        return evaluation_data(features, self.padding)

    def train_or_open(
        self, features: Features | None, evaluate: Evaluate
    ) -> Estimator:
        """Trains and releases a model, or opens an existing one.

        Args:
          features: The training set; None without --do_train.
          evaluate: Returns the metrics of a model on the development set.
        """
        if features is None:
            return self.open_model()
        estimator = self.train(
            self._training_data(features),
            evaluate,
            tokens_per_example=float(features.lengths.mean()),
        )
        self.release(estimator)
        return estimator

    def _training_data(
        self, features: Features
    ) -> Callable[[Estimator], TrainingData]:
        """Returns the `training_data` of `train` for a training set."""

        @functools.cache
        def with_teacher() -> Features:
            """Computes the teacher's outputs once for all trainings."""
            return self.teacher.add_outputs(
                features,
                self.strategy,
                self.training,
                self.evaluation_data(features),
            )

        def data_of(estimator: Estimator) -> TrainingData:
            needs_teacher = self.teacher and not estimator.is_finished
            examples = with_teacher() if needs_teacher else features
            return training_data(examples, self.padding, estimator.config)

        return data_of

    def train(
        self,
        training_data: Callable[[Estimator], TrainingData],
        evaluate: Evaluate,
        tokens_per_example: float,
    ) -> Estimator:
        """Runs all trainings that are not finished and keeps the best.

        Args:
          training_data: Returns the data of a training.
          evaluate: Returns the metrics of a model on the development set.
          tokens_per_example: The mean number of tokens, without padding.

        Returns:
          The estimator of the best training, with its best weights.
        """
        output_dir = self.config.output_dir
        if self.save_best or len(self.plan) > 1:
            require_shared(self.strategy, output_dir)
        inputs = _Inputs(training_data, evaluate, tokens_per_example)
        if len(self.plan) > 1:
            estimator, folder = self._search(inputs)
        else:
            [trial] = self.plan
            folder = output_dir
            estimator = self._train_one(inputs, trial, folder)
        _load_best(estimator, folder)
        if is_chief(self.strategy):
            output_folder.record_best_training(output_dir, folder)
        if self.config.lora_rank:
            self._merge_lora(estimator)
        return estimator

    def _search(self, inputs: _Inputs) -> tuple[Estimator, str]:
        """Runs several trainings; returns the best and its folder."""
        output_dir = self.config.output_dir
        best = trials.run(
            [*self.plan],
            functools.partial(self._try_one, inputs),
            output_dir,
            self.save_best or self.metric,
            _discard_weights,
            writes=is_chief(self.strategy),
        )
        folder = trials.folder_of(output_dir, best.trial)
        # Trains only if an earlier run has discarded the weights.
        estimator = self._train_one(inputs, best.trial, folder)
        if math.isnan(estimator.train_seconds):
            estimator.train_seconds = best.metrics["train_seconds"]
        return estimator, folder

    def _try_one(
        self, inputs: _Inputs, trial: Trial, folder: str
    ) -> dict[str, float]:
        """Trains and evaluates; keeps files only, not the model."""
        estimator = self._train_one(inputs, trial, folder)
        _load_best(estimator, folder)
        metrics = inputs.evaluate(estimator)
        metrics["train_seconds"] = estimator.train_seconds
        del metrics["global_step"]
        # Frees the variables and traced functions before the next training.
        del estimator
        keras.utils.clear_session()
        return metrics

    def _train_one(
        self, inputs: _Inputs, trial: Trial, folder: str
    ) -> Estimator:
        files.makedirs(folder)
        estimator = self._estimator(self.plan[trial], folder)
        if self.save_best is None and is_chief(self.strategy):
            results.remove_best(os.path.join(folder, BEST))
        estimator.train(
            inputs.training_data(estimator),
            self._hooks(estimator, folder, trial, inputs),
            usual_length=round(inputs.tokens_per_example),
        )
        return estimator

    def _merge_lora(self, estimator: Estimator) -> None:
        """Writes the adapters to the release, then merges them."""
        if is_chief(self.strategy):
            release = os.path.join(self.config.output_dir, RELEASE)
            files.makedirs(release)
            adapters.save(
                estimator.model,
                os.path.join(release, "lora"),
                labels=self.task.labels or None,
                problem_type=self.task.problem_type,
            )
        estimator.merge_lora()

    def _estimator(self, training: TrainingConfig, folder: str) -> Estimator:
        return Estimator(
            self.task,
            self.strategy,
            training,
            folder,
            self.start.init_checkpoint,
            functools.partial(
                open_start,
                config=self.start.config,
                task=self.task,
                is_trained=bool(self.plan),
            ),
        )

    def _hooks(
        self,
        estimator: Estimator,
        folder: str,
        trial: Trial,
        inputs: _Inputs,
    ) -> list[Hook]:
        config, num_steps = self.config, estimator.config.num_train_steps
        writes = is_chief(self.strategy)
        hooks: list[Hook] = []
        if writes:
            hooks = log_hooks(
                folder,
                config.log_steps,
                num_steps,
                examples_per_step=trial.train_batch_size,
                tokens_per_example=inputs.tokens_per_example,
            )
        every = config.eval_steps
        if self.save_best and not every:
            every = math.ceil(num_steps / trial.num_train_epochs)
        if every:
            hooks.append(
                Evaluation(
                    functools.partial(inputs.evaluate, estimator),
                    folder,
                    every=every,
                    last_step=num_steps,
                    writes=writes,
                    metric=self.save_best,
                    export=estimator.export_weights if self.save_best else None,
                    patience=config.early_stopping_patience,
                )
            )
        return hooks

    def open_model(self) -> Estimator:
        """Opens a model that was trained before.

        Uses the first that exists: the best or last checkpoint in the output
        folder, `start.init_checkpoint`, or the release in the output folder.

        Raises:
          InputError: There is no model, or it has no head.
        """
        output_dir = self.config.output_dir
        folder = output_folder.best_training(output_dir)
        estimator = self._estimator(self.training, folder)
        _load_best(estimator, folder)
        release = os.path.join(output_dir, RELEASE, WEIGHTS)
        if estimator.weights_from is None and files.exists(f"{release}.index"):
            estimator.load_weights(release)
        if estimator.weights_from is None:
            raise output_folder.no_model(output_dir)
        missing = [
            name
            for name in estimator.random_variables
            if not re.match(self.task.unused_variables, name)
        ]
        if missing:
            raise InputError(
                f"{estimator.weights_from} is not a fine-tuned model: it lacks "
                f"{missing[0]}. Pass another model, or `do_train`."
            )
        return estimator

    def release(self, estimator: Estimator) -> None:
        """Writes the model, its vocabulary and labels to `release/`."""
        if not is_chief(self.strategy):
            return
        start, task = self.start, self.task
        folder = os.path.join(self.config.output_dir, RELEASE)
        files.makedirs(folder)
        prefix = os.path.join(folder, WEIGHTS)
        write_metadata(
            folder,
            Pretrained(
                prefix,
                {},
                start.config,
                start.vocab,
                do_lower_case=start.do_lower_case,
                strip_accents=start.strip_accents,
                **task.facts(),
                **trained_with(self.config, start),
            ),
        )
        # The weights come last: a release that has them is complete.
        estimator.export_weights(prefix)


def prepare(
    config: FineTuningOptions,
    start: Start,
    task: Any,
    metrics: Sequence[str],
    num_examples: int | None,
    teacher: Teacher | None = None,
) -> Trainings:
    """Connects to the devices and plans the trainings.

    Args:
      config: The options of the job.
      start: The checkpoint, vocabulary and casing that it starts from.
      task: The `FineTuningTask` to train.
      metrics: The metrics that --save_best may name, with or without "eval_".
        The first decides between several trainings by default.
      num_examples: The size of the training set; None without --do_train.
      teacher: The model to learn from, if any.

    Raises:
      InputError: --save_best names an unknown metric, the devices cannot be
        used, or the training set is too small for one step.
    """
    # Any kind of task can have adapters.
    task.lora_rank, task.lora_alpha = config.lora_rank, config.lora_alpha
    strategy = settings.connect(config)
    training = settings.training_config(config, 1, 0)
    if config.layer_rate_decay != 1:
        rates = layerwise_rates(
            start.config.num_hidden_layers, config.layer_rate_decay
        )
        training = dataclasses.replace(training, rate_multipliers=rates)
    metrics = [
        Metric(name, task.is_lower_better(name.removeprefix("eval_")))
        for name in metrics
    ]
    save_best = _selecting_metric(config, metrics)
    padding = settings.padding(config, strategy)
    plan: dict[Trial, TrainingConfig] = {}
    if num_examples is not None:
        plan = plan_trainings(config, training, num_examples)
    for planned in plan.values():
        batch_per_replica(planned, strategy)
    return Trainings(
        config,
        start,
        teacher.student_task if teacher else task,
        strategy,
        training,
        plan,
        save_best,
        metrics[0],
        padding,
        teacher,
    )


def _selecting_metric(
    config: FineTuningOptions, metrics: Sequence[Metric]
) -> Metric | None:
    """Returns the full name of the metric of --save_best, if any."""
    name = config.save_best
    if name is None:
        return None
    for full_name in (name, f"eval_{name}"):
        if full_name in metrics:
            return metrics[metrics.index(full_name)]
    raise wrong_value(
        "`save_best`", f"one of {listed(metrics, last='or')}", name
    )


def plan_trainings(
    config: FineTuningOptions, training: TrainingConfig, num_examples: int
) -> dict[Trial, TrainingConfig]:
    """Returns the settings of every training.

    As in the original, a training has int(examples / batch size * epochs)
    steps.

    Args:
      config: The options of the job.
      training: The settings that all trainings share.
      num_examples: The size of the training set.

    Raises:
      InputError: The training set is too small for one step.
    """
    base = Trial(
        train_batch_size=config.train_batch_size,
        learning_rate=config.learning_rate,
        num_train_epochs=config.num_train_epochs,
        random_seed=config.random_seed,
    )
    plan = {}
    for trial in trials.plan(base, config.num_seeds, config.search):
        epochs, batch_size = trial.num_train_epochs, trial.train_batch_size
        steps = int(num_examples / batch_size * epochs)
        if steps < 1:
            raise InputError(
                f"The batch size {batch_size} (`train_batch_size` or `search`) "
                f"is larger than {num_examples} examples times {epochs} "
                "epochs, so training would have no step. Pass a smaller batch "
                "size."
            )
        plan[trial] = dataclasses.replace(
            training,
            train_batch_size=batch_size,
            learning_rate=trial.learning_rate,
            random_seed=trial.random_seed,
            num_train_steps=steps,
            num_warmup_steps=int(steps * config.warmup_proportion),
        )
    return plan


def log_hooks(
    folder: str,
    log_steps: int,
    last_step: int,
    *,
    examples_per_step: float,
    tokens_per_example: float,
) -> list[Hook]:
    """Returns the hooks that log the progress and write summaries."""
    hooks: list[Hook] = [Progress(last_step, log_steps)]
    if log_steps > 0:
        hooks.append(
            Summaries(folder, log_steps, examples_per_step, tokens_per_example)
        )
    return hooks


def training_data(
    features: Features, padding: Padding, config: TrainingConfig
) -> TrainingData:
    """Returns the `make_data` of `Estimator.train`: shuffled batches."""
    return functools.partial(
        pipeline.training_batches,
        features,
        padding=padding,
        global_batch_size=config.train_batch_size,
        num_batches=config.num_train_steps,
        seed=config.random_seed,
    )


def evaluation_data(features: Features, padding: Padding) -> EvaluationData:
    """Returns the `make_data` of an evaluation: each example once."""
    return functools.partial(
        pipeline.evaluation_batches, features, padding=padding
    )


def _discard_weights(folder: str) -> None:
    """Removes the weights of a training that is not the best."""
    for name in files.listdir(folder):
        if _HAS_WEIGHTS.fullmatch(name):
            files.remove_tree(os.path.join(folder, name))


def _load_best(estimator: Estimator, folder: str) -> None:
    """Loads the weights of the best evaluation, if a training kept them."""
    best_folder = os.path.join(folder, BEST)
    agree = agreement(estimator.strategy)
    if is_chief(estimator.strategy):
        results.finish_saving_best(best_folder)
    agree([1])
    best = results.find_best(best_folder)
    exists = int(best is not None)
    if agree([exists, 1 - exists]) == [0, 0]:
        wait_for_all(estimator.strategy)
        raise InputError(
            f"Only some workers find weights in {folder}. All workers must "
            "share `output_dir`."
        )
    if best is not None:
        estimator.load_weights(results.best_prefix(best_folder))
        estimator.step = best.step
        logging.info(
            "Using the weights of step %d, %s %.4f",
            best.step,
            best.metric,
            best.value,
        )
