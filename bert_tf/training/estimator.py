"""The training loop: train, evaluate and predict, for any task.

The loop knows nothing about BERT:

    while step < num_train_steps and no signal was received:
        records = run several steps         # one tf.function, see step.py
        step += number of steps
        for hook in hooks: hook.after_steps(step, records)
        save a checkpoint, if due

Each process waits for the others in every step. Therefore all processes agree
before each call on the number of steps or on stopping.
"""

import functools
import math
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import start_tensorflow
from bert_tf.base import signals
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.weights import (
    LORA_SCALE,
    Weights,
    checksum,
    is_adapter,
    restore,
)
from bert_tf.errors import InputError, wrong_value
from bert_tf.modeling.kernels import USUAL_LENGTH
from bert_tf.training import distribution, workers
from bert_tf.training.distribution import is_chief, is_plain
from bert_tf.training.hooks import (
    Hook,
    LossScaleLog,
    NanWatch,
    NonFiniteError,
    require_finite_tensors,
    watching,
)
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.step import INITIAL_LOSS_SCALE, TrainingStep, cut
from bert_tf.training.workers import raise_worker_lost

# Called with batch_size, num_shards, shard and start_example: returns batches
# for one replica, see data/pipeline.py.
TrainingData = Callable[..., tf.data.Dataset]
# Called with batch_size, num_shards and shard: returns batches whose size is a
# multiple of batch_size, of any sequence length, with `is_real_example` and
# `example_index`.
EvaluationData = Callable[..., tf.data.Dataset]

EXAMPLES_SEEN = "training_state/examples_seen"
LOSS_SCALE = "training_state/loss_scale"
# The index of each row's example in the data set; -1 for padding.
INDEX = "example_index"
SECONDS_PER_CALL = 1.0


