"""Every task through run_classifier.py, from files in its official layout."""

import functools
import shutil

import fine_tuning_runs
import pytest
import sentence_files
from fine_tuning_runs import ANSWERS, names_in, results, table

from bert_tf.checkpoints.pretrained import open_pretrained

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

CUSTOM = {
    "tsv": {},
    "csv": {
        "text_a_column": "first",
        "text_b_column": "3",
    },
    "jsonl": {},
    "multi_label": {"problem": "multi_label"},
    "regression": {"problem": "regression"},
}
INFERENCE = ("contradiction", "entailment", "neutral")
ENTAILMENT = ("entailment", "not_entailment")
# Task -> its metrics besides the loss, its labels in order, and the files of a
# submission to GLUE.
EXPECTED = {
    "cola": ("mcc accuracy", ("0", "1"), "CoLA.tsv"),
    "sst-2": ("accuracy", ("0", "1"), "SST-2.tsv"),
    "mrpc": ("accuracy f1", ("0", "1"), "MRPC.tsv"),
    "sts-b": ("pearson spearman", (), "STS-B.tsv"),
    "korsts": ("pearson spearman", (), ""),
    "qqp": ("accuracy f1", ("0", "1"), "QQP.tsv"),
    "mnli": ("accuracy", INFERENCE, "MNLI-m.tsv MNLI-mm.tsv"),
    "qnli": ("accuracy", ENTAILMENT, "QNLI.tsv"),
    "rte": ("accuracy", ENTAILMENT, "RTE.tsv"),
    "wnli": ("accuracy", ("0", "1"), "WNLI.tsv"),
    "xnli": ("accuracy", INFERENCE, ""),
    "swag": ("accuracy", tuple("0123"), ""),
    "nsmc": ("accuracy", ("0", "1"), ""),
    "tsv": ("accuracy macro_f1 mcc", ("no", "some", "yes"), ""),
    "csv": ("accuracy f1 mcc", ("no", "yes"), ""),
    "jsonl": ("accuracy f1 mcc", ("no", "yes"), ""),
    "multi_label": ("micro_f1 macro_f1 exact_match", ("rude", "toxic"), ""),
    "regression": ("pearson spearman", (), ""),
}
# The most unusual tasks; `slow` runs all.
QUICK = ("mnli", "swag")

run = functools.partial(fine_tuning_runs.run, "run_classifier")


def flags_of(task, folder):
    """Returns the flags of a task and of the model's files."""
    return {
        **fine_tuning_runs.write_model(folder),
        "task_name": "custom" if task in CUSTOM else task,
        "data_dir": sentence_files.write(folder / "data", task),
        "do_eval": True,
        **CUSTOM.get(task, {}),
    }


@pytest.fixture(scope="module")
def finish(tmp_path_factory):
    """Trains, evaluates and predicts a task, once; returns the folder."""

    @functools.cache
    def finish(task):
        folder = tmp_path_factory.mktemp(task)
        flags = {"do_predict": True, "num_train_epochs": 1}
        flags |= flags_of(task, folder)
        run(folder / "out", **flags)
        return folder

    return finish


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task in QUICK else pytest.mark.slow)
        for task in sentence_files.LAYOUTS
    ],
)
def test_every_task(finish, task):
    folder = finish(task) / "out"
    metrics, labels, submissions = EXPECTED[task]
    suffixes = ["", "_mismatched"] if task == "mnli" else [""]
    for suffix in suffixes:
        rows = table(folder / f"test_results{suffix}.tsv")
        assert {len(row) for row in rows} == {max(1, len(labels))}
        assert len(rows) == len(table(folder / f"predictions{suffix}.tsv")) - 1
    keys = [*(f"eval_{name}" for name in metrics.split()), "eval_loss", "loss"]
    keys = [f"{key}{suffix}" for key in keys for suffix in suffixes]
    found = results(folder)
    assert list(found) == sorted([*keys, "global_step"])
    assert max(map(abs, found.values())) < 100
    written = sorted(path.name for path in folder.glob("glue_submission/*"))
    assert written == submissions.split()
    assert (open_pretrained(folder / "release").labels or ()) == labels


def test_mnli_has_two_development_and_test_sets(finish):
    folder = finish("mnli") / "out"
    stems = ("eval.tf_record", "predict.tf_record", "predictions.tsv")
    names = {name.replace(".", "_mismatched.") for name in stems}
    assert names <= names_in(folder)
    metrics = results(folder)
    assert metrics["eval_loss"] != metrics["eval_loss_mismatched"]
    assert metrics["loss"] != metrics["loss_mismatched"]


def test_a_model_of_mnli_predicts_ax(finish, tmp_path):
    """In its own folder, where the labels are known."""
    mnli, folder = finish("mnli"), tmp_path / "out"
    shutil.copytree(mnli / "out", folder)
    flags = {**ANSWERS, "do_eval": None, "task_name": "ax"}
    run(folder, **flags, data_dir=mnli / "data")
    answers = table(folder / "glue_submission" / "AX.tsv")
    header, *rows = answers
    assert header == ["index", "prediction"]
    assert [index for index, _ in rows] == [str(n) for n in range(7)]
    assert {prediction for _, prediction in rows} <= set(INFERENCE)


def test_a_model_whose_labels_are_in_another_order(finish, tmp_path):
    """Published models have other orders, which their names of labels show."""
    mnli, release = finish("mnli"), tmp_path / "release"
    shutil.copytree(mnli / "out" / "release", release)
    fine_tuning_runs.swap_classes(release, INFERENCE[::-1])
    flags = {"task_name": "mnli", "data_dir": mnli / "data", **ANSWERS}
    run(tmp_path / "out", **flags, init_checkpoint=release)
    found, expected = results(tmp_path / "out"), results(mnli / "out")
    del found["global_step"], expected["global_step"]
    assert found == pytest.approx(expected, rel=1e-5)
    header, *rows = table(tmp_path / "out" / "predictions.tsv")
    assert header[-3:] == [f"probability_{name}" for name in INFERENCE[::-1]]
    plain = table(mnli / "out" / "predictions.tsv")[1:]
    assert [row[3] for row in rows] == [row[3] for row in plain]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cola", "sts-b", "swag", "multi_label"])
def test_training_examples_are_learned(tmp_path, task):
    """Labels, texts and answers belong together all the way."""
    flags = flags_of(task, tmp_path)
    dev = "val.csv" if task == "swag" else "dev.tsv"
    train = f"train.{dev[-3:]}"
    shutil.copy(flags["data_dir"] / train, flags["data_dir"] / dev)
    flags |= fine_tuning_runs.write_model(
        tmp_path, **fine_tuning_runs.WITHOUT_DROPOUT, hidden_size=32
    )
    flags |= {"learning_rate": 0.003, "num_train_epochs": 200}
    run(tmp_path / "out", **flags)
    name = EXPECTED[task][0].split()[0]
    assert results(tmp_path / "out")[f"eval_{name}"] > 0.9
