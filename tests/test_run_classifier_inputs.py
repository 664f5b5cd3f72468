"""What the script says of mistakes: one line, and nothing is lost."""

import os
import shutil

import fine_tuning_runs
import in_process
import pytest
import sentence_files
from fine_tuning_runs import ANSWERS, arguments, contents

ALL = {"do_eval": True, "do_predict": True}


@pytest.fixture(scope="module")
def launch():
    with fine_tuning_runs.classifier() as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The flags that name the model's files and the data."""
    folder = tmp_path_factory.mktemp("inputs")
    data = sentence_files.write(folder / "data", "rte")
    model = fine_tuning_runs.write_model(folder)
    return {**model, "data_dir": data, "task_name": "rte"}


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("done")
    words = {**inputs, "num_train_epochs": 1, "output_dir": folder}
    assert launch(arguments(**words)) == 0
    return folder


@pytest.fixture
def says(launch, inputs, capsys):
    """Runs into a mistake and returns the one line that is said of it."""

    def fail(output_dir, status=1, **changes):
        words = {**inputs, "output_dir": output_dir, **changes}
        assert launch(arguments(**words)) == status
        return in_process.the_error(capsys, "run_classifier")

    return fail


# Flags.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"do_train": None},
            "one or several of --do_train, --do_eval, --do_predict",
        ),
        ({"task_name": "rtee"}, "'rtee'. Did you mean 'rte'?"),
        (
            {"bert_config_file": None},
            "Give --bert_config_file, or an --init_checkpoint",
        ),
        ({"vocab_file": None}, "Give --vocab_file, or an --init_checkpoint"),
        ({"bert_config_file": "/none/x.json"}, "/none/x.json"),
        ({"vocab_file": "/none/words.txt"}, "/none/words.txt"),
        ({"init_checkpoint": "/none/x.ckpt"}, "/none/x.ckpt"),
        ({"max_seq_length": 30}, "--max_seq_length must be at most 29"),
        ({"max_seq_length": 513}, "--max_seq_length must be at most 29"),
        ({"data_dir": ""}, "--data_dir is required"),
        ({"data_dir": "/none"}, "/none: no train.tsv, the training set of rte"),
        ({"train_batch_size": 25}, "is larger than 12 examples times"),
        ({"train_batch_size": 0}, "--train_batch_size"),
        ({"learning_rate": -1}, "--learning_rate must be above 0"),
        ({"num_train_epochs": 0}, "--num_train_epochs must be more than 0"),
        (
            {"save_best": "nonsense"},
            "eval_accuracy, eval_loss or loss; got 'nonsense'",
        ),
        (
            {"do_train": None, "do_export": True, "save_best": "nonsense"},
            "one of eval_accuracy, eval_loss or loss; got 'nonsense'",
        ),
        (
            {"early_stopping_patience": 2},
            "--early_stopping_patience needs --save_best",
        ),
        (
            {"class_weights": "1,2,3"},
            "--class_weights must be 2 numbers, one for",
        ),
        (
            {"class_weights": "1,x"},
            "--class_weights must be a number for each label",
        ),
        ({"class_weights": "-1,1"}, "not negative"),
        ({"label_smoothing": 1.5}, "--label_smoothing must be from 0 to 1"),
        ({"num_frozen_layers": 2}, "--num_frozen_layers must be at most 1"),
        ({"layer_rate_decay": 0}, "above 0 and at most 1"),
        ({"glue_submission": True}, "--glue_submission needs --do_predict"),
        (
            {"glue_submission": True, "task_name": "nsmc"},
            "a task of GLUE; got --task_name=nsmc",
        ),
        ({"eval_batch_size": 0}, "--eval_batch_size"),
        ({"distribution_strategy": "tpu"}, "--tpu_name=local"),
        (
            {**ANSWERS, "overwrite_output_dir": True},
            "needs --do_train",
        ),
    ],
)
def test_mistakes_in_flags(says, tmp_path, changes, expected):
    folder = tmp_path / "out"
    assert expected in says(folder, **changes)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task_name": None}, "--task_name must be given"),
        ({"max_seq_lenght": 9}, "Did you mean: max_seq_length"),
        ({"max_seq_length": 2}, "max_seq_length"),
        ({"num_seeds": 0}, "num_seeds"),
        ({"predict_batch_size": 0}, "predict_batch_size"),
        ({"search": "all"}, "--search"),
        ({"padding": "none"}, "--padding"),
    ],
)
def test_flags_that_are_none(says, tmp_path, changes, expected):
    assert expected in says(tmp_path / "out", status=2, **changes)
    assert not (tmp_path / "out").exists()


# Data.


