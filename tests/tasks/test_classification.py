"""Fine-tuning on texts: losses by hand, scores, and runs of a tiny model."""

import keras
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.data.schema import classification_schema
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks.classification import (
    ClassificationTask,
    balanced_class_weights,
    mean_of_batch_means,
)
from bert_tf.tasks.examples import Example
from tests.tasks import small_training
from tests.tasks.small_training import CONFIG, S, as_arrays

B, C = 5, 3
LABELS = ("no", "maybe", "yes")
LOGITS = np.random.default_rng(4).normal(size=(B, C)).astype("float32")
LABEL_IDS = {
    "single_label": np.array([2, 0, 1, 2, 2], "int32"),
    "multi_label": np.array(
        [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], "int32"
    ),
    "regression": np.array([0.5, -1.0, 4.25, 0.0, 5.0], "float32"),
}
PROBLEMS = tuple(LABEL_IDS)


def make(problem="single_label", labels=LABELS, metrics=(), **options):
    if problem == "regression":
        labels = ()
    schema = classification_schema(S, problem, len(labels))
    return ClassificationTask(
        CONFIG, schema, problem, labels, metrics, **options
    )


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def loss_by_hand(problem) -> np.ndarray:
    """Without weights and smoothing, [B]."""
    label_ids = LABEL_IDS[problem]
    if problem == "regression":
        return (LOGITS[:, 0] - label_ids) ** 2
    if problem == "multi_label":
        yes = 1 / (1 + np.exp(-LOGITS))
        right = np.where(label_ids == 1, yes, 1 - yes)
        return -np.log(right).mean(axis=1)
    return -log_softmax(LOGITS)[np.arange(B), label_ids]


def losses(task) -> tuple[np.ndarray, np.ndarray]:
    """The training loss of each example and its weight."""
    features = {"label_ids": LABEL_IDS[task.problem]}
    outputs = {"logits": LOGITS}
    [loss] = as_arrays(task.losses(features, outputs)).values()
    [weight] = as_arrays(task.loss_weights(features)).values()
    return loss, weight


def kept(task, label_ids=None, logits=LOGITS) -> dict[str, np.ndarray]:
    if label_ids is None:
        label_ids = LABEL_IDS[task.problem]
    features = {"label_ids": np.asarray(label_ids)}
    return as_arrays(task.predictions(features, {"logits": logits}))


# Losses.


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses_by_hand(problem):
    loss, weight = losses(make(problem))
    np.testing.assert_allclose(loss, loss_by_hand(problem), rtol=1e-5)
    assert weight.tolist() == [1] * B
    assert loss.dtype == weight.dtype == np.float32


def test_class_weights_by_hand():
    class_weights = [0.5, 0.0, 3.0]
    loss, weight = losses(make(class_weights=class_weights))
    assert weight.tolist() == [3.0, 0.5, 0.0, 3.0, 3.0]
    np.testing.assert_allclose(
        loss, loss_by_hand("single_label") * weight, rtol=1e-5
    )


