"""A kind of task that the library does not have, in one file.

A number and how far it may be wrong, for a text or a pair: the model has two
outputs, the number and the logarithm of the variance. The loss is that of a
normal distribution, as in Nix and Weigend 1994, "Estimating the mean and
variance of the target probability distribution".
"""

import fine_tuning_runs
import keras
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from keras import ops

import bert_tf
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.jobs.fine_tuning import Split, fine_tune
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.jobs.start import resolve
from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.modeling.heads import BertClassifier
from bert_tf.tasks import metrics
from bert_tf.tasks.examples import Example

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

LENGTH = 20
TRAINING = {"epochs": 2, "batch_size": 4, "seed": 7}
TEXTS = [" ".join(sentence_files.VOCAB[n + 5 : 2 * n + 6]) for n in range(12)]
NUMBERS = [0.25 * len(text.split()) for text in TEXTS]


class UncertainNumber(bert_tf.FineTuningTask):
    """A number and its standard deviation."""

    head = "classifier"
    num_outputs = 2
    metrics = ("spearman", "loss")

    def make_model(self, **options):
        return BertClassifier(self.config, self.num_outputs, **options)

    def element_losses(self, features, outputs):
        number, log_variance = ops.unstack(outputs["logits"], 2, axis=-1)
        error = ops.square(features["label_ids"] - number)
        return (log_variance + error / ops.exp(log_variance)) / 2

    def decode(self, outputs):
        number, log_variance = ops.unstack(outputs["logits"], 2, axis=-1)
        return {"number": number, "deviation": ops.exp(log_variance / 2)}

    def score(self, predictions, examples=()):
        number = self.decode(predictions)["number"]
        spearman = metrics.METRICS["spearman"]
        correlation = spearman(predictions["label_ids"], number)
        return {"eval_spearman": correlation, **super().score(predictions)}


