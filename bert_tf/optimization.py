"""Learning rates that differ from variable to variable.

They are pairs of a regular expression and a factor. A variable's rate is
multiplied by the factor of the first expression that is found in its path, and
by 1 if none is.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from bert_tf.errors import InputError

# Learning rates that differ from variable to variable.


RateMultipliers = Sequence[tuple[str, float]]


def layerwise_rates(
    num_hidden_layers: int, decay: float
) -> tuple[tuple[str, float], ...]:
    """Rates that shrink from layer to layer on the way down to the words.

    Layer k of L has decay^(L - k) of the rate, the embeddings decay^(L + 1),
    the pooler and the heads all of it. What is near the words is general, and
    a task should change it least: Sun et al., "How to Fine-Tune BERT for Text
    Classification?" (arXiv 1905.05583, "layer-wise decreasing layer rate"), for
    whom 0.95 did best. ELECTRA's code has one more factor of `decay` on these.

    The names are those of the model, though nothing else here knows it: as
    with what is excluded from weight decay, the optimizer's recipe is made of
    them, and whoever has other names gives other pairs.

    Args:
      num_hidden_layers: L.
      decay: Ratio of the rates of two neighbouring layers, above 0 up to 1.

    Raises:
      InputError: `decay` is out of its range.
    """
    if not 0 < decay <= 1:
        raise InputError(
            "expected a decay of the rate from layer to layer above 0 and up "
            f"to 1. Received: {decay}"
        )
    layers = tuple(
        (rf"(^|/)layer_{layer}/", decay ** (num_hidden_layers - layer))
        for layer in range(num_hidden_layers)
    )
    embeddings = (r"(^|/)embeddings/", decay ** (num_hidden_layers + 1))
    return (embeddings, *layers)


def check_multipliers(
    multipliers: RateMultipliers,
) -> tuple[tuple[str, float], ...]:
    """The pairs, made of strings and floats.

    Raises:
      InputError: An expression or a factor cannot be used.
    """
    pairs = tuple((pattern, float(factor)) for pattern, factor in multipliers)
    for pattern, factor in pairs:
        if not 0 <= factor < math.inf:
            raise InputError(
                "expected rate_multipliers with factors of 0 up. Received: "
                f"{factor} for {pattern!r}"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(
                "expected rate_multipliers with regular expressions. "
                f"Received: {pattern!r} ({error})"
            ) from error
    return pairs


def multiplier_of(path: str, multipliers: RateMultipliers) -> float:
    """The factor of a variable's rate, by its path."""
    for pattern, factor in multipliers:
        if re.search(pattern, path):
            return factor
    return 1.0


# BERT's optimizers and its learning-rate schedule.


# What carries no information about scale: LayerNorm's gamma and beta, biases.
EXCLUDED_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then the line that falls to zero at the end.

    The decay is counted from step 0, not from the end of the warm-up, as the
    original does: the rate drops from peak (W - 1) / W to peak (1 - W / N).

    Steps are what the optimizer counts. With Keras's own
    `gradient_accumulation_steps` those are batches, not updates.

    For peak 1, N = 100, W = 10, steps 0, 1, 9, 10, 11, 99, 100 have the rates
    0, 0.1, 0.9, 0.9, 0.89, 0.01, 0.

    Args:
      peak: Learning rate that the warm-up heads for.
      num_train_steps: N, the step at which the rate is zero.
      num_warmup_steps: W, steps of warm-up; 0 for none.

    Raises:
      InputError: N is not positive or W is negative.
    """

    def __init__(
        self, peak: float, num_train_steps: int, num_warmup_steps: int = 0
    ):
        if num_train_steps < 1 or num_warmup_steps < 0:
            raise InputError(
                "expected num_train_steps > 0 and num_warmup_steps >= 0. "
                f"Received: num_train_steps={num_train_steps}, "
                f"num_warmup_steps={num_warmup_steps}"
            )
        self.peak = peak
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps

    def __call__(self, step):
        """The rate of the update that follows `step` earlier ones (scalar)."""
        step = ops.cast(step, "float32")
        total = float(self.num_train_steps)
        decayed = self.peak * (1.0 - ops.minimum(step, total) / total)
        if not self.num_warmup_steps:
            return decayed
        warmup = float(self.num_warmup_steps)
        return ops.where(step < warmup, self.peak * (step / warmup), decayed)

    def get_config(self) -> dict[str, Any]:
        return {
            "peak": self.peak,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }


def partition_by_decay(
    variables: Sequence[Any], exclude_from_weight_decay: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Splits variables into those that weight decay touches and the others.

    Args:
      variables: Things with a `path`, such as `model.trainable_variables`.
      exclude_from_weight_decay: Regular expressions; a variable whose path
        one of them is found in (`re.search`) is excluded.

    Returns:
      Two lists, decayed and excluded, each in the order given. Every variable
      is in exactly one of them.
    """
    decayed: list[Any] = []
    excluded: list[Any] = []
    for variable in variables:
        matches = _matches(exclude_from_weight_decay, variable.path)
        (excluded if matches else decayed).append(variable)
    return decayed, excluded