def test_class_weights_are_those_of_keras():
    """There, too, the mean of a weighted batch divides by the weights."""
    loss, weight = losses(make(class_weights=[0.5, 2.0, 3.0]))
    measure = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    theirs = measure(LABEL_IDS["single_label"], LOGITS, sample_weight=weight)
    assert loss.sum() / weight.sum() == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing_by_hand(smoothing):
    loss, _ = losses(make(label_smoothing=smoothing))
    one_hot = np.eye(C)[LABEL_IDS["single_label"]]
    target = (1 - smoothing) * one_hot + smoothing / C
    expected = -(target * log_softmax(LOGITS)).sum(1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_label_smoothing_of_several_labels_by_hand():
    loss, _ = losses(make("multi_label", label_smoothing=0.2))
    yes = 1 / (1 + np.exp(-LOGITS))
    target = np.where(LABEL_IDS["multi_label"] == 1, 0.9, 0.1)
    expected = -(target * np.log(yes) + (1 - target) * np.log(1 - yes))
    np.testing.assert_allclose(loss, expected.mean(1), rtol=1e-5)


def test_what_is_evaluated_is_neither_weighted_nor_smoothed():
    task = make(label_smoothing=0.3, class_weights=[1, 2, 0])
    np.testing.assert_allclose(
        kept(task)["loss"], loss_by_hand("single_label"), rtol=1e-5
    )


# Scores.


def test_scores_of_one_label_by_hand():
    task = make(metrics=["macro_f1"], eval_batch_size=2)
    predictions = kept(task)
    scores = task.score(predictions)
    assert list(scores) == [
        "eval_macro_f1",  # What was asked for stands first: it decides.
        "eval_accuracy",
        "eval_loss",
        "loss",
    ]
    right = LOGITS.argmax(1) == LABEL_IDS["single_label"]
    assert scores["eval_accuracy"] == pytest.approx(right.mean())
    loss = loss_by_hand("single_label")
    assert scores["eval_loss"] == pytest.approx(loss.mean(), rel=1e-5)
    means = [loss[:2].mean(), loss[2:4].mean(), loss[4]]
    assert scores["loss"] == pytest.approx(np.mean(means), rel=1e-5)
    assert scores["loss"] != pytest.approx(scores["eval_loss"], rel=1e-3)
    assert all(type(value) is float for value in scores.values())


@pytest.mark.parametrize("problem_labels", [("0", "1"), ("1", "0")])
def test_f1_is_of_a_class_by_its_name(problem_labels):
    """Others have published models whose classes are in another order."""
    truth, answers = ["1", "1", "0", "0", "0"], ["1", "0", "1", "0", "0"]
    task = make(labels=problem_labels, metrics=["f1"], positive_label="1")
    logits = np.eye(2, dtype="float32")[list(map(task.labels.index, answers))]
    label_ids = list(map(task.labels.index, truth))
    scores = task.score(kept(task, label_ids, logits))
    assert scores["eval_f1"] == pytest.approx(1 / 2)
    assert scores["eval_accuracy"] == pytest.approx(3 / 5)


def test_f1_is_of_the_last_class_unless_another_is_named():
    label_ids, logits = [1, 1, 1], np.eye(2, dtype="float32")[[1, 0, 0]]
    for name, expected in ((None, 1 / 2), ("b", 1 / 2), ("a", 0)):
        task = make(labels=("a", "b"), metrics=["f1"], positive_label=name)
        scores = task.score(kept(task, label_ids, logits))
        assert scores["eval_f1"] == pytest.approx(expected)


def test_scores_of_several_labels_by_hand():
    task = make("multi_label")
    scores = task.score(kept(task))
    right = (LOGITS > 0) == LABEL_IDS["multi_label"]
    assert scores["eval_exact_match"] == pytest.approx(right.all(1).mean())
    assert {"eval_micro_f1", "eval_macro_f1", "loss"} <= scores.keys()


def test_scores_of_numbers_by_hand():
    task = make("regression")
    scores = task.score(kept(task))
    expected = np.corrcoef(LOGITS[:, 0], LABEL_IDS["regression"])[0, 1]
    assert scores["eval_pearson"] == pytest.approx(expected)
    assert list(scores) == [
        "eval_pearson",
        "eval_spearman",
        "eval_loss",
        "loss",
    ]


@pytest.mark.parametrize("what", ["labels", "predictions"])
def test_a_correlation_with_a_constant_is_explained(caplog, what):
    task = make("regression")
    label_ids, logits = LABEL_IDS["regression"], LOGITS[:, :1]
    if what == "labels":
        label_ids = np.full_like(label_ids, 2.5)
    else:
        logits = np.full_like(logits, 2.5)
    scores = task.score(kept(task, label_ids, logits))
    assert np.isnan([scores["eval_pearson"], scores["eval_spearman"]]).all()
    [line] = caplog.messages
    assert line.startswith(
        f"eval_pearson, eval_spearman are NaN: all {B} {what}"
    )


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(1, 4.0), (2, 5.0), (3, 4.0), (100, 4.0)]
)
def test_mean_of_batch_means(batch_size, expected):
    assert mean_of_batch_means(np.array([1.0, 3, 8]), batch_size) == expected


