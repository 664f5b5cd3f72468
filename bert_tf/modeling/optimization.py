"""BERT's optimizers, its learning rate schedule, and layer-wise learning rates.

Learning rates can differ by variable: `rate_multipliers` are pairs of a regular
expression and a factor. The learning rate of a variable is multiplied by the
factor of the first expression that is found in its path, or by 1.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from bert_tf.config import require_number, require_share
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.modeling import kernels

RateMultipliers = Sequence[tuple[str, float]]

# Weight decay ignores gamma and beta of layer normalization, and biases.
EXCLUDED_FROM_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")

_SLOTS = ["adam_m", "adam_v"]


def layerwise_rates(
    num_hidden_layers: int, decay: float
) -> tuple[tuple[str, float], ...]:
    """Returns rate multipliers that shrink from the heads to the embeddings.

    Layer k = 0, ..., L - 1 gets decay^(L - k), the embeddings decay^(L + 1),
    pooler and heads 1. Lower layers are more general and should change less in
    fine-tuning: Sun et al., "How to Fine-Tune BERT for Text Classification?"
    (arXiv 1905.05583, "layer-wise decreasing layer rate"), with 0.95 as the
    best value. ELECTRA's code has one more factor of `decay` for every layer.

    Raises:
      InputError: If `decay` is not above 0 and at most 1.
    """
    require_number(
        "The layer-wise decay of the learning rate",
        decay,
        "above 0 and at most 1",
        lambda x: 0 < x <= 1,
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
    """Returns the pairs as a tuple of strings and floats.

    Raises:
      InputError: If a factor is invalid.
      re.error: If an expression is invalid.
    """
    name = "rate_multipliers"
    check_patterns(name, [pattern for pattern, _ in multipliers])
    for pattern, factor in multipliers:
        require_number(f"The factor for {pattern!r} in {name}", factor)
    return tuple((pattern, float(factor)) for pattern, factor in multipliers)


def check_patterns(name: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """Returns regular expressions as a tuple.

    Raises:
      InputError: If `patterns` is a string.
      re.error: If one is not a regular expression.
    """
    if isinstance(patterns, str):  # Each character would be an expression.
        raise wrong_value(name, "a list of regular expressions", patterns)
    for pattern in patterns:
        re.compile(pattern)
    return tuple(patterns)


def multiplier_of(path: str, multipliers: RateMultipliers) -> float:
    """Returns the factor for the learning rate of a variable."""
    for pattern, factor in multipliers:
        if re.search(pattern, path):
            return factor
    return 1.0


def matches(patterns: Sequence[str], path: str) -> bool:
    """Returns whether one of the expressions is found in a variable's path."""
    return any(re.search(pattern, path) for pattern in patterns)


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then linear decay to 0 at the last step.

    As in the original, the decay is counted from step 0, not from the end of
    the warm-up, so that after the warm-up the learning rate drops from
    peak (W - 1) / W to peak (1 - W / N). For peak 1, N = 100 and W = 20, the
    learning rates of steps 0, 1, 19, 20, 21, 99, 100 are 0, 0.05, 0.95, 0.8,
    0.79, 0.01, 0.

    Steps are calls of the optimizer. With Keras's `gradient_accumulation_steps`
    they are batches, not updates.

    Args:
      peak: Learning rate that the warm-up approaches.
      num_train_steps: N, the step at which the learning rate is 0.
      num_warmup_steps: W, steps of warm-up; may be 0.

    Raises:
      InputError: If N is not a finite number or is below 1.
    """

    def __init__(
        self, peak: float, num_train_steps: int, num_warmup_steps: int = 0
    ):
        require_number(
            "num_train_steps",
            num_train_steps,
            "at least 1",
            lambda steps: steps >= 1,
        )
        self.peak = peak
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps

    def __call__(self, step):
        """Returns the learning rate at a step, a scalar."""
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


class UpdateRule(NamedTuple):
    """How the update of a variable differs from other variables' updates.

    Attributes:
      is_decayed: Whether it has weight decay.
      is_adapted: Whether LAMB adapts the size of the update to the variable.
    """

    is_decayed: bool
    is_adapted: bool


class _MomentOptimizer(keras.optimizers.Optimizer):
    """The common part of Adam and LAMB: moments, weight decay, slot names."""

    # Only LAMB adapts updates; the empty expression is found in every path.
    _adaptation_exclusions: tuple[str, ...] = ("",)

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
                "Pass weight_decay_rate instead of weight_decay, which Keras "
                "would apply in addition."
            )
        for name, share in (("beta_1", beta_1), ("beta_2", beta_2)):
            require_share(name, share)
        require_number("weight_decay_rate", weight_decay_rate)
        require_number("epsilon", epsilon)
        super().__init__(learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self._decay_exclusions = check_patterns(
            "exclude_from_weight_decay", exclude_from_weight_decay
        )
        self._rate_multipliers = check_multipliers(rate_multipliers)

    def build(self, variables) -> None:
        """Creates the moments of the variables; called by `apply`."""
        if self.built:
            return
        super().build(variables)
        self._paths = [v.path for v in variables]
        self._rules = [
            UpdateRule(
                not matches(self._decay_exclusions, path),
                not matches(self._adaptation_exclusions, path),
            )
            for path in self._paths
        ]
        self._multipliers = [
            multiplier_of(path, self._rate_multipliers) for path in self._paths
        ]
        self._moments = self.add_optimizer_variables(variables, _SLOTS)

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables with their gradients.

        Sparse gradients become dense first, since clipping would not add up
        their repeated rows. As in the original, moments and weight decay change
        every row of an embedding table at every step.
        """
        # For the global norm, Keras needs gradients of one dtype.
        grads = [g if g is None else _precise(_dense(g)) for g in grads]
        super().apply(grads, trainable_variables)

    def exclude_from_weight_decay(self, var_list=None, var_names=None) -> None:
        """Raises an error: exclusion is an argument of the constructor."""
        raise InputError(
            f"Pass exclude_from_weight_decay to {type(self).__name__}(...) "
            "instead of calling the method."
        )

    def slot_variables(self) -> dict[str, Any]:
        """Returns the moments by their names in the original's checkpoints.

        The names are `<variable's path>/adam_m` and `<variable's path>/adam_v`.
        Moments have the shape and dtype of their variable.

        Raises:
          ValueError: If variables share a path.
        """
        counts = Counter(self._paths)
        if repeated := [path for path, n in counts.items() if n > 1]:
            raise ValueError(
                "The paths of the variables must be unique; several have "
                f"{listed(repeated)}."
            )
        return {
            f"{path}/{name}": slot
            for name, slots in zip(_SLOTS, self._moments, strict=True)
            for path, slot in zip(self._paths, slots, strict=True)
        }

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates one variable and its moments, but not the step counter.

        The gradient must be dense, summed over replicas and clipped.
        """
        moments, rate, rule = self.update_of(variable, learning_rate)
        state = variable, *moments
        if kernels.compiles_updates():
            # A `tf.function` uses one program for all variables of a shape only
            # if it gets TensorFlow's variables, not Keras's.
            state = [
                x.value if isinstance(x, keras.Variable) else x for x in state
            ]
            rate = ops.convert_to_tensor(rate)
            constants = self.weight_decay_rate, self.beta_1, self.beta_2
            constants += self.epsilon, self.bias_correction
            self._compiled_assign(
                gradient, *state, rate, rule, hyperparameters=constants
            )
        else:
            self.assign_updated(gradient, *state, rate, rule)

    def update_of(
        self, variable, learning_rate
    ) -> tuple[list[keras.Variable], Any, UpdateRule]:
        """Returns a variable's moments, learning rate and rule."""
        index = self._get_variable_index(variable)
        moments = [slots[index] for slots in self._moments]
        rate = learning_rate * self._multipliers[index]
        return moments, rate, self._rules[index]

    def updated(
        self, gradient, variable, m, v, learning_rate, rule: UpdateRule
    ) -> tuple[Any, Any, Any]:
        """Returns the new values of a variable and of its moments.

        Computes in float32 or higher, since beta_2 = 0.999 is 1 in bfloat16.
        Results have the precision of the arguments `variable`, `m` and `v`.
        """
        g, weights = _precise(gradient), _precise(variable)
        new_m = self.beta_1 * _precise(m) + (1.0 - self.beta_1) * g
        new_v = self.beta_2 * _precise(v) + (1.0 - self.beta_2) * ops.square(g)
        update = self._direction(new_m, new_v)
        if rule.is_decayed:
            update = update + self.weight_decay_rate * weights
        rate = ops.cast(learning_rate, update.dtype)
        if rule.is_adapted:
            rate = rate * _trust_ratio(weights, update)
        step = ops.cast(rate * update, variable.dtype)
        return (
            variable - step,
            ops.cast(new_m, m.dtype),
            ops.cast(new_v, v.dtype),
        )

    def assign_updated(
        self,
        gradient,
        variable,
        m,
        v,
        learning_rate,
        rule: UpdateRule,
        factor: Any = None,
    ) -> None:
        """Assigns the new values; see `updated`.

        If there is a factor, the gradient is multiplied by it.
        """
        state = variable, m, v
        if factor is not None:
            gradient = _precise(gradient)
            gradient = gradient * ops.cast(factor, gradient.dtype)
        values = self.updated(gradient, *state, learning_rate, rule)
        for old, new in zip(state, values, strict=True):
            self.assign(old, new)

    @functools.cached_property
    def _compiled_assign(self) -> Any:
        """`assign_updated` as a function that XLA compiles.

        It is traced again when hyperparameters change.
        """
        import tensorflow as tf

        def assign(*arguments: Any, hyperparameters: Any) -> None:
            self.assign_updated(*arguments)

        # A partial is not saved with a model, unlike a function.
        return functools.partial(
            tf.function(assign, autograph=False, jit_compile=True)
        )

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
        """Returns Adam's update, without weight decay."""
        if self.bias_correction:
            # The moments start at 0, which biases them towards 0.
            step = ops.cast(self.iterations + 1, m.dtype)
            m = m / (1.0 - ops.power(ops.cast(self.beta_1, m.dtype), step))
            v = v / (1.0 - ops.power(ops.cast(self.beta_2, v.dtype), step))
        return m / (ops.sqrt(v) + self.epsilon)


