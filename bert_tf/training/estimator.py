"""The training loop: train, evaluate, predict, for any task.

Nothing here knows BERT. The outer loop is Python and handles checkpoints,
summaries and signals:

    while step < num_train_steps and no signal came:
        records = run several steps         # one tf.function, see step.py
        step += how many
        for hook in hooks: hook.after_steps(step, records)
        save, if it is time

Several processes agree before each turn on how many steps it has, and whether
to stop instead: each waits for the others in every step.
"""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import signals
from bert_tf.errors import InputError
from bert_tf.training import checkpoints
from bert_tf.training.distribution import (
    INDEX,
    agreement,
    all_rows,
    in_order,
    is_chief,
    is_plain,
    should_compile,
)
from bert_tf.training.hooks import (
    Hook,
    NanWatch,
    require_finite_tensors,
    watching,
)
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.step import TrainingStep, cut
from bert_tf.training.weights import Weights, checksum, restore
from bert_tf.training.workers import (
    lost_workers_told,
    require_same_step,
    require_same_weights,
)

# Called with batch_size, num_shards, shard and start_example: batches for one
# replica, as data/pipeline.py makes them.
TrainingData = Callable[..., tf.data.Dataset]
# Called with batch_size, num_shards and shard: batches of a multiple of
# batch_size rows, of any length, with `is_real_example` and `example_index`.
EvaluationData = Callable[..., tf.data.Dataset]

EXAMPLES_SEEN = "training_state/examples_seen"
SECONDS_PER_CALL = 1.0


