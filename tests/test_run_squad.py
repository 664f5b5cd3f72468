"""run_squad.py from its command line to its files, in this process."""

import json
import os
import shutil
import signal

import fine_tuning_runs
import in_process
import numpy as np
import pytest
import squad_files
from fine_tuning_runs import assert_same, contents, names_in, read, results

from bert_tf.jobs import fine_tuning, squad
from bert_tf.pretrained import open_pretrained
from bert_tf.tasks.questions import SpanEncoding, make_windows
from bert_tf.training import checkpoints

LENGTH = 29
FLAGS = {
    "max_seq_length": LENGTH,
    "doc_stride": 7,
    "max_query_length": 5,
    "train_batch_size": 4,
    "learning_rate": 0.01,
    "num_train_epochs": 2.0,
    "jit_compile": "false",
}
# Flags of the original's run_squad.py, with their defaults.
ORIGINAL = {
    "bert_config_file": None,
    "vocab_file": None,
    "output_dir": None,
    "train_file": None,
    "predict_file": None,
    "init_checkpoint": None,
    "do_lower_case": True,
    "max_seq_length": 384,
    "doc_stride": 128,
    "max_query_length": 64,
    "do_train": False,
    "do_predict": False,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "iterations_per_loop": 1000,
    "n_best_size": 20,
    "max_answer_length": 30,
    "use_tpu": False,
    "tpu_name": None,
    "tpu_zone": None,
    "gcp_project": None,
    "master": None,
    "num_tpu_cores": 8,
    "verbose_logging": False,
    "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
}
TRAIN = squad_files.questions(11, seed=1, impossible=5)
ASKED = squad_files.questions(7, seed=2, impossible=3)
ANSWERABLE = [question for question in ASKED if question.answers]


@pytest.fixture(scope="module")
def launch():
    with in_process.script("run_squad", ["output_dir"]) as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The flags that name the model and the data."""
    folder = tmp_path_factory.mktemp("inputs")
    model = fine_tuning_runs.write_model(folder, words=squad_files.VOCAB)
    return {
        **model,
        "train_file": squad_files.write(folder / "train.json", TRAIN, "2.0"),
        "predict_file": squad_files.write(folder / "dev.json", ASKED, "2.0"),
    }


@pytest.fixture
def run(launch, inputs):
    """Runs the script with the usual flags and some changes."""

    def call(output_dir, status=0, **changes):
        words = {**FLAGS, **inputs, "output_dir": output_dir, **changes}
        given = [f"--{k}={v}" for k, v in words.items() if v is not None]
        assert launch(given) == status

    return call


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run on SQuAD 2.0, with all that a run can do."""
    folder = tmp_path_factory.mktemp("done")
    words = {**FLAGS, **inputs, "output_dir": folder}
    given = [f"--{name}={value}" for name, value in words.items()]
    task = ["--do_train", "--do_predict", "--do_eval"]
    assert launch([*given, *task, "--version_2_with_negative"]) == 0
    return folder


def answers(folder, name="predictions"):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_the_flags_are_the_originals():
    known = in_process.flags_of(squad)
    assert {name: known[name].default for name in ORIGINAL} == ORIGINAL


def test_the_files_of_a_run(done):
    steps = int(results(done)["global_step"])
    assert names_in(done) == {
        "checkpoint",
        "eval_results.json",
        "eval_results.txt",
        "events.out.tfevents",
        "fine_tuning.json",
        "manifest.train.tf_record.json",
        f"model.ckpt-{steps}.data-00000-of-00001",
        f"model.ckpt-{steps}.index",
        "nbest_predictions.json",
        "null_odds.json",
        "predictions.json",
        "release/bert_config.json",
        "release/bert_model.ckpt.data-00000-of-00001",
        "release/bert_model.ckpt.index",
        "release/bert_tf.json",
        "release/vocab.txt",
        "train.tf_record",
    }


def test_steps_are_counted_from_windows(done):
    encoding = SpanEncoding(tuple(squad_files.VOCAB), True, None, LENGTH, 7, 5)
    windows = len(make_windows(TRAIN, encoding, with_positions=True).windows)
    assert windows > len(TRAIN)
    assert results(done)["global_step"] == int(windows / 4 * 2)


