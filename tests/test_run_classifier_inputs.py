"""Errors of run_classifier.py: one line, and nothing is written."""

import functools
import shutil

import fine_tuning_runs
import pytest
import sentence_files
from fine_tuning_runs import ANSWERS, error_of

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the script on RTE, with the usual flags and some changes."""
    folder = tmp_path_factory.mktemp("inputs")
    return functools.partial(
        fine_tuning_runs.run,
        "run_classifier",
        **fine_tuning_runs.write_model(folder),
        data_dir=sentence_files.write(folder / "data", "rte"),
        task_name="rte",
    )


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("done")
    run(folder, num_train_epochs=1)
    return folder


@pytest.fixture
def says(run, capsys, tmp_path):
    """Returns the error of a run that fails, by default in a new folder."""

    def says(folder=None, **flags):
        return error_of(capsys, run, folder or tmp_path / "out", **flags)

    return says


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train_batch_size": 25}, "is larger than 12 examples times"),
        ({"learning_rate": -1}, "--learning_rate must be above 0"),
        ({"save_best": "mcc"}, "eval_accuracy, eval_loss or loss; got 'mcc'"),
        ({"class_weights": "1,x"}, "a number for each label, or balanced for"),
    ],
)
def test_invalid_flags_are_errors(says, changes, expected):
    assert expected in says(**changes)


def test_options_of_custom_files_are_ignored_with_a_warning(says, caplog):
    says(save_best="mcc", train_file="none.tsv", labels="a,b")
    assert "Ignoring --train_file and --labels, for --task_name" in caplog.text


def test_a_folder_that_cannot_be_created(says, tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "out"
    assert f"Cannot create folder {folder}: Not a directory" in says(folder)


@pytest.fixture
def spoilt(run, tmp_path):
    """Copies the data; returns a function that replaces a line of a file."""
    folder = tmp_path / "data"
    shutil.copytree(run.keywords["data_dir"], folder)

    def spoil(name, number, line):
        path = folder / name
        lines = path.read_text().splitlines()
        lines[number - 1] = line
        path.write_text("\n".join(lines))
        return {"data_dir": folder, "do_eval": True, "do_predict": True}

    return spoil


def test_wrong_rows(says, spoilt, tmp_path):
    """Even those of the test set, which is read last."""
    error = says(**spoilt("test.tsv", 4, "cut"))
    assert f"{tmp_path / 'data' / 'test.tsv'}:4" in error
    assert "found 1." in error


def test_balanced_weights_need_classes(says, tmp_path):
    data = sentence_files.write(tmp_path / "data", "regression")
    flags = {"task_name": "custom", "data_dir": data, "problem": "regression"}
    error = says(**flags, class_weights="balanced")
    assert "single_label problem; got 'balanced'" in error


def test_a_run_is_replaced_if_the_new_one_is_valid(
    says, run, done, spoilt, tmp_path
):
    """Errors in flags and rows are found before anything is removed."""
    overwrite = functools.partial(says, done, overwrite_output_dir=True)
    overwrite(save_best="mcc")
    overwrite(train_batch_size=1000)
    overwrite(**spoilt("train.tsv", 4, "x"))
    error = overwrite(init_checkpoint=done / "release")
    assert "would move its input" in error
    assert "without --do_train" in overwrite(**ANSWERS)
    folder = shutil.copytree(done, tmp_path / "copy")
    (folder / "notes.txt").write_text("mine")
    qnli = sentence_files.write(tmp_path / "qnli", "qnli")
    flags = {"task_name": "qnli", "data_dir": qnli, "num_train_epochs": 0.4}
    run(folder, **flags, overwrite_output_dir=True)
    moved = tmp_path / "copy.replaced-1" / "notes.txt"
    assert moved.read_text() == "mine"
    found = [path.name for path in folder.glob("model.ckpt*.index")]
    assert found == ["model.ckpt-1.index"]