class Estimator:
    """Trains, evaluates and predicts; see the top of this file.

    Args:
      task: What to learn, a `bert_tf.tasks.task.Task`.
      strategy: The devices.
      config: How to train.
      output_dir: Directory of the checkpoints.
      init_checkpoint: Where weights come from if `output_dir` has none.
      open_checkpoint: Reads it; a TF1 checkpoint unless told.

    Attributes:
      model: The task's model.
      step: Updates that it has seen.
      weights_from: The checkpoint that its weights came from when it was
        made; None if they were random.
      random_variables: The names of those that this checkpoint did not have.
      train_seconds: Time spent in training, evaluations on the way included;
        NaN if an earlier process did a part of it.

    Raises:
      InputError: A checkpoint cannot be read or does not fit the model, or
        workers find different ones, or start from different weights.
    """

    @lost_workers_told()
    def __init__(
        self,
        task: Any,
        strategy: tf.distribute.Strategy,
        config: TrainingConfig,
        output_dir: str,
        init_checkpoint: str | None = None,
        open_checkpoint: Callable[[str], Weights] = checkpoints.open_checkpoint,
    ):
        self.task = task
        self.strategy = strategy
        self.config = config
        self.step = 0
        self.examples_seen = 0
        self.random_variables: tuple[str, ...] = ()
        self.train_seconds = 0.0
        self._manager = checkpoints.CheckpointManager(
            output_dir, config.keep_checkpoint_max
        )
        self._jit = should_compile(strategy, config.jit_compile)
        keras.utils.set_random_seed(config.random_seed)
        with strategy.scope():
            self.model = task.build_model()
        self._weights = task.checkpoint_variables(self.model)
        self._predict = tf.function(self._predict_step)
        self._replica_predictions = tf.function(
            self._keep,
            # Outside of a loop TensorFlow places the compiled call of every
            # replica on the first one's device, away from its variables.
            jit_compile=self._jit and is_plain(strategy),
        )
        self._optimizer: Any = None
        self._own_checkpoint = self._manager.latest()
        self._saved_step = 0
        self.weights_from = self._own_checkpoint
        self._initialize(init_checkpoint, open_checkpoint)
        require_same_step(strategy, self.step, output_dir)
        require_same_weights(strategy, self._weights)

    # ------------------------------------------------------------ variables

    def _initialize(
        self,
        init_checkpoint: str | None,
        open_checkpoint: Callable[[str], Weights],
    ) -> None:
        """Own checkpoint first, else the initial one, else random weights."""
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
            if init_checkpoint:
                logging.warning(
                    "--init_checkpoint=%s is not used: %s has a checkpoint of "
                    "its own",
                    init_checkpoint,
                    self._manager.directory,
                )
        elif init_checkpoint:
            weights = open_checkpoint(init_checkpoint)
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

    def _make_optimizer(self) -> None:
        """Makes the optimizer, with the slots of the own checkpoint."""
        with self.strategy.scope():
            self._optimizer = self.config.make_optimizer()
            self._optimizer.build(self.model.trainable_variables)
        logging.info("%s", self._optimizer.describe())
        self._optimizer.iterations.assign(self.step)
        if self._own_checkpoint is not None:
            restore(self._slots(), checkpoints.Reader(self._own_checkpoint))

    def _slots(self) -> dict[str, Any]:
        names = {v.path: name for name, v in self._weights.items()}
        slots = {}
        for key, variable in self._optimizer.slot_variables().items():
            path, _, slot = key.rpartition("/")
            slots[f"{names[path]}/{slot}"] = variable
        return slots

    def _save(self) -> None:
        """Writes a checkpoint, unless it would hold what is no number."""
        tensors = {
            name: variable.numpy()
            for name, variable in (self._weights | self._slots()).items()
        }
        require_finite_tensors(self.step, tensors)
        self._saved_step = self.step
        if not is_chief(self.strategy):
            return
        tensors["global_step"] = np.int64(self.step)
        tensors[EXAMPLES_SEEN] = np.int64(self.examples_seen)
        prefix = self._manager.save(self.step, tensors)
        logging.info("Saved %s", prefix)

    def load_weights(self, prefix: str) -> None:
        """Takes the weights alone, to evaluate, predict or release them.

        Args:
          prefix: What `export_weights` wrote, such as the best of a run. The
            step and the optimizer stay what they are.

        Raises:
          InputError: It cannot be read, or is of another model.
        """
        restore(self._weights, checkpoints.open_checkpoint(prefix))
        self.weights_from = prefix

    def export_weights(self, prefix: str) -> None:
        """Writes the weights alone, as the original released its models."""
        if is_chief(self.strategy):
            checkpoints.write(
                prefix, {name: v.numpy() for name, v in self._weights.items()}
            )

    def weights_checksum(self) -> str:
        """What tells the weights from any others."""
        return checksum(self._weights)

    # ------------------------------------------------------------- training

    @lost_workers_told()
    def train(self, make_data: TrainingData, hooks: Sequence[Hook] = ()):
        """Trains up to `num_train_steps`, or `stop_at_step` if there is one.

        A run that finds itself there already does nothing. SIGINT and SIGTERM
        save a checkpoint and raise SystemExit; the same command resumes. Where
        a hook wants to stop, training ends with a checkpoint as at the last
        step; later runs end there as well, if the hook still wants it.

        Args:
          make_data: Gives an endless data set of batches for one replica.
          hooks: Watchers; a `NanWatch` is always there.

        Raises:
          NonFiniteError: The loss or a gradient is not a number.
          WorkerLostError: Another worker is gone.
        """
        config = self.config
        if self.step >= config.last_step:
            logging.info(
                "Nothing to train: step %d of %d is done",
                self.step,
                config.last_step,
            )
            return
        if is_chief(self.strategy):
            self._manager.remove_leftovers()
        data = self.training_batches(make_data)
        run_steps = self.training_step().run
        hooks = [NanWatch(), *hooks]
        started = time.monotonic()
        try:
            with watching(hooks, self.step), signals.deferred() as stop:
                self._loop(run_steps, iter(data), hooks, stop)
        finally:
            self.train_seconds += time.monotonic() - started

    def training_step(self) -> TrainingStep:
        """The step that `train` repeats, with the optimizer that it has."""
        config = self.config
        if self._optimizer is None:
            self._make_optimizer()
        return TrainingStep(
            self.task,
            self.model,
            self._optimizer,
            self.strategy,
            max_grad_norm=config.max_grad_norm,
            micro_batches=config.gradient_accumulation_steps,
            random_seed=config.random_seed,
            jit_compile=self._jit,
            # A pass over memory where there were twenty: on CPUs, too.
            jit_compile_passes=config.jit_compile is not False,
        )

    def _loop(
        self, run_steps, data, hooks: Sequence[Hook], stop: signals.StopRequest
    ) -> None:
        agree = agreement(self.strategy)
        most = 1
        while True:
            wish = min(most, self._steps_to_stop(hooks))
            count, goes_on = agree([wish, int(not stop.received)])
            if not (count and goes_on):
                break
            started = time.monotonic()
            records = run_steps(data, tf.constant(count))
            records = {name: value.numpy() for name, value in records.items()}
            most = self._steps_per_call((time.monotonic() - started) / count)
            self.step += count
            self.examples_seen += count * self.config.train_batch_size
            for hook in hooks:
                hook.after_steps(self.step, records)
            if self._is_due():
                self._save()
        if self._saved_step != self.step:
            self._save()
        if not goes_on:
            _leave(stop, self.step)
        if self.step < self.config.last_step:
            logging.info(
                "Training ends early, at step %d of %d",
                self.step,
                self.config.last_step,
            )

    def _is_due(self) -> bool:
        """Whether this step has a checkpoint in any case."""
        is_last = self.step == self.config.last_step
        return is_last or self.step % self.config.save_checkpoints_steps == 0

    def _steps_to_stop(self, hooks: Sequence[Hook]) -> int:
        """Steps until a checkpoint, a hook or the end is due; 0 at the end.

        The end is where a hook wants it, too. It is enough if one process has
        such a hook: all agree on the fewest steps.
        """
        if any(hook.wants_stop for hook in hooks):
            return 0
        periods = [self.config.save_checkpoints_steps]
        periods += [hook.every for hook in hooks if hook.every > 0]
        left = self.config.last_step - self.step
        return min(left, *(n - self.step % n for n in periods))

    def _steps_per_call(self, seconds: float) -> int:
        """Steps that make a call long enough to pay and short enough to stop.

        On a TPU the host is far away: there the user's number holds.
        """
        most = self.config.iterations_per_loop
        if isinstance(self.strategy, tf.distribute.TPUStrategy):
            return most
        return max(1, min(most, int(SECONDS_PER_CALL / seconds)))

    def training_batches(self, make_data: TrainingData):
        """The batches of all replicas, endless, from what `train` takes."""

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
        """The task's metrics, with `global_step`; each example counts once."""
        metrics = self.task.score(self.predict(make_data))
        return {**metrics, "global_step": self.step}

    @lost_workers_told()
    def predict(
        self, make_data: EvaluationData, batch_size: int | None = None
    ) -> dict[str, np.ndarray]:
        """What the task keeps of every example, in order: arrays [n, ...].

        Batches may be of any length. Where the task keeps something per
        token, zeros fill up what is shorter than the longest.

        Args:
          make_data: Gives the batches of one replica.
          batch_size: Examples of a batch, over all devices; the
            configuration's for evaluation if it is not given.
        """
        batches = self.evaluation_batches(
            make_data, batch_size or self.config.eval_batch_size
        )
        # The same trace for all batches, and for all calls with such batches.
        predict = self._predict.get_concrete_function(batches.element_spec)
        return in_order(
            {name: values.numpy() for name, values in predict(batch).items()}
            for batch in batches
        )

    def evaluation_batches(self, make_data: EvaluationData, batch_size: int):
        """The batches of all replicas, from what `predict` takes."""
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
        kept = self.strategy.run(self.prediction_step, (features,))
        return {
            name: self.strategy.experimental_local_results(value)[0]
            for name, value in kept.items()
        }

    def prediction_step(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """What the task keeps of all replicas' batches, of one's [b, ...]."""
        is_real = features["is_real_example"] > 0
        kept = {
            **self._replica_predictions(features),
            INDEX: tf.where(is_real, features[INDEX], -1),
        }
        if is_plain(self.strategy):
            return kept  # See `TrainingStep._all_reduce`.
        return {name: all_rows(value) for name, value in kept.items()}

    @tf.autograph.experimental.do_not_convert  # As in `TrainingStep`.
    def _keep(self, features) -> dict[str, tf.Tensor]:
        outputs = self.model(features, training=False)
        return self.task.predictions(features, outputs)


def batch_per_replica(
    config: TrainingConfig, strategy: tf.distribute.Strategy
) -> int:
    """One replica's share of a training batch, all its micro-batches.

    Raises:
      InputError: The batch cannot be cut into equal parts.
    """
    replicas = strategy.num_replicas_in_sync
    parts = config.gradient_accumulation_steps
    size = config.train_batch_size
    if size % (replicas * parts):
        raise InputError(
            f"expected --train_batch_size to be a multiple of {replicas} "
            f"replica(s) times --gradient_accumulation_steps={parts}. "
            f"Received: {size}"
        )
    return size // replicas


def _leave(stop: signals.StopRequest, step: int) -> NoReturn:
    """Ends the program as a shell expects of one that a signal ended."""
    number = stop.received or signal.SIGTERM  # Another process received it.
    logging.warning(
        "Stopped by %s at step %d; the same command goes on from there",
        signal.Signals(number).name,
        step,
    )
    raise SystemExit(128 + number)