def test_the_original_weighs_a_short_last_batch_as_any():
    """MRPC's development set has 408 = 51 * 8 examples: there they agree."""
    losses = np.random.default_rng(2).random(408)
    assert mean_of_batch_means(losses, 8) == pytest.approx(losses.mean())
    assert mean_of_batch_means(losses, 32) != pytest.approx(losses.mean())


def test_warns_where_one_class_is_all_that_is_predicted(caplog):
    task = make()
    always_yes = np.tile(np.array([[0.0, 0.0, 1.0]], "float32"), [B, 1])
    task.score(kept(task, logits=always_yes))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    for part in ("All 5 examples", "'yes'", "3 classes", "--learning_rate"):
        assert part in record.getMessage()


@pytest.mark.parametrize(
    ("label_ids", "logits"),
    [
        (LABEL_IDS["single_label"], LOGITS),
        ([2, 2], np.zeros([2, C], "float32")),
    ],
)
def test_does_not_warn_without_cause(caplog, label_ids, logits):
    task = make()
    task.score(kept(task, label_ids, logits))
    assert not caplog.records


def test_probabilities_are_those_of_the_problem():
    np.testing.assert_allclose(
        make().probabilities(LOGITS).sum(1), np.ones(B), rtol=1e-6
    )
    assert make("regression").probabilities(LOGITS).shape == (B,)


# Files.


def written(folder) -> dict[str, list[str]]:
    return {
        str(path.relative_to(folder)): path.read_text().splitlines()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("problem", PROBLEMS)
def test_predictions_in_files(problem, tmp_path):
    asked = [Example(f"id{n}", f"text {n}") for n in range(B)]
    task = make(problem)
    task.write_predictions(str(tmp_path), asked, kept(task))
    tables = written(tmp_path)
    assert tables.keys() == {"test_results.tsv", "predictions.tsv"}
    probabilities = task.probabilities(LOGITS)
    np.testing.assert_allclose(
        np.loadtxt(tables["test_results.tsv"]), probabilities, rtol=1e-6
    )
    header, *rows = [row.split("\t") for row in tables["predictions.tsv"]]
    assert header[:3] == ["id", "text", "prediction"]
    assert header[3:] == [f"probability_{name}" for name in task.labels]
    assert [row[:2] for row in rows] == [[e.id, e.text_a] for e in asked]
    if problem == "single_label":
        expected = [LABELS[number] for number in LOGITS.argmax(1)]
        assert [row[2] for row in rows] == expected


def test_predictions_of_a_part_have_its_suffix(tmp_path):
    asked = [Example(f"id{n}", "text") for n in range(B)]
    task = make()
    path = str(tmp_path / "glue_submission" / "AX.tsv")
    task.write_predictions(str(tmp_path), asked, kept(task), "_ax", path)
    tables = written(tmp_path)
    assert tables.keys() == {
        "test_results_ax.tsv",
        "predictions_ax.tsv",
        "glue_submission/AX.tsv",
    }
    answers = [LABELS[number] for number in LOGITS.argmax(1)]
    assert tables["glue_submission/AX.tsv"] == [
        "index\tprediction",
        *(f"id{n}\t{answer}" for n, answer in enumerate(answers)),
    ]


# Class weights.


def test_balanced_weights_are_those_of_scikit_learn():
    label_ids = np.array([0, 1, 1, 2, 2, 2, 2])
    weights = balanced_class_weights(label_ids, 3)
    assert weights.tolist() == pytest.approx([7 / 3, 7 / 6, 7 / 12])
    classes = np.arange(3)
    theirs = compute_class_weight("balanced", classes=classes, y=label_ids)
    np.testing.assert_allclose(weights, theirs)


def test_a_class_without_examples_changes_no_other_weight():
    weights = balanced_class_weights(np.array([0, 2, 2, 2]), 4)
    assert weights.tolist() == [2.0, 0.0, 2 / 3, 0.0]
    make(labels=("a", "b", "c", "d"), class_weights=weights)


# What does not fit.


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("single_label", {"class_weights": [1, 2]}, "3 class weights"),
        ("single_label", {"class_weights": [1, -2, 1]}, "not negative"),
        ("single_label", {"class_weights": [0, 0, 0]}, "not all 0"),
        ("single_label", {"class_weights": [1, 1, float("nan")]}, "nan"),
        ("multi_label", {"class_weights": [1, 2, 3]}, "single_label"),
        ("regression", {"class_weights": [1]}, "for regression"),
        ("single_label", {"label_smoothing": 1.5}, "from 0 to 1"),
        ("single_label", {"label_smoothing": -0.1}, "from 0 to 1"),
        ("single_label", {"label_smoothing": float("nan")}, "from 0 to 1"),
        ("regression", {"label_smoothing": 0.1}, "no --label_smoothing"),
        ("single_label", {"labels": ("a",)}, "at least 2 label"),
        ("single_label", {"positive_label": "1"}, "no, maybe, yes.*: '1'"),
        ("single_label", {"metrics": ["bleu"]}, "accuracy, f1, macro_f1"),
        ("single_label", {"metrics": ["pearson"]}, "'pearson'"),
        ("regression", {"metrics": ["accuracy"]}, "pearson, spearman"),
    ],
)
def test_tells_what_does_not_fit(problem, options, message):
    with pytest.raises(InputError, match=message):
        make(problem, **options)