def clip_factor(norm: Any, max_norm: float) -> Any:
    """Returns the factor that clips gradients to a global norm.

    Args:
      norm: The gradients' global norm, a TensorFlow tensor [].
      max_norm: The largest norm.
    """
    import tensorflow as tf

    one = tf.ones([], norm.dtype)
    [factor], _ = tf.clip_by_global_norm([one], max_norm, norm)
    return factor


@keras.saving.register_keras_serializable(package="bert_tf")
class AdamWeightDecay(_MomentOptimizer):
    """BERT's Adam: decoupled weight decay and no bias correction.

    Unlike in `keras.optimizers.AdamW`, epsilon is 1e-6, and the bias of the
    moments is not corrected, so that the first update without warm-up is 3.16
    times the learning rate. As in Keras, weight decay does not change the
    moments and is multiplied by the learning rate. Source:
    `AdamWeightDecayOptimizer` of google-research/bert.

    Without the correction, updates are too large while sqrt(1 - beta_2^t) is
    well below 1, for a few thousand steps. That is a small part of
    pre-training, but all of fine-tuning on a few thousand examples, which is
    more stable with `bias_correction` (Mosbach et al., arXiv 2006.04884; Zhang
    et al., arXiv 2006.05987).

    Args:
      learning_rate: Float, schedule (such as `WarmupLinearDecay`) or callable.
      weight_decay_rate: Weight decay per step and unit of learning rate.
      beta_1, beta_2: Decay of the first and the second moment.
      epsilon: Added to the root of the second moment.
      exclude_from_weight_decay: Regular expressions. Variables with a match in
        their path have no weight decay.
      rate_multipliers: Pairs of a regular expression and a factor for the
        learning rate of variables with a match in their path, for example from
        `layerwise_rates`. The first match counts.
      bias_correction: Whether to divide the moments by 1 - beta^t at step t, as
        in Adam's paper (Kingma and Ba, arXiv 1412.6980).
      **kwargs: The arguments of every Keras optimizer, except `weight_decay`:
        `name`, `global_clipnorm`, `use_ema`, ... BERT trains with
        `global_clipnorm=1.0`. (On several replicas, Keras clips the gradients
        of each before it adds them up.)

    Raises:
      InputError: If `weight_decay` is passed or an argument is out of range.
      re.error: If a regular expression is invalid.
    """


