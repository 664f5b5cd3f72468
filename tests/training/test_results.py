"""Files of metrics, the history of evaluations, and the best weights."""

import json
import math
import os
import re

import numpy as np
import pytest

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training import checkpoints, results
from bert_tf.training.results import Best, EvaluationResult

NAN = math.nan
METRICS = {
    "next_sentence_loss": 0.5,
    "global_step": 20,
    "masked_lm_loss": np.float32(10.166912),
    "loss": np.float64(10.858),
    "masked_lm_accuracy": 0.0,
    "next_sentence_accuracy": 1e-07,
}
LINE = re.compile(r"[a-z_]+ = \d+(\.\d+)?(e-\d+)?\n")


def test_results_are_written_as_in_the_original(tmp_path, shared_data, caplog):
    caplog.set_level("INFO", "absl")
    path = tmp_path / "eval_results.txt"
    results.write_results(str(path), METRICS)
    assert path.read_bytes() == (
        b"global_step = 20\n"
        b"loss = 10.858\n"
        b"masked_lm_accuracy = 0.0\n"
        b"masked_lm_loss = 10.166912\n"
        b"next_sentence_accuracy = 1e-07\n"
        b"next_sentence_loss = 0.5\n"
    )
    assert os.listdir(tmp_path) == ["eval_results.txt"]
    assert "  masked_lm_loss = 10.166912" in caplog.text
    folder = shared_data / "google_bert_outputs" / "pretraining"
    ours, theirs = (
        file.read_text().splitlines(True)
        for file in (path, folder / "eval_results.txt")
    )
    assert all(LINE.fullmatch(line) for line in ours + theirs)
    names = [[line.split()[0] for line in lines] for lines in (ours, theirs)]
    assert names[0] == names[1]


def test_json_has_the_same_numbers_and_null_for_others(tmp_path):
    path = tmp_path / "eval_results.json"
    results.write_json(str(path), METRICS, of="the last")
    values = json.loads(path.read_text())
    assert list(values) == sorted([*METRICS, "of"])
    assert values.pop("of") == "the last"
    assert {name: str(value) for name, value in values.items()} == {
        name: str(value) for name, value in METRICS.items()
    }
    assert type(values["global_step"]) is int
    odd = {"b": NAN, "a": np.float64("inf"), "c": np.int64(3)}
    results.write_json(str(path), odd)
    assert path.read_bytes() == b'{\n  "a": null,\n  "b": null,\n  "c": 3\n}\n'


@pytest.mark.parametrize(
    ("metric", "is_loss"),
    [("loss", True), ("masked_lm_loss", True), ("f1", False)],
)
def test_lower_is_better_for_losses_only(metric, is_loss):
    low, high = (results.comparable_score(metric, v) for v in (0.2, 0.3))
    assert (low > high) is is_loss
    for value in (NAN, math.inf, -math.inf):
        assert results.comparable_score(metric, value) == -math.inf


# -------------------------------------------------------------- history


def history(*values, name="eval_accuracy"):
    """A history of one metric, evaluated at every third step."""
    return [EvaluationResult(3 * i, {name: v}) for i, v in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([], 1, False),
        ([0.5], 1, False),
        ([0.5, 0.5], 1, True),
        ([0.5, 0.4], 2, False),
        ([0.5, 0.4, 0.45], 2, True),
        ([0.5, 0.4, 0.51], 2, False),
        ([0.5, 0.4, 0.3, 0.2], 0, False),
        ([0.5, 0.4, 0.5], 2, True),
        ([0.0, -0.1, 0.1], 1, False),
        ([NAN, NAN], 2, True),
        ([NAN, NAN], 3, False),
        ([NAN, 0.1], 2, False),
        ([NAN, 0.1, NAN, NAN], 2, True),
    ],
)
def test_patience(values, patience, expected):
    found = results.is_exhausted(history(*values), "eval_accuracy", patience)
    assert found is expected
    losses = history(*(-v for v in values), name="loss")
    assert results.is_exhausted(losses, "loss", patience) is expected


def test_a_longer_history_never_turns_back():
    random = np.random.default_rng(4)
    for _ in range(100):
        values = random.integers(0, 5, 11)
        whole = results.is_exhausted(history(*values), "eval_accuracy", 3)
        end = results.is_exhausted(history(*values[4:]), "eval_accuracy", 3)
        assert whole or not end


def test_an_unknown_metric_is_refused_with_those_that_exist():
    with pytest.raises(InputError) as error:
        results.value_of({"eval_loss": 0.5, "eval_f1": 0.1}, "accuracy")
    assert str(error.value) == (
        "The metric must be one of eval_f1 or eval_loss; got 'accuracy'."
    )