@pytest.fixture
def spoilt(inputs, tmp_path):
    """Copies the data; gives a function that changes a line of a file."""
    folder = tmp_path / "data"
    shutil.copytree(inputs["data_dir"], folder)

    def spoil(name, number, change):
        path = folder / name
        lines = path.read_text().splitlines(keepends=True)
        lines[number - 1] = change(lines[number - 1])
        path.write_text("".join(lines))
        return {"data_dir": folder}

    return spoil


def test_a_missing_file_is_told_with_what_is_there(says, inputs, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(inputs["data_dir"], folder)
    (folder / "dev.tsv").rename(folder / "develop.tsv")
    line = says(tmp_path / "out", do_eval=True, data_dir=folder)
    assert f"{folder}: no dev.tsv, the development set of rte" in line
    assert "the folder has develop.tsv, test.tsv and train.tsv" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "train.tsv",
            lambda row: "cut\n",
            "columns, as in {}:2, found 1.",
        ),
        (
            "dev.tsv",
            lambda row: row.replace("\tentailment", "\tmaybe"),
            "unknown label 'maybe'; the labels are 'entailment' and",
        ),
        ("dev.tsv", lambda row: row.rpartition("\t")[0] + "\t\n", "no label"),
        ("test.tsv", lambda row: "cut\n", "found 1."),
    ],
)
def test_rows_at_fault_show_before_anything_is_written(
    says, spoilt, tmp_path, name, change, expected
):
    """Even those of the test set, which is read last."""
    line = says(tmp_path / "out", **ALL, **spoilt(name, 4, change))
    path = tmp_path / "data" / name
    assert expected.format(path) in line
    assert f"{path}:4" in line
    assert not (tmp_path / "out").exists()


def test_words_for_the_numbers_of_a_regression(says, tmp_path):
    folder = sentence_files.write(tmp_path / "data", "tsv")
    changes = {"task_name": "custom", "problem": "regression"}
    line = says(tmp_path / "out", data_dir=folder, **changes)
    assert f"{folder}/train.tsv:2: a label for regression must be a" in line


def test_class_weights_where_there_are_no_classes(says, tmp_path):
    folder = sentence_files.write(tmp_path / "data", "regression")
    changes = {"task_name": "custom", "problem": "regression"}
    for weights, expected in (
        ("balanced", "single_label problem; got 'balanced'"),
        ("1,2", "--class_weights needs a single_label problem; got 2"),
    ):
        changes["class_weights"] = weights
        line = says(tmp_path / "out", data_dir=folder, **changes)
        assert expected in line
    assert not (tmp_path / "out").exists()


def test_an_empty_text_is_kept_and_told_once(
    launch, inputs, spoilt, done, tmp_path, caplog
):
    """A prediction is due for it as well."""
    words = {
        **inputs,
        **ANSWERS,
        **spoilt("test.tsv", 3, lambda row: "1\t \t\n"),
        "do_eval": None,
        "init_checkpoint": done / "release",
        "output_dir": tmp_path / "out",
    }
    assert launch(arguments(**words)) == 0
    path = tmp_path / "data" / "test.tsv"
    told = f"1 row with an empty text were kept; the first: {path}:3"
    assert caplog.text.count(told) == 1
    rows = fine_tuning_runs.table(tmp_path / "out" / "predictions.tsv")
    assert [row[0] for row in rows[1:]] == ["0", "1", "2", "3", "4"]


# The model.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vocab_size": 35}, "for 37 tokens, but"),
        ({"vocab_size": 41}, "a vocab_size of 41"),
        ({"hidden_size": 10}, "does not fit the configuration"),
    ],
)
def test_a_checkpoint_of_another_size(says, done, tmp_path, changes, expected):
    model = fine_tuning_runs.write_model(tmp_path, **changes)
    words = (tmp_path / "words.txt").read_text().split()
    (tmp_path / "words.txt").write_text("\n".join(words[:35]))
    release = done / "release"
    line = says(tmp_path / "out", **model, init_checkpoint=release)
    assert expected in line


def test_more_words_than_the_model_has_room_for(says, tmp_path):
    model = fine_tuning_runs.write_model(tmp_path, vocab_size=36)
    line = says(tmp_path / "out", **model)
    assert "has 37 tokens" in line
    assert f"{tmp_path}/words.txt" in line


def test_casing_that_the_checkpoint_contradicts(says, done, tmp_path):
    changes = {"init_checkpoint": done / "release", "do_lower_case": False}
    line = says(tmp_path / "out", **changes)
    assert "--do_lower_case must be true" in line
    assert "is uncased; got false" in line
    assert not (tmp_path / "out").exists()


def test_nothing_was_trained_that_could_answer(says, tmp_path):
    line = says(tmp_path / "out", **ANSWERS)
    assert "no fine-tuned model in --output_dir=" in line


