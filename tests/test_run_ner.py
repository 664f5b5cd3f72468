"""run_ner.py from its command line to its files, in this process."""

import functools
import json

import conll_files
import fine_tuning_runs
import pytest
from fine_tuning_runs import (
    ANSWERS,
    error_of,
    files_of_a_run,
    names_in,
    results,
)

from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.tags.conll_files import read_conll
from bert_tf.tasks.metrics import entity_scores

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")


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


def test_the_files_of_a_run(done, data_dir):
    """Steps are counted from rows, of which long sentences take several."""
    manifest = json.loads((done / "manifest.train.tf_record.json").read_text())
    assert manifest["records"] > conll_files.COUNTS["train"]
    steps = int(manifest["records"] / 4)
    assert results(done)["global_step"] == steps
    records = ("train.tf_record", "eval.tf_record", "predict.tf_record")
    assert names_in(done) == files_of_a_run(steps, records=records) | {
        *("dev_predictions.txt", "test_predictions.txt"),
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
    loss = results(done)["eval_loss"]
    assert results(tmp_path)["eval_loss"] == pytest.approx(loss, rel=1e-4)
    for name in ("dev_predictions.txt", "test_predictions.txt"):
        ours, theirs = (
            [line.split(" ") for line in (f / name).read_text().splitlines()]
            for f in (tmp_path, done)
        )
        pairs = [*zip(ours, theirs, strict=True)]
        assert all(a[0] == b[0] for a, b in pairs)
        # Labels that are almost equally likely may change.
        same = [a[-1] == b[-1] for a, b in pairs if a[1:]]
        assert sum(same) > 0.97 * len(same)
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
