"""run_squad.py from its command line to its files, in this process."""

import functools
import json
import shutil

import fine_tuning_runs
import in_process
import numpy as np
import pytest
import squad_files
from fine_tuning_runs import (
    ANSWERS,
    ORIGINAL,
    error_of,
    files_of_a_run,
    names_in,
    results,
)

from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.kinds.spans import job as squad
from bert_tf.kinds.spans.squad_files import SpanEncoding, make_windows

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

LENGTH = 29
FLAGS = {
    "max_seq_length": LENGTH,
    "doc_stride": 7,
    "max_query_length": 5,
    "version_2_with_negative": True,
}
TRAIN = squad_files.questions(11, seed=1, impossible=5)
ASKED = squad_files.questions(7, seed=2, impossible=3)
ANSWERABLE = [question for question in ASKED if question.answers]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the script on SQuAD 2.0, with the usual flags and some changes."""
    folder = tmp_path_factory.mktemp("inputs")
    return functools.partial(
        fine_tuning_runs.run,
        "run_squad",
        **fine_tuning_runs.write_model(folder, words=squad_files.VOCAB),
        train_file=squad_files.write(folder / "train.json", TRAIN, "2.0"),
        predict_file=squad_files.write(folder / "dev.json", ASKED, "2.0"),
        **FLAGS,
    )


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    run(folder, do_eval=True, do_predict=True, num_train_epochs=1)
    return folder


def answers(folder, name="predictions"):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_flags_and_defaults_of_the_original():
    known = in_process.flags_of(squad)
    expected = ORIGINAL | {
        **{"train_file": None, "predict_file": None, "max_seq_length": 384},
        **{"doc_stride": 128, "max_query_length": 64, "n_best_size": 20},
        **{"max_answer_length": 30, "null_score_diff_threshold": 0.0},
        **{"verbose_logging": False, "version_2_with_negative": False},
    }
    assert {name: known[name].default for name in expected} == expected


def test_the_files_and_scores_of_a_run(done):
    encoding = SpanEncoding(tuple(squad_files.VOCAB), True, None, LENGTH, 7, 5)
    windows = make_windows(TRAIN, encoding, True).counts.sum()
    assert windows > len(TRAIN)
    steps, metrics = int(windows / 4), results(done)
    records = ["train.tf_record"]
    assert names_in(done) == files_of_a_run(steps, records=records) | {
        *("nbest_predictions.json", "null_odds.json", "predictions.json"),
    }
    names = {"eval_exact", "eval_f1", "eval_HasAns_f1", "eval_NoAns_f1"}
    assert names <= metrics.keys()
    assert metrics["global_step"] == steps
    assert metrics["eval_total"] == len(ASKED)
    assert metrics["eval_best_f1"] >= metrics["eval_f1"]


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


def test_the_release_gives_the_same_answers(done, run, tmp_path):
    """Null odds are equal, and answers equally likely."""
    assert open_pretrained(str(done / "release")).head == "span"
    run(
        tmp_path,
        **ANSWERS | {"do_eval": None},
        init_checkpoint=done / "release",
        bert_config_file=None,
        vocab_file=None,
        train_file=None,
        predict_batch_size=3,
    )
    assert not (tmp_path / "eval_results.txt").exists()
    odds, others = (answers(f, "null_odds") for f in (tmp_path, done))
    assert odds == pytest.approx(others, abs=1e-3)
    nbest = answers(done, "nbest_predictions")
    for key, text in answers(tmp_path).items():
        # Either of two answers that are almost as good can come first.
        chances = {entry["text"]: entry["probability"] for entry in nbest[key]}
        if abs(others[key]) > 1e-3:
            assert (text == "") == (others[key] > 0)
        if text:
            best = max(v for k, v in chances.items() if k)
            assert chances[text] == pytest.approx(best, abs=1e-3)


def test_the_threshold_and_a_blank_context(done, run, tmp_path):
    blank = [*ASKED, squad_files.Question("blank", "Where ba?", " ")]
    run(
        tmp_path,
        **ANSWERS | {"do_eval": None},
        init_checkpoint=done / "release",
        null_score_diff_threshold=1e5,
        n_best_size=1,  # Of impossible questions, this is [CLS].
        predict_file=squad_files.write(tmp_path / "a.json", blank, "2.0"),
    )
    found = answers(tmp_path)
    assert found.pop("blank") == ""
    assert all(found.values())
    assert np.isfinite(answers(tmp_path, "null_odds")["blank"])


def test_a_model_of_squad_2_0_answers_squad_1_1(done, run, tmp_path):
    """`null_odds.json` of the earlier run is removed."""
    folder = tmp_path / "copy"
    shutil.copytree(done, folder)
    run(
        folder,
        **ANSWERS,
        predict_file=squad_files.write(tmp_path / "dev.json", ANSWERABLE),
        version_2_with_negative=None,
        scorer="korquad",
        n_best_size=3,
        max_answer_length=2,
    )
    assert all(answers(folder).values())
    assert max(len(text.split()) for text in answers(folder).values()) <= 2
    assert max(map(len, answers(folder, "nbest_predictions").values())) <= 3
    names = ["eval_exact_match", "eval_f1", "global_step"]
    assert [*results(folder)] == names
    assert not (folder / "null_odds.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": None}, "--train_file is required"),
        (
            {"do_eval": True, "version_2_with_negative": False},
            "has no answer, so it cannot be scored",
        ),
        ({"save_best": "accuracy"}, "must be one of eval_f1 or eval_exact"),
    ],
)
def test_invalid_flags_and_files_are_errors(
    run, tmp_path, capsys, changes, message
):
    assert message in error_of(capsys, run, tmp_path / "out", **changes)
