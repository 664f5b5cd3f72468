"""Classification: losses and scores by hand, files, a tiny model."""

import csv

import keras
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.data.schema import classification_schema
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.tasks import examples as examples_module
from bert_tf.tasks.classification import (
    ClassificationTask,
    MultipleChoiceTask,
    answers,
    balanced_class_weights,
    decide,
    mean_of_batch_means,
    probabilities,
    write_predictions,
    write_submission,
    write_test_results,
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
    """Returns the losses without weights and smoothing, [B]."""
    label_ids = LABEL_IDS[problem]
    if problem == "regression":
        return (LOGITS[:, 0] - label_ids) ** 2
    if problem == "multi_label":
        yes = 1 / (1 + np.exp(-LOGITS))
        right = np.where(label_ids == 1, yes, 1 - yes)
        return -np.log(right).mean(axis=1)
    return -log_softmax(LOGITS)[np.arange(B), label_ids]


def losses(task) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training loss and the weight of each example."""
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


def test_class_weights_equal_those_of_keras():
    """Keras, too, divides by the sum of the weights."""
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


def test_evaluation_is_neither_weighted_nor_smoothed():
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
        "eval_macro_f1",  # The requested metric comes first.
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
def test_f1_is_computed_for_a_class_by_name(problem_labels):
    """Published models have their classes in other orders."""
    truth, found = ["1", "1", "0", "0", "0"], ["1", "0", "1", "0", "0"]
    task = make(labels=problem_labels, metrics=["f1"], positive_label="1")
    logits = np.eye(2, dtype="float32")[list(map(task.labels.index, found))]
    label_ids = list(map(task.labels.index, truth))
    scores = task.score(kept(task, label_ids, logits))
    assert scores["eval_f1"] == pytest.approx(1 / 2)
    assert scores["eval_accuracy"] == pytest.approx(3 / 5)


def test_f1_is_computed_for_the_last_class_by_default():
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


def test_scores_of_regression_by_hand():
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
def test_a_correlation_with_a_constant_is_nan(caplog, what):
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


def test_warns_if_only_one_class_is_predicted(caplog):
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


# Files.

VALUES = np.array([[0.25, 0.125, 0.625], [0.75, 0.25, 0.0]], np.float32)


def read(path) -> str:
    return path.read_bytes().decode()


@pytest.mark.parametrize("problem", examples_module.PROBLEMS)
def test_probabilities_by_hand(problem):
    logits = np.random.default_rng(3).normal(size=(7, 5)).astype("float32")
    expected = {
        "multi_label": 1 / (1 + np.exp(-logits)),
        "regression": logits[:, 0],
    }.get(problem, np.exp(log_softmax(logits)))
    values = probabilities(problem, logits)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize("problem", ["single_label", "multi_label"])
def test_probabilities_of_extreme_logits(problem):
    values = probabilities(problem, np.array([[1e4, -1e4]], np.float32))
    assert values.tolist() == [[1.0, 0.0]]


def test_decisions_and_answers():
    assert decide("single_label", VALUES).tolist() == [2, 0]
    assert answers("single_label", LABELS, VALUES) == ["yes", "no"]
    assert answers("multiple_choice", "012", VALUES) == ["2", "0"]
    several = np.array([[0.5, 0.51, 1.0], [0.1, 0.2, 0.3]], np.float32)
    assert decide("multi_label", several).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert answers("multi_label", LABELS, several) == [("maybe", "yes"), ()]
    numbers = np.array([0.5, -2.25], np.float32)
    assert decide("regression", numbers) is numbers
    assert answers("regression", (), numbers) == [0.5, -2.25]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("problem", examples_module.PROBLEMS)
def test_few_examples(problem, count):
    values = probabilities(problem, np.zeros([count, 3], np.float32))
    assert len(answers(problem, LABELS, values)) == count


def test_results_in_the_format_of_the_original(tmp_path):
    path = tmp_path / "test_results.tsv"
    values = np.array([[0.1, 0.9], [1e-8, 1.0], [1 / 3, 2 / 3]], np.float64)
    write_test_results(str(path), values)
    assert read(path) == ("0.1\t0.9\n1e-08\t1.0\n0.33333334\t0.6666667\n")
    assert [file.name for file in tmp_path.iterdir()] == ["test_results.tsv"]
    write_test_results(str(path), np.array([3.8, -0.25], np.float32))
    assert read(path) == "3.8\n-0.25\n"


def table_of(tmp_path, examples, problem, labels, values) -> str:
    path = tmp_path / "predictions.tsv"
    write_predictions(str(path), examples, problem, labels, values)
    return read(path)


def test_predictions_of_texts(tmp_path):
    examples = [Example("17", "Fine, 'tis.", label="yes"), Example("x", '"Oh"')]
    assert table_of(tmp_path, examples, "single_label", LABELS, VALUES) == (
        "id\ttext\tprediction\tlabel\t"
        "probability_no\tprobability_maybe\tprobability_yes\n"
        "17\tFine, 'tis.\tyes\tyes\t0.25\t0.125\t0.625\n"
        'x\t"Oh"\tno\t\t0.75\t0.25\t0.0\n'
    )


def test_predictions_of_pairs_without_labels(tmp_path):
    examples = [Example("0", "a", "b"), Example("1", "c")]
    text = table_of(
        tmp_path, examples, "single_label", ("n", "y"), VALUES[:, 1:]
    )
    assert text == (
        "id\ttext_a\ttext_b\tprediction\tprobability_n\tprobability_y\n"
        "0\ta\tb\ty\t0.125\t0.625\n"
        "1\tc\t\tn\t0.25\t0.0\n"
    )


def test_predictions_of_choices_show_the_chosen_one(tmp_path):
    examples = [
        Example("0", "He", choices=("sat.", "ran.", "ate."), label="1"),
        Example("1", "She", choices=("swam.", "flew.", "dug."), label="0"),
    ]
    text = table_of(tmp_path, examples, "multiple_choice", "012", VALUES)
    assert [line.split("\t")[:5] for line in text.splitlines()] == [
        ["id", "context", "choice", "prediction", "label"],
        ["0", "He", "ate.", "2", "1"],
        ["1", "She", "swam.", "0", "0"],
    ]


def test_predictions_of_several_labels(tmp_path):
    examples = [Example("0", "a", label=("no", "yes")), Example("1", "b")]
    values = np.array([[0.75, 0.25, 0.875], [0.5, 0.0, 0.25]])
    text = table_of(tmp_path, examples, "multi_label", LABELS, values)
    assert text.splitlines()[1:] == [
        "0\ta\tno,yes\tno,yes\t0.75\t0.25\t0.875",
        "1\tb\t\t\t0.5\t0.0\t0.25",
    ]


def test_predictions_of_numbers(tmp_path):
    examples = [Example("0", "a", "b", label=3.8), Example("1", "c", "d")]
    values = np.array([4.2, -0.1], np.float32)
    assert table_of(tmp_path, examples, "regression", (), values) == (
        "id\ttext_a\ttext_b\tprediction\tlabel\n"
        "0\ta\tb\t4.2\t3.8\n"
        "1\tc\td\t-0.1\t\n"
    )


def test_texts_with_line_breaks(tmp_path):
    """Everything that could end a cell or a line becomes a space."""
    breaks = "\t\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    examples = [
        Example("0", f"a{breaks}b", "c\r\nd"),
        Example("1", "half \ud83d", 'no "quoting'),
    ]
    text = table_of(
        tmp_path, examples, "single_label", ("n\to", "y"), VALUES[:, 1:]
    )
    rows = list(
        csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    assert {len(row) for row in rows} == {6}
    assert rows[0][4] == "probability_n o"
    assert rows[1][1:3] == [f"a{' ' * len(breaks)}b", "c d"]
    assert rows[2][1:3] == ["half \ufffd", 'no "quoting']


def test_examples_and_predictions_must_match(tmp_path):
    with pytest.raises(ValueError, match="zip"):
        table_of(tmp_path, [Example("0", "a")], "single_label", LABELS, VALUES)
    assert not list(tmp_path.iterdir())


def test_submission_of_labels(tmp_path):
    folder = tmp_path / "glue"
    names = ["entailment", "neutral"]
    write_submission(str(folder / "MNLI-m.tsv"), ["0", "9"], names)
    assert read(folder / "MNLI-m.tsv") == (
        "index\tprediction\n0\tentailment\n9\tneutral\n"
    )


def test_submission_of_numbers_is_clipped(tmp_path):
    numbers = answers(
        "regression", (), np.array([5.2, -0.0, 3.14159, -1.0], np.float32)
    )
    write_submission(str(tmp_path / "STS-B.tsv"), list("0123"), numbers)
    assert read(tmp_path / "STS-B.tsv") == (
        "index\tprediction\n0\t5.000\n1\t0.000\n2\t3.142\n3\t0.000\n"
    )


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
    np.testing.assert_allclose(
        np.loadtxt(tables["test_results.tsv"]),
        task.probabilities(LOGITS),
        rtol=1e-6,
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
    names = [LABELS[number] for number in LOGITS.argmax(1)]
    assert tables["glue_submission/AX.tsv"] == [
        "index\tprediction",
        *(f"id{n}\t{name}" for n, name in enumerate(names)),
    ]


# Class weights.


def test_balanced_weights_equal_those_of_scikit_learn():
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


# Invalid arguments.


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("single_label", {"class_weights": [1, 2]}, "must be 3 numbers"),
        ("single_label", {"class_weights": [1, -2, 1]}, "not negative"),
        ("single_label", {"class_weights": [0, 0, 0]}, "not all 0"),
        ("single_label", {"class_weights": [1, 1, float("nan")]}, "nan"),
        ("multi_label", {"class_weights": [1, 2, 3]}, "single_label"),
        ("regression", {"class_weights": [1]}, "for regression"),
        ("single_label", {"label_smoothing": 1.5}, "from 0 to 1"),
        ("single_label", {"label_smoothing": -0.1}, "from 0 to 1"),
        ("single_label", {"label_smoothing": float("nan")}, "from 0 to 1"),
        ("regression", {"label_smoothing": 0.1}, "0 for regression"),
        ("single_label", {"labels": ("a",)}, "at least 2 for single"),
        # One label, present or not, is a single_label problem.
        ("multi_label", {"labels": ("a",)}, "at least 2 for multi"),
        ("single_label", {"positive_label": "1"}, "no, maybe or yes; got '1'"),
        ("single_label", {"metrics": ["bleu"]}, "accuracy, f1, macro_f1"),
        ("single_label", {"metrics": ["pearson"]}, "'pearson'"),
        ("regression", {"metrics": ["accuracy"]}, "pearson or spearman"),
    ],
)
def test_invalid_arguments(problem, options, message):
    with pytest.raises(InputError, match=message):
        make(problem, **options)


@pytest.mark.parametrize("problem", ["multiple_choice", "ranking"])
def test_invalid_problems(problem):
    with pytest.raises(InputError, match=f"regression; got '{problem}'"):
        ClassificationTask(CONFIG, (), problem, LABELS)
    with pytest.raises(InputError, match="empty for regression"):
        ClassificationTask(CONFIG, (), "regression", LABELS)


# Models.


@pytest.mark.parametrize(
    ("problem", "width"), [*zip(PROBLEMS, [C, C, 1], strict=True)]
)
def test_the_model_has_the_head_of_the_original(problem, width):
    options = {"frozen_layers": ("embeddings",), "dropout": 0.25}
    model = make(problem, **options).build_model()
    variables = checkpoint_variables(model)
    assert variables["output_weights"].shape == (width, CONFIG.hidden_size)
    assert variables["output_bias"].shape == (width,)
    assert not variables["bert/embeddings/word_embeddings"].trainable
    assert model.dropout.rate == 0.25


def examples(problem, count) -> dict[str, np.ndarray]:
    """Returns random texts, the first four shorter, with labels."""
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


def test_micro_batches_of_weighted_examples():
    """The parts of the batch have different weights."""
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
def test_overfits_eight_examples(problem, metric, tmp_path):
    before, after, _ = small_training.learn(
        make(problem), examples(problem, 8), tmp_path, num_train_steps=160
    )
    assert after["eval_loss"] < 0.4 * before["eval_loss"]
    assert after["loss"] == pytest.approx(after["eval_loss"])
    assert after[f"eval_{metric}"] > 0.8
    assert after["global_step"] == 160


# Multiple choice.


def make_choice(**options) -> MultipleChoiceTask:
    schema = classification_schema(S, "multiple_choice", num_choices=C)
    return MultipleChoiceTask(
        CONFIG, schema, "multiple_choice", ("0", "1", "2"), **options
    )


def choice_examples(count) -> dict[str, np.ndarray]:
    """Returns random choices; those of the first four examples are shorter."""
    random = np.random.default_rng(6)
    lengths = np.where(np.arange(count) < 4, S - 2, S)
    return {
        **small_training.texts(np.stack([lengths] * C, axis=1), random),
        "label_ids": random.integers(0, C, count).astype("int32"),
        "is_real_example": np.ones(count, "int32"),
    }


def test_multiple_choice_by_hand():
    task = make_choice(eval_batch_size=3)
    random = np.random.default_rng(1)
    logits = random.normal(size=(5, C)).astype("float32")
    label_ids = np.array([2, 0, 1, 1, 0], "int32")
    kept = task.predictions({"label_ids": label_ids}, {"logits": logits})
    kept = {k: keras.ops.convert_to_numpy(v) for k, v in kept.items()}
    expected = np.exp(log_softmax(logits))
    loss = -np.log(expected[np.arange(5), label_ids])
    np.testing.assert_allclose(kept["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(task.probabilities(logits), expected, rtol=1e-5)
    scores = task.score(kept)
    assert list(scores) == ["eval_accuracy", "eval_loss", "loss"]
    right = logits.argmax(1) == label_ids
    assert scores["eval_accuracy"] == pytest.approx(right.mean())
    expected = (loss[:3].mean() + loss[3:].mean()) / 2
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


def test_multiple_choice_model():
    task = make_choice(dropout=0.25, frozen_layers=("embeddings",))
    batch = choice_examples(5)
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
        (
            "multiple_choice",
            {"class_weights": [1, 2, 3]},
            "single_label problem",
        ),
    ],
)
def test_invalid_arguments_of_multiple_choice(problem, options, message):
    with pytest.raises(InputError, match=message):
        MultipleChoiceTask(CONFIG, (), problem, ("0", "1", "2"), **options)


def test_overfits_eight_choices(tmp_path):
    before, after, _ = small_training.learn(
        make_choice(), choice_examples(8), tmp_path, num_train_steps=160
    )
    assert after["eval_accuracy"] == 1.0
    assert after["eval_loss"] < 0.1 * before["eval_loss"]
