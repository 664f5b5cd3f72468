"""Options of a training are checked when they are set."""

import math

import pytest

from bert_tf.errors import InputError
from bert_tf.modeling.optimization import AdamWeightDecay, Lamb
from bert_tf.training.settings import MAX_SEED, TrainingConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_batch_size": 0}, "at least 1 and finite; got 0"),
        ({"max_grad_norm": math.inf}, "at least 0 and finite; got inf"),
        ({"random_seed": -1}, "`random_seed` must be at least 0"),
        ({"stop_at_step": 10**5 + 1}, "at most `num_train_steps=100000`"),
        ({"random_seed": MAX_SEED + 1}, f"at most {MAX_SEED}; got 2147483648"),
        ({"learning_rate": 0.0}, "above 0 and finite; got 0.0"),
        ({"learning_rate": math.nan}, "above 0 and finite; got nan"),
        ({"optimizer": "sgd"}, "must be adamw or lamb; got 'sgd'"),
        ({"rate_multipliers": (("x", -1.0),)}, "got -1"),
        (
            {"optimizer": "lamb", "adam_bias_correction": True},
            "must be False with `optimizer=lamb`",
        ),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(InputError, match=message):
        TrainingConfig(**options)


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
        max_grad_norm=0,
        keep_checkpoint_max=0,
        stop_at_step=10,
        random_seed=MAX_SEED,
        weight_decay_rate=0.25,
        adam_bias_correction=name == "adamw",
        rate_multipliers=pairs,
    ).make_optimizer()
    assert type(optimizer) is kind
    settings = optimizer.get_config()
    assert settings["weight_decay_rate"] == 0.25
    assert settings["bias_correction"]
    assert settings["rate_multipliers"] == [list(pair) for pair in pairs]
    assert settings["learning_rate"]["config"] == {
        "peak": 0.5,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
    }
