"""Multiple choice: the losses of one label, over choices of any length."""

import keras
import numpy as np
import pytest

from bert_tf.data.schema import classification_schema
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.classification import MultipleChoiceTask
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S

C = 3
CHOICES = ("0", "1", "2")


def make(**options) -> MultipleChoiceTask:
    schema = classification_schema(S, "multiple_choice", num_choices=C)
    return MultipleChoiceTask(
        CONFIG, schema, "multiple_choice", CHOICES, **options
    )


def examples(count) -> dict[str, np.ndarray]:
    """Choices at random, those of the first four examples shorter."""
    random = np.random.default_rng(6)
    lengths = np.where(np.arange(count) < 4, S - 2, S)
    return {
        **small_training.texts(np.stack([lengths] * C, axis=1), random),
        "label_ids": random.integers(0, C, count).astype("int32"),
        "is_real_example": np.ones(count, "int32"),
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
        name: values.shape for name, values in batch.items()
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


def test_learns_eight_examples_of_two_lengths_by_heart(tmp_path):
    before, after, _ = small_training.learn(
        make(), examples(8), tmp_path, num_train_steps=160
    )
    assert after["eval_accuracy"] == 1.0
    assert after["eval_loss"] < 0.1 * before["eval_loss"]
