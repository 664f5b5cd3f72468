"""What watches a run: each hook by itself, without a run."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.hooks import (
    Evaluation,
    Hook,
    NanWatch,
    NonFiniteError,
    Progress,
    StopSignal,
    Summaries,
)


def records(*losses, **others):
    """Records of as many steps as there are losses."""
    norms = others.pop("gradient_norm", [1.0] * len(losses))
    rows = {"loss": losses, "gradient_norm": norms, **others}
    return {name: np.array(row, "float32") for name, row in rows.items()}


def events(folder):
    """What the event files of a folder hold: {(step, name): value}."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for raw in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(raw)
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found[event.step, value.tag] = number
    return found


@pytest.mark.parametrize(
    ("every", "due"), [(3, [0, 3, 6]), (1, list(range(7))), (0, []), (-2, [])]
)
def test_when_a_hook_is_due(every, due):
    hook = Hook()
    hook.every = every
    assert [step for step in range(7) if hook.is_due(step)] == due


# NanWatch


def test_finite_numbers_pass():
    NanWatch().after_steps(5, records(1e38, 0.0, -1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["loss", "gradient_norm"])
def test_the_first_step_that_is_no_number_is_named(bad, where):
    values = {"loss": [1.0, 2.0, 3.0, 4.0], "gradient_norm": [1.0] * 4}
    values[where][2:] = [bad, bad]
    with pytest.raises(NonFiniteError, match=r"^step 19: .*--learning_rate"):
        NanWatch().after_steps(
            20,
            records(*values["loss"], gradient_norm=values["gradient_norm"]),
        )
    assert issubclass(NonFiniteError, InputError)


# Progress


def test_without_a_terminal_it_logs(caplog, capsys):
    caplog.set_level("INFO", "absl")
    hook = Progress(total=10, every=2, bar=False)
    hook.begin(3)
    for step in range(4, 11):
        hook.after_steps(step, records(step / 10))
    hook.end()
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == 4
    assert lines[0].startswith("step 4 of 10, loss 0.4000, ")
    assert lines[-1].startswith("step 10 of 10, loss 1.0000, ")
    assert lines[-1].endswith("00:00 left")
    assert capsys.readouterr().err == ""


def test_on_a_terminal_it_draws(caplog, capsys):
    caplog.set_level("INFO", "absl")
    hook = Progress(total=10, every=1, bar=True)
    hook.begin(4)
    hook.after_steps(7, records(1.0, 2.0, 3.0))
    hook.after_steps(10, records(1.0, 2.0, 0.25))
    hook.end()
    assert "10/10" in capsys.readouterr().err
    assert not caplog.records


def test_zero_steps_between_log_lines_are_none(caplog):
    caplog.set_level("INFO", "absl")
    hook = Progress(total=2, every=0, bar=False)
    hook.begin(0)
    hook.after_steps(2, records(1.0, 2.0))
    hook.end()
    assert not caplog.records


# Summaries


def test_means_of_each_stretch_are_written(tmp_path):
    hook = Summaries(
        str(tmp_path), every=4, examples_per_step=6, tokens_per_example=11
    )
    hook.begin(2)
    hook.after_steps(3, records(1.0))
    hook.after_steps(4, records(4.0))
    hook.after_steps(7, records(1.0, 2.0, 3.0))
    hook.after_steps(8, records(6.0))
    hook.after_steps(9, records(99.0))
    hook.end()
    found = events(tmp_path)
    assert {step for step, _ in found} == {4, 8, 9}
    assert found[4, "loss"] == 2.5
    assert found[8, "loss"] == 3.0
    assert found[9, "loss"] == 99.0  # what was left at the end
    assert found[8, "gradient_norm"] == 1.0
    for step in (4, 8, 9):
        examples = found[step, "examples_per_second"]
        assert examples > 0
        assert found[step, "tokens_per_second"] == pytest.approx(11 * examples)


def test_nothing_is_written_before_it_begins(tmp_path):
    Summaries(str(tmp_path), 4, 6, 11)
    Evaluation(2, dict, str(tmp_path))
    assert os.listdir(tmp_path) == []


# Evaluation


def test_it_evaluates_when_due(tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    asked = []

    def evaluate():
        asked.append(len(asked))
        return {"loss": 0.5 + asked[-1], "global_step": 77}

    hook = Evaluation(3, evaluate, str(tmp_path))
    hook.begin(0)
    for step in range(1, 8):
        hook.after_steps(step, records(1.0))
    hook.end()
    assert asked == [0, 1]
    assert events(tmp_path) == {(3, "loss"): 0.5, (6, "loss"): 1.5}
    lines = [line.getMessage() for line in caplog.records]
    assert lines == [
        "step 3 evaluated: loss 0.5000",
        "step 6 evaluated: loss 1.5000",
    ]


def test_without_a_directory_it_evaluates_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    hook = Evaluation(1, lambda: asked.append(1) or {"loss": 1.0}, None)
    hook.begin(0)
    hook.after_steps(1, records(1.0))
    hook.end()
    assert asked == [1]
    assert os.listdir(tmp_path) == []


# StopSignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_handlers_come_back(number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with StopSignal().watch() as stop:
        assert stop.received == 0
        os.kill(os.getpid(), number)
        assert stop.received == number
    after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert after == before


def test_a_second_signal_has_its_usual_effect():
    with StopSignal().watch() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGTERM


def test_the_handlers_come_back_after_a_failure():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopSignal().watch():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_run_starts_without_a_signal():
    with StopSignal().watch():
        os.kill(os.getpid(), signal.SIGTERM)
    with StopSignal().watch() as stop:
        assert stop.received == 0
