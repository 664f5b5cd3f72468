"""The classifier job, called from Python."""

import os
import types

import doc_pages
import fine_tuning_runs
import keras
import numpy as np
import pytest
import sentence_files
from checkout import ROOT

from bert_tf.errors import InputError
from bert_tf.jobs import classifier
from bert_tf.jobs.classifier import ClassifierConfig, Split
from bert_tf.options import OptionError
from bert_tf.tasks.examples import Example


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """The options of a small training."""
    folder = tmp_path_factory.mktemp("inputs")
    return {
        **fine_tuning_runs.FLAGS,
        **fine_tuning_runs.write_model(folder),
        "data_dir": sentence_files.write(folder / "data", "sst-2"),
        "task_name": "sst-2",
    }


def test_python_and_the_command_line_agree(options, tmp_path):
    """Several runs in one process give the same weights and results."""
    options = {**options, "do_eval": True, "mixed_precision": "bfloat16"}
    out = tmp_path / "python"
    trained = classifier.run(
        ClassifierConfig(**options, output_dir=out, do_export=True)
    )
    assert keras.config.dtype_policy().name == "float32"
    assert trained.release == str(out / "release")
    assert os.path.dirname(trained.export) == str(out / "export")
    written = fine_tuning_runs.results(out)
    assert written == {k: pytest.approx(v) for k, v in trained.metrics.items()}
    with fine_tuning_runs.classifier() as launch:
        words = {**options, "output_dir": tmp_path / "script"}
        assert launch(fine_tuning_runs.arguments(**words)) == 0
    fine_tuning_runs.assert_same(
        *(
            fine_tuning_runs.weights(
                tmp_path / name / "release" / "bert_model.ckpt"
            )
            for name in ("python", "script")
        )
    )
    options |= {"do_train": False, "init_checkpoint": trained.release}
    evaluated = classifier.run(
        ClassifierConfig(**options, output_dir=tmp_path / "other")
    )
    assert (evaluated.release, evaluated.export) == (None, None)
    np.testing.assert_allclose(
        evaluated.metrics["eval_loss"], trained.metrics["eval_loss"], rtol=1e-6
    )


def test_class_weights():
    """Balanced weights are n / (classes * count), as in scikit-learn."""
    labels = ["no", "yes", "no", "no"]
    train = [Example(str(i), "a", label=x) for i, x in enumerate(labels)]

    def weights(*words, problem="single_label"):
        config = ClassifierConfig(
            task_name="any", output_dir="out", class_weights=words or None
        )
        data_set = types.SimpleNamespace(problem=problem, labels=("no", "yes"))
        return classifier._class_weights(config, data_set, train)

    assert weights() is None
    np.testing.assert_allclose(weights("balanced"), [4 / (2 * 3), 4 / 2])
    assert weights("0.5", "2") == [0.5, 2.0]
    for words in (["balanced", "1"], ["1", "x"]):
        with pytest.raises(InputError, match="--class_weights must be"):
            weights(*words)
    with pytest.raises(InputError, match="got 'balanced'"):
        weights("balanced", problem="multi_label")


class Estimator:
    """Has the number of examples as its accuracy."""

    def evaluate(self, features):
        return {"eval_accuracy": features, "loss": 0.5, "global_step": 11}


def test_metrics_have_the_suffix_of_their_part():
    tuning = types.SimpleNamespace(evaluation_data=lambda features: features)
    splits = [Split([], 2), Split([], 3, "_mismatched")]
    assert classifier._evaluate(splits, tuning, Estimator()) == {
        "eval_accuracy": 2,
        "loss": 0.5,
        "eval_accuracy_mismatched": 3,
        "loss_mismatched": 0.5,
        "global_step": 11,
    }


def test_mistakes_are_exceptions(options, tmp_path):
    with pytest.raises(OptionError, match=r"--num_seeds must be at least 1"):
        ClassifierConfig(**options, output_dir="x", num_seeds=0)
    with pytest.raises(OptionError, match=r"--do_train must be true or false"):
        ClassifierConfig(**{**options, "do_train": "yes"}, output_dir="x")
    with pytest.raises(TypeError, match="output_dir"):
        ClassifierConfig(**options)
    with pytest.raises(InputError, match="--do_train, --do_eval"):
        classifier.run(
            ClassifierConfig(task_name="cola", output_dir=tmp_path / "x")
        )
    assert not (tmp_path / "x").exists()


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    """On CoLA as small as can be, with the model that the page names."""
    monkeypatch.chdir(tmp_path)
    sentence_files.write(tmp_path / "glue_data" / "CoLA", "cola")
    fine_tuning_runs.write_release(
        tmp_path / "uncased_L-12_H-768_A-12", ("0", "1")
    )
    [block] = doc_pages.blocks(ROOT / "docs" / "scripts.md", "python")
    shorter = "init_checkpoint=", "max_seq_length=23, init_checkpoint="
    code = block.text.replace(*shorter)
    namespace = {}
    exec(compile(code, "docs/scripts.md", "exec"), namespace)
    assert "eval_mcc" in namespace["result"].metrics
