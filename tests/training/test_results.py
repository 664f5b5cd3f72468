"""Files of metrics, the history of evaluations, and the best weights."""

import contextlib
import json
import math

import numpy as np
import pytest

from bert_tf.base import files
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.errors import InputError
from bert_tf.training import results
from bert_tf.training.results import Best, EvaluationResult

NAN = math.nan
METRICS = {
    "loss": np.float64(10.858),
    "global_step": 20,
    "masked_lm_loss": np.float32(10.166912),
    "accuracy": 0.0,
    "f1": 1e-07,
}


def test_results_are_written_as_in_the_original(tmp_path):
    path = tmp_path / "eval_results.txt"
    results.write_results(str(path), METRICS)
    assert path.read_bytes() == (
        b"accuracy = 0.0\nf1 = 1e-07\nglobal_step = 20\nloss = 10.858\n"
        b"masked_lm_loss = 10.166912\n"
    )


def test_json_has_the_same_numbers_and_null_for_others(tmp_path):
    path = tmp_path / "eval_results.json"
    odd = {"b": NAN, "a": np.float64("inf"), "c": np.int64(3)}
    results.write_json(str(path), {**METRICS, **odd}, of="the last")
    assert path.read_bytes() == (
        b'{\n  "a": null,\n  "accuracy": 0.0,\n  "b": null,\n  "c": 3,\n'
        b'  "f1": 1e-07,\n  "global_step": 20,\n  "loss": 10.858,\n'
        b'  "masked_lm_loss": 10.166912,\n  "of": "the last"\n}\n'
    )


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([], 1, False),
        ([0.5, 0.5], 1, True),
        ([0.5, 0.4, 0.45], 2, True),
        ([0.5, 0.4, 0.51], 2, False),
        ([0.5, 0.4, 0.3, 0.2], 0, False),
        ([0.0, -0.1, 0.1], 1, False),
        ([NAN, NAN], 2, True),
        ([NAN, 0.1, NAN, NAN], 2, True),
    ],
)
@pytest.mark.parametrize(("name", "sign"), [("accuracy", 1), ("loss", -1)])
def test_patience(values, patience, expected, name, sign):
    history = [
        EvaluationResult(3 * index, {name: sign * value})
        for index, value in enumerate(values, 1)
    ]
    metric = results.Metric(name, lower_is_better=sign < 0)
    assert results.is_exhausted(history, metric, patience) is expected


def test_a_history_is_read_up_to_a_step(tmp_path):
    path = str(tmp_path / "evaluations.jsonl")
    assert results.read_history(path, 100) == []
    metrics = {"eval_accuracy": np.float32(0.5), "examples": 7}
    results.write_history(
        path, [EvaluationResult(3, metrics), EvaluationResult(6, {"f1": NAN})]
    )
    assert files.read_text(path) == (
        '{"step": 3, "eval_accuracy": 0.5, "examples": 7}\n'
        '{"step": 6, "f1": null}\n'
    )
    first, second = results.read_history(path, 6)
    assert first == EvaluationResult(3, {"eval_accuracy": 0.5, "examples": 7})
    assert math.isnan(second.metrics["f1"])
    for step, count in ((2, 0), (3, 1), (5, 1), (9, 2)):
        assert len(results.read_history(path, step)) == count


@pytest.mark.parametrize("line", ["{", "7", "{}", '{"step": 1, "f1": [2]}'])
def test_a_damaged_history_is_refused(write, line):
    good = json.dumps({"step": 3, "f1": 0.5})
    path = write(f"{good}\n{line}\n{good}\n", "evaluations.jsonl")
    with pytest.raises(InputError, match=r"evaluations\.jsonl:2: expected"):
        results.read_history(path, 10)


OLD, NEW = Best(3, "eval_f1", 0.5), Best(6, "eval_f1", 0.625)


def exporter(value):
    """Writes weights with this value."""
    tensors = {"kernel": np.full([5, 3], value, "float32")}
    return lambda prefix: checkpoints.write(prefix, tensors)


def save(folder, best):
    results.save_best(str(folder), best, exporter(best.step))


def assert_holds(folder, best):
    assert results.find_best(str(folder)) == best
    reader = checkpoints.Reader(checkpoints.find(str(folder)))
    assert (reader["kernel"] == best.step).all()
    assert sorted(path.name for path in folder.iterdir()) == [
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "best.json",
    ]


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
        # The export, a label (written, renamed), two removals, 3 renamings.
        with pytest.raises(Killed) if turn < 8 else contextlib.nullcontext():
            results.save_best(str(folder), NEW, dying(exporter(NEW.step)))
    results.finish_saving_best(str(folder))
    assert_holds(folder, OLD if turn < 3 else NEW)
    save(folder, OLD)
    assert_holds(folder, OLD)


def test_the_weights_of_an_earlier_run_are_removed(tmp_path):
    folder = tmp_path / "best"
    results.remove_best(str(folder))
    save(folder, OLD)
    exporter(7)(str(folder / "next.bert_model.ckpt"))
    (folder / "bert_config.json").write_text("{}")
    results.remove_best(str(folder))
    assert [path.name for path in folder.iterdir()] == ["bert_config.json"]


@pytest.mark.parametrize("text", ['{"step": 1, "metric": "x"}', "["])
def test_an_invalid_label_is_refused(write, tmp_path, text):
    write(text, "best.json")
    with pytest.raises(InputError, match=r"best\.json"):
        results.find_best(str(tmp_path))
