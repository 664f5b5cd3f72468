"""The training loop: train, evaluate, predict, for any task.

Nothing here knows BERT. The outer loop is Python and handles checkpoints,
summaries and signals:

    while step < num_train_steps:
        records = run several steps         # one tf.function, see step.py
        step += how many
        for hook in hooks: hook.after_steps(step, records)
        save, if it is time or a signal came
"""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import InputError
from bert_tf.training import checkpoints
from bert_tf.training.distribution import is_chief
from bert_tf.training.hooks import Hook, NanWatch, StopSignal
from bert_tf.training.optimization import (
    AdamWeightDecay,
    Lamb,
    WarmupLinearDecay,
)
from bert_tf.training.step import TrainingStep

# make(batch_size, num_shards, shard, start_example) -> batches for one replica
TrainingData = Callable[[int, int, int, int], tf.data.Dataset]
# make(batch_size, num_shards, shard) -> padded batches, see data/pipeline.py
EvaluationData = Callable[[int, int, int], tf.data.Dataset]

EXAMPLES_SEEN = "training_state/examples_seen"
OPTIMIZERS = {"adamw": AdamWeightDecay, "lamb": Lamb}
SECONDS_PER_CALL = 1.0


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train; the flags of the scripts by their names.

    Attributes:
      train_batch_size: Examples of one update, over all devices.
      eval_batch_size: Examples of one evaluation batch, over all devices.
      learning_rate: Peak rate.
      num_train_steps: Step at which training ends, counted from the first
        step of the first run.
      num_warmup_steps: Steps over which the rate rises to its peak.
      optimizer: "adamw" (BERT's Adam) or "lamb".
      weight_decay_rate: See `AdamWeightDecay`.
      max_grad_norm: Global norm that gradients are clipped to; 0 for none.
      gradient_accumulation_steps: Micro-batches that one update's batch is
        cut into; less memory, the same result.
      save_checkpoints_steps: Steps between checkpoints.
      keep_checkpoint_max: How many are kept; 0 keeps all.
      iterations_per_loop: Most steps of one call into TensorFlow.
      random_seed: Decides initial weights, dropout and the order of data.
      jit_compile: Whether XLA compiles the step; None where it is faster.
    """

    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    num_train_steps: int = 100_000
    num_warmup_steps: int = 10_000
    optimizer: str = "adamw"
    weight_decay_rate: float = 0.01
    max_grad_norm: float = 1.0
    gradient_accumulation_steps: int = 1
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    iterations_per_loop: int = 1000
    random_seed: int = 12345
    jit_compile: bool | None = None

    def __post_init__(self):
        for name in (
            "train_batch_size",
            "eval_batch_size",
            "num_train_steps",
            "gradient_accumulation_steps",
            "save_checkpoints_steps",
            "iterations_per_loop",
        ):
            if getattr(self, name) < 1:
                raise InputError(
                    f"expected --{name} to be 1 or more. Received: "
                    f"{getattr(self, name)}"
                )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"expected --optimizer to be one of {', '.join(OPTIMIZERS)}. "
                f"Received: {self.optimizer!r}"
            )
        if not self.learning_rate > 0:
            raise InputError(
                "expected --learning_rate above 0. Received: "
                f"{self.learning_rate}"
            )


class Estimator:
    """Trains, evaluates and predicts; see the top of this file.

    Args:
      task: What to learn, a `bert_tf.tasks.task.Task`.
      strategy: The devices.
      config: How to train.
      output_dir: Directory of the checkpoints.
      init_checkpoint: Where weights come from if `output_dir` has none.
    """

    def __init__(
        self,
        task: Any,
        strategy: tf.distribute.Strategy,
        config: TrainingConfig,
        output_dir: str,
        init_checkpoint: str | None = None,
    ):
        self.task = task
        self.strategy = strategy
        self.config = config
        self.step = 0
        self.examples_seen = 0
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
            jit_compile=self._jit and strategy.num_replicas_in_sync == 1,
        )
        self._optimizer: Any = None
        self._initialize(init_checkpoint)

    # ------------------------------------------------------------ variables

    def _initialize(self, init_checkpoint: str | None) -> None:
        """Own checkpoint first, else the initial one, else random weights."""
        own = self._manager.latest()
        if own is not None:
            report = checkpoints.restore(self._weights, own)
            state = checkpoints.Reader(own)
            self.step = int(state["global_step"])
            if EXAMPLES_SEEN in state:
                self.examples_seen = int(state[EXAMPLES_SEEN])
            logging.info("Resuming at step %d of %s: %s", self.step, own, report)
        elif init_checkpoint:
            prefix = checkpoints.find(init_checkpoint)
            report = checkpoints.restore(
                self._weights, prefix, may_lack=self.task.new_variables
            )
            logging.info("Weights from %s: %s", prefix, report)
        else:
            logging.info(
                "Random weights: %d variables, %s parameters",
                len(self._weights),
                f"{self.model.count_params():,}",
            )

    def _make_optimizer(self) -> None:
        """Makes the optimizer, with the slots of the own checkpoint."""
        config = self.config
        with self.strategy.scope():
            self._optimizer = OPTIMIZERS[config.optimizer](
                WarmupLinearDecay(
                    config.learning_rate,
                    config.num_train_steps,
                    config.num_warmup_steps,
                ),
                weight_decay_rate=config.weight_decay_rate,
            )
            self._optimizer.build(self.model.trainable_variables)
        logging.info("%s", self._optimizer.describe())
        self._optimizer.iterations.assign(self.step)
        if self.step:
            checkpoints.restore(
                self._slots(), self._manager.prefix(self.step)
            )

    def _slots(self) -> dict[str, Any]:
        names = {v.path: name for name, v in self._weights.items()}
        slots = {}
        for key, variable in self._optimizer.slot_variables().items():
            path, _, slot = key.rpartition("/")
            slots[f"{names[path]}/{slot}"] = variable
        return slots

    def _save(self) -> None:
        if not is_chief(self.strategy):
            return
        tensors = {
            name: variable.numpy()
            for name, variable in (self._weights | self._slots()).items()
        }
        tensors["global_step"] = np.int64(self.step)
        tensors[EXAMPLES_SEEN] = np.int64(self.examples_seen)
        prefix = self._manager.save(self.step, tensors)
        logging.info("Saved %s", prefix)

    def export_weights(self, prefix: str) -> None:
        """Writes the weights alone, as the original released its models."""
        if is_chief(self.strategy):
            checkpoints.write(
                prefix, {name: v.numpy() for name, v in self._weights.items()}
            )

    # ------------------------------------------------------------- training

    def train(self, make_data: TrainingData, hooks: Sequence[Hook] = ()):
        """Trains up to `num_train_steps`.

        A run that finds itself there already does nothing. SIGINT and SIGTERM
        save a checkpoint and raise SystemExit; the same command resumes.

        Args:
          make_data: Gives an endless data set of batches for one replica.
          hooks: Watchers; a `NanWatch` is always there.

        Raises:
          NonFiniteError: The loss or a gradient is not a number.
        """
        config = self.config
        if self.step >= config.num_train_steps:
            logging.info(
                "Nothing to train: step %d of %d is done",
                self.step,
                config.num_train_steps,
            )
            return
        self._make_optimizer()
        run_steps = TrainingStep(
            self.task,
            self.model,
            self._optimizer,
            self.strategy,
            max_grad_norm=config.max_grad_norm,
            micro_batches=config.gradient_accumulation_steps,
            random_seed=config.random_seed,
            jit_compile=self._jit,
        ).run
        data = iter(self._training_batches(make_data))
        hooks = [NanWatch(), *hooks]
        for hook in hooks:
            hook.begin(self.step)
        try:
            with StopSignal().watch() as stop:
                self._loop(run_steps, data, hooks, stop)
        finally:
            for hook in hooks:
                hook.end()

    def _loop(
        self, run_steps, data, hooks: Sequence[Hook], stop: StopSignal
    ) -> None:
        config = self.config
        most = 1
        while self.step < config.num_train_steps:
            count = min(most, self._steps_to_stop(hooks))
            started = time.monotonic()
            records = run_steps(data, tf.constant(count))
            records = {name: value.numpy() for name, value in records.items()}
            seconds = (time.monotonic() - started) / count
            most = self._steps_per_call(seconds)
            self.step += count
            self.examples_seen += count * config.train_batch_size
            for hook in hooks:
                hook.after_steps(self.step, records)
            is_last = self.step == config.num_train_steps
            is_due = self.step % config.save_checkpoints_steps == 0
            if is_due or is_last or stop.received:
                self._save()
            if stop.received:
                logging.warning(
                    "Stopped by %s at step %d, which is saved; the same "
                    "command goes on from there",
                    signal.Signals(stop.received).name,
                    self.step,
                )
                # What a shell reports for a program that a signal ended.
                raise SystemExit(128 + stop.received)

    def _steps_to_stop(self, hooks: Sequence[Hook]) -> int:
        """Steps until a checkpoint, a hook or the end is due."""
        periods = [self.config.save_checkpoints_steps]
        periods += [hook.every for hook in hooks if hook.every]
        left = self.config.num_train_steps - self.step
        return min(left, *(n - self.step % n for n in periods))

    def _steps_per_call(self, seconds: float) -> int:
        """Steps that make a call long enough to pay and short enough to stop.

        On a TPU the host is far away: there the user's number holds.
        """
        most = self.config.iterations_per_loop
        if isinstance(self.strategy, tf.distribute.TPUStrategy):
            return most
        return max(1, min(most, int(SECONDS_PER_CALL / seconds)))

    def _training_batches(self, make_data: TrainingData):
        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return make_data(
                batch_size,
                context.num_input_pipelines,
                context.input_pipeline_id,
                self.examples_seen,
            )

        batch_size = self._per_replica(
            "train_batch_size", self.config.gradient_accumulation_steps
        )
        return self.strategy.distribute_datasets_from_function(make)

    def _per_replica(self, flag: str, micro_batches: int = 1) -> int:
        """A global batch size's share of one replica, checked."""
        replicas = self.strategy.num_replicas_in_sync
        size = getattr(self.config, flag)
        if size % (replicas * micro_batches):
            raise InputError(
                f"expected --{flag} to be a multiple of {replicas} replica(s) "
                f"times {micro_batches} micro-batch(es). Received: {size}"
            )
        return size // replicas

    # ----------------------------------------------- evaluation, prediction

    def evaluate(self, make_data: EvaluationData) -> dict[str, float]:
        """The task's metrics, with `global_step`; each example counts once."""
        metrics = self.task.score(self.predict(make_data))
        return {**metrics, "global_step": self.step}

    def predict(self, make_data: EvaluationData) -> dict[str, np.ndarray]:
        """What the task keeps of every example, in order: arrays [n, ...]."""
        kept = []
        for features in self._evaluation_batches(make_data):
            batch = self._predict(features)
            kept.append(
                {name: self._in_order(v.numpy()) for name, v in batch.items()}
            )
        if not kept:
            raise InputError("expected at least one example. Received: none")
        joined = {
            name: np.concatenate([batch[name] for batch in kept])
            for name in kept[0]
        }
        is_real = joined.pop("is_real_example").astype(bool)
        return {name: values[is_real] for name, values in joined.items()}

    def _evaluation_batches(self, make_data: EvaluationData) -> Iterable:
        batch_size = self._per_replica("eval_batch_size")

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = (
                context.num_replicas_in_sync // context.num_input_pipelines
            )
            batches = make_data(
                batch_size * replicas,
                context.num_input_pipelines,
                context.input_pipeline_id,
            )
            return batches.map(
                lambda features: {
                    name: tf.reshape(
                        value, [replicas, batch_size, *value.shape[1:]]
                    )
                    for name, value in features.items()
                }
            ).unbatch()

        return self.strategy.distribute_datasets_from_function(make)

    def _predict_step(self, features) -> dict[str, tf.Tensor]:
        kept = self.strategy.run(self._replica_step, (features,))
        return {
            name: self.strategy.experimental_local_results(value)[0]
            for name, value in kept.items()
        }

    def _replica_step(self, features) -> dict[str, tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        return {
            name: replica.all_gather(value, axis=0)
            for name, value in self._replica_predictions(features).items()
        }

    def _keep(self, features) -> dict[str, tf.Tensor]:
        outputs = self.model(features, training=False)
        return {
            "is_real_example": features["is_real_example"],
            **self.task.predictions(features, outputs),
        }

    def _in_order(self, rows: np.ndarray) -> np.ndarray:
        """Rows [n, ...] of all workers in the order of the examples.

        They come worker by worker; worker w has every W-th example, from the
        w-th on.
        """
        workers = getattr(self.strategy.extended, "_num_workers", 1)
        by_worker = rows.reshape(workers, -1, *rows.shape[1:])
        return np.swapaxes(by_worker, 0, 1).reshape(rows.shape)


def should_compile(
    strategy: tf.distribute.Strategy, wish: bool | None
) -> bool:
    """Whether XLA compiles the step; None as a wish takes what is faster.

    On a CPU XLA is ahead in float32, but multiplies bfloat16 at the speed of
    float32, where oneDNN is twice as fast. A TPU always compiles, by itself.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    if wish is not None:
        return wish
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    return on_gpu or keras.config.dtype_policy().compute_dtype == "float32"
