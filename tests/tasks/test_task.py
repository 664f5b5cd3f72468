"""The contract: what every task inherits."""

import re

import pytest

from bert_tf.config import BertConfig
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.tasks.task import FineTuningTask, Task


def test_a_task_must_answer_every_question():
    with pytest.raises(TypeError, match="abstract"):
        Task()
    with pytest.raises(TypeError, match="make_model"):
        FineTuningTask(None, ())


@pytest.mark.parametrize(
    ("name", "is_new"),
    [
        ("cls/predictions/output_bias", True),
        ("output_weights", True),
        ("bert/embeddings/word_embeddings", False),
        ("bert/pooler/dense/kernel", True),
        ("bertha/kernel", True),
    ],
)
def test_a_checkpoint_may_lack_a_head_but_no_part_of_the_encoder(name, is_new):
    assert bool(re.match(Task.new_variables, name)) is is_new


def test_variables_have_their_checkpoint_names():
    config = BertConfig(
        vocab_size=7,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=3,
        max_position_embeddings=5,
        type_vocab_size=2,
    )
    task = PretrainingTask(config, 5, 2)
    names = task.checkpoint_variables(task.build_model())
    assert len(names) == 5 + 16 + 2 + 7
    assert "cls/seq_relationship/output_weights" in names
