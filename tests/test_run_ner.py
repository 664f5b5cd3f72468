"""run_ner.py from its command line to its files, in this process."""

import functools
import json

import conll_files
import fine_tuning_runs
import pytest
from fine_tuning_runs import (
    ANSWERS,
    error_of,
    names_in,
    results,
)

from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.tags.conll_files import read_conll
from bert_tf.tasks.metrics import entity_scores

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

NAMES = ("f1", "precision", "recall")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return conll_files.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """Runs the script with the usual flags and some changes."""
    model = fine_tuning_runs.write_model(tmp_path_factory.mktemp("model"))
    return functools.partial(
        fine_tuning_runs.run, "run_ner", **model, data_dir=data_dir
    )


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    run(folder, do_eval=True, do_predict=True, num_train_epochs=1)
    return folder


def assert_same_predictions(folder, expected, columns=None):
    """The loss is the same, and so are nearly all predicted tags.

    The processor may decide between labels that are almost equally likely.
    Of the test split, only some columns before the tag are compared, if given.
    """
    loss = results(expected)["eval_loss"]
    assert results(folder)["eval_loss"] == pytest.approx(loss, rel=1e-4)
    for split, count in {"dev": None, "test": columns}.items():
        name = f"{split}_predictions.txt"
        ours, theirs = (
            [line.split(" ") for line in (f / name).read_text().splitlines()]
            for f in (folder, expected)
        )
        assert [row[:-1][:count] for row in ours] == [
            row[:-1][:count] for row in theirs
        ]
        pairs = zip(ours, theirs, strict=True)
        same = [a[-1] == b[-1] for a, b in pairs if a[1:]]
        assert sum(same) > 0.97 * len(same)


def test_the_files_of_a_run(done, data_dir):
    """Steps are counted from rows, of which long sentences take several."""
    manifest = json.loads((done / "manifest.train.tf_record.json").read_text())
    assert manifest["records"] > conll_files.COUNTS["train"]
    steps = int(manifest["records"] / 4)
    assert results(done)["global_step"] == steps
    records = ("train.tf_record", "eval.tf_record", "predict.tf_record")
    assert names_in(done) == {
        *("checkpoint", "eval_results.json", "eval_results.txt"),
        *("events.out.tfevents", "fine_tuning.json"),
        *("dev_predictions.txt", "test_predictions.txt", *records),
        *(f"manifest.{name}.json" for name in records),
        f"model.ckpt-{steps}.data-00000-of-00001",
        f"model.ckpt-{steps}.index",
        *("release/bert_config.json", "release/vocab.txt"),
        "release/bert_model.ckpt.data-00000-of-00001",
        *("release/bert_model.ckpt.index", "release/bert_tf.json"),
    }
    for split in ("dev", "test"):
        lines = (done / f"{split}_predictions.txt").read_text().split("\n")
        source = (data_dir / f"{split}.txt").read_text().split("\n")
        ours, theirs = (
            [line.split(" ")[:-columns] for line in text]
            for text, columns in ((lines, 2), (source, 1))
        )
        assert ours == theirs


def test_results_agree_with_the_predictions(done):
    path = str(done / "dev_predictions.txt")
    gold, predicted = (
        [s.tags for s in read_conll(path, tag_column=column).sentences]
        for column in (-2, -1)
    )
    scores = entity_scores(gold, predicted)
    metrics = results(done)
    del metrics["global_step"]
    assert metrics.pop("eval_loss") > 0
    expected = {f"eval_{name}": value for name, value in scores.items()}
    assert metrics == pytest.approx(expected)
    types = conll_files.TYPES.values()
    overall = {f"eval_{name}" for name in (*NAMES, "accuracy")}
    of_types = {f"eval_{kind}_{name}" for kind in types for name in NAMES}
    assert {*metrics} == overall | of_types


def test_the_release_gives_the_same_tags(done, run, data_dir, tmp_path):
    """With the files of the release only, and words without tags."""
    released = open_pretrained(str(done / "release"))
    assert (released.head, released.labels) == ("token", conll_files.LABELS)
    words = (data_dir / "test.txt").read_text(encoding="utf-8").split("\n")
    bare = tmp_path / "bare.txt"
    bare.write_text("\n".join(line.partition(" ")[0] for line in words))
    run(
        tmp_path,
        **ANSWERS,
        init_checkpoint=done / "release",
        bert_config_file=None,
        vocab_file=None,
        test_file=bare,
    )
    assert_same_predictions(tmp_path, done, columns=1)
    assert not (tmp_path / "release").exists()


def test_other_names_of_labels_are_logged(done, run, tmp_path, caplog):
    given = ["O", "B-X", *conll_files.LABELS[2:]]
    words = {**ANSWERS, "do_eval": None, "init_checkpoint": done / "release"}
    run(tmp_path, **words, labels=",".join(given))
    theirs = ", ".join(conll_files.LABELS)
    message = f"labels {theirs} to {', '.join(given)}, in this order"
    assert message in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_dir": None}, "Pass --data_dir or --train_file"),
        ({"data_dir": "nowhere"}, "expected one of train.txt"),
        ({"tag_column": 3}, "--tag_column must be from -3 to 2"),
        ({"labels": "O,B-PER"}, "is not one of the labels O and B-PER"),
        ({"do_train": None, "do_eval": True}, "Pass --do_train or --labels"),
    ],
)
def test_invalid_flags_and_files_are_errors(
    run, tmp_path, capsys, changes, message
):
    assert message in error_of(capsys, run, tmp_path / "out", **changes)


@pytest.mark.slow
def test_words_are_learned(run, tmp_path):
    """The training set has every word about ten times."""
    train = tmp_path / "train.txt"
    train.write_text(conll_files.text_of("more", 60), encoding="utf-8")
    flags = {"do_eval": True, "num_train_epochs": 12, "train_file": train}
    run(tmp_path / "out", **flags)
    assert results(tmp_path / "out")["eval_f1"] > 0.9
