"""Plans and runs the trainings of a fine-tuning job, and keeps one model.

A single training writes to the output folder itself, as in the original.
Several trainings have a folder each; only the best one's weights are kept:

    output_dir/
        model.ckpt-STEP, checkpoint     or   trials/NAME/model.ckpt-STEP ...
        evaluations.jsonl, best/             trials.tsv
        release/                        the model, its vocabulary and labels;
                                        with --lora_rank, lora/
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import adapters
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.checkpoints.pretrained import kept_weights
from bert_tf.data import pipeline
from bert_tf.data.batching import Features, Padding
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.jobs import output_folder, settings, trials
from bert_tf.jobs.output_folder import RELEASE, WEIGHTS
from bert_tf.jobs.settings import FineTuningOptions, TrainingOptions
from bert_tf.jobs.start import Start, Teacher, trained_with, warn_of_ignored
from bert_tf.jobs.trials import Trial
from bert_tf.modeling.optimization import layerwise_rates
from bert_tf.serving.export import export
from bert_tf.serving.served import Served
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
from bert_tf.training.workers import (
    by_chief,
    require_shared,
    wait_for_all,
)

# Files and folders with weights in the folder of a training.
_HAS_WEIGHTS = re.compile(r"model\.ckpt-.*|checkpoint|best")

# Computes the metrics of an estimator's model.
Evaluate = Callable[[Estimator], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a job of fine-tuning or pre-training.

    Attributes:
      metrics: The metrics by name, as in `eval_results.txt`; empty without
        evaluation.
      release: The folder of the trained model, which `init_checkpoint` and
        `from_pretrained` accept; None without training.
      export: The folder of the SavedModel; None without export.
    """

    metrics: dict[str, float]
    release: str | None = None
    export: str | None = None


