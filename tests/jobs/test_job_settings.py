"""The library objects that are made from the options of a job."""

import fine_tuning_runs
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import settings
from tests.training import toy_task

CONFIG = BertConfig.from_dict(
    {**fine_tuning_runs.CONFIG, "num_hidden_layers": 3}
)


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (["--do_train"], ["train"]),
        (["--do_predict", "--do_train"], ["train", "test"]),
        (["--do_eval"], ["dev"]),
        (["--do_train", "--num_seeds=1"], ["train"]),
        (["--do_train", "--num_seeds=2"], ["train", "dev"]),
        (["--do_train", "--eval_steps=5"], ["train", "dev"]),
        (["--do_train", "--save_best=f1"], ["train", "dev"]),
        (["--do_train", "--search=paper"], ["train", "dev"]),
        (["--do_predict", "--num_seeds=2"], ["test"]),
        (["--do_export"], []),
        (["--do_export", "--do_predict"], ["test"]),
    ],
)
def test_only_the_needed_splits_are_read(given, words, splits):
    assert settings.splits(given(*words)) == splits


def test_a_run_with_nothing_to_do_is_rejected(given):
    names = "--do_train, --do_eval, --do_predict, --do_export"
    with pytest.raises(InputError, match=names):
        settings.splits(given("--nodo_train"))


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
    with pytest.raises(InputError, match="must be auto or max_length on a TPU"):
        settings.padding(given("--padding=longest"), Tpu())


def test_names_of_frozen_layers(given):
    def frozen(*words):
        return settings.frozen_layers(given(*words), CONFIG)

    assert frozen() == []
    assert frozen("--num_frozen_layers=0") == ["embeddings"]
    assert frozen("--num_frozen_layers=2") == [
        "embeddings",
        "layer_0",
        "layer_1",
    ]
    with pytest.raises(InputError, match=r"at most 3, .*; got 4"):
        frozen("--num_frozen_layers=4")


def test_exports_go_to_the_output_folder_by_default(given):
    config = given("--output_dir=out")
    assert settings.export_dir(config) == "out/export"
    assert settings.export_dir(given("--export_dir=")) == "out/export"
    config = given("--export_dir=gs://mine/models/mood")
    assert settings.export_dir(config) == "gs://mine/models/mood"