class _MomentOptimizer(keras.optimizers.Optimizer):
    """What Adam and LAMB share: moments, exclusion from decay, slot names."""

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = EXCLUDED_FROM_WEIGHT_DECAY,
        rate_multipliers: RateMultipliers = (),
        bias_correction: bool = False,
        **kwargs,
    ):
        if kwargs.get("weight_decay") is not None:
            raise InputError(
                "expected weight_decay_rate; Keras's own weight_decay would "
                "decay a second time. Received: "
                f"weight_decay={kwargs['weight_decay']}"
            )
        super().__init__(learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self._decay_exclusions = tuple(exclude_from_weight_decay)
        self._rate_multipliers = check_multipliers(rate_multipliers)

    def build(self, variables) -> None:
        """Makes the two moments of every variable; called by `apply`."""
        if self.built:
            return
        super().build(variables)
        self._is_decayed = [
            not _matches(self._decay_exclusions, v.path) for v in variables
        ]
        self._multipliers = [
            multiplier_of(v.path, self._rate_multipliers) for v in variables
        ]
        self._moments = self.add_optimizer_variables(
            variables, ["adam_m", "adam_v"]
        )

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables, once, with their gradients.

        Sparse gradients become dense, as in the original: every row of an
        embedding table has its moments and its decay moved at every step.
        Dense first, for clipping would not add up repeated rows.
        """
        variables = trainable_variables or self._trainable_variables
        if len(grads) == len(variables):  # Else Keras says what is wrong.
            grads = [
                _dense(g, v) for g, v in zip(grads, variables, strict=True)
            ]
        super().apply(grads, trainable_variables)

    def exclude_from_weight_decay(self, var_list=None, var_names=None) -> None:
        """Not Keras's way here: exclusion is an argument of the constructor."""
        raise InputError(
            "expected exclude_from_weight_decay as an argument of "
            f"{type(self).__name__}(...). Received: a call of the method"
        )

    def decay_partition(self) -> tuple[list[Any], list[Any]]:
        """The variables with weight decay, and those without.

        Raises:
          ValueError: The optimizer has not been built.
        """
        self._require_built()
        return partition_by_decay(
            self._trainable_variables, self._decay_exclusions
        )

    def describe(self) -> str:
        """One line for the log: what is decayed, what is not."""
        decayed, excluded = self.decay_partition()
        return (
            f"{type(self).__name__}: weight decay {self.weight_decay_rate} on "
            f"{_count(decayed)}, none on {_count(excluded)}"
        )

    def slot_variables(self) -> dict[str, Any]:
        """The moments, named as in the original's checkpoints.

        Returns:
          `<variable's path>/adam_m` and `<variable's path>/adam_v`, each of
          the variable's shape and dtype, for every variable.

        Raises:
          ValueError: The optimizer has not been built, or two variables
            share a path.
        """
        self._require_built()
        paths = [variable.path for variable in self._trainable_variables]
        _require_unique(paths)
        return {
            f"{path}/{name}": slot
            for name, slots in zip(
                ("adam_m", "adam_v"), self._moments, strict=True
            )
            for path, slot in zip(paths, slots, strict=True)
        }

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Moves one variable and its moments; the iteration stays.

        In float32 at least: 0.999, a decay of the moments, is 1 in bfloat16.
        What is stored has the variable's precision.

        Args:
          gradient: Its gradient, already clipped and summed over replicas.
          variable: One of the variables that the optimizer was built with.
          learning_rate: Scalar.
        """
        index = self._get_variable_index(variable)
        m, v = self._next_moments(gradient, variable)
        update = self._direction(m, v)
        if self._is_decayed[index]:
            update = update + self.weight_decay_rate * _precise(variable)
        rate = ops.cast(learning_rate, update.dtype) * self._multipliers[index]
        step = rate * self._scale(variable, update) * update
        self.assign_sub(variable, ops.cast(step, variable.dtype))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["weight_decay"]
        return config | {
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": list(self._decay_exclusions),
            "rate_multipliers": [list(m) for m in self._rate_multipliers],
            "bias_correction": self.bias_correction,
        }

    def _direction(self, m, v):
        """The step before decay, of the shape of the moments."""
        if self.bias_correction:
            # They start at zero, and lean towards it for a while.
            step = ops.cast(self.iterations + 1, m.dtype)
            m = m / (1.0 - ops.power(ops.cast(self.beta_1, m.dtype), step))
            v = v / (1.0 - ops.power(ops.cast(self.beta_2, v.dtype), step))
        return m / (ops.sqrt(v) + self.epsilon)

    def _scale(self, variable, update):
        """What the learning rate is multiplied by, for this variable."""
        raise NotImplementedError

    def _next_moments(self, gradient, variable):
        """Stores and returns the moments with `gradient` taken in."""
        g = _precise(_dense(gradient, variable))
        index = self._get_variable_index(variable)
        m_slot, v_slot = (slots[index] for slots in self._moments)
        m = self.beta_1 * _precise(m_slot) + (1.0 - self.beta_1) * g
        v = self.beta_2 * _precise(v_slot) + (1.0 - self.beta_2) * ops.square(g)
        self.assign(m_slot, ops.cast(m, m_slot.dtype))
        self.assign(v_slot, ops.cast(v, v_slot.dtype))
        return m, v

    def _require_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"expected {type(self).__name__} to be built; call "
                "build(model.trainable_variables) first"
            )


@keras.saving.register_keras_serializable(package="bert_tf")
class AdamWeightDecay(_MomentOptimizer):
    """BERT's Adam: decoupled weight decay and no bias correction.

    It differs from `keras.optimizers.AdamW` in three ways. Nothing corrects
    the bias of the moments, so that an update without warm-up starts at 3.16
    times the rate. Epsilon is 1e-6. The decay joins the update *before* the
    learning rate scales it, and after the moments, which never see it.
    Source: `AdamWeightDecayOptimizer` of google-research/bert.

    Without the correction the steps are too long while sqrt(1 - beta_2^t) is
    well below 1, which is for some thousand steps: in pre-training nothing,
    in fine-tuning on a few thousand examples all of it. Such a training is
    steadier with `bias_correction` (Mosbach et al., arXiv 2006.04884; Zhang
    et al., arXiv 2006.05987).

    Args:
      learning_rate: Float, schedule (such as `WarmupLinearDecay`) or callable.
      weight_decay_rate: Decay per step and unit of learning rate.
      beta_1: Decay of the first moment.
      beta_2: Decay of the second moment.
      epsilon: Added to the root of the second moment.
      exclude_from_weight_decay: Regular expressions, searched for in a
        variable's path; a variable with a match has no decay.
      rate_multipliers: Pairs of a regular expression and what the rate of the
        variables is multiplied by in whose path it is found; the first match
        holds. Such as `rate_multipliers.layerwise_rates` makes.
      bias_correction: Whether the moments are divided by 1 - beta^t at step t,
        as in Adam's paper (Kingma and Ba, arXiv 1412.6980).
      **kwargs: What every Keras optimizer takes, except `weight_decay`:
        `name`, `global_clipnorm`, `use_ema`, ... BERT trains with
        `global_clipnorm=1.0`. (On several replicas Keras clips each one
        before the sum.)

    Raises:
      InputError: `weight_decay` was given, or a multiplier that is none.
    """

    def _scale(self, variable, update):
        return 1.0


@keras.saving.register_keras_serializable(package="bert_tf")
class Lamb(_MomentOptimizer):
    """LAMB: Adam whose step is as long as the weights are, layer by layer.

    Algorithm 2 of You et al., "Large Batch Optimization for Deep Learning",
    arXiv 1904.00962, with phi the identity: a variable moves by
    learning_rate |w| in the direction of the bias-corrected Adam step plus
    decay. Where |w| or the step is zero the ratio is 1.
    `keras.optimizers.Lamb` differs: there the decay is no part of the step
    whose norm is taken.

    Args:
      learning_rate: Float, schedule or callable; around 1e-3 and up.
      weight_decay_rate: Lambda, the share of the weight in the step.
      beta_1: Decay of the first moment.
      beta_2: Decay of the second moment.
      epsilon: Added to the root of the second moment.
      exclude_from_weight_decay: Regular expressions, searched for in a
        variable's path; a variable with a match has no decay.
      exclude_from_layer_adaptation: Likewise for the ratio, which is 1 where
        one matches. The paper adapts every variable, `()`; None stands for
        `exclude_from_weight_decay`, as in its authors' code.
      rate_multipliers: As for `AdamWeightDecay`.
      bias_correction: Likewise; it is part of the algorithm.
      **kwargs: What every Keras optimizer takes, except `weight_decay`.

    Raises:
      InputError: `weight_decay` was given, or a multiplier that is none.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = EXCLUDED_FROM_WEIGHT_DECAY,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        rate_multipliers: RateMultipliers = (),
        bias_correction: bool = True,
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            weight_decay_rate,
            beta_1,
            beta_2,
            epsilon,
            exclude_from_weight_decay,
            rate_multipliers,
            bias_correction,
            **kwargs,
        )
        if exclude_from_layer_adaptation is None:
            exclude_from_layer_adaptation = exclude_from_weight_decay
        self._adaptation_exclusions = tuple(exclude_from_layer_adaptation)

    def build(self, variables) -> None:
        """Makes the two moments of every variable; called by `apply`."""
        if self.built:
            return
        super().build(variables)
        self._is_adapted = [
            not _matches(self._adaptation_exclusions, v.path) for v in variables
        ]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "exclude_from_layer_adaptation": list(self._adaptation_exclusions)
        }

    def _scale(self, variable, update):
        if not self._is_adapted[self._get_variable_index(variable)]:
            return 1.0
        weight_norm, update_norm = _norm(_precise(variable)), _norm(update)
        usable = ops.logical_and(weight_norm > 0, update_norm > 0)
        return ops.where(usable, weight_norm / update_norm, 1.0)


def _matches(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def _dense(gradient, variable):
    """Adds up the rows of a `tf.IndexedSlices`; anything else is dense."""
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    indices = ops.expand_dims(gradient.indices, -1)
    return ops.scatter(indices, gradient.values, variable.shape)


def _precise(x):
    """The same numbers, in float32 where they were in less."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, keras.backend.result_type(dtype, "float32"))


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))


def _count(variables: Sequence[Any]) -> str:
    size = sum(int(ops.size(v)) for v in variables)
    return f"{len(variables)} variables ({size:,} weights)"


def _require_unique(paths: Sequence[str]) -> None:
    repeated = [path for path, n in Counter(paths).items() if n > 1]
    if repeated:
        raise ValueError(
            "expected every variable to have a path of its own. Received "
            f"more than once: {', '.join(repeated)}"
        )
