"""One optimizer step; without dropout, the same on any number of devices.

On each replica:

    totals    = all_reduce(sum(task.loss_weights(features)))
    gradients = d/dw sum(task.losses(features, model(features))) / totals
    gradients = all_reduce(gradients), clipped by their global norm
    w        -= optimizer's update

The loss weights are summed first, so that a mean over the global batch is the
same number on one device, on several, and over accumulated micro-batches.
Dropout masks are a function of seed, step, replica and micro-batch, so that a
resumed run has the masks of a run without interruption.

In float16, small gradients would become 0. There the loss is multiplied by a
loss scale before the gradients are computed, and the gradients are divided by
it in float32; see `next_loss_scale`. If a gradient is not finite, the step is
skipped: weights and moments do not change. The step counts nevertheless, for
the learning rate and for the position in the data.
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.modeling.kernels import USUAL_LENGTH, Compiled, compiling
from bert_tf.modeling.optimization import clip_factor
from bert_tf.training.distribution import is_plain, runs_on_cpus

# The key of the weights of examples, next to the features of a micro-batch.
_COUNTS = "counts"

# As in Keras's LossScaleOptimizer.
INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000


class TrainingStep:
    """Runs steps of a model on every replica of a strategy.

    Args:
      task: A `bert_tf.tasks.task.Task`.
      model: The task's model, made in the strategy's scope.
      optimizer: A built `AdamWeightDecay` or `Lamb`, made in that scope.
      strategy: The devices.
      loss_scale: A float32 variable [2], made in that scope: the state of loss
        scaling, see `next_loss_scale`. None for no loss scaling.
      max_grad_norm: Global norm to clip gradients to; 0 for no clipping.
      micro_batches: The number of parts that a replica's batch is split into.
      random_seed: Determines the dropout masks.
      jit_compile: Whether XLA compiles the forward and backward pass.
      jit_compile_passes: Whether XLA compiles clipping and the update, if they
        stay on one device, and on CPUs also the operations between the matrix
        multiplications.
      num_steps: The number of steps of the training. If there are many,
        `jit_compile_passes` also applies where lengths differ between batches.
      usual_length: The usual length of batches whose lengths differ.
    """

    def __init__(
        self,
        task: Any,
        model: keras.Model,
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        *,
        loss_scale: keras.Variable | None = None,
        max_grad_norm: float = 1.0,
        micro_batches: int = 1,
        random_seed: int = 0,
        jit_compile: bool = False,
        jit_compile_passes: bool = False,
        num_steps: int = 0,
        usual_length: int = USUAL_LENGTH,
    ):
        self.task = task
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self.loss_scale = loss_scale
        self.max_grad_norm = max_grad_norm
        self.micro_batches = micro_batches
        self.random_seed = random_seed
        compiled = Compiled.NOTHING
        if jit_compile or isinstance(strategy, tf.distribute.TPUStrategy):
            compiled = Compiled.EVERYTHING
        elif jit_compile_passes and runs_on_cpus(strategy):
            compiled = Compiled.PASSES
        self._compiling = functools.partial(
            compiling, compiled, num_steps * micro_batches, usual_length
        )
        # AutoGraph would take seconds to convert layers, losses and the step.
        function = functools.partial(tf.function, autograph=False)
        # A partial, because TensorFlow warns of retracing if many functions
        # share their code, as the steps of several trainings do.
        self.run = function(functools.partial(self._run))
        self._gradients = function(
            self._batch_gradients, jit_compile=jit_compile
        )
        self._update = self._clip_and_update
        self._update_state = self.optimizer.assign_updated
        # With several replicas the update communicates between devices, which
        # neither a compiled program nor an inner function can do.
        if is_plain(strategy) and compiled is Compiled.PASSES:
            # Variables with the same shape and rule share a program. Small
            # programs compile seconds faster than one for all variables.
            self._update_state = function(self._update_state, jit_compile=True)
        elif is_plain(strategy):
            self._update = function(
                self._update, jit_compile=jit_compile_passes
            )

    def _run(self, data, count) -> dict[str, tf.Tensor]:
        """Runs steps and returns quantities at each of them, float32 [count].

        All processes must pass the same `count`, an integer tensor, since
        TensorFlow matches their collectives by the iteration of the loop.
        """
        names = ["loss", *self.task.loss_names]
        names += ["gradient_norm", "learning_rate"]
        if self.loss_scale is not None:
            names += ["loss_scale"]

        def step(index, rows):
            row = self.strategy.run(self.replica_step, (next(data),))
            local = self.strategy.experimental_local_results(row)
            return index + 1, rows.write(index, local[0])

        rows = tf.TensorArray(tf.float32, count, element_shape=[len(names)])
        _, rows = tf.while_loop(
            lambda index, _: index < count, step, (tf.zeros_like(count), rows)
        )
        columns = tf.unstack(rows.stack(), axis=1, num=len(names))
        return dict(zip(names, columns, strict=True))

    def replica_step(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Runs one step with its update on one replica; a TPU compiles it.

        Maps the replica's features [b, ...] to the quantities that `run`
        returns, float32 [quantities].
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
        scale = None
        if self.loss_scale is not None:
            scaling = tf.identity(self.loss_scale.value)
            scale = scaling[0]
        gradients, losses = self._gradients(features, totals, seed, scale)
        *gradients, losses = self._all_reduce([*gradients, losses])
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        # The norm is computed outside XLA, which takes twice as long for it on
        # a CPU. XLA fuses clipping and the update into one pass.
        norm = tf.linalg.global_norm(gradients)
        self._update(gradients, norm, rate)
        _merge_call(self._count_step, self.strategy)
        record = [[tf.reduce_sum(losses)], losses, [norm, rate]]
        if self.loss_scale is not None:
            scaling = next_loss_scale(scaling, tf.math.is_finite(norm))
            _merge_call(self._update_loss_scale, self.strategy, scaling)
            record += [scaling[:1]]
        return tf.concat(record, 0)

    def _all_reduce(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        if is_plain(self.strategy):
            # TensorFlow would keep the gradient function of `all_reduce`, and
            # with it the model, until the process ends.
            return values
        return tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, values
        )

    def _batch_gradients(self, features, totals, seed, scale):
        """Returns the replica's gradients, and parts of the loss [parts].

        Summed over all replicas, they are the global batch's. The length b of
        the features [b, ...] need not be a multiple of `micro_batches`. If b is
        not static, it may even be 0, as in a ragged last batch.
        """
        if self.micro_batches == 1:
            return self._micro_batch_gradients(
                features, 1.0, totals, seed, scale
            )
        filled, counts = fill_up(features, self.micro_batches)
        micro_batches = cut({**filled, _COUNTS: counts}, self.micro_batches)

        def add(index, gradients, losses):
            batch = {
                name: value[index] for name, value in micro_batches.items()
            }
            more, parts = self._micro_batch_gradients(
                batch, batch.pop(_COUNTS), totals, fold_in(seed, index), scale
            )
            total = [a + b for a, b in zip(gradients, more, strict=True)]
            return index + 1, total, losses + parts

        variables = self.model.trainable_variables
        gradients = [tf.zeros(v.shape, v.dtype) for v in variables]
        losses = tf.zeros([len(self.task.loss_names)])
        _, gradients, losses = tf.while_loop(
            lambda index, *_: index < self.micro_batches,
            add,
            (0, gradients, losses),
        )
        return gradients, losses

    def _micro_batch_gradients(self, features, counts, totals, seed, scale):
        variables = [v.value for v in self.model.trainable_variables]
        # The gradients are computed in this context too, since recomputed
        # blocks run again in the backward pass.
        with self._compiling():
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
                if scale is not None:
                    loss *= scale
            gradients = tape.gradient(
                loss, variables, unconnected_gradients="zero"
            )
        # An embedding table has a sparse gradient.
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        if scale is not None:
            gradients = [g / scale for g in gradients]
        return gradients, losses

    def _clip_and_update(self, gradients, norm, rate) -> None:
        """Clips the gradients by their global norm and updates the weights."""
        factor = tf.ones([])
        if self.max_grad_norm:
            factor = clip_factor(norm, self.max_grad_norm)
        arguments = gradients, factor, rate
        if self.loss_scale is None:
            update = self._update_variables
        else:
            update, arguments = self._update_if_finite, (*arguments, norm)
        _merge_call(update, self.strategy, *arguments)

    def _update_if_finite(
        self, strategy, gradients, factor, rate, norm
    ) -> None:
        # The norm is the same on all replicas, since the gradients are summed.
        norms = strategy.experimental_local_results(norm)
        tf.cond(
            tf.math.is_finite(norms[0]),
            lambda: self._update_variables(strategy, gradients, factor, rate),
            lambda: None,
        )

    def _update_variables(self, strategy, gradients, factor, rate) -> None:
        # `optimizer.apply` would sum the gradients over the replicas again.
        for variable, gradient in zip(
            self.model.trainable_variables, gradients, strict=True
        ):
            strategy.extended.update(
                variable.value,
                self._update_variable,
                args=(gradient, factor, rate),
                group=False,
            )

    def _update_variable(self, variable, gradient, factor, rate) -> None:
        moments, rate, rule = self.optimizer.update_of(variable, rate)
        state = variable, *(moment.value for moment in moments)
        self._update_state(gradient, *state, rate, rule, factor)

    def _count_step(self, strategy) -> None:
        # In replica context, each replica would send its 1 to the others.
        strategy.extended.update(
            self.optimizer.iterations.value,
            lambda v: v.assign_add(1),
            group=False,
        )

    def _update_loss_scale(self, strategy, state) -> None:
        strategy.extended.update(
            self.loss_scale.value,
            lambda v, new: v.assign(new),
            args=(state,),
            group=False,
        )


# Runs a function once in cross-replica context, or per replica where
# `merge_call` is unavailable.
_merge_call = tf.__internal__.distribute.interim.maybe_merge_call


def next_loss_scale(state: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
    """Returns the state of loss scaling after a step.

    The loss scale is halved if a gradient was not finite, and doubled after
    2,000 steps in a row whose gradients were finite. Source: "dynamic loss
    scaling", Micikevicius et al., arXiv 1710.03740, section 3.2, with the
    numbers of Keras.

    Args:
      state: float32 [2], the loss scale and the number of steps since it
        changed.
      is_finite: Whether all gradients of the step were finite, a bool.
    """
    scale, count = state[0], state[1] + 1
    is_due = count >= LOSS_SCALE_GROWTH_STEPS
    grown = tf.where(is_due, 2 * scale, scale)
    scale = tf.where(is_finite, grown, scale / 2)
    count = tf.where(is_finite & ~is_due, count, 0)
    return tf.stack([scale, count])


def fill_up(
    features: Mapping[str, tf.Tensor], multiple: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Appends copies of the last example, up to a multiple of `multiple`.

    Not zeros, because the loss of a text without tokens may be NaN, and 0 times
    NaN is NaN.

    Returns:
      The features [m, ...], and float32 [m]: 1 for each example, 0 for each
      copy. For 5 examples and a multiple of 4, m is 8; for no examples, 0.
    """
    first = next(iter(features.values()))
    count = first.shape[0]
    if count is not None and count % multiple == 0:
        return dict(features), tf.ones([count])
    count = tf.shape(first)[0]
    rows = tf.range(count + -count % multiple)
    sources = tf.minimum(rows, count - 1)
    filled = {name: tf.gather(v, sources) for name, v in features.items()}
    return filled, tf.cast(rows < count, tf.float32)


def cut(features: Mapping[str, tf.Tensor], parts: int) -> dict[str, tf.Tensor]:
    """Splits a batch into equal parts: [n, ...] -> [parts, n / parts, ...].

    Static lengths stay static, as a TPU needs.
    """

    def split(value: tf.Tensor) -> tf.Tensor:
        count, *rest = value.shape
        shape = tf.concat([[parts, -1], tf.shape(value)[1:]], axis=0)
        result = tf.reshape(value, shape)
        result.set_shape([parts, count and count // parts, *rest])
        return result

    return {name: split(value) for name, value in features.items()}


def fold_in(seed, number):
    """Returns a new seed [2] from a seed [2] and an integer."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def step_seed(random_seed: int, step, replica) -> tf.Tensor:
    """Returns the seed [2] of one replica's step."""
    seed = tf.constant([random_seed, 0], tf.int32)
    return fold_in(fold_in(seed, tf.cast(step, tf.int32)), replica)