@keras.saving.register_keras_serializable("tests")
class NumberEstimator(bert_tf.TextModel):
    """Estimates a number for a text or a pair of texts."""

    model_class = BertClassifier
    task_class = UncertainNumber
    doc_stride = None

    def make_task(self, **options):
        encoding = self.make_encoding(
            bert_tf.Encoding,
            problem="regression",
            labels=(),
            doc_stride=self.doc_stride,
        )
        return UncertainNumber(self.model.config, encoding, **options)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with random weights."""
    keras.utils.set_random_seed(3)
    sizes = {**fine_tuning_runs.CONFIG, **fine_tuning_runs.WITHOUT_DROPOUT}
    model = BertClassifier(BertConfig.from_dict(sizes), 2, dropout=0.0)
    model.build()
    tokenizer = bert_tf.FullTokenizer(list(sentence_files.VOCAB))
    folder = tmp_path_factory.mktemp("start")
    NumberEstimator(model, tokenizer, LENGTH).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(start):
    model = NumberEstimator.from_pretrained(start)
    model.compile(learning_rate=fine_tuning_runs.FLAGS["learning_rate"])
    data = TEXTS, NUMBERS
    fitted = model.fit(*data, validation_data=data, verbose=0, **TRAINING)
    assert fitted.history["loss"][-1] < fitted.history["loss"][0]
    return model, fitted.history


def test_fit_evaluate_and_predict(trained):
    model, history = trained
    answers = model.predict(TEXTS)
    assert [*answers[0]] == ["number", "deviation"]
    found = np.array([row["number"] for row in answers])
    variances = np.array([row["deviation"] for row in answers]) ** 2
    losses = np.log(variances) / 2 + (found - NUMBERS) ** 2 / variances / 2
    scores = model.evaluate(TEXTS, NUMBERS, verbose=0)
    assert scores["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    expected = metrics.METRICS["spearman"](NUMBERS, found)
    # Numbers that are nearly equal may change their places.
    assert scores["spearman"] == pytest.approx(expected, abs=0.05)
    assert history["val_loss"][-1] == pytest.approx(scores["loss"], rel=1e-4)


def test_saved_and_loaded(trained, tmp_path):
    model, _ = trained
    expected = [[*row.values()] for row in model.predict(TEXTS)]
    model.save(tmp_path / "model.keras")
    model.save_pretrained(tmp_path / "folder")
    for again in (
        keras.models.load_model(tmp_path / "model.keras"),
        NumberEstimator.from_pretrained(tmp_path / "folder"),
    ):
        found = [[*row.values()] for row in again.predict(TEXTS)]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


# tests/test_doors.py has a teacher of a built-in kind.
@pytest.mark.slow
def test_a_model_learns_from_a_teacher(trained, start, tmp_path):
    teacher, _ = trained
    teacher.save_pretrained(tmp_path / "teacher")
    losses = []
    for given in (teacher, str(tmp_path / "teacher")):
        model = NumberEstimator.from_pretrained(start)
        fitted = model.fit(TEXTS, NUMBERS, teacher=given, verbose=0, **TRAINING)
        losses.append(fitted.history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_server_answers_what_predict_answers(trained):
    model, _ = trained
    # `export` writes this; below and in tests/serving it is written.
    answer = model._served().answer({"text": tf.constant(TEXTS)})
    for name in ("number", "deviation"):
        expected = [row[name] for row in model.predict(TEXTS)]
        np.testing.assert_allclose(answer[name], expected, rtol=1e-4)


@pytest.fixture
def scripted(start, tmp_path):
    """Returns a function that runs a task as a script does, with evaluation."""

    def call(task, *splits, **flags):
        flags = {
            **fine_tuning_runs.FLAGS,
            "init_checkpoint": str(start),
            "output_dir": str(tmp_path / "output"),
            **flags,
        }
        options = FineTuningOptions(**flags, do_eval=True)
        config, begin = resolve(options, "classifier")
        return fine_tune(config, begin, task, splits, name="numbers")

    return call


def test_the_scripts_train_to_the_same_weights(trained, scripted):
    model, _ = trained
    examples = model.examples(TEXTS, NUMBERS)
    result = scripted(
        model.make_task(dropout=0.0),
        *(Split(name, examples) for name in ("train", "dev")),
        max_seq_length=LENGTH,
        num_train_epochs=TRAINING["epochs"],
        random_seed=TRAINING["seed"],
    )
    again = NumberEstimator.from_pretrained(result.release)
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    scores = model.evaluate(TEXTS, NUMBERS, verbose=0)
    loss = pytest.approx(scores["loss"], rel=1e-2)
    assert result.metrics["eval_loss"] == loss


@pytest.fixture(scope="module")
def of_windows(start):
    """A model that reads texts in windows, and what it answers by hand."""
    model = NumberEstimator.from_pretrained(start, max_seq_length=8)
    model.doc_stride = 4
    cut = NumberEstimator(model.model, model.tokenizer, 8)
    outputs = []
    for text in TEXTS:
        # Each token is a word, and [CLS] and [SEP] take two positions.
        words = text.split()
        starts = range(0, max(len(words) - 6, 0) + 4, 4)
        parts = [" ".join(words[n : n + 6]) for n in starts]
        batch = cut.make_task().encoding.features(cut.examples(parts, None))
        logits = np.array(cut.model(batch.arrays)["logits"])
        outputs.append(logits.mean(axis=0))
    assert any(len(text.split()) > 10 for text in TEXTS)
    number, log_variance = np.transpose(outputs)
    return model, {"number": number, "deviation": np.exp(log_variance / 2)}


def test_windows_are_joined_to_the_answers_of_texts(of_windows):
    model, expected = of_windows
    answers = model.predict(TEXTS, batch_size=4)
    assert len(answers) == len(TEXTS)
    for name, values in expected.items():
        found = [row[name] for row in answers]
        np.testing.assert_allclose(found, values, rtol=1e-4)


def test_windows_are_scored_as_texts(of_windows, scripted):
    model, answers = of_windows
    number, deviation = answers.values()
    error = np.square((number - NUMBERS) / deviation)
    loss = pytest.approx(np.mean(np.log(deviation) + error / 2), rel=1e-4)
    scores = model.evaluate(TEXTS, NUMBERS, verbose=0)
    assert scores["loss"] == loss
    task = model.make_task(dropout=0.0)
    split = Split("dev", model.examples(TEXTS, NUMBERS))
    found = scripted(task, split, do_train=False, max_seq_length=8).metrics
    assert found["eval_loss"] == loss
    assert found["eval_spearman"] == pytest.approx(scores["spearman"])


@pytest.mark.parametrize(
    "format", ["tf1", pytest.param("huggingface", marks=pytest.mark.slow)]
)
def test_heads_of_other_kinds_are_not_used(start, tmp_path, format, caplog):
    """In both directions, although the heads have the same shape."""
    NumberEstimator.from_pretrained(start).save_pretrained(
        tmp_path / "number", format
    )
    classifier = bert_tf.TextClassifier.from_pretrained(
        tmp_path / "number", labels=["bad", "good"]
    )
    assert "its kind is UncertainNumber, not classifier" in caplog.text
    assert classifier.model.random_variables
    classifier.fit(TEXTS, ["bad", "good"] * 6, epochs=1, verbose=0)
    classifier.save_pretrained(tmp_path / "classifier", format)
    for kind, folder in (
        (NumberEstimator, "classifier"),
        (bert_tf.TextClassifier, "number"),
    ):
        with pytest.raises(InputError, match=r"no head of this kind\. Pass"):
            kind.from_pretrained(tmp_path / folder)
    estimator = NumberEstimator.from_pretrained(
        tmp_path / "classifier", num_labels=2
    )
    assert "its kind is classifier, not UncertainNumber" in caplog.text
    assert estimator.model.random_variables


def test_scripts_refuse_to_evaluate_another_kind(start, scripted):
    model = bert_tf.TextClassifier.from_pretrained(
        start, labels=["bad", "good"], max_seq_length=LENGTH
    )
    task = ClassificationTask(model.model.config, model._encoding())
    split = Split("dev", [Example("0", "a text", label="bad")])
    with pytest.raises(InputError, match="its kind is UncertainNumber, not"):
        scripted(task, split, do_train=False)
