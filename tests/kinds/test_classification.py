"""Classification: losses and scores by hand, files, a tiny model."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.errors import InputError
from bert_tf.kinds.classification.task import (
    ClassificationTask,
    MultipleChoiceTask,
)
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import PROBLEMS, Example
from bert_tf.tasks.predictions import (
    answers,
    probabilities,
    write_predictions,
    write_submission,
    write_test_results,
)
from bert_tf.tasks.task import balanced_class_weights
from tests.tasks.small_training import CONFIG, S, as_arrays

B, C = 5, 3
LABELS = ("no", "maybe", "yes")
LOGITS = np.random.default_rng(4).normal(size=(B, C)).astype("float32")
LABEL_IDS = {
    "single_label": np.array([2, 0, 1, 2, 2], "int32"),
    "multiple_choice": np.array([2, 0, 1, 1, 0], "int32"),
    "multi_label": np.array(
        [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], "int32"
    ),
    "regression": np.array([0.5, -1.0, 4.25, 0.0, 5.0], "float32"),
}


def make(problem="single_label", labels=LABELS, **options):
    if problem == "regression":
        labels = ()
    is_choice = problem == "multiple_choice"
    encoding = Encoding((), True, None, S, problem, labels, C * is_choice)
    task = MultipleChoiceTask if is_choice else ClassificationTask
    return task(CONFIG, encoding, **options)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def loss_by_hand(problem, label_smoothing=0.0, class_weights=(1, 1, 1)):
    """Returns the weighted losses, [B]."""
    label_ids, smoothing = LABEL_IDS[problem], label_smoothing
    if problem == "regression":
        return (LOGITS[:, 0] - label_ids) ** 2
    if problem == "multi_label":
        yes = 1 / (1 + np.exp(-LOGITS))
        target = (1 - smoothing) * label_ids + smoothing / 2
        losses = target * np.log(yes) + (1 - target) * np.log(1 - yes)
        return -losses.mean(axis=1)
    target = (1 - smoothing) * np.eye(C)[label_ids] + smoothing / C
    losses = -(target * log_softmax(LOGITS)).sum(axis=1)
    return losses * np.take(class_weights, label_ids)


def test_one_loss_for_the_whole_batch_is_refused():
    task = make()
    task.element_losses = lambda *_: np.ones([])
    with pytest.raises(InputError, match="loss of each element"):
        task.losses({"input_ids": np.ones([B, S], "int32")}, {})


def kept(task, label_ids=None, logits=LOGITS) -> dict[str, np.ndarray]:
    if label_ids is None:
        label_ids = LABEL_IDS[task.problem]
    label_ids = np.asarray(label_ids)
    features = {"label_ids": label_ids, "input_ids": label_ids}
    return as_arrays(task.predictions(features, {"logits": logits}))


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        *[(problem, {}) for problem in PROBLEMS],
        ("single_label", {"label_smoothing": 0.1}),
        ("multiple_choice", {"label_smoothing": 1.0}),
        ("multi_label", {"label_smoothing": 0.2}),
        ("single_label", {"class_weights": [0.5, 0.0, 3.0]}),
    ],
)
def test_losses_by_hand(problem, options):
    task = make(problem, **options)
    features = {"label_ids": LABEL_IDS[problem], "input_ids": np.ones([B, S])}
    [loss] = as_arrays(task.losses(features, {"logits": LOGITS})).values()
    np.testing.assert_allclose(
        loss, loss_by_hand(problem, **options), rtol=1e-5, atol=1e-7
    )
    # The loss is divided by the number of examples.
    [weight] = as_arrays(task.loss_weights(features)).values()
    assert weight.tolist() == [1] * B
    assert loss.dtype == weight.dtype == np.float32
    # Evaluation is neither weighted nor smoothed.
    np.testing.assert_allclose(
        kept(task)["loss"], loss_by_hand(problem), rtol=1e-5
    )


@pytest.mark.parametrize("problem", ["single_label", "multiple_choice"])
def test_scores_of_one_label_by_hand(problem):
    task = make(problem, metrics=["accuracy"], eval_batch_size=2)
    is_right = LOGITS.argmax(1) == LABEL_IDS[problem]
    loss = loss_by_hand(problem)
    # The original's mean over batches: a short batch counts as much.
    means = [loss[:2].mean(), loss[2:4].mean(), loss[4]]
    assert task.score(kept(task)) == {
        "eval_accuracy": is_right.mean(),
        "eval_loss": pytest.approx(loss.mean(), rel=1e-5),
        "loss": pytest.approx(np.mean(means), rel=1e-5),
    }


@pytest.mark.parametrize(
    ("labels", "positive_label"),
    # Published models have their classes in different orders.
    [(("0", "1"), "1"), (("1", "0"), "1"), (("0", "1"), None)],
)
def test_f1_is_computed_for_a_class_by_name(labels, positive_label):
    truth, found = (list(map(labels.index, x)) for x in ("11000", "10100"))
    task = make(labels=labels, metrics=["f1"], positive_label=positive_label)
    scores = task.score(kept(task, truth, np.eye(2, dtype="float32")[found]))
    assert scores["eval_f1"] == pytest.approx(1 / 2)


def test_scores_of_several_labels_and_of_regression():
    task = make("multi_label")
    scores = task.score(kept(task))
    is_right = (LOGITS > 0) == LABEL_IDS["multi_label"]
    assert scores["eval_exact_match"] == pytest.approx(is_right.all(1).mean())
    assert {"eval_micro_f1", "eval_macro_f1"} < scores.keys()
    task = make("regression")
    scores = task.score(kept(task))
    expected = np.corrcoef(LOGITS[:, 0], LABEL_IDS["regression"])[0, 1]
    assert scores["eval_pearson"] == pytest.approx(expected)
    assert "eval_spearman" in scores


def test_warns_if_only_one_class_is_predicted(warnings):
    task = make()
    task.score(kept(task))
    zeros = np.zeros([2, C], "float32")
    task.score(kept(task, [2, 2], zeros))
    assert not warnings
    task.score(kept(task, [2, 1], zeros))
    [line] = warnings
    assert "All 2 examples are predicted to be 'no'" in line


VALUES = np.array([[0.25, 0.125, 0.625], [0.75, 0.25, 0.0]], np.float32)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_probabilities_by_hand(problem):
    expected = {
        "multi_label": 1 / (1 + np.exp(-LOGITS)),
        "regression": LOGITS[:, 0],
    }.get(problem, np.exp(log_softmax(LOGITS)))
    values = probabilities(problem, LOGITS)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    if problem != "regression":
        values = probabilities(problem, np.array([[1e4, -1e4]], np.float32))
        assert values.tolist() == [[1.0, 0.0]]
    nothing = probabilities(problem, np.zeros([0, 3], np.float32))
    assert answers(problem, LABELS, nothing) == []


def test_test_results_have_the_format_of_the_original(tmp_path):
    path = tmp_path / "test_results.tsv"
    values = np.array([[0.1, 0.9], [1e-8, 1.0], [1 / 3, 2 / 3]], np.float64)
    write_test_results(str(path), values)
    assert path.read_text() == "0.1\t0.9\n1e-08\t1.0\n0.33333334\t0.6666667\n"
    write_test_results(str(path), np.array([3.8, -0.25], np.float32))
    assert path.read_text() == "3.8\n-0.25\n"


@pytest.mark.parametrize(
    ("problem", "labels", "examples", "values", "lines"),
    [
        (
            "multiple_choice",
            ("0", "1", "2"),
            [Example("0", "He", choices=("sat.", "ran.", "ate."), label="1")],
            VALUES[:1],
            [
                "id|context|choice|prediction|label|"
                "probability_0|probability_1|probability_2",
                "0|He|ate.|2|1|0.25|0.125|0.625",
            ],
        ),
        (
            "multi_label",
            ("a", "b"),
            [Example("0", "a", label=("a", "b")), Example("1", "b")],
            np.array([[0.75, 0.875], [0.5, 0.0]]),
            [
                "id|text|prediction|label|probability_a|probability_b",
                "0|a|a,b|a,b|0.75|0.875",
                "1|b|||0.5|0.0",
            ],
        ),
        (
            *("regression", (), [Example("0", "a", label=3.8)]),
            np.array([4.2], np.float32),
            ["id|text|prediction|label", "0|a|4.2|3.8"],
        ),
        # Everything that could end a cell or a line becomes a space.
        (
            "single_label",
            ("n\to", "y"),
            [
                Example("0", "a\t\n\r\x0b\x0c\x1c\x85\u2028\u2029b", "c\r\nd"),
                Example("1", 'half \ud83d no "quoting'),
            ],
            VALUES[:, 1:],
            [
                "id|text_a|text_b|prediction|probability_n o|probability_y",
                f"0|a{9 * ' '}b|c d|y|0.125|0.625",
                '1|half \ufffd no "quoting||n o|0.25|0.0',
            ],
        ),
    ],
)
def test_tables_of_predictions(
    tmp_path, problem, labels, examples, values, lines
):
    path = tmp_path / "predictions.tsv"
    write_predictions(str(path), examples, problem, labels, values)
    text = "".join(f"{line}\n".replace("|", "\t") for line in lines)
    assert path.read_bytes().decode() == text
    with pytest.raises(ValueError, match="zip"):
        write_predictions(str(path), [], problem, labels, values)


def test_numbers_of_a_submission(tmp_path):
    path = tmp_path / "glue_submission" / "STS-B.tsv"
    # Numbers are clipped to the range of the leaderboard.
    write_submission(str(path), list("0123"), [5.2, -0.0, 3.14159, -1.0])
    lines = path.read_text().splitlines()
    assert lines[1:] == ["0\t5.000", "1\t0.000", "2\t3.142", "3\t0.000"]


def test_balanced_weights_equal_those_of_scikit_learn():
    label_ids = np.array([0, 1, 1, 2, 2, 2, 2])
    weights = balanced_class_weights(label_ids, 3)
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=label_ids)
    np.testing.assert_allclose(weights, theirs)
    # A class without examples does not change the other weights.
    weights = balanced_class_weights(np.array([0, 2, 2, 2]), 4)
    assert weights.tolist() == [2.0, 0.0, 2 / 3, 0.0]


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("single_label", {"class_weights": [1, -2, 1]}, "not negative"),
        ("single_label", {"label_smoothing": 1.5}, "from 0 to 1"),
        ("regression", {"label_smoothing": 0.1}, "0 for regression"),
    ],
)
def test_invalid_arguments(problem, options, message):
    with pytest.raises(InputError, match=message):
        make(problem, **options)