@dataclasses.dataclass(frozen=True)
class Trainings:
    """The trainings of a fine-tuning job, and the model that is kept.

    Attributes:
      config: The options of the job.
      start: The checkpoint, vocabulary and casing that it starts from.
      task: The `bert_tf.tasks.task.FineTuningTask` to train.
      strategy: The devices.
      training: The settings of the training, without its number of steps.
      plan: The complete settings of each training; empty without --do_train.
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

    def train_on(self, features: Features, evaluate: Evaluate) -> Estimator:
        """Trains on a training set and releases the model; see `train`."""

        @functools.cache
        def with_teacher() -> Features:
            """Computes the teacher's outputs once for all trainings."""
            return self.teacher.add_outputs(
                features,
                self.strategy,
                self.training,
                evaluation_data(features, self.padding),
            )

        def data_of(estimator: Estimator) -> TrainingData:
            needs_teacher = self.teacher and not estimator.is_finished
            examples = with_teacher() if needs_teacher else features
            return training_data(examples, self.padding, estimator.config)

        length = float(features.lengths.mean())
        estimator = self.train(data_of, evaluate, length)
        self.release(estimator)
        return estimator

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
        if self.save_best or len(self.plan) > 1:
            require_shared(self.strategy, self.config.output_dir)

        def train_one(trial: Trial, folder: str) -> Estimator:
            files.makedirs(folder)
            estimator = self._estimator(self.plan[trial], folder)
            if self.save_best is None and is_chief(self.strategy):
                results.remove_best(os.path.join(folder, BEST))
            every = self.config.eval_steps
            if self.save_best and not every:
                num_steps = estimator.config.num_train_steps
                every = math.ceil(num_steps / trial.num_train_epochs)
            hooks = training_hooks(
                estimator,
                folder,
                self.config,
                functools.partial(evaluate, estimator),
                every,
                examples_per_step=trial.train_batch_size,
                tokens_per_example=tokens_per_example,
                metric=self.save_best,
                export=estimator.export_weights if self.save_best else None,
                patience=self.config.early_stopping_patience,
            )
            estimator.train(
                training_data(estimator), hooks, round(tokens_per_example)
            )
            _load_best(estimator, folder)
            return estimator

        if len(self.plan) > 1:
            estimator, folder = self._search(train_one, evaluate)
        else:
            [trial], folder = self.plan, self.config.output_dir
            estimator = train_one(trial, folder)
        writes, output_dir = is_chief(self.strategy), self.config.output_dir
        if writes:
            output_folder.record_best_training(output_dir, folder)
        if self.task.lora_rank:
            if writes:
                release = os.path.join(output_dir, RELEASE)
                files.makedirs(release)
                adapters.save(
                    estimator.model,
                    os.path.join(release, "lora"),
                    labels=self.task.labels or None,
                    problem_type=self.task.problem_type,
                )
            estimator.merge_lora()
        return estimator

    def _search(
        self, train_one: Callable[[Trial, str], Estimator], evaluate: Evaluate
    ) -> tuple[Estimator, str]:
        """Runs several trainings; returns the best and its folder."""

        def try_one(trial: Trial, folder: str) -> dict[str, float]:
            estimator = train_one(trial, folder)
            metrics = evaluate(estimator)
            metrics["train_seconds"] = estimator.train_seconds
            del metrics["global_step"]
            # Frees the variables and traced functions before the next training.
            del estimator
            keras.utils.clear_session()
            return metrics

        best = trials.run(
            [*self.plan],
            try_one,
            self.config.output_dir,
            self.save_best or self.metric,
            _discard_weights,
            writes=is_chief(self.strategy),
        )
        folder = trials.folder_of(self.config.output_dir, best.trial)
        # Trains only if an earlier run has discarded the weights.
        estimator = train_one(best.trial, folder)
        if math.isnan(estimator.train_seconds):
            estimator.train_seconds = best.metrics["train_seconds"]
        return estimator, folder

    def _estimator(self, training: TrainingConfig, folder: str) -> Estimator:
        start = self.start
        open_initial = functools.partial(
            kept_weights, start, self.task, is_trained=bool(self.plan)
        )
        estimator = Estimator(
            self.task,
            self.strategy,
            training,
            folder,
            open_initial if start.path else None,
        )
        if start.init_checkpoint and estimator.is_resumed:
            warn_of_ignored(start.init_checkpoint, folder)
        return estimator

    def open_model(self) -> Estimator:
        """Opens a model that was trained before.

        Uses the best or last checkpoint in the output folder or, if there is
        none, the checkpoint of `start`.

        Raises:
          InputError: There is no model, or it has no head.
        """
        folder = output_folder.best_training(self.config.output_dir)
        estimator = self._estimator(self.training, folder)
        _load_best(estimator, folder)
        if estimator.weights_from is None:
            raise output_folder.no_model(self.config.output_dir)
        if estimator.lacking:
            raise InputError(
                f"{estimator.weights_from} is not a fine-tuned model: it lacks "
                f"{estimator.lacking[0]}. Pass another model, or `do_train`."
            )
        return estimator

    def release(self, estimator: Estimator) -> None:
        """Writes the model, its vocabulary and labels to `release/`."""
        write_release(
            estimator,
            self.config.output_dir,
            config=self.start.config,
            vocab=self.start.vocab,
            do_lower_case=self.start.do_lower_case,
            strip_accents=self.start.strip_accents,
            **self.task.facts(),
            **trained_with(self.config, self.start),
        )


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
        used or do not fit the batch size, or the training set is too small.
    """
    if teacher:
        task = task.student(config.distillation_weight, config.temperature)
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
    names = config.save_best, f"eval_{config.save_best}"
    found = [metric for name in names for metric in metrics if metric == name]
    save_best = found[0] if found else None
    if config.save_best is not None and not found:
        known = listed(metrics, last="or")
        raise wrong_value("`save_best`", f"one of {known}", config.save_best)
    padding = settings.padding(config, strategy)
    plan: dict[Trial, TrainingConfig] = {}
    if num_examples is not None:
        plan = plan_trainings(config, training, num_examples)
    for planned in plan.values():
        batch_per_replica(planned, strategy)
    return Trainings(
        config=config,
        start=start,
        task=task,
        strategy=strategy,
        training=training,
        plan=plan,
        save_best=save_best,
        metric=metrics[0],
        padding=padding,
        teacher=teacher,
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


def training_hooks(
    estimator: Estimator,
    folder: str,
    config: TrainingOptions,
    evaluate: Callable[[], Mapping[str, float]],
    eval_steps: int,
    *,
    examples_per_step: float,
    tokens_per_example: float,
    **best: Any,
) -> list[Hook]:
    """Returns the hooks that log, write summaries and evaluate.

    Args:
      estimator: The estimator to train.
      folder: The folder of the summaries and evaluations.
      config: Its `log_steps` is used.
      evaluate: Returns the current metrics.
      eval_steps: The number of steps between evaluations; 0 for none.
      examples_per_step, tokens_per_example: See `Summaries`.
      **best: Other arguments of `Evaluation`.
    """
    hooks: list[Hook] = []
    last_step, writes = estimator.config.last_step, is_chief(estimator.strategy)
    if writes:
        hooks.append(Progress(last_step, config.log_steps))
        if config.log_steps > 0:
            hooks.append(
                Summaries(
                    folder,
                    config.log_steps,
                    examples_per_step,
                    tokens_per_example,
                )
            )
    if eval_steps > 0:
        hooks.append(
            Evaluation(
                evaluate,
                folder,
                every=eval_steps,
                last_step=last_step,
                writes=writes,
                **best,
            )
        )
    return hooks


def write_release(estimator: Estimator, output_dir: str, **facts: Any) -> str:
    """Writes a model and fields of `Pretrained` to `release/`, as the chief.

    Returns:
      The folder.
    """
    folder = os.path.join(output_dir, RELEASE)
    if is_chief(estimator.strategy):
        files.makedirs(folder)
        prefix = os.path.join(folder, WEIGHTS)
        write_metadata(folder, Pretrained(prefix, {}, **facts))
        # The weights come last: a release that has them is complete.
        estimator.export_weights(prefix)
    return folder


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


def export_kept(
    estimator: Estimator,
    serve: Callable[[keras.Model], Served],
    export_dir: str,
    **facts: Any,
) -> str | None:
    """Exports a new version for TensorFlow Serving; only the chief writes.

    Args:
      estimator: The model.
      serve: Wraps a model in a `Served`.
      export_dir: The folder of all versions.
      **facts: `name`, `metrics` and `source`; see `serving.export.export`.

    Returns:
      The folder of the new version; None on workers other than the chief.

    Raises:
      InputError: The folder cannot be written to.
    """
    written = []

    def write() -> None:
        written.append(
            export(serve(_on_one_device(estimator)), export_dir, **facts)
        )

    by_chief(estimator.strategy, write, "export the model")
    return written[0] if written else None


def _on_one_device(estimator: Estimator) -> keras.Model:
    """Returns a copy of the model on one device, for a server."""
    task = estimator.task
    with tf.device("CPU:0"):
        model = task.build_model()
    if task.lora_rank:
        # The estimator merged its adapters, so the copy must have none.
        model.merge_lora()
    trained = task.checkpoint_variables(estimator.model)
    for path, variable in task.checkpoint_variables(model).items():
        variable.assign(tf.convert_to_tensor(trained[path].value))
    return model
