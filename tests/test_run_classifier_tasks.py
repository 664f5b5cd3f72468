"""Every task through the script, from files in its exact official layout."""

import json
import shutil

import fine_tuning_runs
import pytest
import sentence_files
from fine_tuning_runs import ANSWERS, arguments, contents, read, results, table

from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints

CUSTOM = {
    "tsv": {},
    "csv": {
        "text_a_column": "first",
        "text_b_column": "3",
        "id_column": "name",
    },
    "jsonl": {},
    "multi_label": {"problem": "multi_label", "label_separator": ";"},
    "regression": {"problem": "regression"},
}
INFERENCE = ("contradiction", "entailment", "neutral")
# Task -> what it measures besides the loss, and the labels in their order.
EXPECTED = {
    "cola": ("mcc accuracy", ("0", "1")),
    "sst-2": ("accuracy", ("0", "1")),
    "mrpc": ("accuracy f1", ("0", "1")),
    "mrpc_raw": ("accuracy f1", ("0", "1")),
    "sts-b": ("pearson spearman", ()),
    "qqp": ("accuracy f1", ("0", "1")),
    "mnli": ("accuracy", INFERENCE),
    "qnli": ("accuracy", ("entailment", "not_entailment")),
    "rte": ("accuracy", ("entailment", "not_entailment")),
    "wnli": ("accuracy", ("0", "1")),
    "xnli": ("accuracy", INFERENCE),
    "swag": ("accuracy", tuple("0123")),
    "nsmc": ("accuracy", ("0", "1")),
    "tsv": ("accuracy macro_f1", ("no", "some", "yes")),
    "csv": ("accuracy f1", ("no", "yes")),
    "jsonl": ("accuracy f1", ("no", "yes")),
    "multi_label": ("micro_f1 macro_f1 exact_match", ("rude", "toxic")),
    "regression": ("pearson spearman", ()),
}
SUBMISSIONS = {
    "cola": ["CoLA.tsv"],
    "sst-2": ["SST-2.tsv"],
    "mrpc": ["MRPC.tsv"],
    "sts-b": ["STS-B.tsv"],
    "qqp": ["QQP.tsv"],
    "mnli": ["MNLI-m.tsv", "MNLI-mm.tsv"],
    "qnli": ["QNLI.tsv"],
    "rte": ["RTE.tsv"],
    "wnli": ["WNLI.tsv"],
}
# Those that are unlike the others; `slow` runs all.
QUICK = ("mnli", "swag")


@pytest.fixture(scope="module")
def launch():
    with fine_tuning_runs.classifier() as launch:
        yield launch


def flags_of(task, folder):
    """What a command line says of the task; the model's files, too."""
    return {
        **fine_tuning_runs.write_model(folder),
        "task_name": "custom" if task in CUSTOM else task.split("_raw")[0],
        "data_dir": sentence_files.write(folder / "data", task),
        **CUSTOM.get(task, {}),
        "glue_submission": task in SUBMISSIONS,
    }


@pytest.fixture(scope="module")
def finish(launch, tmp_path_factory):
    """Trains, evaluates and predicts a task, once; gives the folder."""
    folders = {}

    def run(task):
        if task not in folders:
            folder = tmp_path_factory.mktemp(task)
            words = {
                **flags_of(task, folder),
                "output_dir": folder / "out",
                "do_eval": True,
                "do_predict": True,
                "num_train_epochs": 1,
            }
            assert launch(arguments(**words)) == 0
            folders[task] = folder
        return folders[task]

    return run


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task in QUICK else pytest.mark.slow)
        for task in sentence_files.LAYOUTS
    ],
)
def test_every_task(finish, task):
    folder = finish(task) / "out"
    names, labels = EXPECTED[task]
    suffixes = ["", "_mismatched"] if task == "mnli" else [""]
    assert_metrics(folder, names.split(), suffixes)
    for suffix in suffixes:
        rows = table(folder / f"test_results{suffix}.tsv")
        assert {len(row) for row in rows} == {max(1, len(labels))}
        assert len(rows) == len(table(folder / f"predictions{suffix}.tsv")) - 1
    found = folder.glob("glue_submission/*")
    assert sorted(p.name for p in found) == SUBMISSIONS.get(task, [])
    assert (open_pretrained(folder / "release").labels or ()) == labels


