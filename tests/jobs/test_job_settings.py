"""The library objects that are made from the options of a job."""

import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs import settings
from bert_tf.kinds.classification.job import ClassifierConfig
from bert_tf.modeling.kernels import runs_op_by_op
from bert_tf.text_models import batches
from tests.training import toy_task


def options(*flags, **values):
    values |= dict.fromkeys(flags, True)
    return ClassifierConfig(
        **{"output_dir": "out", "task_name": "cola", **values}
    )


@pytest.mark.parametrize(
    ("config", "splits"),
    [
        (options("do_train"), ["train"]),
        (options("do_predict", "do_train"), ["train", "test"]),
        (options("do_train", num_seeds=2), ["train", "dev"]),
        (options("do_train", save_best="f1"), ["train", "dev"]),
        (options("do_predict", num_seeds=2), ["test"]),
        (options("do_export"), []),
    ],
)
def test_only_the_needed_splits_are_read(config, splits):
    assert settings.splits(config) == splits


def test_padding_depends_on_the_devices(monkeypatch):
    """On a TPU, shapes are fixed; the class of the strategy is enough."""

    class Tpu:
        pass

    cpus = (tf.distribute.get_strategy(), toy_task.two_devices())
    for strategy in cpus:
        assert not settings.padding(options(), strategy).static
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    assert settings.padding(options(), Tpu()).static


def test_text_models_pad_as_the_scripts_do():
    if not runs_op_by_op():
        pytest.skip("with XLA, text models pad to multiples of 64 tokens")
    of_script = settings.padding(options(), tf.distribute.get_strategy())
    assert batches.padding() == of_script


def test_names_of_frozen_layers():
    def frozen(number):
        config = options(num_frozen_layers=number)
        bert_config = BertConfig(7, num_hidden_layers=3)
        return settings.model_options(config, bert_config)["frozen_layers"]

    assert frozen(None) == []
    assert frozen(0) == ["embeddings"]
    assert frozen(2) == ["embeddings", "layer_0", "layer_1"]
    with pytest.raises(InputError, match=r"at most 3, .*; got 4"):
        frozen(4)