def test_an_encoder_alone_answers_nothing(says, done, tmp_path):
    """Its pooler and classes would be random numbers."""
    from bert_tf.interop import conversion
    from bert_tf.pretrained import open_pretrained

    encoder = tmp_path / "encoder"
    encoder.mkdir()
    planned = conversion.plan(open_pretrained(done / "release"), "", "encoder")
    conversion.write(planned, str(encoder))
    line = says(tmp_path / "out", **ANSWERS, init_checkpoint=encoder)
    assert "is not a fine-tuned model" in line
    assert "it lacks output_" in line


def test_a_model_of_other_labels(says, done, tmp_path):
    """Three classes where the checkpoint has two."""
    changes = {
        "task_name": "mnli",
        "data_dir": sentence_files.write(tmp_path / "data", "mnli"),
        "init_checkpoint": done / "release",
    }
    line = says(tmp_path / "answers", **changes, **ANSWERS)
    assert "its head has 2 outputs, not 3" in line
    assert "or give --do_train" in line


def test_a_model_whose_labels_mean_something_else(
    says, launch, inputs, done, tmp_path, caplog
):
    """Two classes as well, but those of RTE: no score of MRPC."""
    words = {
        **ANSWERS,
        "task_name": "mrpc",
        "data_dir": sentence_files.write(tmp_path / "data", "mrpc"),
        "init_checkpoint": done / "release",
    }
    line = says(tmp_path / "out", **words)
    assert "labels are entailment, not_entailment; mrpc has 0, 1." in line
    assert not (tmp_path / "out").exists()
    words = {**inputs, **words, "output_dir": tmp_path / "out"}
    assert launch(arguments(**words, allow_label_mapping=True)) == 0
    assert "not_entailment are assigned to 0, 1, in this order" in caplog.text


@pytest.mark.slow
def test_training_starts_from_a_model_of_other_labels(
    launch, inputs, done, tmp_path, caplog
):
    caplog.set_level("WARNING", "absl")
    words = {
        **inputs,
        "task_name": "mnli",
        "data_dir": sentence_files.write(tmp_path / "data", "mnli"),
        "init_checkpoint": done / "release",
        "output_dir": tmp_path / "out",
    }
    assert launch(arguments(**words)) == 0
    assert "another task: its head has 2 outputs" in caplog.text


# The output folder.


def refused(says, folder, **changes):
    before = contents(folder)
    line = says(folder, **changes)
    assert contents(folder) == before
    return line


def test_a_folder_of_another_task_or_model_is_refused(says, done, tmp_path):
    qnli = sentence_files.write(tmp_path / "data", "qnli")
    line = refused(says, done, task_name="qnli", data_dir=qnli)
    assert f"{done} holds a run with task " in line
    assert "or give --overwrite_output_dir" in line
    wider = fine_tuning_runs.write_model(tmp_path, hidden_size=10)
    line = refused(says, done, **wider)
    assert "a model of 1 layers, hidden size 10" in line
    assert "do_lower_case" in refused(says, done, do_lower_case=False)


def test_a_run_is_removed_when_all_else_is_right(says, done, spoilt, tmp_path):
    """Not before a row at fault, nor a wrong flag, has shown."""
    overwrite = {"overwrite_output_dir": True}
    refused(says, done, **overwrite, save_best="nonsense")
    refused(says, done, **overwrite, train_batch_size=1000)
    refused(says, done, **overwrite, distribution_strategy="tpu")
    refused(
        says, done, **overwrite, **spoilt("train.tsv", 4, lambda row: "x\n")
    )
    line = refused(says, done, **overwrite, init_checkpoint=done / "release")
    assert "which this run reads" in line
    line = refused(says, done, **overwrite, **ANSWERS)
    assert "needs --do_train" in line


@pytest.mark.slow
def test_a_run_is_removed_on_request(launch, inputs, done, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    (folder / "notes.txt").write_text("mine")
    qnli = sentence_files.write(tmp_path / "data", "qnli")
    words = {
        **inputs,
        "output_dir": folder,
        "task_name": "qnli",
        "data_dir": qnli,
        "overwrite_output_dir": True,
        "num_train_epochs": 0.4,
    }
    assert launch(arguments(**words)) == 0
    assert (folder / "notes.txt").read_text() == "mine"
    found = {path.name for path in folder.glob("model.ckpt*.index")}
    assert found == {"model.ckpt-1.index"}


def test_an_output_folder_that_is_a_file(says, tmp_path):
    path = tmp_path / "out"
    path.write_text("mine")
    assert f"{path} is a file" in says(path)
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_a_learning_rate_that_is_far_too_high(says, tmp_path):
    line = says(tmp_path, learning_rate=1e30, warmup_proportion=0)
    assert "loss nan" in line
    assert "Lower --learning_rate" in line
    assert "release" not in os.listdir(tmp_path)
