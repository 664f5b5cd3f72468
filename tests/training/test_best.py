"""Whenever a run is killed, one of two whole checkpoints is there."""

import numpy as np
import pytest

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.training import checkpoints, results
from bert_tf.training.results import Best

OLD, NEW = Best(3, "eval_f1", 0.5), Best(6, "eval_f1", 0.625)


def exporter(value):
    """Writes weights that can be told from others."""
    tensors = {"kernel": np.full([5, 3], value, "float32")}
    return lambda prefix: checkpoints.write(prefix, tensors)


def save(folder, this):
    results.save_best(str(folder), this, exporter(this.step))


def assert_holds(folder, this):
    assert results.find_best(str(folder)) == this
    reader = checkpoints.Reader(results.best_prefix(str(folder)))
    assert (reader["kernel"] == this.step).all()
    assert sorted(path.name for path in folder.iterdir()) == [
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "best.json",
    ]


def test_the_newer_one_takes_the_place(tmp_path):
    folder = tmp_path / "best"
    assert results.find_best(str(folder)) is None
    results.finish_saving_best(str(folder))
    for this in (OLD, NEW):
        save(folder, this)
        assert_holds(folder, this)
    assert files.read_json(str(folder / "best.json")) == {
        "step": 6,
        "metric": "eval_f1",
        "value": 0.625,
    }
    assert checkpoints.find(str(folder)) == results.best_prefix(str(folder))


class Killed(BaseException):
    """What SIGKILL does, as far as files are concerned."""


@pytest.mark.parametrize("turn", range(12))
def test_killed_at_any_change_of_a_file(tmp_path, monkeypatch, turn):
    """Each renaming, removal and writing of saving the newer, in turn."""
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


def test_a_half_exported_one_is_removed(tmp_path):
    folder = tmp_path / "best"
    save(folder, OLD)
    (folder / "next.bert_model.ckpt.data-00000-of-00001").write_text("half")
    results.finish_saving_best(str(folder))
    assert_holds(folder, OLD)


def test_those_of_an_earlier_run_are_forgotten(tmp_path):
    folder = tmp_path / "best"
    results.remove_best(str(folder))
    save(folder, OLD)
    exporter(7)(str(folder / "next.bert_model.ckpt"))
    (folder / "bert_config.json").write_text("{}")
    results.remove_best(str(folder))
    assert [path.name for path in folder.iterdir()] == ["bert_config.json"]


@pytest.mark.parametrize("text", ["{}", '{"step": 1, "metric": "x"}', "["])
def test_a_label_that_says_nothing(tmp_path, text):
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(InputError, match=r"best\.json"):
        results.find_best(str(tmp_path))
