"""--teacher of the fine-tuning scripts, from command lines to files."""

import functools
import shutil

import fine_tuning_runs
import numpy as np
import pytest
import sentence_files
from fine_tuning_runs import (
    WITHOUT_DROPOUT,
    assert_same,
    error_of,
    names_in,
    read,
    results,
    sentences,
    spans,
    tags,
    weights,
)

from bert_tf.kinds.tags import task as tagging
from bert_tf.modeling.heads import BertTokenClassifier

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

TEACHER = {"hidden_size": 12, "num_hidden_layers": 2}
LAST = "model.ckpt-3"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns a function that makes a run of a kind and its teacher."""

    @functools.cache
    def made(kind):
        folder = tmp_path_factory.mktemp("inputs")
        script, words, flags = kind(folder)
        run = functools.partial(fine_tuning_runs.run, script, **flags)
        model = fine_tuning_runs.write_model(folder, words)
        large = fine_tuning_runs.write_model(folder / "large", words, **TEACHER)
        run(folder / "teacher", **large, num_train_epochs=1)
        return functools.partial(run, **model), folder / "teacher/release"

    return made


@pytest.fixture(scope="module")
def run(runs):
    """Runs the classifier with its teacher and some changes."""
    script, release = runs(sentences)
    flags = {"do_eval": True, "num_train_epochs": 1}
    return functools.partial(script, teacher=release, **flags)


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    run(folder, save_checkpoints_steps=2)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", [sentences, spans, tags])
def test_the_share_of_the_teacher(runs, tmp_path, kind):
    """With 0 the run is the one without a teacher, bit for bit."""
    run, release = runs(kind)
    shares = {"none": {}, "zero": {"distillation_weight": 0}, "all": {}}
    for name, share in shares.items():
        teacher = None if name == "none" else release
        run(tmp_path / name, teacher=teacher, num_train_epochs=1, **share)
    none, zero, all_ = (
        read(tmp_path / name / "release/bert_model.ckpt") for name in shares
    )
    assert_same(none, zero)
    assert none.keys() == all_.keys()
    assert any((none[name] != all_[name]).any() for name in none)
    assert names_in(tmp_path / "none") == names_in(tmp_path / "all")


def other_teacher(folder, release, labels=("0", "1")):
    """Returns a copy of a release with swapped classes."""
    shutil.copytree(release, folder)
    fine_tuning_runs.swap_classes(folder, labels)
    return folder


def test_labels_of_the_teacher_may_be_in_another_order(
    run, runs, done, tmp_path
):
    _, release = runs(sentences)
    labels = ("POSITIVE", "negative")
    teacher = other_teacher(tmp_path / "other", release, labels)
    run(tmp_path / "out", teacher=teacher)
    assert_same(read(tmp_path / "out" / LAST), read(done / LAST))


@pytest.mark.slow
def test_a_run_resumes_with_its_teacher_only(run, runs, done, tmp_path, capsys):
    """It then has the same weights and moments, bit for bit."""
    copy = shutil.copytree(done, tmp_path / "copy")
    for path in [*copy.glob(f"{LAST}.*"), *copy.glob("release/*")]:
        path.unlink()
    run(copy)
    assert_same(read(copy / LAST), read(done / LAST))
    assert results(copy) == results(done)
    # A finished run can be used without it, but not continued.
    _, release = runs(sentences)
    for teacher, words in (
        (None, "not None"),
        (other_teacher(tmp_path / "other", release), "not '"),
    ):
        line = error_of(capsys, run, copy, teacher=teacher)
        assert "holds a run with teacher=" in line
        assert words in line
    run(copy, teacher=None, do_train=None)
    assert results(copy) == results(done)


@pytest.mark.slow
def test_unlabeled_texts(run, runs, tmp_path):
    """They are examples without a loss of their labels."""
    data = sentence_files.write(tmp_path / "data", "sst-2")
    header, *rows = (data / "train.tsv").read_text().splitlines()
    texts = tmp_path / "texts.csv"
    withheld = [row.split("\t")[0] for row in rows[2:]]
    texts.write_text("\n".join(["words", *withheld]) + "\n")
    (data / "train.tsv").write_text("\n".join([header, *rows[:2]]) + "\n")
    alone, _ = runs(sentences)
    model = fine_tuning_runs.write_model(tmp_path, **WITHOUT_DROPOUT)
    flags = {**model, "head_dropout": 0, "data_dir": data}
    flags |= {"class_weights": "balanced", "num_train_epochs": 1}
    alone(tmp_path / "alone", **flags, train_batch_size=2)
    flags |= {"unlabeled_file": texts, "text_a_column": "words"}
    flags["train_batch_size"] = len(rows)
    run(tmp_path / "zero", **flags, distillation_weight=0)
    run(tmp_path / "half", **flags, distillation_weight=0.5)
    one, zero, half = (
        comparable(weights(tmp_path / name / "model.ckpt-1"))
        for name in ("alone", "zero", "half")
    )
    assert_same(one, zero, atol=1e-5)
    name = "output_weights"
    assert np.abs(half[name] - one[name]).max() > 1e-3


@pytest.mark.slow
def test_several_seeds_and_the_best_evaluation(run, tmp_path, caplog):
    """The teacher computes its outputs once."""
    run(tmp_path, num_seeds=2, save_best="eval_accuracy", eval_steps=2)
    assert caplog.text.count("Outputs of the teacher") == 1
    assert len(list((tmp_path / "trials").iterdir())) == 2
    caplog.clear()
    run(tmp_path, num_seeds=2, save_best="eval_accuracy", eval_steps=2)
    assert "Outputs of the teacher" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [sentences, spans, tags])
def test_devices_and_micro_batches_do_not_matter(
    runs, tmp_path, monkeypatch, two_devices, kind
):
    run, release = runs(kind)
    _, words, _ = kind(tmp_path)
    flags = fine_tuning_runs.write_model(tmp_path, words, **WITHOUT_DROPOUT)
    # run_ner.py has no flag for the dropout of its head.
    tagger = functools.partial(BertTokenClassifier, dropout=0.0)
    monkeypatch.setattr(tagging, "BertTokenClassifier", tagger)
    flags |= {"teacher": release, "train_batch_size": 8}
    if kind is sentences:
        flags["head_dropout"] = 0.0
    run(tmp_path / "one", **flags)
    run(tmp_path / "two", **flags, **two_devices, gradient_accumulation_steps=2)
    one, two = (
        comparable(weights(tmp_path / name / "release/bert_model.ckpt"))
        for name in ("one", "two")
    )
    assert_same(one, two, atol=1e-5)


def comparable(tensors):
    """Leaves out what no loss depends on: Adam amplifies the rounding."""
    names = ("key/bias", "squad/output_bias")
    return {k: v for k, v in tensors.items() if not k.endswith(names)}
