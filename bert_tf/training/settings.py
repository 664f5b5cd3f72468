"""Training options, checked when they are set.

Keras is imported only for an optimizer or for multipliers of learning rates.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from bert_tf.errors import listed, wrong_value

if TYPE_CHECKING:
    from bert_tf.modeling.optimization import (
        AdamWeightDecay,
        Lamb,
        RateMultipliers,
    )

OPTIMIZERS = ("adamw", "lamb")
# For `distribution.DistributionConfig`.
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu")

# Seeds become int32 tensors and seeds of NumPy.
MAX_SEED = 2**31 - 1


def _at_least(smallest: int, *, default: float) -> Any:
    """Declares a number that is finite and not below `smallest`."""
    return dataclasses.field(default=default, metadata={"smallest": smallest})


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Training options; the scripts have flags of the same names.

    Attributes:
      train_batch_size: The number of examples in an update, on all devices.
      eval_batch_size: The number of examples in an evaluation batch, on all
        devices; rounded up to a multiple of the devices.
      learning_rate: The peak learning rate.
      num_train_steps: The step at which training ends, counted from the first
        step of the first run.
      num_warmup_steps: The number of steps in which the learning rate rises.
      stop_at_step: The step at which this command ends; 0 for
        `num_train_steps`. The learning rate decays until the latter anyway.
      optimizer: "adamw" (BERT's Adam) or "lamb".
      adam_bias_correction, weight_decay_rate, rate_multipliers: See
        `AdamWeightDecay`. LAMB always corrects the bias.
      max_grad_norm: The global norm to clip gradients to; 0 for no clipping.
      gradient_accumulation_steps: The number of micro-batches that a batch is
        split into, to save memory. Dropout masks and rounding change.
      save_checkpoints_steps: The number of steps between checkpoints.
      keep_checkpoint_max: The number of checkpoints to keep; 0 for all.
      iterations_per_loop: The largest number of steps in one call into
        TensorFlow.
      random_seed: Determines initial weights, dropout and the order of data.
      jit_compile: Whether XLA compiles the step; None for where that is faster.

    Raises:
      InputError: A number is out of its range, the optimizer is unknown or a
        factor of `rate_multipliers` is invalid.
    """

    train_batch_size: int = _at_least(1, default=32)
    eval_batch_size: int = _at_least(1, default=8)
    learning_rate: float = 5e-5
    num_train_steps: int = _at_least(1, default=100_000)
    num_warmup_steps: int = _at_least(0, default=10_000)
    stop_at_step: int = _at_least(0, default=0)
    optimizer: str = "adamw"
    adam_bias_correction: bool = False
    weight_decay_rate: float = _at_least(0, default=0.01)
    max_grad_norm: float = _at_least(0, default=1.0)
    gradient_accumulation_steps: int = _at_least(1, default=1)
    save_checkpoints_steps: int = _at_least(1, default=1000)
    keep_checkpoint_max: int = _at_least(0, default=5)
    iterations_per_loop: int = _at_least(1, default=1000)
    random_seed: int = _at_least(0, default=12345)
    jit_compile: bool | None = None
    rate_multipliers: "RateMultipliers" = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if "smallest" in field.metadata:
                smallest = field.metadata["smallest"]
                in_range = smallest <= getattr(self, field.name) < math.inf
                requirement = f"at least {smallest} and finite"
                self._require(field.name, in_range, requirement)
        if self.rate_multipliers:
            from bert_tf.modeling.optimization import check_multipliers

            check_multipliers(self.rate_multipliers)
        in_range = 0 < self.learning_rate < math.inf
        self._require("learning_rate", in_range, "above 0 and finite")
        in_range = self.random_seed <= MAX_SEED
        self._require("random_seed", in_range, f"at most {MAX_SEED}")
        self._require(
            "stop_at_step",
            self.stop_at_step <= self.num_train_steps,
            f"at most `num_train_steps={self.num_train_steps}`",
        )
        optimizers = listed(OPTIMIZERS, last="or")
        self._require("optimizer", self.optimizer in OPTIMIZERS, optimizers)
        self._require(
            "adam_bias_correction",
            self.optimizer == "adamw" or not self.adam_bias_correction,
            f"False with `optimizer={self.optimizer}`",
        )

    def _require(self, name: str, condition: bool, requirement: str) -> None:
        if not condition:
            raise wrong_value(f"`{name}`", requirement, getattr(self, name))

    @property
    def last_step(self) -> int:
        """The step at which this command ends."""
        return self.stop_at_step or self.num_train_steps

    def make_optimizer(self) -> "AdamWeightDecay | Lamb":
        """Returns a new optimizer with its schedule."""
        from bert_tf.modeling import optimization

        schedule = optimization.WarmupLinearDecay(
            self.learning_rate, self.num_train_steps, self.num_warmup_steps
        )
        is_lamb = self.optimizer == "lamb"
        kind = optimization.Lamb if is_lamb else optimization.AdamWeightDecay
        return kind(
            schedule,
            weight_decay_rate=self.weight_decay_rate,
            rate_multipliers=self.rate_multipliers,
            bias_correction=is_lamb or self.adam_bias_correction,
        )