class Estimator:
    """Trains, evaluates and predicts; see the top of this file.

    Args:
      task: The task, a `bert_tf.tasks.task.Task`.
      strategy: The devices.
      config: The options of the training.
      output_dir: The folder of the checkpoints; None to predict only.
      open_initial: Opens the initial weights, if `output_dir` has no
        checkpoint. None for random ones.

    Attributes:
      model: The task's model.
      step: The number of updates of the model.
      weights_from: The checkpoint that was loaded last; None if the weights
        were random.
      is_resumed: Whether training continues from a checkpoint in `output_dir`.
      random_variables: The names of the variables that were not in
        `weights_from`.
      train_seconds: The time spent in training, evaluations included; NaN if
        an earlier process did part of the training.

    Raises:
      InputError: A checkpoint cannot be read or does not fit the model, or
        workers disagree on the checkpoint or on the initial weights.
    """

    @raise_worker_lost()
    def __init__(
        self,
        task: Any,
        strategy: tf.distribute.Strategy,
        config: TrainingConfig,
        output_dir: str | None,
        open_initial: Callable[[], Weights] | None = None,
    ):
        self.task = task
        self.strategy = strategy
        self.config = config
        self.step = 0
        self.examples_seen = 0
        self.random_variables: tuple[str, ...] = ()
        self.train_seconds = 0.0
        self._jit = distribution.should_compile(strategy, config.jit_compile)
        self._manager = self._own_checkpoint = None
        if output_dir is not None:
            self._manager = checkpoints.CheckpointManager(
                output_dir, config.keep_checkpoint_max
            )
            self._own_checkpoint = self._manager.latest()
        self.is_resumed = self._own_checkpoint is not None
        is_restored = self.is_resumed or open_initial is not None
        keras.utils.set_random_seed(config.random_seed)
        with strategy.scope():
            self.model = task.build_model(is_restored)
        self._find_variables()
        self._optimizer: Any = None
        self._loss_scale: keras.Variable | None = None
        self._saved_step = 0
        self.weights_from = self._own_checkpoint
        self._initialize(open_initial)
        workers.require_same_step(strategy, self.step, output_dir)
        workers.require_same_weights(strategy, self._weights)

    # ------------------------------------------------------------ variables

    def _find_variables(self) -> None:
        """Finds the model's variables; retraces calls."""
        self._weights = self.task.checkpoint_variables(self.model)
        # A partial, as in step.py, prevents a warning of retracing.
        self._predict = tf.function(
            functools.partial(self._predict_step), autograph=False
        )
        self._replica_predictions = tf.function(
            self._predictions,
            autograph=False,
            # Outside of a loop TensorFlow would place the compiled calls of
            # all replicas on the first device, away from their variables.
            jit_compile=self._jit and is_plain(self.strategy),
        )

    def _initialize(self, open_initial: Callable[[], Weights] | None) -> None:
        """Restores the last checkpoint of the run, or else the initial one."""
        own = self._own_checkpoint
        if own is not None:
            state = checkpoints.Reader(own)
            report = restore(self._weights, state)
            self.step = self._saved_step = int(state["global_step"])
            if EXAMPLES_SEEN in state:
                self.examples_seen = int(state[EXAMPLES_SEEN])
            self.train_seconds = math.nan
            logging.info(
                "Resuming at step %d of %s: %s", self.step, own, report
            )
        elif open_initial is not None:
            weights = open_initial()
            self.weights_from = weights.path
            report = restore(self._weights, weights, self.task.new_variables)
            self.random_variables = report.missing
            log = logging.warning if report.missing else logging.info
            log("Weights from %s: %s", weights.path, report)
        else:
            logging.info(
                "Random weights: %d variables, %s parameters",
                len(self._weights),
                f"{self.model.count_params():,}",
            )

    @property
    def lacking(self) -> list[str]:
        """The `random_variables` that have an effect on scores."""
        unused = self.task.unused_variables
        return [n for n in self.random_variables if not re.match(unused, n)]

    def _make_optimizer(self) -> None:
        """Makes the optimizer, with the state of the run's last checkpoint."""
        with self.strategy.scope():
            self._optimizer = self.config.make_optimizer()
            self._optimizer.build(self.model.trainable_variables)
            if self.model.compute_dtype == "float16":
                self._loss_scale = keras.Variable(
                    [INITIAL_LOSS_SCALE, 0.0], dtype="float32", trainable=False
                )
        self._optimizer.iterations.assign(self.step)
        if self._own_checkpoint is not None:
            restore(
                self._optimizer_state(),
                checkpoints.Reader(self._own_checkpoint),
                # The checkpoint may be from before --mixed_precision=float16.
                may_lack=LOSS_SCALE,
            )

    def _optimizer_state(self) -> dict[str, Any]:
        """Returns the optimizer's slots and the loss scale, by name."""
        names = {v.path: name for name, v in self._weights.items()}
        slots = {}
        for key, variable in self._optimizer.slot_variables().items():
            path, _, slot = key.rpartition("/")
            slots[f"{names[path]}/{slot}"] = variable
        if self._loss_scale is not None:
            slots[LOSS_SCALE] = self._loss_scale
        return slots

    def _save(self) -> None:
        """Writes a checkpoint, unless a value is not finite."""
        tensors = self._weight_values() | _values(self._optimizer_state())
        require_finite_tensors(self.step, tensors)
        self._saved_step = self.step
        if not is_chief(self.strategy):
            return
        tensors["global_step"] = np.int64(self.step)
        tensors[EXAMPLES_SEEN] = np.int64(self.examples_seen)
        logging.info("Saved %s", self._manager.save(self.step, tensors))

    def load_weights(self, prefix: str) -> None:
        """Loads weights of `export_weights` to evaluate, predict or release.

        The step and the optimizer do not change.

        Raises:
          InputError: `prefix` cannot be read, or belongs to another model.
        """
        restore(self._weights, checkpoints.open_checkpoint(prefix))
        self.weights_from = prefix

    def merge_lora(self) -> None:
        """Merges the model's LoRA adapters, which ends its training."""
        self.model.merge_lora()
        self._find_variables()

    def export_weights(self, prefix: str) -> None:
        """Writes the weights without optimizer, as in Google's releases."""
        if is_chief(self.strategy):
            checkpoints.write(prefix, self._weight_values())

    def _weight_values(self) -> dict[str, Any]:
        """Returns the weights and the scale of LoRA adapters, if any."""
        values = _values(self._weights)
        alpha, rank = self.task.lora_alpha, self.task.lora_rank
        if alpha and any(map(is_adapter, values)):
            values[LORA_SCALE] = np.float32(alpha / rank)
        return values

    def weights_checksum(self) -> str:
        """Returns a checksum of the weights."""
        return checksum(_values(self._weights))

    # ------------------------------------------------------------- training

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.config.last_step

    @raise_worker_lost()
    def train(
        self,
        make_data: TrainingData,
        hooks: Sequence[Hook] = (),
        usual_length: int = USUAL_LENGTH,
    ):
        """Trains up to `num_train_steps`, or `stop_at_step` if it is set.

        A finished run does nothing. SIGINT and SIGTERM save a checkpoint and
        raise SystemExit; rerun the command to resume. If a hook wants to stop,
        training saves a checkpoint and ends. A later run stops again, unless
        the hook no longer wants to stop. A `NanWatch` is added to the hooks. In
        float16, steps whose gradients are not finite are skipped.

        Args:
          make_data: See `TrainingData`.
          hooks: Hooks, called after steps.
          usual_length: The mean number of tokens of an example. If it is high,
            XLA compilation pays off after fewer steps. Ignored if all batches
            have the same length.

        Raises:
          NonFiniteError: The loss, a gradient or a weight is not finite; in
            float16, a gradient that is not finite only skips the step, unless
            the loss scale has fallen below 1.
          WorkerLostError: Another worker has exited.
        """
        if self.is_finished:
            logging.info(
                "Nothing to train: step %d of %d is done",
                self.step,
                self.config.last_step,
            )
            return
        if is_chief(self.strategy):
            self._manager.remove_leftovers()
        data = self.training_batches(make_data)
        run_steps = self.training_step(usual_length).run
        if self._loss_scale is not None:
            scale = float(self._loss_scale.numpy()[0])
            hooks = [LossScaleLog(scale), *hooks]
        hooks = [NanWatch(), *hooks]
        started = time.monotonic()
        try:
            with watching(hooks, self.step), signals.deferred() as stop:
                self._loop(run_steps, iter(data), hooks, stop)
        except NonFiniteError:
            workers.wait_for_all(self.strategy)
            raise
        finally:
            self.train_seconds += time.monotonic() - started

    def training_step(self, usual_length: int = USUAL_LENGTH) -> TrainingStep:
        """Returns the step that `train` repeats, with its optimizer."""
        config = self.config
        if self._optimizer is None:
            self._make_optimizer()
        return TrainingStep(
            self.task,
            self.model,
            self._optimizer,
            self.strategy,
            loss_scale=self._loss_scale,
            max_grad_norm=config.max_grad_norm,
            micro_batches=config.gradient_accumulation_steps,
            random_seed=config.random_seed,
            jit_compile=self._jit,
            jit_compile_passes=config.jit_compile is not False,
            num_steps=config.num_train_steps,
            usual_length=usual_length,
        )

    def _loop(
        self, run_steps, data, hooks: Sequence[Hook], stop: signals.StopRequest
    ) -> None:
        agree = distribution.agreement(self.strategy)
        most, is_first = 1, True
        while True:
            wish = min(most, self._steps_to_stop(hooks))
            count, goes_on = agree([wish, int(not stop.received)])
            if not (count and goes_on):
                break
            started = time.monotonic()
            records = run_steps(data, tf.constant(count))
            records = {name: value.numpy() for name, value in records.items()}
            most = self._steps_per_call((time.monotonic() - started) / count)
            if is_first:
                # Making the graph leaves unused memory in the heap.
                start_tensorflow.release_memory()
                is_first = False
            self.step += count
            self.examples_seen += count * self.config.train_batch_size
            for hook in hooks:
                hook.after_steps(self.step, records)
            is_last = self.step == self.config.last_step
            if is_last or self.step % self.config.save_checkpoints_steps == 0:
                self._save()
        if self._saved_step != self.step:
            self._save()
        if not goes_on:
            # 0 if another process received the signal.
            number = stop.received or signal.SIGTERM
            logging.warning(
                "Stopped by %s at step %d; rerun the same command to resume",
                signal.Signals(number).name,
                self.step,
            )
            raise SystemExit(128 + number)
        if self.step < self.config.last_step:
            logging.info(
                "Training ends early, at step %d of %d",
                self.step,
                self.config.last_step,
            )

    def _steps_to_stop(self, hooks: Sequence[Hook]) -> int:
        """Returns the number of steps until a checkpoint, a hook or the end.

        5 at step 95 if a hook is due every 20 steps. 0 means that training is
        done or that a hook wants to stop; a hook on one process is enough,
        since all processes agree on the smallest number.
        """
        if any(hook.wants_stop for hook in hooks):
            return 0
        periods = [self.config.save_checkpoints_steps]
        periods += [hook.every for hook in hooks if hook.every > 0]
        left = self.config.last_step - self.step
        return min(left, *(n - self.step % n for n in periods))

    def _steps_per_call(self, seconds: float) -> int:
        """Returns how many steps take about a second.

        Shorter calls would have too much overhead; longer ones would delay a
        stop. On a TPU, whose host is remote, `iterations_per_loop` is used.
        """
        most = self.config.iterations_per_loop
        if isinstance(self.strategy, tf.distribute.TPUStrategy):
            return most
        return max(1, min(most, int(SECONDS_PER_CALL / seconds)))

    def training_batches(self, make_data: TrainingData):
        """Returns the endless batches of all replicas, as `train` uses them."""

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return make_data(
                batch_size=batch_size,
                num_shards=context.num_input_pipelines,
                shard=context.input_pipeline_id,
                start_example=self.examples_seen,
            )

        batch_size = batch_per_replica(self.config, self.strategy)
        return self.strategy.distribute_datasets_from_function(make)

    # ----------------------------------------------- evaluation, prediction

    def evaluate(self, make_data: EvaluationData) -> dict[str, float]:
        """Returns the task's metrics and `global_step`.

        Each example counts exactly once.
        """
        metrics = self.task.score(self.predict(make_data))
        return {**metrics, "global_step": self.step}

    @raise_worker_lost()
    def predict(
        self, make_data: EvaluationData, batch_size: int | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the task's predictions for all examples, in order.

        Args:
          make_data: See `EvaluationData`.
          batch_size: The number of examples in a batch, on all devices; by
            default `eval_batch_size` of the configuration.

        Returns:
          Dict of arrays [n, ...], one row per example. Shorter rows are padded
          with zeros.
        """
        batches = self.evaluation_batches(
            make_data, batch_size or self.config.eval_batch_size
        )
        # Traced once for batches of any length; later calls reuse the trace.
        predict = self._predict.get_concrete_function(batches.element_spec)
        return in_order(
            {name: values.numpy() for name, values in predict(batch).items()}
            for batch in batches
        )

    def evaluation_batches(self, make_data: EvaluationData, batch_size: int):
        """Returns the batches of all replicas, as `predict` uses them."""
        replicas = self.strategy.num_replicas_in_sync
        batch_size = -(-batch_size // replicas)

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            parts = replicas // context.num_input_pipelines
            batches = make_data(
                batch_size=batch_size * parts,
                num_shards=context.num_input_pipelines,
                shard=context.input_pipeline_id,
            )
            if parts == 1:
                return batches
            return batches.map(lambda features: cut(features, parts)).unbatch()

        return self.strategy.distribute_datasets_from_function(make)

    def _predict_step(self, features) -> dict[str, tf.Tensor]:
        outputs = self.strategy.run(self.prediction_step, (features,))
        return {
            name: self.strategy.experimental_local_results(value)[0]
            for name, value in outputs.items()
        }

    def prediction_step(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Predicts a batch on each replica and gathers all replicas' rows.

        Maps the replica's features [b, ...] to the task's predictions and
        `example_index`, [replicas * b, ...].
        """
        is_real = features["is_real_example"] > 0
        predictions = {
            **self._replica_predictions(features),
            INDEX: tf.where(is_real, features[INDEX], -1),
        }
        if is_plain(self.strategy):
            return predictions  # See `TrainingStep._all_reduce`.
        return {n: distribution.all_rows(x) for n, x in predictions.items()}

    @tf.autograph.experimental.do_not_convert  # As in `TrainingStep`.
    def _predictions(self, features) -> dict[str, tf.Tensor]:
        outputs = self.model(features, training=False)
        return self.task.predictions(features, outputs)


def batch_per_replica(
    config: TrainingConfig, strategy: tf.distribute.Strategy
) -> int:
    """Returns how many examples of a training batch a replica gets in a step.

    Raises:
      InputError: The batch cannot be split into equal parts.
    """
    replicas = strategy.num_replicas_in_sync
    parts = config.gradient_accumulation_steps
    size = config.train_batch_size
    if size % (replicas * parts):
        raise wrong_value(
            "`train_batch_size`",
            f"a multiple of {replicas} replica(s) times "
            f"`gradient_accumulation_steps={parts}`",
            size,
        )
    return size // replicas


def in_order(
    batches: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Joins batches of predictions in the order of their examples.

    Args:
      batches: Arrays [b, ...] by name, with `example_index` [b]. All axes may
        differ in length from batch to batch.

    Returns:
      Arrays [n, ...] by name, without `example_index`. Shorter rows are padded
      with zeros.

    Raises:
      InputError: There are no examples.
      ValueError: An example is missing or occurs more than once.
    """
    predictions = []
    for batch in batches:
        is_real = batch[INDEX] >= 0
        if not is_real.all():
            batch = {name: rows[is_real] for name, rows in batch.items()}
        if len(batch[INDEX]):
            predictions.append(dict(batch))
    if not predictions:
        raise InputError("The data has no examples.")
    indexes = [batch.pop(INDEX) for batch in predictions]
    index = np.sort(np.concatenate(indexes))
    wrong = np.flatnonzero(index != np.arange(len(index)))
    if wrong.size:
        raise ValueError(
            f"Example {wrong[0]} is missing or occurs more than once."
        )
    # Joining one quantity at a time saves memory.
    return {
        name: _rows_in_order(
            [batch.pop(name) for batch in predictions], indexes
        )
        for name in list(predictions[0])
    }


def _values(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of variables as tensors, without copying.

    With arrays, which are copies, saving takes three times as much memory.
    """
    return {
        name: tf.convert_to_tensor(variable.value)
        for name, variable in variables.items()
    }


def _rows_in_order(
    arrays: Sequence[np.ndarray], indexes: Sequence[np.ndarray]
) -> np.ndarray:
    """Places the rows of arrays [b, ...] at their indexes [b].

    The other axes may differ in length: shorter rows are padded with zeros.
    """
    longest = np.max([rows.shape[1:] for rows in arrays], axis=0)
    size = sum(map(len, indexes))
    placed = np.zeros([size, *longest.astype(int)], arrays[0].dtype)
    for rows, index in zip(arrays, indexes, strict=True):
        placed[(index, *map(slice, rows.shape[1:]))] = rows
    return placed
