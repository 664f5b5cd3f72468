"""The names of hidden states."""

import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.kinds.vectors.hidden_states import CHOICES, choose


def test_small_models_have_fewer_choices():
    config = BertConfig(vocab_size=5, num_hidden_layers=3)
    for layers in ("embeddings", "second_to_last", "last", "sum_all"):
        assert choose(layers, config) == CHOICES[layers]
    for layers in ("sum_last_four", "concat_last_four"):
        with pytest.raises(InputError, match=f"3 layers; got '{layers}'"):
            choose(layers, config)
