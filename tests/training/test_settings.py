"""Impossible numbers are refused before anything is done with them."""

import math

import pytest

from bert_tf.errors import InputError
from bert_tf.optimization import AdamWeightDecay, Lamb
from bert_tf.training.settings import MAX_SEED, TrainingConfig


def test_the_defaults_are_the_originals():
    config = TrainingConfig()
    assert (config.train_batch_size, config.eval_batch_size) == (32, 8)
    assert (config.num_train_steps, config.num_warmup_steps) == (10**5, 10**4)
    assert config.learning_rate == 5e-5
    assert config.save_checkpoints_steps == config.iterations_per_loop == 1000
    # What the original wrote into its code: optimization.py and Estimator's.
    assert (config.weight_decay_rate, config.max_grad_norm) == (0.01, 1.0)
    assert config.keep_checkpoint_max == 5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("train_batch_size", 0, "of 1 up"),
        ("eval_batch_size", 0, "of 1 up"),
        ("num_train_steps", 0, "of 1 up"),
        ("num_warmup_steps", -1, "of 0 up"),
        ("stop_at_step", -1, "of 0 up"),
        ("stop_at_step", 100_001, "up to --num_train_steps=100000"),
        ("weight_decay_rate", -0.1, "of 0 up"),
        ("max_grad_norm", -1.0, "of 0 up"),
        ("max_grad_norm", math.inf, "of 0 up"),
        ("gradient_accumulation_steps", 0, "of 1 up"),
        ("save_checkpoints_steps", 0, "of 1 up"),
        ("keep_checkpoint_max", -1, "of 0 up"),
        ("iterations_per_loop", 0, "of 1 up"),
        ("random_seed", -1, "of 0 up"),
        ("random_seed", 2**31, f"up to {MAX_SEED}"),
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", math.nan, "above 0"),
        ("learning_rate", math.inf, "above 0"),
        ("optimizer", "sgd", "among adamw, lamb"),
    ],
)
def test_out_of_range(name, value, expected):
    with pytest.raises(InputError) as error:
        TrainingConfig(**{name: value})
    assert (
        str(error.value) == f"expected --{name} {expected}. Received: {value}"
    )


def test_training_ends_at_the_last_step_or_before():
    assert TrainingConfig().last_step == 100_000
    assert TrainingConfig(stop_at_step=7).last_step == 7
    config = TrainingConfig(num_train_steps=9, stop_at_step=9)
    assert config.last_step == 9


def test_the_ends_of_the_ranges_are_fine():
    TrainingConfig(
        num_warmup_steps=0,
        weight_decay_rate=0,
        max_grad_norm=0,
        keep_checkpoint_max=0,
        random_seed=MAX_SEED,
    )
    TrainingConfig(random_seed=0)


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", AdamWeightDecay), ("lamb", Lamb)]
)
def test_the_optimizer_is_what_was_asked_for(name, kind):
    config = TrainingConfig(
        optimizer=name,
        learning_rate=0.5,
        num_train_steps=10,
        num_warmup_steps=2,
        weight_decay_rate=0.25,
    )
    optimizer = config.make_optimizer()
    assert type(optimizer) is kind
    assert optimizer.weight_decay_rate == 0.25
    settings = optimizer.get_config()["learning_rate"]["config"]
    assert settings == {
        "peak": 0.5,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
    }


def test_rate_multipliers_reach_the_optimizer():
    pairs = (("layer_0/", 0.5), ("embeddings", 0.25))
    optimizer = TrainingConfig(rate_multipliers=pairs).make_optimizer()
    assert optimizer.get_config()["rate_multipliers"] == [
        list(p) for p in pairs
    ]
    with pytest.raises(InputError, match=r"factors of 0 up\. Received: -1"):
        TrainingConfig(rate_multipliers=(("x", -1.0),))


def test_bias_correction_is_adams():
    config = TrainingConfig(adam_bias_correction=True)
    assert config.make_optimizer().bias_correction
    assert not TrainingConfig().make_optimizer().bias_correction
    assert TrainingConfig(optimizer="lamb").make_optimizer().bias_correction
    with pytest.raises(InputError, match=r"optimizer=lamb$"):
        TrainingConfig(optimizer="lamb", adam_bias_correction=True)