def test_a_history_is_read_up_to_a_step(tmp_path):
    path = str(tmp_path / "evaluations.jsonl")
    assert results.read_history(path, 100) == []
    metrics = {"eval_accuracy": np.float32(0.5), "examples": 7}
    results.write_history(
        path, [EvaluationResult(3, metrics), EvaluationResult(6, {"f1": NAN})]
    )
    assert (tmp_path / "evaluations.jsonl").read_text() == (
        '{"step": 3, "eval_accuracy": 0.5, "examples": 7}\n'
        '{"step": 6, "f1": null}\n'
    )
    first, second = results.read_history(path, 6)
    assert first == EvaluationResult(3, {"eval_accuracy": 0.5, "examples": 7})
    assert second.step == 6
    assert math.isnan(second.metrics["f1"])
    assert os.listdir(tmp_path) == ["evaluations.jsonl"]
    for step, count in ((2, 0), (3, 1), (5, 1), (9, 2)):
        assert len(results.read_history(path, step)) == count


@pytest.mark.parametrize(
    "line", ["{", "7", "{}", '{"step": "x"}', '{"step": 1, "f1": [2]}', ""]
)
def test_a_damaged_history_is_refused(tmp_path, line):
    path = tmp_path / "evaluations.jsonl"
    good = json.dumps({"step": 3, "f1": 0.5})
    path.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(InputError, match=r"evaluations\.jsonl:2: expected"):
        results.read_history(str(path), 10)


# --------------------------------------------------------- best weights

OLD, NEW = Best(3, "eval_f1", 0.5), Best(6, "eval_f1", 0.625)


def exporter(value):
    """Writes weights with this value."""
    tensors = {"kernel": np.full([5, 3], value, "float32")}
    return lambda prefix: checkpoints.write(prefix, tensors)


def save(folder, best):
    results.save_best(str(folder), best, exporter(best.step))


def assert_holds(folder, best):
    assert results.find_best(str(folder)) == best
    reader = checkpoints.Reader(results.best_prefix(str(folder)))
    assert (reader["kernel"] == best.step).all()
    assert sorted(path.name for path in folder.iterdir()) == [
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "best.json",
    ]


def test_newer_weights_replace_older_ones(tmp_path):
    folder = tmp_path / "best"
    assert results.find_best(str(folder)) is None
    results.finish_saving_best(str(folder))
    for best in (OLD, NEW):
        save(folder, best)
        assert_holds(folder, best)
    label = {"step": 6, "metric": "eval_f1", "value": 0.625}
    assert files.read_json(str(folder / "best.json")) == label
    assert checkpoints.find(str(folder)) == results.best_prefix(str(folder))


class Killed(BaseException):
    """Stops a program between two file operations, like SIGKILL."""


@pytest.mark.parametrize("turn", range(9))
def test_a_run_killed_at_any_file_operation(tmp_path, monkeypatch, turn):
    folder = tmp_path / "best"
    save(folder, OLD)
    calls = []

    def dying(function):
        def call(*arguments, **options):
            calls.append(arguments)
            if len(calls) > turn:
                raise Killed
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "remove", "write_text"):
            patch.setattr(files, name, dying(getattr(files, name)))
        died = False
        try:
            results.save_best(str(folder), NEW, dying(exporter(NEW.step)))
        except Killed:
            died = True
    # The export, a label (written, renamed), two removals, three renamings.
    assert died == (turn < 8)
    results.finish_saving_best(str(folder))
    assert_holds(folder, OLD if turn < 3 else NEW)
    save(folder, OLD)
    assert_holds(folder, OLD)


def test_incomplete_and_old_weights_are_removed(tmp_path):
    folder = tmp_path / "best"
    results.remove_best(str(folder))
    save(folder, OLD)
    (folder / "next.bert_model.ckpt.data-00000-of-00001").write_text("half")
    results.finish_saving_best(str(folder))
    assert_holds(folder, OLD)
    exporter(7)(str(folder / "next.bert_model.ckpt"))
    (folder / "bert_config.json").write_text("{}")
    results.remove_best(str(folder))
    assert [path.name for path in folder.iterdir()] == ["bert_config.json"]


@pytest.mark.parametrize("text", ["{}", '{"step": 1, "metric": "x"}', "["])
def test_an_invalid_label_is_refused(tmp_path, text):
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(InputError, match=r"best\.json"):
        results.find_best(str(tmp_path))
