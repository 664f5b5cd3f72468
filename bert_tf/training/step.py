"""One optimizer step, the same result on any number of devices.

On each replica:

    totals    = all_reduce(sum(task.loss_weights(features)))
    gradients = d/dw sum(task.losses(features, model(features))) / totals
    gradients = all_reduce(gradients), clipped by their global norm
    w        -= optimizer's update

The weights are summed first so that a mean over the global batch is the same
number on one device, on several, and over accumulated micro-batches. Dropout
masks are a function of seed, step, replica and micro-batch, so that a resumed
run draws what the first one would have drawn.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.kernels import Compiled, compiling
from bert_tf.training.distribution import is_plain, runs_on_cpus

# Beside a micro-batch's features: which of its examples count.
_COUNTS = "counts"


class TrainingStep:
    """Runs steps of a model on every replica of a strategy.

    Args:
      task: A `bert_tf.tasks.task.Task`.
      model: The task's model, made in the strategy's scope.
      optimizer: A built `AdamWeightDecay` or `Lamb`, made there too.
      strategy: The devices.
      max_grad_norm: Global norm that gradients are clipped to; 0 for none.
      micro_batches: How many parts a replica's batch is cut into.
      random_seed: Decides the dropout masks.
      jit_compile: Whether XLA compiles forward and backward pass.
      jit_compile_passes: Whether XLA compiles what is no product of matrices:
        clipping and the update, where they stay on one device; on CPUs, if
        it does not compile all, also what is between the products.
    """

    def __init__(
        self,
        task: Any,
        model: keras.Model,
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        *,
        max_grad_norm: float = 1.0,
        micro_batches: int = 1,
        random_seed: int = 0,
        jit_compile: bool = False,
        jit_compile_passes: bool = False,
    ):
        self.task = task
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.max_grad_norm = max_grad_norm
        self.micro_batches = micro_batches
        self.random_seed = random_seed
        self._compiled = Compiled.NOTHING
        if jit_compile or isinstance(strategy, tf.distribute.TPUStrategy):
            self._compiled = Compiled.EVERYTHING
        elif jit_compile_passes and runs_on_cpus(strategy):
            self._compiled = Compiled.PASSES
        self.run = tf.function(self._run)
        self._gradients = tf.function(
            self._batch_gradients, jit_compile=jit_compile
        )
        self._update = self._clip_and_update
        if is_plain(strategy):
            # Elsewhere the update crosses from device to device, which neither
            # a compiled program nor an inner function can.
            self._update = tf.function(
                self._update, jit_compile=jit_compile_passes
            )

    def _run(self, data, count) -> dict[str, tf.Tensor]:
        """Runs steps.

        Several processes have to ask for equally many: TensorFlow matches
        their sums by the turn of the loop.

        Args:
          data: Iterator of batches for each replica.
          count: How many steps, an integer tensor.

        Returns:
          Dict from what was recorded to its value at each step, float32
          [count]: loss, its parts, gradient_norm, learning_rate.
        """
        names = (
            "loss",
            *self.task.loss_names,
            "gradient_norm",
            "learning_rate",
        )
        rows = tf.TensorArray(tf.float32, count, element_shape=[len(names)])
        for index in tf.range(count):
            row = self.strategy.run(self.replica_step, (next(data),))
            rows = rows.write(
                index, self.strategy.experimental_local_results(row)[0]
            )
        columns = tf.unstack(rows.stack(), axis=1, num=len(names))
        return dict(zip(names, columns, strict=True))

    def replica_step(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """One step on one replica, update included; what a TPU compiles.

        Args:
          features: The replica's batch, tensors [b, ...].

        Returns:
          A row of what `run` records, float32 [quantities].
        """
        replica = tf.distribute.get_replica_context()
        seed = step_seed(
            self.random_seed,
            self.optimizer.iterations.value,
            replica.replica_id_in_sync_group,
        )
        weights = self.task.loss_weights(features)
        totals = self._all_reduce(
            [tf.reduce_sum(weights[name]) for name in self.task.loss_names]
        )
        gradients, losses = self._gradients(features, totals, seed)
        *gradients, losses = self._all_reduce([*gradients, losses])
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        # Outside of what XLA compiles: on a CPU it takes half as long, and the
        # update that is left fuses clipping into its one pass.
        norm = tf.linalg.global_norm(gradients)
        self._update(gradients, norm, rate)
        _merge_call(self._count_step, self.strategy)
        return tf.concat([[tf.reduce_sum(losses)], losses, [norm, rate]], 0)

    def _all_reduce(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        if is_plain(self.strategy):
            # TensorFlow would remember this sum's gradient, and with it the
            # model, for as long as the process lives.
            return values
        return tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, values
        )

    def _batch_gradients(self, features, totals, seed):
        """Gradients of one replica's share, over its micro-batches.

        Args:
          features: Dict of tensors [b, ...]. Where b is only known when the
            batch comes it may be any, as at a ragged end: no multiple of the
            micro-batches, or 0 on this replica.
          totals: The global sums of the loss weights, a list of scalars.
          seed: Integers [2].

        Returns:
          List of gradients, and the parts of the loss, float32 [number of
          parts]; summed over all replicas, they are those of the batch.
        """
        if self.micro_batches == 1:
            return self._micro_batch_gradients(features, 1.0, totals, seed)
        filled, counts = fill_up(features, self.micro_batches)
        micro_batches = cut({**filled, _COUNTS: counts}, self.micro_batches)
        variables = self.model.trainable_variables
        gradients = [tf.zeros(v.shape, v.dtype) for v in variables]
        losses = tf.zeros([len(self.task.loss_names)])
        for index in tf.range(self.micro_batches):
            batch = {
                name: value[index] for name, value in micro_batches.items()
            }
            more, parts = self._micro_batch_gradients(
                batch, batch.pop(_COUNTS), totals, fold_in(seed, index)
            )
            gradients = [a + b for a, b in zip(gradients, more, strict=True)]
            losses += parts
        return gradients, losses

    # Layers and losses are no code for AutoGraph; its reading of them all takes
    # a second or two.
    @tf.autograph.experimental.do_not_convert
    def _micro_batch_gradients(self, features, counts, totals, seed):
        variables = [v.value for v in self.model.trainable_variables]
        # Around the gradients too: checkpointing computes blocks again there.
        with compiling(self._compiled):
            with tf.GradientTape() as tape:
                outputs = self.model(features, training=True, seed=seed)
                values = self.task.losses(features, outputs)
                losses = tf.stack(
                    [
                        tf.math.divide_no_nan(
                            tf.reduce_sum(values[name] * counts), total
                        )
                        for name, total in zip(
                            self.task.loss_names, totals, strict=True
                        )
                    ]
                )
                loss = tf.reduce_sum(losses)
            gradients = tape.gradient(
                loss, variables, unconnected_gradients="zero"
            )
        # A table that is only looked up has a sparse gradient.
        return [tf.convert_to_tensor(g) for g in gradients], losses

    @tf.autograph.experimental.do_not_convert
    def _clip_and_update(self, gradients, norm, rate) -> None:
        """Clips the global gradients, of that norm, and updates."""
        if self.max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(
                gradients, self.max_grad_norm, use_norm=norm
            )
        _merge_call(self._update_variables, self.strategy, gradients, rate)

    def _update_variables(self, strategy, gradients, rate) -> None:
        # Not optimizer.apply: it would sum the gradients over the replicas a
        # second time.
        for variable, gradient in zip(
            self.model.trainable_variables, gradients, strict=True
        ):
            strategy.extended.update(
                variable.value,
                lambda v, g, r: self.optimizer.update_step(g, v, r),
                args=(gradient, rate),
                group=False,
            )

    def _count_step(self, strategy) -> None:
        # Not in the replicas: each would send the others what it adds.
        strategy.extended.update(
            self.optimizer.iterations.value,
            lambda v: v.assign_add(1),
            group=False,
        )


# Calls a function once for all replicas; in each where they cannot wait for
# one another.
_merge_call = tf.__internal__.distribute.interim.maybe_merge_call


def fill_up(
    features: Mapping[str, tf.Tensor], multiple: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Makes the length n of a batch a multiple, by copies of its last example.

    Args:
      features: Dict of tensors [n, ...].
      multiple: Of what.

    Returns:
      The same with [m, ...], and float32 [m]: 1 for each example, 0 for each
      copy. Nothing is added to n = 0, nor is a length that is known as the
      graph is made and fits.
    """
    first = next(iter(features.values()))
    count = first.shape[0]
    if count is not None and count % multiple == 0:
        return dict(features), tf.ones([count])
    count = tf.shape(first)[0]
    rows = tf.range(count + -count % multiple)
    # Copies and not zeros: of a text without any token a loss may be NaN, and
    # 0 times NaN is no 0.
    sources = tf.minimum(rows, count - 1)
    filled = {name: tf.gather(v, sources) for name, v in features.items()}
    return filled, tf.cast(rows < count, tf.float32)


def cut(features: Mapping[str, tf.Tensor], parts: int) -> dict[str, tf.Tensor]:
    """Cuts a batch into equal parts: [n, ...] -> [parts, n / parts, ...].

    Lengths that are known when the graph is made stay known, for a TPU needs
    them; batches of all other lengths go through one graph.
    """
    return {name: _cut(value, parts) for name, value in features.items()}


def _cut(value: tf.Tensor, parts: int) -> tf.Tensor:
    count, *rest = value.shape
    result = tf.reshape(
        value, tf.concat([[parts, -1], tf.shape(value)[1:]], axis=0)
    )  # [parts, n / parts, ...]
    result.set_shape([parts, count and count // parts, *rest])
    return result


def fold_in(seed, number):
    """A new seed [2] from a seed [2] and an integer."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def step_seed(random_seed: int, step, replica) -> tf.Tensor:
    """The seed [2] of one replica's step."""
    seed = tf.constant([random_seed, 0], tf.int32)
    return fold_in(fold_in(seed, tf.cast(step, tf.int32)), replica)
