"""--teacher of the fine-tuning scripts, from command lines to files."""

import functools
import math
import shutil

import conll_files
import fine_tuning_runs
import numpy as np
import pytest
import sentence_files
import squad_files
from fine_tuning_runs import (
    LENGTH,
    WITHOUT_DROPOUT,
    assert_same,
    contents,
    error_of,
    names_in,
    read,
    results,
    weights,
)

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.checkpoint import Pretrained, write_metadata
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.tags import task as tagging
from bert_tf.modeling.heads import BertTokenClassifier
from bert_tf.training import distribution
from tests.training import toy_task

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

TEACHER = {"hidden_size": 12, "num_hidden_layers": 2}
SQUAD = {"max_seq_length": 29, "doc_stride": 7, "max_query_length": 5}
LAST = "model.ckpt-3"


def sentences(folder):
    files = {"data_dir": sentence_files.write(folder / "data", "sst-2")}
    return (
        "run_classifier",
        sentence_files.VOCAB,
        {**files, "task_name": "sst-2"},
    )


def spans(folder):
    train = squad_files.questions(11, seed=1)
    path = squad_files.write(folder / "train.json", train, "1.1")
    return "run_squad", squad_files.VOCAB, {**SQUAD, "train_file": path}


def tags(folder):
    data_dir = conll_files.write(folder / "data")
    return "run_ner", sentence_files.VOCAB, {"data_dir": data_dir}


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


def write_teacher(folder, release, labels=("0", "1"), swap=False, **changes):
    """Writes a copy of a release with other facts."""
    found = open_pretrained(release)
    folder.mkdir()
    tensors = {name: found.weights[name] for name in found.weights.shapes}
    if swap:
        for name in ("output_weights", "output_bias"):
            tensors[name] = tensors[name][::-1].copy()
    checkpoints.write(str(folder / "bert_model.ckpt"), tensors)
    facts = {
        "vocab": found.vocab,
        "do_lower_case": True,
        "head": "classifier",
        "labels": labels,
        **changes,
    }
    write_metadata(str(folder), Pretrained("", {}, found.config, **facts))
    return folder


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(("1", "0"), marks=pytest.mark.slow),
        ("POSITIVE", "negative"),
    ],
    ids=" ".join,
)
def test_labels_of_the_teacher_may_be_in_another_order(
    run, runs, done, tmp_path, labels
):
    _, release = runs(sentences)
    other = write_teacher(tmp_path / "other", release, labels, swap=True)
    run(tmp_path / "out", teacher=other)
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
    before = contents(copy)
    _, release = runs(sentences)
    for teacher, words in (
        (None, "not None"),
        (write_teacher(tmp_path / "other", release, swap=True), "not '"),
    ):
        line = error_of(capsys, run, copy, teacher=teacher)
        assert "holds a run with teacher=" in line
        assert words in line
        assert contents(copy) == before
    run(copy, teacher=None, do_train=None)
    assert results(copy) == results(done)


@pytest.mark.slow
@pytest.mark.parametrize("doc_stride", [None, 5])
def test_unlabeled_texts(run, runs, tmp_path, doc_stride):
    """They are examples without a loss of their labels.

    With windows they are longer than the labeled ones, which have one each.
    """
    data = sentence_files.write(tmp_path / "data", "sst-2")
    header, *rows = (data / "train.tsv").read_text().splitlines()
    texts = tmp_path / "texts.csv"
    withheld = [row.split("\t")[0] for row in rows[2:]]
    num_rows = len(rows)
    if doc_stride:
        withheld = [" ".join([text] * 9) for text in withheld]
        extra = [len(text.split()) - LENGTH + 2 for text in withheld]
        num_rows += sum(math.ceil(max(n, 0) / doc_stride) for n in extra)
        assert num_rows > 3 * len(rows)
    texts.write_text("\n".join(["words", *withheld]) + "\n")
    (data / "train.tsv").write_text("\n".join([header, *rows[:2]]) + "\n")
    alone, _ = runs(sentences)
    model = fine_tuning_runs.write_model(tmp_path, **WITHOUT_DROPOUT)
    flags = {**model, "head_dropout": 0, "data_dir": data}
    flags |= {"class_weights": "balanced", "num_train_epochs": 1}
    flags["doc_stride"] = doc_stride
    alone(tmp_path / "alone", **flags, train_batch_size=2)
    flags |= {"unlabeled_file": texts, "text_a_column": "words"}
    flags["train_batch_size"] = num_rows
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
    runs, tmp_path, monkeypatch, kind
):
    makers = distribution._MAKERS
    monkeypatch.setitem(makers, "mirrored", lambda _: toy_task.two_devices())
    run, release = runs(kind)
    changes = fine_tuning_runs.write_model(
        tmp_path,
        squad_files.VOCAB if kind is spans else sentence_files.VOCAB,
        **WITHOUT_DROPOUT,
    )
    # run_ner.py has no flag for the dropout of its head.
    tagger = functools.partial(BertTokenClassifier, dropout=0.0)
    monkeypatch.setattr(tagging, "BertTokenClassifier", tagger)
    flags = {**changes, "teacher": release, "train_batch_size": 8}
    if kind is sentences:
        flags["head_dropout"] = 0.0
    run(tmp_path / "one", **flags)
    flags["gradient_accumulation_steps"] = 2
    run(tmp_path / "two", **flags, distribution_strategy="mirrored")
    one, two = (
        comparable(weights(tmp_path / name / "release/bert_model.ckpt"))
        for name in ("one", "two")
    )
    assert_same(one, two, atol=1e-5)


def comparable(tensors):
    """Leaves out what no loss depends on: Adam amplifies the rounding."""
    names = ("key/bias", "squad/output_bias")
    return {k: v for k, v in tensors.items() if not k.endswith(names)}
