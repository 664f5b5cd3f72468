"""The library objects that are made from the options of a job."""

import fine_tuning_runs
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import settings
from tests.training import toy_task

METRICS = ["eval_f1", "eval_loss", "loss"]
CONFIG = BertConfig.from_dict(
    {**fine_tuning_runs.CONFIG, "num_hidden_layers": 3}
)


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
def test_options_that_need_a_development_set(given, word, selects):
    assert settings.selects(given(word)) is selects


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
def test_only_the_needed_splits_are_read(given, words, splits):
    assert settings.splits(given(*words)) == splits


def test_a_run_with_nothing_to_do_is_rejected(given):
    names = "--do_train, --do_eval, --do_predict, --do_export"
    with pytest.raises(InputError, match=names):
        settings.splits(given("--nodo_train"))


def test_the_options_make_the_schedule(given):
    config = given(
        "--num_train_epochs=2.5",
        "--warmup_proportion=0.2",
        "--eval_steps=7",
        "--save_best=f1",
        "--early_stopping_patience=3",
        "--num_seeds=5",
        "--search=paper",
        "--log_steps=11",
    )
    schedule = settings.schedule(config, METRICS)
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
def test_the_eval_prefix_of_a_metric_is_optional(given, name, metric):
    config = given(f"--save_best={name}")
    assert settings.schedule(config, METRICS).save_best == metric


def test_unknown_metrics_are_rejected(given):
    with pytest.raises(InputError, match=r"among eval_f1, .*Received: mcc$"):
        settings.schedule(given("--save_best=mcc"), METRICS)


def test_early_stopping_needs_a_metric(given):
    config = given("--early_stopping_patience=2")
    with pytest.raises(InputError, match="by which metric"):
        settings.schedule(config, METRICS)


def test_learning_rates_decay_from_layer_to_layer(given):
    config = given("--learning_rate=3e-5", "--train_batch_size=16")
    training = settings.fine_tuning_config(config, CONFIG)
    assert (training.learning_rate, training.train_batch_size) == (3e-5, 16)
    assert training.rate_multipliers == ()
    config = given("--layer_rate_decay=0.5")
    training = settings.fine_tuning_config(config, CONFIG)
    factors = [factor for _, factor in training.rate_multipliers]
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
    config = given(word)
    for strategy in (tf.distribute.get_strategy(), toy_task.two_devices()):
        assert settings.padding(config, strategy).static is static


def test_padding_on_a_tpu(given, monkeypatch):
    """The class of the strategy is enough."""

    class Tpu:
        pass

    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    assert settings.padding(given(), Tpu()).static
    with pytest.raises(InputError, match="have fixed shapes"):
        settings.padding(given("--padding=longest"), Tpu())


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), []),
        (("--num_frozen_layers=0",), ["embeddings"]),
        (("--num_frozen_layers=2",), ["embeddings", "layer_0", "layer_1"]),
    ],
)
def test_names_of_frozen_layers(given, words, names):
    assert settings.frozen_layers(given(*words), CONFIG) == names


def test_more_frozen_layers_than_the_model_has(given):
    with pytest.raises(InputError, match=r"up to 3, .* Received: 4"):
        settings.frozen_layers(given("--num_frozen_layers=4"), CONFIG)


def test_exports_go_to_the_output_folder_by_default(given):
    config = given("--output_dir=out")
    assert settings.export_dir(config) == "out/export"
    assert settings.export_dir(given("--export_dir=")) == "out/export"
    config = given("--export_dir=gs://mine/models/mood")
    assert settings.export_dir(config) == "gs://mine/models/mood"