@pytest.mark.parametrize("problem", ["multiple_choice", "ranking"])
def test_another_problem_is_not_for_this_task(problem):
    with pytest.raises(InputError, match=f"multi_label, .*: '{problem}'"):
        ClassificationTask(CONFIG, (), problem, LABELS)


@pytest.mark.parametrize("labels", [(), ("a",)])
def test_several_labels_are_at_least_two(labels):
    """One label, there or not, is a single_label problem."""
    with pytest.raises(InputError, match="at least 2 label"):
        ClassificationTask(CONFIG, (), "multi_label", labels)


def test_numbers_have_no_labels():
    with pytest.raises(InputError, match="no labels"):
        ClassificationTask(CONFIG, (), "regression", LABELS)


# Models.


@pytest.mark.parametrize(
    ("problem", "width"), [*zip(PROBLEMS, [C, C, 1], strict=True)]
)
def test_the_model_has_the_originals_head(problem, width):
    options = {"frozen_layers": ("embeddings",), "dropout": 0.25}
    model = make(problem, **options).build_model()
    variables = checkpoint_variables(model)
    assert variables["output_weights"].shape == (width, CONFIG.hidden_size)
    assert variables["output_bias"].shape == (width,)
    assert not variables["bert/embeddings/word_embeddings"].trainable
    assert model.dropout.rate == 0.25


def examples(problem, count) -> dict[str, np.ndarray]:
    """Texts at random, the first four shorter; labels of any kind."""
    random = np.random.default_rng(6)
    label_ids = {
        "single_label": random.integers(0, C, count).astype("int32"),
        "multi_label": random.integers(0, 2, [count, C]).astype("int32"),
        "regression": random.uniform(0, 3, count).astype("float32"),
    }
    lengths = np.where(np.arange(count) < 4, S - 2, S)
    return {
        **small_training.texts(lengths, random),
        "label_ids": label_ids[problem],
    }


def test_weighted_batches_are_one_batch_however_they_are_cut():
    """Each part of the batch has classes, and so weights, of its own."""
    features = examples("single_label", 6)
    features["label_ids"] = np.array([0, 0, 1, 1, 2, 2], "int32")
    task = make(class_weights=[9.0, 1.0, 0.1], label_smoothing=0.1, dropout=0.0)
    small_training.assert_micro_batches_are_one_batch(task, features)


@pytest.mark.parametrize(
    ("problem", "metric"),
    [
        ("single_label", "accuracy"),
        pytest.param("multi_label", "exact_match", marks=pytest.mark.slow),
        pytest.param("regression", "spearman", marks=pytest.mark.slow),
    ],
)
def test_learns_eight_examples_by_heart(problem, metric, tmp_path):
    before, after, _ = small_training.learn(
        make(problem), examples(problem, 8), tmp_path, num_train_steps=160
    )
    assert after["eval_loss"] < 0.4 * before["eval_loss"]
    assert after["loss"] == pytest.approx(after["eval_loss"])
    assert after[f"eval_{metric}"] > 0.8
    assert after["global_step"] == 160
