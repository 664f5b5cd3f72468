"""run_ner.py from its command line to its files, in this process."""

import json
import os
import shutil
import signal

import conll_files
import fine_tuning_runs
import in_process
import pytest
from fine_tuning_runs import (
    ANSWERS,
    assert_same,
    contents,
    names_in,
    read,
    results,
)

from bert_tf.jobs import fine_tuning
from bert_tf.metrics import entity_scores
from bert_tf.pretrained import open_pretrained
from bert_tf.tasks.ner import read_conll

NAMES = ("f1", "precision", "recall")


@pytest.fixture(scope="module")
def launch():
    with in_process.script("run_ner", ["output_dir"]) as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The flags that name the model's files and the data."""
    folder = tmp_path_factory.mktemp("inputs")
    data = conll_files.write(folder / "data")
    return {**fine_tuning_runs.write_model(folder), "data_dir": data}


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    return fine_tuning_runs.do_everything(launch, inputs, folder)


@pytest.fixture
def run(launch, inputs):
    return fine_tuning_runs.runner(launch, inputs)


def score_of(path):
    """The metrics of a file with gold and predicted tags."""
    gold, predicted = (
        [s.tags for s in read_conll(str(path), tag_column=column).sentences]
        for column in (-2, -1)
    )
    return entity_scores(gold, predicted)


def assert_has_all_lines(path, source):
    """All columns are there, the gold tag in IOB2 and a known predicted tag."""
    written = path.read_text(encoding="utf-8").split("\n")
    lines = source.read_text(encoding="utf-8").split("\n")
    rows = [line.split(" ") for line in written]
    others = [line.rpartition(" ")[0] for line in lines]
    assert [" ".join(row[:-2]) for row in rows] == others
    gold, predicted = zip(*(row[-2:] for row in rows if row[1:]), strict=True)
    assert {*predicted} <= {*conll_files.LABELS}
    read = read_conll(str(source)).sentences
    marks = [tag[0] for tag in gold]
    assert marks.count("B") == sum(
        tag[0] == "B" for sentence in read for tag in sentence.tags
    )


def assert_same_predictions(folder, expected, columns=None):
    """The loss is the same, and so are nearly all predicted tags.

    The processor may decide between labels that are almost equally likely.

    Args:
      folder: A folder of predictions.
      expected: Another folder.
      columns: Number of columns to compare before the tag in the files of the
        test split; None for all.
    """
    loss = results(expected)["eval_loss"]
    assert results(folder)["eval_loss"] == pytest.approx(loss, rel=1e-4)
    for split, count in {"dev": None, "test": columns}.items():
        ours, theirs = (
            [line.split(" ") for line in path.read_text().splitlines()]
            for path in (
                folder / f"{split}_predictions.txt",
                expected / f"{split}_predictions.txt",
            )
        )
        assert [row[:-1][:count] for row in ours] == [
            row[:-1][:count] for row in theirs
        ]
        pairs = zip(ours, theirs, strict=True)
        same = [a[-1] == b[-1] for a, b in pairs if a[1:]]
        assert sum(same) > 0.97 * len(same)


def test_the_files_of_a_run(done):
    steps = int(results(done)["global_step"])
    assert names_in(done) == {
        "checkpoint",
        "dev_predictions.txt",
        "eval.tf_record",
        "eval_results.json",
        "eval_results.txt",
        "events.out.tfevents",
        "fine_tuning.json",
        "manifest.eval.tf_record.json",
        "manifest.predict.tf_record.json",
        "manifest.train.tf_record.json",
        f"model.ckpt-{steps}.data-00000-of-00001",
        f"model.ckpt-{steps}.index",
        "predict.tf_record",
        "release/bert_config.json",
        "release/bert_model.ckpt.data-00000-of-00001",
        "release/bert_model.ckpt.index",
        "release/bert_tf.json",
        "release/vocab.txt",
        "test_predictions.txt",
        "train.tf_record",
    }


def test_steps_are_counted_from_rows(done):
    """Long sentences take several rows; 12 sentences alone would be 6 steps."""
    manifest = json.loads((done / "manifest.train.tf_record.json").read_text())
    assert manifest["records"] > conll_files.COUNTS["train"]
    assert results(done)["global_step"] == int(manifest["records"] / 4 * 2)


def test_predictions_follow_their_words(done, inputs):
    for split in ("dev", "test"):
        assert_has_all_lines(
            done / f"{split}_predictions.txt",
            inputs["data_dir"] / f"{split}.txt",
        )