def test_every_question_has_an_answer_from_its_context(done):
    found = answers(done)
    assert list(found) == [question.id for question in ASKED]
    nbest, odds = answers(done, "nbest_predictions"), answers(done, "null_odds")
    assert list(nbest) == list(odds) == list(found)
    for question in ASKED:
        listed = nbest[question.id]
        assert sum(n["probability"] for n in listed) == pytest.approx(1.0)
        assert all(n["text"] in question.context for n in listed)
        spans = [n["text"] for n in listed if n["text"]]
        is_null = odds[question.id] > 0
        assert found[question.id] == ("" if is_null else spans[0])


def test_the_official_scores_are_written(done):
    metrics = results(done)
    assert {"eval_exact", "eval_f1", "eval_HasAns_f1", "eval_NoAns_f1"} <= {
        *metrics
    }
    assert metrics["eval_total"] == len(ASKED)
    assert metrics["eval_best_f1"] >= metrics["eval_f1"]
    written = json.loads((done / "eval_results.json").read_text())
    assert written["eval_f1"] == pytest.approx(metrics["eval_f1"])


def assert_same_answers(folder, expected):
    """Null odds are equal, and answers equally likely."""
    odds, others = (answers(f, "null_odds") for f in (folder, expected))
    assert odds == pytest.approx(others, abs=1e-3)
    nbest = answers(expected, "nbest_predictions")
    for key, text in answers(folder).items():
        # Either of two answers that are almost as good can come first.
        chances = {entry["text"]: entry["probability"] for entry in nbest[key]}
        if abs(others[key]) > 1e-3:
            assert (text == "") == (others[key] > 0)
        if text:
            best = max(v for k, v in chances.items() if k)
            assert chances[text] == pytest.approx(best, abs=1e-3)


def test_the_release_gives_the_same_answers(done, run, tmp_path):
    assert open_pretrained(str(done / "release")).head == "span"
    run(
        tmp_path,
        init_checkpoint=done / "release",
        bert_config_file=None,
        vocab_file=None,
        train_file=None,
        do_predict=True,
        version_2_with_negative=True,
    )
    assert_same_answers(tmp_path, done)
    assert not (tmp_path / "eval_results.txt").exists()


def test_padding_and_the_pooler_do_not_change_answers(done, run, tmp_path):
    """Hugging Face's models for question answering have no pooler."""
    model = tmp_path / "model"
    shutil.copytree(done / "release", model)
    prefix = str(model / "bert_model.ckpt")
    weights = open_pretrained(prefix).weights
    kept = {k: weights[k] for k in weights.shapes if "/pooler/" not in k}
    assert len(kept) == len(weights.shapes) - 2
    checkpoints.write(prefix, kept)
    run(
        tmp_path / "out",
        init_checkpoint=model,
        do_predict=True,
        version_2_with_negative=True,
        padding="max_length",
        predict_batch_size=3,
    )
    assert_same_answers(tmp_path / "out", done)


@pytest.mark.parametrize("threshold", [1e9, -1e9])
def test_the_threshold_and_a_blank_context(done, run, tmp_path, threshold):
    blank = [*ASKED[:2], squad_files.Question("blank", "Where ba?", " ")]
    predict_file = squad_files.write(tmp_path / "dev.json", blank, "2.0")
    folder = tmp_path / "out"
    run(
        folder,
        init_checkpoint=done / "release",
        do_predict=True,
        version_2_with_negative=True,
        null_score_diff_threshold=threshold,
        predict_file=predict_file,
    )
    found = answers(folder)
    assert found.pop("blank") == ""
    assert [text == "" for text in found.values()] == [threshold < 0] * 2
    assert np.isfinite(answers(folder, "null_odds")["blank"])


