"""Options of a training are checked when they are set."""

import math

import pytest

from bert_tf.errors import InputError
from bert_tf.optimization import AdamWeightDecay, Lamb
from bert_tf.training.settings import MAX_SEED, TrainingConfig


def test_the_defaults_are_those_of_the_original():
    config = TrainingConfig()
    assert (config.train_batch_size, config.eval_batch_size) == (32, 8)
    assert (config.num_train_steps, config.num_warmup_steps) == (10**5, 10**4)
    assert config.learning_rate == 5e-5
    assert config.save_checkpoints_steps == config.iterations_per_loop == 1000
    # Constants in the original's optimization.py, and in TF1's Estimator.
    assert (config.weight_decay_rate, config.max_grad_norm) == (0.01, 1.0)
    assert config.keep_checkpoint_max == 5
    assert not config.make_optimizer().bias_correction


@pytest.mark.parametrize(
    ("name", "value", "requirement"),
    [
        ("train_batch_size", 0, "at least 1 and finite"),
        ("eval_batch_size", 0, "at least 1 and finite"),
        ("num_train_steps", 0, "at least 1 and finite"),
        ("num_warmup_steps", -1, "at least 0 and finite"),
        ("stop_at_step", -1, "at least 0 and finite"),
        ("stop_at_step", 100_001, "at most --num_train_steps=100000"),
        ("weight_decay_rate", -0.1, "at least 0 and finite"),
        ("max_grad_norm", -1.0, "at least 0 and finite"),
        ("max_grad_norm", math.inf, "at least 0 and finite"),
        ("gradient_accumulation_steps", 0, "at least 1 and finite"),
        ("save_checkpoints_steps", 0, "at least 1 and finite"),
        ("keep_checkpoint_max", -1, "at least 0 and finite"),
        ("iterations_per_loop", 0, "at least 1 and finite"),
        ("random_seed", -1, "at least 0 and finite"),
        ("random_seed", 2**31, f"at most {MAX_SEED}"),
        ("learning_rate", 0.0, "above 0 and finite"),
        ("learning_rate", math.nan, "above 0 and finite"),
        ("learning_rate", math.inf, "above 0 and finite"),
        ("optimizer", "sgd", "adamw or lamb"),
    ],
)
def test_values_out_of_range(name, value, requirement):
    with pytest.raises(InputError) as error:
        TrainingConfig(**{name: value})
    assert str(error.value) == f"--{name} must be {requirement}; got {value!r}."


def test_the_ends_of_the_ranges_are_allowed():
    TrainingConfig(
        num_warmup_steps=0,
        weight_decay_rate=0,
        max_grad_norm=0,
        keep_checkpoint_max=0,
        random_seed=MAX_SEED,
    )
    TrainingConfig(random_seed=0)
    assert TrainingConfig().last_step == 100_000
    assert TrainingConfig(stop_at_step=7).last_step == 7
    assert TrainingConfig(num_train_steps=9, stop_at_step=9).last_step == 9


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", AdamWeightDecay), ("lamb", Lamb)]
)
def test_options_reach_the_optimizer(name, kind):
    pairs = (("layer_0/", 0.5), ("embeddings", 0.25))
    optimizer = TrainingConfig(
        optimizer=name,
        learning_rate=0.5,
        num_train_steps=10,
        num_warmup_steps=2,
        weight_decay_rate=0.25,
        adam_bias_correction=name == "adamw",
        rate_multipliers=pairs,
    ).make_optimizer()
    assert type(optimizer) is kind
    assert optimizer.weight_decay_rate == 0.25
    assert optimizer.bias_correction
    settings = optimizer.get_config()
    assert settings["rate_multipliers"] == [list(pair) for pair in pairs]
    assert settings["learning_rate"]["config"] == {
        "peak": 0.5,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
    }
    with pytest.raises(InputError, match="-1"):
        TrainingConfig(rate_multipliers=(("x", -1.0),))
    with pytest.raises(InputError, match="must be False with --optimizer=lamb"):
        TrainingConfig(optimizer="lamb", adam_bias_correction=True)