def assert_metrics(folder, names, suffixes):
    """They are the task's, and the losses; the numbers are some."""
    keys = [f"eval_{name}" for name in names] + ["eval_loss", "loss"]
    keys = [f"{key}{suffix}" for key in keys for suffix in suffixes]
    metrics = results(folder)
    assert list(metrics) == sorted([*keys, "global_step"])
    assert all(abs(value) < 100 for value in metrics.values())


def test_mnli_has_two_sets_of_everything(finish):
    folder = finish("mnli") / "out"
    names = {path.name for path in contents(folder)}
    for name in ("eval.tf_record", "predict.tf_record", "predictions.tsv"):
        stem, ending = name.split(".")
        assert {name, f"{stem}_mismatched.{ending}"} <= names
    matched, mismatched = (
        (folder / f"eval{suffix}.tf_record").read_bytes()
        for suffix in ("", "_mismatched")
    )
    assert matched != mismatched


def test_ax_is_answered_by_a_model_of_mnli(finish, launch, tmp_path):
    """In its own folder, where the labels are known, and in a new one."""
    mnli = finish("mnli")
    shutil.copytree(mnli / "out", tmp_path / "out")
    answers = []
    for name, start in (("out", None), ("new", mnli / "out" / "release")):
        words = arguments(
            **ANSWERS | {"do_eval": None},
            task_name="ax",
            data_dir=mnli / "data",
            output_dir=tmp_path / name,
            init_checkpoint=start,
            glue_submission=True,
        )
        assert launch(words) == 0
        answers.append(table(tmp_path / name / "glue_submission" / "AX.tsv"))
    assert answers[0] == answers[1]
    header, *rows = answers[0]
    assert header == ["index", "prediction"]
    assert [index for index, _ in rows] == [str(n) for n in range(7)]
    assert {prediction for _, prediction in rows} <= set(INFERENCE)


def test_a_model_whose_labels_are_in_another_order(finish, launch, tmp_path):
    """As published ones have them: the names say which is which."""
    mnli = finish("mnli")
    shutil.copytree(mnli / "out" / "release", tmp_path / "release")
    turn_labels(tmp_path / "release")
    turned = tmp_path / "out"
    words = arguments(
        **ANSWERS,
        task_name="mnli",
        data_dir=mnli / "data",
        output_dir=turned,
        init_checkpoint=tmp_path / "release",
    )
    assert launch(words) == 0
    found, expected = results(turned), results(mnli / "out")
    del found["global_step"], expected["global_step"]
    assert found == pytest.approx(expected, rel=1e-5)
    header, *rows = table(turned / "predictions.tsv")
    assert header[-3:] == [f"probability_{name}" for name in INFERENCE[::-1]]
    plain = table(mnli / "out" / "predictions.tsv")[1:]
    assert [row[3] for row in rows] == [row[3] for row in plain]


def turn_labels(folder):
    """Puts the classes of a release into the opposite order."""
    facts = json.loads((folder / "bert_tf.json").read_text())
    facts["labels"].reverse()
    (folder / "bert_tf.json").write_text(json.dumps(facts))
    tensors = read(folder / "bert_model.ckpt")
    for name in ("output_weights", "output_bias"):
        tensors[name] = tensors[name][::-1]
    checkpoints.write(str(folder / "bert_model.ckpt"), tensors)


def test_swag_tells_the_ending_that_is_chosen(finish):
    header, *rows = table(finish("swag") / "out" / "predictions.tsv")
    assert header[:4] == ["id", "context", "choice", "prediction"]
    for n, row in enumerate(rows):
        ending = sentence_files.endings(n)[int(row[3])]
        assert row[2].split()[-1] == ending


@pytest.mark.slow
def test_several_labels_are_answered_at_once(finish):
    header, *rows = table(finish("multi_label") / "out" / "predictions.tsv")
    assert header == [
        *("id", "text", "prediction", "label"),
        *("probability_rude", "probability_toxic"),
    ]
    for *_, answer, label, rude, toxic in rows:
        likely = {"rude": float(rude) > 0.5, "toxic": float(toxic) > 0.5}
        assert answer == ",".join(name for name in likely if likely[name])
        assert label in ("", "rude", "rude,toxic")


