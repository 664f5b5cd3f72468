"""Multiple choice: the losses of one label, over choices of any length."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.data.schema import classification_schema
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig

C, S, V = 3, 7, 23
CHOICES = ("0", "1", "2")
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=11,
    max_position_embeddings=S,
    type_vocab_size=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def make(**options) -> MultipleChoiceTask:
    schema = classification_schema(S, "multiple_choice", num_choices=C)
    return MultipleChoiceTask(
        CONFIG, schema, "multiple_choice", CHOICES, **options
    )


def examples(count, length=S) -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    shape = [count, C, length]
    return {
        "input_ids": random.integers(0, V, shape).astype("int32"),
        "input_mask": np.ones(shape, "int32"),
        "segment_ids": np.zeros(shape, "int32"),
        "label_ids": random.integers(0, C, count).astype("int32"),
        "is_real_example": np.ones(count, "int32"),
        "example_index": np.arange(count, dtype="int32"),
    }


def test_loss_and_score_by_hand():
    task = make(eval_batch_size=3)
    random = np.random.default_rng(1)
    logits = random.normal(size=(5, C)).astype("float32")
    label_ids = np.array([2, 0, 1, 1, 0], "int32")
    kept = task.predictions({"label_ids": label_ids}, {"logits": logits})
    kept = {k: keras.ops.convert_to_numpy(v) for k, v in kept.items()}
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(probabilities[np.arange(5), label_ids])
    np.testing.assert_allclose(kept["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(
        task.probabilities(logits), probabilities, rtol=1e-5
    )
    scores = task.score(kept)
    assert list(scores) == ["eval_accuracy", "eval_loss", "loss"]
    right = logits.argmax(1) == label_ids
    assert scores["eval_accuracy"] == pytest.approx(right.mean())
    expected = (loss[:3].mean() + loss[3:].mean()) / 2
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


def test_schema_and_model_fit():
    task = make(dropout=0.25, frozen_layers=("embeddings",))
    batch = examples(5)
    assert {f.name: (5, *f.shape) for f in task.schema} == {
        name: batch[name].shape for name in batch if name != "example_index"
    }
    model = task.build_model()
    assert model(batch)["logits"].shape == (5, C)
    assert checkpoint_variables(model)["output_weights"].shape == (1, 8)
    assert model.dropout.rate == 0.25


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("single_label", {}, "multiple_choice"),
        ("multiple_choice", {"class_weights": [1, 2, 3]}, "class weights"),
    ],
)
def test_tells_what_does_not_fit(problem, options, message):
    with pytest.raises(InputError, match=message):
        MultipleChoiceTask(CONFIG, (), problem, CHOICES, **options)


def batches_of_lengths(features, batch_size):
    """Batches without a fixed length: every other one is shorter."""
    count = len(features["input_ids"])

    def batches():
        for start in range(0, count, batch_size):
            length = S - start // batch_size % 2
            rows = slice(start, start + batch_size)
            batch = {name: v[rows] for name, v in features.items()}
            for name in ("input_ids", "input_mask", "segment_ids"):
                batch[name] = batch[name][..., :length]
            yield batch

    signature = {
        name: tf.TensorSpec(
            [batch_size, C, None] if v.ndim == 3 else [batch_size], tf.int32
        )
        for name, v in features.items()
    }
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def test_learns_eight_examples_of_two_lengths_by_heart(tmp_path):
    config = TrainingConfig(
        train_batch_size=4,
        eval_batch_size=4,
        learning_rate=0.01,
        num_train_steps=80,
        num_warmup_steps=5,
        weight_decay_rate=0.0,
        random_seed=1,
        jit_compile=False,
    )
    strategy = tf.distribute.get_strategy()
    estimator = Estimator(make(), strategy, config, str(tmp_path))
    features = examples(8)
    estimator.train(lambda **_: batches_of_lengths(features, 4).repeat())
    scores = estimator.evaluate(lambda **_: batches_of_lengths(features, 4))
    assert scores["eval_accuracy"] == 1.0
    assert scores["eval_loss"] < 0.1
