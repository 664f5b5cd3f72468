"""run_classifier.py --doc_stride: long texts from files to answers."""

import random

import fine_tuning_runs
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from fine_tuning_runs import (
    ANSWERS,
    assert_same_answers,
    results,
    table,
)

from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.classification.text_model import TextClassifier
from bert_tf.modeling.heads import BertClassifier
from tests.serving.small_served import random_weights

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

COUNTS = {"train": 11, "dev": 9, "test": 7}
LENGTH, STRIDE = 11, 4


def write_data(folder, most):
    """Writes files whose texts have up to `most` tokens; returns the tests."""
    draw = random.Random(5)
    folder.mkdir()
    for split, count in COUNTS.items():
        more = draw.choices(range(1, most - 1), k=count - 3)
        texts = [
            " ".join(draw.choices(sentence_files.FILLERS, k=size))
            for size in (0, 1, most - 1, *more)
        ]
        # The last word decides.
        texts = [
            f"{text} {sentence_files.TELLING[n % 2]}".strip()
            for n, text in enumerate(texts)
        ]
        rows = [f"{text},{n % 2}" for n, text in enumerate(texts)]
        lines = "\n".join(["text,label", *rows])
        (folder / f"{split}.csv").write_text(f"{lines}\n")
    return texts, [row[-1] for row in rows]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    texts, labels = write_data(folder / "data", 47)
    # Large weights, so that answers differ.
    model = random_weights(BertClassifier(fine_tuning_runs.config_of(), 2))
    start = fine_tuning_runs.write_start(
        folder / "start", model, labels=("0", "1")
    )
    flags = {
        "task_name": "custom",
        "data_dir": folder / "data",
        "init_checkpoint": start,
        "class_weights": "balanced",
        "max_seq_length": LENGTH,
        "doc_stride": STRIDE,
        "window_pooling": "max",
        "save_checkpoints_steps": 5,
        "num_train_epochs": 1,
        "train_batch_size": 16,
    }
    return texts, labels, flags


@pytest.fixture(scope="module")
def done(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    fine_tuning_runs.run(
        "run_classifier", folder, **given[2], do_eval=True, do_predict=True
    )
    return folder


@pytest.fixture(scope="module")
def model(done):
    return TextClassifier.from_pretrained(done / "release")


def test_there_is_one_answer_per_text(given, done, model):
    """The same as of the text model, and of the model that is exported."""
    texts, _, _ = given
    rows = table(done / "predictions.tsv")[1:]
    assert [row[1] for row in rows] == texts
    found = np.array([row[-2:] for row in rows], float)
    assert len(table(done / "test_results.tsv")) == len(texts)
    released = open_pretrained(done / "release")
    assert released.trained_with == {
        "max_seq_length": LENGTH,
        "doc_stride": STRIDE,
        "window_pooling": "max",
        "is_pair": False,
    }
    answers = [[*a["probabilities"].values()] for a in model.predict(texts)]
    np.testing.assert_allclose(found, answers, atol=1e-5)
    assert np.std(answers, axis=0).min() > 1e-3
    served = model._served()
    inputs = {"text": tf.constant(texts)}
    np.testing.assert_allclose(
        served.answer(inputs)["probabilities"], answers, atol=1e-5
    )
    tokens = served.tokenize(inputs)
    counts = tokens["num_windows"].numpy()
    assert counts.max() > 9
    assert counts.min() == 1
    assert tokens["input_ids"].shape == (len(texts), counts.max(), LENGTH)


def test_predictions_with_recorded_options(given, done, tmp_path):
    recorded = ("max_seq_length", "doc_stride", "window_pooling")
    flags = {**given[2], **dict.fromkeys(recorded), **ANSWERS}
    flags["init_checkpoint"] = done / "release"
    fine_tuning_runs.run("run_classifier", tmp_path, **flags)
    assert_same_answers(tmp_path, done)


def test_scores_are_of_texts(given, done, model):
    lines = (given[2]["data_dir"] / "dev.csv").read_text().split("\n")[1:-1]
    texts, labels = zip(*(line.split(",") for line in lines), strict=True)
    expected = model.evaluate(list(texts), list(labels))
    scores = results(done)
    assert scores["eval_accuracy"] == pytest.approx(expected["accuracy"])
    assert scores["eval_loss"] == pytest.approx(expected["loss"], rel=1e-4)
