"""Copies of a small model, trained side by side on one device by JAX.

A small model cannot fill a GPU: most of a step's time is the start of its
operations. `jax.vmap` makes each operation work for many copies of the model,
which have their own weights, seeds and batches, in about the time of one.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from bert_tf.tasks.task import Task

# Name in checkpoints -> values, [copies, ...].
Weights = dict[str, jax.Array]
Arrays = Mapping[str, np.ndarray]
# Steps per call of the compiled function.
STEPS_AT_ONCE = 50


class Copies:
    """Copies of the model of a task.

    Args:
      task: The task; its model is built once for each seed.
      seeds: The seed of each copy's new weights and dropout masks.
      start: Weights to start from, each with an axis for several models; None
        starts from random weights. Weights that it lacks stay random.
      models: The model of `start` that each copy begins with.
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int],
        start: Weights | None = None,
        models: Sequence[int] = (),
    ):
        self.task, self.seeds = task, tuple(seeds)
        made = {}
        for seed in dict.fromkeys(seeds):
            keras.utils.set_random_seed(seed)
            self.model = task.build_model()
            made[seed] = [np.asarray(v) for v in self._variables()]
        columns = zip(*(made[seed] for seed in seeds), strict=True)
        values = [np.stack(column) for column in columns]
        names = {
            id(variable): name
            for name, variable in task.checkpoint_variables(self.model).items()
        }
        self._names = [names.get(id(v)) for v in self._variables()]
        for place, name in enumerate(self._names):
            if start and name in start:
                values[place] = start[name][np.array(models)]
        count = len(self.model.trainable_variables)
        values = [jnp.asarray(value) for value in values]
        self._trainable, self._fixed = values[:count], values[count:]
        self._predict = jax.jit(jax.vmap(self._outputs, in_axes=(0, 0, None)))

    def _outputs(self, trainable, fixed, features) -> dict[str, jax.Array]:
        """Returns the task's predictions for one copy."""
        outputs, _ = self.model.stateless_call(
            trainable, fixed, features, training=False
        )
        return self.task.predictions(features, outputs)

    def _variables(self) -> list:
        return [
            *self.model.trainable_variables,
            *self.model.non_trainable_variables,
        ]

    def weights(self) -> Weights:
        """Returns the weights by their names in a checkpoint."""
        values = [*self._trainable, *self._fixed]
        pairs = zip(self._names, values, strict=True)
        return {name: value for name, value in pairs if name}

    def train(
        self,
        phases: Sequence[tuple[Arrays, int]],
        batch_size: int,
        optimizer: keras.optimizers.Optimizer,
        parts: np.ndarray | None = None,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Trains all copies, each with its own order of the examples.

        Args:
          phases: Pairs of features, [n, ...] for n examples, and a number of
            steps, trained one after the other. The numbers are multiples of
            STEPS_AT_ONCE.
          batch_size: The examples of a step of one copy.
          optimizer: A new optimizer.
          parts: The weight of each part of the task's loss for each copy,
            floats [copies, parts]; all are 1 by default.

        Yields:
          The number of steps done, and the losses of the last STEPS_AT_ONCE,
          float32 [STEPS_AT_ONCE, copies]. The weights may be read meanwhile.
        """
        optimizer.build(self.model.trainable_variables)
        count = len(self.seeds)
        slots = [
            jnp.broadcast_to(v.value, (count, *v.shape))
            for v in optimizer.variables
        ]
        if parts is None:
            parts = np.ones([count, len(self.task.loss_names)])
        parts = jnp.asarray(parts, jnp.float32)
        run = self._steps(optimizer)
        step = 0
        for arrays, num_steps in phases:
            data = {name: jnp.asarray(v) for name, v in arrays.items()}
            rows = self._rows(len(data["input_ids"]), num_steps, batch_size)
            for first in range(0, num_steps, STEPS_AT_ONCE):
                numbers = np.arange(step, step + STEPS_AT_ONCE)
                seeds = np.empty([STEPS_AT_ONCE, count, 2], np.int32)
                seeds[..., 0] = self.seeds
                # Each dropout layer adds its own number, below 1,000.
                seeds[..., 1] = 1000 * numbers[:, np.newaxis]
                (self._trainable, slots), losses = run(
                    self._trainable,
                    slots,
                    self._fixed,
                    parts,
                    data,
                    jnp.asarray(rows[first : first + STEPS_AT_ONCE]),
                    jnp.asarray(seeds),
                )
                step += STEPS_AT_ONCE
                yield step, losses

    def _steps(self, optimizer: keras.optimizers.Optimizer) -> Callable:
        """Returns the compiled function that makes STEPS_AT_ONCE steps."""

        def one(trainable, slots, fixed, parts, data, rows, seed):
            """Makes a step of one copy."""
            loss, gradients = jax.value_and_grad(self._loss)(
                trainable, fixed, parts, _features(data, rows), seed
            )
            trainable, slots = optimizer.stateless_apply(
                slots, gradients, trainable
            )
            return trainable, slots, loss

        every = jax.vmap(one, in_axes=(0, 0, 0, 0, None, 0, 0))

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def run(trainable, slots, fixed, parts, data, rows, seeds):
            def step(state, batch):
                *state, loss = every(*state, fixed, parts, data, *batch)
                return tuple(state), loss

            return jax.lax.scan(step, (trainable, slots), (rows, seeds))

        return run

    def _loss(self, trainable, fixed, parts, features, seed) -> jax.Array:
        """Returns the training loss of one copy, a scalar."""
        outputs, _ = self.model.stateless_call(
            trainable, fixed, features, training=True, seed=seed
        )
        losses = self.task.losses(features, outputs)
        weights = self.task.loss_weights(features)
        means = [
            jnp.sum(losses[name]) / jnp.maximum(jnp.sum(weights[name]), 1.0)
            for name in self.task.loss_names
        ]
        return jnp.dot(jnp.stack(means), parts)

    def _rows(
        self, num_examples: int, num_steps: int, batch_size: int
    ) -> np.ndarray:
        """Returns the examples of each step, int32 [steps, copies, batch].

        Each copy has its own order, in which each epoch has every example.
        """
        length = num_steps * batch_size
        orders = []
        for seed in self.seeds:
            random = np.random.default_rng(seed)
            epochs = [
                random.permutation(num_examples).astype(np.int32)
                for _ in range(-(-length // num_examples))
            ]
            order = np.concatenate(epochs)[:length]
            orders.append(order.reshape(num_steps, batch_size))
        return np.stack(orders, axis=1)

    def predict(self, arrays: Arrays, batch_size: int) -> dict[str, np.ndarray]:
        """Returns the predictions of the task, each [copies, n, ...]."""
        total = len(arrays["input_ids"])
        data = {name: jnp.asarray(values) for name, values in arrays.items()}
        parts = []
        for first in range(0, total, batch_size):
            rows = np.arange(first, first + batch_size) % total
            features = _features(data, jnp.asarray(rows))
            found = self._predict(self._trainable, self._fixed, features)
            parts.append(found)
        return {
            name: np.concatenate([np.asarray(part[name]) for part in parts], 1)[
                :, :total
            ]
            for name in parts[0]
        }


def _features(data: Mapping[str, jax.Array], rows: jax.Array) -> dict:
    """Returns the features of some examples as the model takes them."""
    return {
        name: values[rows]
        if values.dtype == jnp.float32
        else values[rows].astype("int32")
        for name, values in data.items()
    }
