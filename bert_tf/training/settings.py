"""How to train: numbers that a user chooses, checked when they come."""

import dataclasses
import math
from typing import Any

from bert_tf.errors import InputError
from bert_tf.optimization import (
    AdamWeightDecay,
    Lamb,
    RateMultipliers,
    WarmupLinearDecay,
    check_multipliers,
)

OPTIMIZERS = {"adamw": AdamWeightDecay, "lamb": Lamb}

# Seeds become int32 tensors and NumPy's seed.
MAX_SEED = 2**31 - 1

_LEAST = {
    "train_batch_size": 1,
    "eval_batch_size": 1,
    "num_train_steps": 1,
    "num_warmup_steps": 0,
    "stop_at_step": 0,
    "weight_decay_rate": 0,
    "max_grad_norm": 0,
    "gradient_accumulation_steps": 1,
    "save_checkpoints_steps": 1,
    "keep_checkpoint_max": 0,
    "iterations_per_loop": 1,
    "random_seed": 0,
}


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train; the flags of the scripts by their names.

    Attributes:
      train_batch_size: Examples of one update, over all devices.
      eval_batch_size: Examples of one evaluation batch, over all devices;
        rounded up to a multiple of them, which changes no result.
      learning_rate: Peak rate.
      num_train_steps: Step at which training ends, counted from the first
        step of the first run.
      num_warmup_steps: Steps over which the rate rises to its peak.
      stop_at_step: Step at which this command ends, where others take the run
        up to `num_train_steps`, which the rate still falls until; 0 for none.
      optimizer: "adamw" (BERT's Adam) or "lamb".
      adam_bias_correction: Whether "adamw" corrects the bias of its moments,
        see `AdamWeightDecay`; LAMB always does.
      weight_decay_rate: Likewise.
      rate_multipliers: Likewise.
      max_grad_norm: Global norm that gradients are clipped to; 0 for none.
      gradient_accumulation_steps: Micro-batches that one update's batch is
        cut into; less memory, the same result.
      save_checkpoints_steps: Steps between checkpoints.
      keep_checkpoint_max: How many are kept; 0 keeps all.
      iterations_per_loop: Most steps of one call into TensorFlow.
      random_seed: Decides initial weights, dropout and the order of data.
      jit_compile: Whether XLA compiles the step; None where it is faster.

    Raises:
      InputError: A number is out of its range, the optimizer unknown or a
        multiplier unusable.
    """

    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    num_train_steps: int = 100_000
    num_warmup_steps: int = 10_000
    stop_at_step: int = 0
    optimizer: str = "adamw"
    adam_bias_correction: bool = False
    weight_decay_rate: float = 0.01
    max_grad_norm: float = 1.0
    gradient_accumulation_steps: int = 1
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    iterations_per_loop: int = 1000
    random_seed: int = 12345
    jit_compile: bool | None = None
    rate_multipliers: RateMultipliers = ()

    def __post_init__(self):
        for name, least in _LEAST.items():
            value = getattr(self, name)
            _require(least <= value < math.inf, name, f"of {least} up", value)
        check_multipliers(self.rate_multipliers)
        rate, seed = self.learning_rate, self.random_seed
        _require(0 < rate < math.inf, "learning_rate", "above 0", rate)
        _require(seed <= MAX_SEED, "random_seed", f"up to {MAX_SEED}", seed)
        _require(
            self.stop_at_step <= self.num_train_steps,
            "stop_at_step",
            f"up to --num_train_steps={self.num_train_steps}",
            self.stop_at_step,
        )
        _require(
            self.optimizer in OPTIMIZERS,
            "optimizer",
            f"among {', '.join(OPTIMIZERS)}",
            self.optimizer,
        )
        _require(
            self.optimizer == "adamw" or not self.adam_bias_correction,
            "adam_bias_correction",
            "with --optimizer=adamw",
            f"--optimizer={self.optimizer}",
        )

    @property
    def last_step(self) -> int:
        """Where training ends for now."""
        return self.stop_at_step or self.num_train_steps

    def make_optimizer(self) -> AdamWeightDecay | Lamb:
        """The optimizer with its schedule, not yet built."""
        schedule = WarmupLinearDecay(
            self.learning_rate, self.num_train_steps, self.num_warmup_steps
        )
        arguments: dict[str, Any] = {}
        if self.adam_bias_correction:
            arguments["bias_correction"] = True
        return OPTIMIZERS[self.optimizer](
            schedule,
            weight_decay_rate=self.weight_decay_rate,
            rate_multipliers=self.rate_multipliers,
            **arguments,
        )


def _require(is_so: bool, flag: str, expected: str, received: object) -> None:
    if not is_so:
        raise InputError(f"expected --{flag} {expected}. Received: {received}")