@keras.saving.register_keras_serializable(package="bert_tf")
class Lamb(_MomentOptimizer):
    """LAMB: Adam with updates scaled to the norm of each variable.

    Algorithm 2 of You et al., "Large Batch Optimization for Deep Learning",
    arXiv 1904.00962, with the identity as phi: a variable moves by
    learning_rate |w| in the direction of the bias-corrected Adam update plus
    weight decay. The learning rate is thus multiplied by |w| / |update|, or by
    1 if a norm is 0. In `keras.optimizers.Lamb` the norm of the update excludes
    weight decay.

    Args:
      learning_rate: Float, schedule or callable; typically 1e-3 or more.
      exclude_from_layer_adaptation: Regular expressions. Variables with a match
        in their path have a ratio of 1. `()` adapts every variable, as in the
        paper; None means `exclude_from_weight_decay`, as in its authors' code.
      weight_decay_rate, beta_1, beta_2, epsilon, exclude_from_weight_decay,
        rate_multipliers, bias_correction, **kwargs: As for `AdamWeightDecay`.
        Bias correction is part of the algorithm.

    Raises:
      InputError: If `weight_decay` is passed or an argument is out of range.
      re.error: If a regular expression is invalid.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay_rate: float = 0.01,
        *,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        bias_correction: bool = True,
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            weight_decay_rate,
            bias_correction=bias_correction,
            **kwargs,
        )
        if exclude_from_layer_adaptation is None:
            exclude_from_layer_adaptation = self._decay_exclusions
        self._adaptation_exclusions = check_patterns(
            "exclude_from_layer_adaptation", exclude_from_layer_adaptation
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "exclude_from_layer_adaptation": list(self._adaptation_exclusions)
        }


def _trust_ratio(weights, update):
    """Returns LAMB's factor: the norm of the weights over the update's."""
    weight_norm, update_norm = _norm(weights), _norm(update)
    usable = ops.logical_and(weight_norm > 0, update_norm > 0)
    return ops.where(usable, weight_norm / update_norm, 1.0)


def _dense(gradient):
    """Makes `tf.IndexedSlices` dense: rows with the same index are added."""
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def _precise(x):
    """Casts a tensor of lower precision than float32 to float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, keras.backend.result_type(dtype, "float32"))


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))
