"""What the flags of fine-tuning turn into."""

import fine_tuning_runs
import pytest
import tensorflow as tf
from absl import flags

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.fine_tuning import command_line
from tests.training import toy_task

METRICS = ["eval_f1", "eval_loss", "loss"]
CONFIG = BertConfig.from_dict(
    {**fine_tuning_runs.CONFIG, "num_hidden_layers": 3}
)


def test_a_flag_is_given_or_not(given):
    given("--do_lower_case=true")
    assert command_line.given("do_lower_case") is True
    given_nothing = command_line.given("max_seq_length")
    assert given_nothing is None


@pytest.mark.parametrize(
    ("word", "selects"),
    [
        ("--do_eval", False),
        ("--num_seeds=1", False),
        ("--num_seeds=2", True),
        ("--eval_steps=5", True),
        ("--save_best=f1", True),
        ("--search=paper", True),
    ],
)
def test_who_needs_a_development_set(given, word, selects):
    given(word)
    assert command_line.selects() is selects


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (["--do_train"], ["train"]),
        (["--do_predict", "--do_train"], ["train", "test"]),
        (["--do_eval"], ["dev"]),
        (["--do_train", "--num_seeds=2"], ["train", "dev"]),
        (["--do_predict", "--num_seeds=2"], ["test"]),
        (["--do_export"], []),
        (["--do_export", "--num_seeds=2"], []),
        (["--do_export", "--do_train"], ["train"]),
        (["--do_export", "--do_predict"], ["test"]),
    ],
)
def test_the_splits_are_those_that_are_needed(given, words, splits):
    given(*words)
    assert command_line.splits() == splits


def test_a_run_has_something_to_do(given):
    given("--nodo_train")
    flags_of_runs = "--do_train, --do_eval, --do_predict, --do_export"
    with pytest.raises(InputError, match=flags_of_runs):
        command_line.splits()


def test_a_schedule_is_what_the_flags_say(given):
    given(
        "--num_train_epochs=2.5",
        "--warmup_proportion=0.2",
        "--eval_steps=7",
        "--save_best=f1",
        "--early_stopping_patience=3",
        "--num_seeds=5",
        "--search=paper",
        "--log_steps=11",
    )
    schedule = command_line.schedule(METRICS)
    assert schedule.num_train_epochs == 2.5
    assert schedule.warmup_proportion == 0.2
    assert schedule.eval_steps == 7
    assert schedule.save_best == "eval_f1"
    assert schedule.early_stopping_patience == 3
    assert (schedule.num_seeds, schedule.search) == (5, "paper")
    assert schedule.log_steps == 11


@pytest.mark.parametrize(
    ("name", "metric"),
    [("f1", "eval_f1"), ("eval_f1", "eval_f1"), ("loss", "loss")],
)
def test_the_name_of_a_metric_may_be_short(given, name, metric):
    given(f"--save_best={name}")
    assert command_line.schedule(METRICS).save_best == metric


def test_metrics_that_are_none(given):
    given("--save_best=mcc")
    with pytest.raises(InputError, match=r"among eval_f1, .*Received: mcc$"):
        command_line.schedule(METRICS)
    given("--early_stopping_patience=2")
    flags.FLAGS.save_best = None
    with pytest.raises(InputError, match="by which metric"):
        command_line.schedule(METRICS)


def test_rates_shrink_layer_by_layer_on_request(given):
    given("--learning_rate=3e-5", "--train_batch_size=16")
    config = command_line.training_config(CONFIG)
    assert (config.learning_rate, config.train_batch_size) == (3e-5, 16)
    assert config.rate_multipliers == ()
    given("--layer_rate_decay=0.5")
    factors = [
        f for _, f in command_line.training_config(CONFIG).rate_multipliers
    ]
    assert factors == [0.0625, 0.125, 0.25, 0.5]


@pytest.mark.parametrize(
    ("word", "static"),
    [
        ("--padding=auto", False),
        ("--padding=longest", False),
        ("--padding=max_length", True),
    ],
)
def test_padding_on_a_cpu(given, word, static):
    given(word)
    for strategy in (tf.distribute.get_strategy(), toy_task.two_devices()):
        assert command_line.padding(strategy).static is static


def test_padding_on_a_tpu(given, monkeypatch):
    """Nothing of it is needed but its class."""

    class Tpu:
        pass

    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    given()
    assert command_line.padding(Tpu()).static
    given("--padding=longest")
    with pytest.raises(InputError, match="have fixed shapes"):
        command_line.padding(Tpu())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), []),
        (("--num_frozen_layers=0",), ["embeddings"]),
        (("--num_frozen_layers=2",), ["embeddings", "layer_0", "layer_1"]),
    ],
)
def test_names_of_frozen_layers(given, words, names):
    given(*words)
    assert command_line.frozen_layers(CONFIG) == names


def test_more_frozen_layers_than_there_are(given):
    given("--num_frozen_layers=4")
    with pytest.raises(InputError, match=r"up to 3, .* Received: 4"):
        command_line.frozen_layers(CONFIG)
