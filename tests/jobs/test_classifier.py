"""The classifier job, called from Python."""

import os

import doc_pages
import fine_tuning_runs
import keras
import numpy as np
import pytest
import sentence_files
from checkout import ROOT

from bert_tf.errors import InputError
from bert_tf.jobs import classifier
from bert_tf.jobs.classifier import ClassifierConfig
from bert_tf.options import OptionError


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


def test_a_run_returns_what_the_script_writes(options, tmp_path):
    """Twice in one process, with and without training."""
    config = ClassifierConfig(
        **options,
        output_dir=tmp_path / "python",
        do_eval=True,
        do_export=True,
        mixed_precision="bfloat16",
    )
    trained = classifier.run(config)
    assert keras.config.dtype_policy().name == "float32"
    assert trained.release == str(tmp_path / "python" / "release")
    assert os.path.dirname(trained.export) == str(tmp_path / "python/export")
    written = fine_tuning_runs.results(tmp_path / "python")
    assert written == {k: pytest.approx(v) for k, v in trained.metrics.items()}
    evaluated = classifier.run(
        ClassifierConfig(
            **{**options, "do_train": False},
            output_dir=tmp_path / "other",
            init_checkpoint=trained.release,
            do_eval=True,
            mixed_precision="bfloat16",
        )
    )
    assert (evaluated.release, evaluated.export) == (None, None)
    np.testing.assert_allclose(
        evaluated.metrics["eval_loss"], trained.metrics["eval_loss"], rtol=1e-6
    )


def test_a_command_line_gives_the_same_weights(options, tmp_path):
    with fine_tuning_runs.classifier() as launch:
        words = fine_tuning_runs.arguments(
            **options, output_dir=tmp_path / "script"
        )
        assert launch(words) == 0
    classifier.run(ClassifierConfig(**options, output_dir=tmp_path / "python"))
    fine_tuning_runs.assert_same(
        fine_tuning_runs.weights(tmp_path / "script/release/bert_model.ckpt"),
        fine_tuning_runs.weights(tmp_path / "python/release/bert_model.ckpt"),
    )


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
