"""The loss of a student against formulas in NumPy."""

import keras
import numpy as np
import pytest
from scipy import special

from bert_tf.kinds.classification.task import (
    ClassificationTask,
    MultipleChoiceTask,
)
from bert_tf.kinds.spans.squad_files import SpanEncoding
from bert_tf.kinds.spans.task import SpanTask
from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import PROBLEMS
from bert_tf.tasks.task import DISTILLATION_LOSS as LOSS
from bert_tf.tasks.task import IS_LABELED, divergence
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S, as_arrays

B, C = 6, 3
LABELS = ("no", "maybe", "yes")
LENGTHS = np.array([5, 8, 9, 3, 7, 9])
WEIGHT, TEMPERATURE = 0.7, 2.5


def case(kind):
    """Returns a task, features and the outputs of a student."""
    random = np.random.default_rng(3)

    def logits(*shape):
        return (3 * random.normal(size=shape)).astype("float32")

    lengths = LENGTHS
    if kind == "multiple_choice":
        lengths = np.stack([LENGTHS] * C, axis=1)
    features = small_training.texts(lengths, random)
    if kind == "span":
        features["start_positions"] = features["end_positions"] = LENGTHS - 2
        names = ("start_logits", "end_logits")
        features |= {f"teacher_{name}": logits(B, S) for name in names}
        outputs = {name: logits(B, S) for name in names}
        task = SpanTask(CONFIG, SpanEncoding((), True, None, S, 1, 1))
        return task, features, outputs
    if kind == "token":
        mask = features["input_mask"] * (random.random([B, S]) < 0.6)
        features |= {"label_mask": mask.astype("int32")}
        features["label_ids"] = random.integers(0, C, [B, S]).astype("int32")
        features["teacher_logits"] = logits(B, C, S)
        encoding = TaggingEncoding((), True, None, S, LABELS)
        task = TaggingTask(CONFIG, encoding, dropout=0.0)
        return task, features, {"logits": logits(B, S, C)}
    is_choice = kind == "multiple_choice"
    make = MultipleChoiceTask if is_choice else ClassificationTask
    labels = () if kind == "regression" else LABELS
    encoding = Encoding((), True, None, S, kind, labels, num_choices=C)
    task = make(CONFIG, encoding, dropout=0.0)
    features["label_ids"] = np.array([2, 0, 1, 2, 2, 0], "int32")
    if kind == "multi_label":
        features["label_ids"] = np.eye(C, dtype="int32")[features["label_ids"]]
    width = 1 if kind == "regression" else C
    features["teacher_logits"] = logits(B, width)
    return task, features, {"logits": logits(B, width)}


def divergence_by_hand(teacher, student, temperature=TEMPERATURE):
    p, q = (special.softmax(x / temperature, -1) for x in (teacher, student))
    return temperature**2 * (p * np.log(p / q)).sum(-1)


def soft_loss_by_hand(kind, features, outputs):
    """Returns the loss of each example, [B]: by row, without padding."""
    if kind == "span":
        losses = [
            divergence_by_hand(
                features[f"teacher_{name}"][row, :length],
                outputs[name][row, :length],
            )
            for row, length in enumerate(LENGTHS)
            for name in ("start_logits", "end_logits")
        ]
        return np.reshape(losses, [B, 2]).mean(axis=1)
    teacher, student = features["teacher_logits"], outputs["logits"]
    if kind == "token":
        words = divergence_by_hand(teacher.transpose(0, 2, 1), student)
        return (words * features["label_mask"]).sum(axis=1)
    if kind == "regression":
        return (teacher - student)[:, 0] ** 2
    if kind == "multi_label":
        p, q = (special.expit(x / TEMPERATURE) for x in (teacher, student))
        losses = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        return TEMPERATURE**2 * losses.mean(axis=1)
    return divergence_by_hand(teacher, student)


@pytest.mark.parametrize("kind", [*PROBLEMS, "span", "token"])
def test_losses_and_weights_equal_the_formulas(kind):
    task, features, outputs = case(kind)
    student = task.student(WEIGHT, TEMPERATURE)
    hard, weights = task.losses(features, outputs), task.loss_weights(features)
    [name] = task.loss_names
    expected = {
        name: (1 - WEIGHT) * keras.ops.convert_to_numpy(hard[name]),
        LOSS: WEIGHT * soft_loss_by_hand(kind, features, outputs),
    }
    assert student.loss_names == (name, LOSS)

    def assert_losses_and_weights(labels_weight):
        found = as_arrays(student.losses(features, outputs))
        for part, values in expected.items():
            np.testing.assert_allclose(
                found[part], values, rtol=1e-4, atol=1e-6
            )
        counted = as_arrays(student.loss_weights(features))
        np.testing.assert_array_equal(counted[name], labels_weight)
        # The weights of examples, or their numbers of words.
        np.testing.assert_array_equal(counted[LOSS], weights[name])

    assert_losses_and_weights(weights[name])
    # Examples without labels count for the teacher only.
    features[IS_LABELED] = np.array([1, 0, 1, 1, 0, 0], "int32")
    expected[name] *= features[IS_LABELED]
    assert_losses_and_weights(weights[name] * features[IS_LABELED])


@pytest.mark.parametrize("temperature", [1.0, 5.0, 100.0])
def test_a_student_like_its_teacher_has_no_loss(temperature):
    """The size of the loss of another does not fall with the temperature."""
    logits = np.array([[1.0, -2.0, 4.0, 0.0, 0.5]], "float32")
    found = divergence(logits, logits, temperature)
    np.testing.assert_allclose(found, 0, atol=1e-6)
    # T^2 KL is the mean squared difference / 2 for a high temperature.
    centred = np.array([[3, -5, 2, -1, 1]], "float32")
    found = divergence(logits, logits + centred, 100.0)
    np.testing.assert_allclose(found, (centred**2).mean() / 2, rtol=0.05)


def test_padding_does_not_change_the_loss_of_spans():
    task, features, _ = case("span")
    student = task.student(WEIGHT, TEMPERATURE)
    small_training.assert_padding_changes_nothing(student, features, 9)
