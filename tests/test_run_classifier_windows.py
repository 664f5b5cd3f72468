"""run_classifier.py --doc_stride: long texts from files to answers."""

import random

import fine_tuning_runs
import in_process
import numpy as np
import pytest
import sentence_files
import tensorflow as tf
from fine_tuning_runs import (
    ANSWERS,
    assert_same,
    assert_same_answers,
    results,
    table,
    weights,
)

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.config import BertConfig
from bert_tf.kinds.classification.text_model import TextClassifier
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.variables import checkpoint_variables
from tests.serving.small_served import random_weights

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

COUNTS = {"train": 11, "dev": 9, "test": 7}
LENGTH, STRIDE = 11, 4


def write_data(folder, most):
    """Writes files whose texts have up to `most` tokens; returns the tests."""
    draw = random.Random(5)
    folder.mkdir()
    for split, count in COUNTS.items():
        texts = [
            " ".join(draw.choices(sentence_files.FILLERS, k=size))
            for size in (
                0,
                1,
                most - 1,
                *draw.choices(range(1, most - 1), k=count - 3),
            )
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
    start = fine_tuning_runs.write_release(folder / "start", ("0", "1"))
    # Larger weights, so that answers differ.
    config = BertConfig.from_json_file(str(start / "bert_config.json"))
    model = random_weights(BertClassifier(config, 2))
    variables = checkpoint_variables(model)
    checkpoints.write(
        str(start / "bert_model.ckpt"),
        {name: variable.numpy() for name, variable in variables.items()},
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


def test_there_is_one_answer_per_text(given, done):
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
    model = TextClassifier.from_pretrained(done / "release")
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


def test_scores_are_of_texts(given, done):
    _, _, flags = given
    model = TextClassifier.from_pretrained(done / "release")
    lines = (flags["data_dir"] / "dev.csv").read_text().split("\n")[1:-1]
    texts, labels = zip(*(line.split(",") for line in lines), strict=True)
    expected = model.evaluate(list(texts), list(labels))
    scores = results(done)
    assert scores["eval_accuracy"] == pytest.approx(expected["accuracy"])
    assert scores["eval_loss"] == pytest.approx(expected["loss"], rel=1e-4)


@pytest.mark.slow
def test_devices_do_not_matter(given, done, tmp_path, two_devices):
    flags = {**given[2], "init_checkpoint": done / "release"}
    flags |= two_devices
    fine_tuning_runs.run("run_classifier", tmp_path, **flags, **ANSWERS)
    assert_same_answers(tmp_path, done)


@pytest.mark.slow
def test_short_texts_are_trained_bit_for_bit_as_without(given, tmp_path):
    write_data(tmp_path / "short", LENGTH - 2)
    flags = {**given[2], "data_dir": tmp_path / "short", "do_eval": True}
    flags["train_batch_size"] = 4
    for name, change in (
        ("windows", {}),
        ("cut", {"doc_stride": None, "window_pooling": None}),
    ):
        fine_tuning_runs.run(
            "run_classifier", tmp_path / name, **{**flags, **change}
        )
    ours, theirs = (
        weights(tmp_path / name / "release" / "bert_model.ckpt")
        for name in ("windows", "cut")
    )
    assert_same(ours, theirs)
    assert results(tmp_path / "windows") == results(tmp_path / "cut")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_stride": None}, "--window_pooling needs --doc_stride."),
        (
            {"task_name": "swag"},
            "--doc_stride does not support multiple_choice.",
        ),
    ],
)
def test_invalid_combinations_of_options_are_refused(
    given, capsys, tmp_path, changes, message
):
    data = sentence_files.write(tmp_path / "swag", "swag")
    flags = {**given[2], "class_weights": None, **changes}
    if "task_name" in changes:
        flags["data_dir"] = data
        flags["init_checkpoint"] = None
        flags |= fine_tuning_runs.write_model(tmp_path / "model")
    fine_tuning_runs.run("run_classifier", tmp_path / "out", status=1, **flags)
    assert message in in_process.the_error(capsys, "run_classifier")
    assert not (tmp_path / "out").exists()