@pytest.mark.slow
def test_the_columns_of_a_file_of_ones_own(finish):
    header, *rows = table(finish("csv") / "out" / "predictions.tsv")
    assert header[:5] == ["id", "text_a", "text_b", "prediction", "label"]
    assert [row[0] for row in rows] == [str(n) for n in range(5)]
    assert all(", " in row[1] and row[1].endswith(row[2]) for row in rows)


@pytest.mark.slow
def test_the_listing_splits_microsofts_file(finish):
    folder = finish("mrpc_raw")
    assert len(table(folder / "data" / "msr_paraphrase_train.txt")) == 1 + 12
    assert len(table(folder / "data" / "dev_ids.tsv")) == 7
    assert results(folder / "out")["global_step"] == 5 // 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "dev"),
    [
        ("cola", "dev.tsv"),
        ("sts-b", "dev.tsv"),
        ("swag", "val.csv"),
        ("multi_label", "dev.tsv"),
    ],
)
def test_what_was_trained_is_known_by_heart(launch, tmp_path, task, dev):
    """Labels, texts and answers belong together all the way."""
    words = flags_of(task, tmp_path)
    folder = words["data_dir"]
    shutil.copy(folder / f"train{dev[-4:]}", folder / dev)
    model = fine_tuning_runs.write_model(
        tmp_path, **fine_tuning_runs.WITHOUT_DROPOUT, hidden_size=32
    )
    words |= model | {
        "output_dir": tmp_path / "out",
        "do_eval": True,
        "learning_rate": 0.003,
        "num_train_epochs": 200,
        "glue_submission": None,
    }
    assert launch(arguments(**words)) == 0
    name = EXPECTED[task][0].split()[0]
    assert results(tmp_path / "out")[f"eval_{name}"] > 0.9


# Real files, which lie beside the checkout.


@pytest.fixture
def uncased(shared_data):
    """The vocabulary of the published models."""
    return shared_data / "vocab" / "bert-base-uncased-vocab.txt"


def train_on(launch, folder, uncased, task, **changes):
    model = fine_tuning_runs.write_model(
        folder, vocab_size=30522, max_position_embeddings=128
    )
    words = {
        **model,
        "vocab_file": uncased,
        "task_name": task,
        "data_dir": folder,
        "output_dir": folder / "out",
        "do_eval": True,
        "max_seq_length": 128,
        "learning_rate": 1e-4,
        "train_batch_size": 16,
        **changes,
    }
    assert launch(arguments(**words)) == 0
    return results(folder / "out")


@pytest.mark.slow
def test_real_swag(launch, shared_data, uncased, tmp_path):
    source = shared_data / "swag" / "val_first500.csv"
    shutil.copy(source, tmp_path / "train.csv")
    shutil.copy(source, tmp_path / "val.csv")
    metrics = train_on(launch, tmp_path, uncased, "swag", num_train_epochs=0.2)
    assert metrics["global_step"] == 6
    assert 0.15 < metrics["eval_accuracy"] < 0.4  # One of four.


@pytest.mark.slow
def test_real_mnli(launch, shared_data, uncased, tmp_path):
    dev = shared_data / "glue" / "MNLI" / "dev_matched.tsv"
    header, *rows = dev.read_text(encoding="utf-8").splitlines()
    # Training rows have one label less than four others.
    train = [
        "\t".join([*row.split("\t")[:10], "x", row.split("\t")[-1]])
        for row in (header, *rows[:320])
    ]
    (tmp_path / "train.tsv").write_text("\n".join(train), encoding="utf-8")
    (tmp_path / "dev_matched.tsv").write_text(
        "\n".join([header, *rows[:500]]), encoding="utf-8"
    )
    metrics = train_on(launch, tmp_path, uncased, "mnli", num_train_epochs=0.5)
    assert metrics["global_step"] == 10
    assert 0.25 < metrics["eval_accuracy"] < 0.5
    assert metrics["eval_loss"] == pytest.approx(1.1, abs=0.1)
    assert "eval_loss_mismatched" not in metrics