def test_results_agree_with_the_predictions(done):
    metrics = results(done)
    del metrics["global_step"]
    assert metrics.pop("eval_loss") > 0
    expected = score_of(done / "dev_predictions.txt")
    expected = {f"eval_{name}": value for name, value in expected.items()}
    assert metrics == pytest.approx(expected)
    types = conll_files.TYPES.values()
    overall = {f"eval_{name}" for name in (*NAMES, "accuracy")}
    of_types = {f"eval_{kind}_{name}" for kind in types for name in NAMES}
    assert {*metrics} == overall | of_types
    written = json.loads((done / "eval_results.json").read_text())
    assert written["train_seconds"] > 0
    assert written["eval_f1"] == metrics["eval_f1"]


def test_the_release_gives_the_same_tags(done, run, inputs, tmp_path):
    """Padded, with the files of the release only, and words without tags."""
    released = open_pretrained(str(done / "release"))
    assert released.labels == conll_files.LABELS
    assert released.head == "token"
    words = inputs["data_dir"] / "test.txt"
    bare = tmp_path / "bare.txt"
    lines = words.read_text(encoding="utf-8").split("\n")
    bare.write_text("\n".join(line.partition(" ")[0] for line in lines))
    folder = tmp_path / "out"
    run(
        folder,
        **ANSWERS,
        init_checkpoint=done / "release",
        bert_config_file=None,
        vocab_file=None,
        padding="max_length",
        test_file=bare,
    )
    assert_same_predictions(folder, done, columns=1)
    assert not (folder / "release").exists()


def test_other_names_of_labels_are_logged(done, run, tmp_path, caplog):
    given = ["O", "B-X", *conll_files.LABELS[2:]]
    words = {**ANSWERS, "do_eval": None, "init_checkpoint": done / "release"}
    run(tmp_path / "out", **words, labels=",".join(given))
    theirs = ", ".join(conll_files.LABELS)
    message = f"labels {theirs} to {', '.join(given)}, in this order"
    assert message in caplog.text
    caplog.clear()
    run(tmp_path / "out2", **words, labels=",".join(conll_files.LABELS[::-1]))
    assert "in this order" not in caplog.text


@pytest.mark.slow
def test_words_are_learned(run, tmp_path):
    """The training set has every word about ten times."""
    train = tmp_path / "train.txt"
    train.write_text(conll_files.text_of("more", 60), encoding="utf-8")
    folder = tmp_path / "out"
    run(folder, do_eval=True, num_train_epochs=12, train_file=train)
    assert results(folder)["eval_f1"] > 0.9


@pytest.mark.slow
def test_the_best_of_two_seeds_by_f1(run, tmp_path):
    run(tmp_path, do_eval=True, num_seeds=2, num_train_epochs=1)
    trials = (tmp_path / "trials.tsv").read_text().splitlines()
    assert len(trials) >= 3
    assert "eval_f1" in results(tmp_path)


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_weights(
    done, run, tmp_path, monkeypatch
):
    [last] = [path.stem for path in done.glob("model.ckpt-*.index")]

    class Stop(fine_tuning.Progress):
        def after_steps(self, step, records):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(fine_tuning, "Progress", Stop)
        run(tmp_path, status=128 + signal.SIGTERM)
    assert not (tmp_path / f"{last}.index").exists()
    run(tmp_path)
    assert_same(read(tmp_path / last), read(done / last))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"do_train": None},
            "one or several of --do_train, --do_eval, --do_predict",
        ),
        ({"data_dir": None}, "Pass --data_dir or --train_file"),
        ({"data_dir": "nowhere"}, "expected one of train.txt"),
        ({"train_file": "none.txt"}, "Cannot read none.txt"),
        ({"tag_column": 3}, "--tag_column must be from -3 to 2"),
        ({"tag_column": 0}, "--tag_column must be another column"),
        ({"tag_column": 1}, "found 'X'"),
        ({"labels": "O,B-PER"}, "is not one of the labels O and B-PER"),
        ({"labels": "O,PER"}, "O, B-TYPE or I-TYPE; got 'PER'"),
        ({"save_best": "mcc"}, "--save_best must be one of eval_f1"),
        ({"max_seq_length": 31}, "max_seq_length"),
        ({"train_batch_size": 1000}, "so that training has no step"),
        (
            {"do_train": None, "do_eval": True},
            "Pass --do_train or --labels, or a model",
        ),
    ],
)
def test_errors_are_one_line(run, tmp_path, capsys, changes, message):
    run(tmp_path / "out", status=1, **changes)
    assert message in in_process.the_error(capsys, "run_ner")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_labels_is_not_overwritten(
    done, run, tmp_path, capsys
):
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    before = contents(folder)
    labels = ",".join([*conll_files.LABELS, "B-X", "I-X"])
    run(folder, status=1, labels=labels)
    assert "holds a run with labels" in in_process.the_error(capsys, "run_ner")
    assert contents(folder) == before