def test_squad_1_1(run, inputs, tmp_path):
    predict_file = squad_files.write(tmp_path / "dev.json", ANSWERABLE)
    folder = tmp_path / "out"
    run(
        folder,
        do_train=True,
        do_predict=True,
        do_eval=True,
        num_train_epochs=0.5,
        predict_file=predict_file,
        n_best_size=3,
        max_answer_length=2,
    )
    assert all(answers(folder).values())
    assert max(len(text.split()) for text in answers(folder).values()) <= 2
    assert max(map(len, answers(folder, "nbest_predictions").values())) <= 3
    assert not (folder / "null_odds.json").exists()
    assert {"eval_exact_match", "eval_f1", "global_step"} <= {*results(folder)}


def test_a_model_of_squad_2_0_answers_squad_1_1(done, run, tmp_path):
    """`null_odds.json` of the earlier run is removed."""
    folder = tmp_path / "copy"
    shutil.copytree(done, folder)
    predict_file = squad_files.write(tmp_path / "dev.json", ANSWERABLE)
    run(
        folder,
        do_predict=True,
        do_eval=True,
        predict_file=predict_file,
        train_batch_size=1000,
        scorer="korquad",
    )
    assert all(answers(folder).values())
    assert {"eval_exact_match", "eval_f1"} <= {*results(folder)}
    assert not (folder / "null_odds.json").exists()


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_weights(run, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, do_train=True)
    [last] = [path.stem for path in whole.glob("model.ckpt-*.index")]

    class Stop(fine_tuning.Progress):
        def after_steps(self, step, records):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(fine_tuning, "Progress", Stop)
        run(parts, status=128 + signal.SIGTERM, do_train=True)
    assert not (parts / f"{last}.index").exists()
    run(parts, do_train=True)
    assert_same(read(parts / last), read(whole / last))


@pytest.mark.slow
def test_the_best_of_two_seeds_by_f1(run, tmp_path):
    run(
        tmp_path,
        do_train=True,
        do_eval=True,
        num_seeds=2,
        num_train_epochs=1,
        version_2_with_negative=True,
        save_best="f1",
    )
    trials = json.loads((tmp_path / "trials.json").read_text())
    [setting] = trials["settings"]
    scores = [trial["metrics"]["eval_f1"] for trial in setting["trials"]]
    assert len(scores) == 2
    assert results(tmp_path)["eval_f1"] == pytest.approx(max(scores))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "one or several of --do_train, --do_eval, --do_predict"),
        ({"do_train": True, "train_file": None}, "--train_file is required"),
        (
            {"do_predict": True, "predict_file": None},
            "--predict_file is required",
        ),
        (
            {"do_train": True, "save_best": "f1", "predict_file": None},
            "--predict_file is required",
        ),
        ({"do_train": True, "train_file": "none.json"}, "none.json"),
        (
            {"do_eval": True, "version_2_with_negative": False},
            "has no answer, so it cannot be scored",
        ),
        (
            {"do_eval": True, "scorer": "korquad"},
            "--scorer=korquad and --version_2_with_negative exclude",
        ),
        ({"do_predict": True, "max_query_length": 26}, "max_query_length"),
        ({"do_predict": True}, "no fine-tuned model"),
        ({"do_train": True, "max_seq_length": 31}, "max_seq_length"),
        (
            {"do_train": True, "train_batch_size": 1000},
            "so that training has no step",
        ),
        ({"do_train": True, "num_train_epochs": -1}, "--num_train_epochs"),
        (
            {"do_train": True, "save_best": "accuracy"},
            "--save_best must be one of eval_f1 or eval_exact",
        ),
    ],
)
def test_errors_are_one_line(run, tmp_path, capsys, changes, message):
    given = {"version_2_with_negative": True, **changes}
    run(tmp_path / "out", status=1, **given)
    assert message in in_process.the_error(capsys, "run_squad")
    assert not contents(tmp_path)


def test_a_folder_of_other_data_is_not_overwritten(done, run, capsys):
    before = read(done / "release" / "bert_model.ckpt")
    run(done, status=1, do_train=True, version_2_with_negative=False)
    assert "training set" in in_process.the_error(capsys, "run_squad")
    assert_same(read(done / "release" / "bert_model.ckpt"), before)
