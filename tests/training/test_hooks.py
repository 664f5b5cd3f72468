"""Each hook on its own, without a training."""

import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.errors import InputError
from bert_tf.training import results
from bert_tf.training.hooks import (
    Evaluation,
    EventFile,
    Hook,
    LossScaleLog,
    NanWatch,
    NonFiniteError,
    Progress,
    Summaries,
    watching,
)
from bert_tf.training.results import Best, Metric


def records(*losses, gradient_norm=None):
    """Records of one step for each loss."""
    norms = gradient_norm or [1.0] * len(losses)
    rows = {"loss": losses, "gradient_norm": norms}
    return {name: np.array(row, "float32") for name, row in rows.items()}


def events(folder):
    """The values in the event files of a folder: {(step, name): value}."""
    found = {}
    for path in tf.io.gfile.glob(f"{folder}/events.out.tfevents.*"):
        for raw in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(raw)
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found[event.step, value.tag] = number
    return found


class Full(Hook):
    """A hook that fails at the end."""

    def end(self):
        raise InputError("no space left")


def test_the_first_error_is_raised():
    hooks = [Full(), Full()]
    with pytest.raises(InputError, match="no space"), watching(hooks, 3):
        pass
    with pytest.raises(KeyboardInterrupt), watching(hooks, 3):
        raise KeyboardInterrupt


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_the_first_non_finite_step_stops_the_run(bad, where):
    hook = NanWatch()
    hook.after_steps(5, records(1e38, 0.0, gradient_norm=[0.0, 1e38]))
    values = [[1.0] * 4, [1.0] * 4]
    values[where][2:] = [bad, bad]
    losses, norms = values
    with pytest.raises(NonFiniteError, match=r"^step 19: .*`learning_rate`"):
        hook.after_steps(20, records(*losses, gradient_norm=norms))


def test_loss_scaling_skips_steps_until_its_scale_is_below_1(caplog):
    caplog.set_level("INFO", "absl")
    hooks = [LossScaleLog(4.0), NanWatch()]

    def after_steps(step, norms, scales):
        found = records(*[1.0] * len(norms), gradient_norm=norms)
        found["loss_scale"] = np.array(scales, "float32")
        for hook in hooks:
            hook.after_steps(step, found)

    after_steps(2, [1.0, np.inf], [4, 2])
    after_steps(5, [1.0, 1.0, np.nan], [2, 4, 2])
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "step 2 was skipped",
        "step 4: loss scale 4",
        "step 5 was skipped",
    ]
    with pytest.raises(NonFiniteError, match=r"^step 7: .* norm inf;"):
        after_steps(7, [np.inf, np.inf], [1, 0.5])


def test_without_a_terminal_lines_are_logged(caplog, capsys):
    caplog.set_level("INFO", "absl")
    hook = Progress(total=10, every=2, bar=False)
    hook.begin(3)
    for step in range(4, 11):
        hook.after_steps(step, records(step / 10))
    hook.end()
    first, *_, last = lines = caplog.messages
    assert len(lines) == 4
    assert first.startswith("step 4 of 10, loss 0.4000, ")
    assert last.startswith("step 10 of 10, loss 1.0000, ")
    assert last.endswith("00:00 left")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("every", [0, 1])
def test_on_a_terminal_a_bar_is_drawn(caplog, capsys, every):
    caplog.set_level("INFO", "absl")
    hook = Progress(total=10, every=every, bar=every > 0)
    hook.begin(4)
    hook.after_steps(7, records(1.0, 2.0, 3.0))
    hook.after_steps(10, records(1.0, 2.0, 0.25))
    hook.end()
    assert ("10/10" in capsys.readouterr().err) is (every > 0)
    assert not caplog.records


def test_means_are_written(tmp_path):
    hook = Summaries(
        str(tmp_path), every=4, examples_per_step=6, tokens_per_example=11
    )
    assert os.listdir(tmp_path) == []  # Before it begins.
    hook.begin(2)
    hook.after_steps(3, records(1.0))
    hook.after_steps(4, records(4.0))
    hook.after_steps(7, records(1.0, 2.0, 3.0))
    # Step 8 was skipped.
    hook.after_steps(8, records(6.0, gradient_norm=[np.inf]))
    hook.after_steps(9, records(99.0))
    hook.end()
    found = events(tmp_path)
    losses = {step: v for (step, name), v in found.items() if name == "loss"}
    assert losses == {4: 2.5, 8: 3.0, 9: 99.0}
    assert found[8, "gradient_norm"] == 1.0  # Of steps 5 to 7.
    for step in losses:
        examples = found[step, "examples_per_second"]
        assert examples > 0
        assert found[step, "tokens_per_second"] == pytest.approx(11 * examples)


@pytest.mark.parametrize("place", ["local", "ram://events"])
def test_events_can_be_read_as_soon_as_they_are_written(tmp_path, place):
    folder = str(tmp_path) if place == "local" else place
    file = EventFile(folder)
    file.write(3, {"loss": np.float32(0.5), "rate": 2})
    assert events(folder) == {(3, "loss"): 0.5, (3, "rate"): 2.0}
    file.close()


def test_a_folder_that_cannot_have_events(write):
    expected = r"TensorBoard's events to .*/a.txt/events: .*directory"
    with pytest.raises(InputError, match=expected):
        EventFile(write("") + "/events")


class Scripted:
    """An evaluation, where `metrics` has eval_f1 at each step from 1 on."""

    def __init__(self, folder, metrics, metric="eval_f1", **options):
        self.folder, self.metrics = folder, metrics
        self.asked, self.last_step = [], len(metrics)
        options = {"every": 1, "export": self.export, **options}
        self.hook = Evaluation(
            self.evaluate,
            str(folder),
            last_step=self.last_step,
            metric=metric and Metric(metric, metric == "eval_loss"),
            **options,
        )

    def evaluate(self):
        self.asked.append(self.step)
        value = self.metrics[self.step - 1]
        return {"eval_f1": value, "eval_loss": -value, "global_step": self.step}

    def export(self, prefix):
        checkpoints.write(prefix, {"step": np.int64(self.step)})

    def run(self, first=0, last=None):
        """Runs steps up to `last`, unless the hook stops; returns the last."""
        self.step = first
        self.hook.begin(first)
        last = self.last_step if last is None else last
        while self.step < last and not self.hook.wants_stop:
            self.step += 1
            self.hook.after_steps(self.step, records(1.0))
        self.hook.end()
        return self.step

    @property
    def best(self):
        """The best evaluation, whose weights are checked."""
        folder = str(self.folder / "best")
        found = results.find_best(folder)
        if found:
            reader = checkpoints.Reader(results.best_prefix(folder))
            assert reader["step"] == found.step
        return found


def test_evaluations_are_due_regularly_and_at_the_end(tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    script = Scripted(tmp_path, [0.5] * 7, every=3, metric=None, export=None)
    assert script.run() == 7
    assert script.asked == [3, 6, 7]
    assert events(tmp_path / "eval") == {
        (step, name): value
        for step in (3, 6, 7)
        for name, value in (("eval_f1", 0.5), ("eval_loss", -0.5))
    }
    assert (tmp_path / "evaluations.jsonl").read_text() == "".join(
        f'{{"step": {step}, "eval_f1": 0.5, "eval_loss": -0.5}}\n'
        for step in (3, 6, 7)
    )
    assert sorted(os.listdir(tmp_path)) == ["eval", "evaluations.jsonl"]
    line = "step 7 evaluated: eval_f1 0.5000, eval_loss -0.5000"
    assert caplog.messages[-1] == line


def test_a_process_that_does_not_write_decides_the_same(tmp_path):
    script = Scripted(tmp_path, [0.5] * 7, writes=False, patience=3)
    assert script.run() == 4
    assert script.asked == [1, 2, 3, 4]
    assert os.listdir(tmp_path) == []


def test_the_best_weights_are_kept(tmp_path):
    nan = float("nan")
    metrics = [nan, 0.0, -0.25, 0.5, nan, 0.5, 0.25]
    script = Scripted(tmp_path, metrics)
    seen = []
    for step in range(7):
        script.run(step, step + 1)
        seen.append(script.best and script.best.step)
    assert seen == [None, 2, 2, 4, 4, 4, 4]
    assert script.best == Best(4, "eval_f1", 0.5)
    script = Scripted(tmp_path, metrics, metric="eval_loss")  # Lower is better.
    script.run()
    assert script.best == Best(4, "eval_loss", -0.5)


@pytest.mark.parametrize(
    ("before", "first", "metrics", "asked", "best"),
    [
        # Later evaluations than the last checkpoint are repeated.
        ([0.1, 0.9, 0.5, 0.6], 3, [0.1, 0.9, 0.5, 0.6, 0.7], [4, 5], (2, 0.9)),
        # Better weights from after the checkpoint are kept.
        ([0.1, 0.2, 0.3, 0.9], 3, [0.1, 0.2, 0.3, 0.8, 0.7], [4, 5], (4, 0.9)),
        # A new run starts without best weights.
        ([0.9, 0.9], 0, [0.1, 0.2, 0.3], [1, 2, 3], (3, 0.3)),
    ],
)
def test_a_run_that_resumes_or_starts_again(
    tmp_path, before, first, metrics, asked, best
):
    Scripted(tmp_path, before).run()
    again = Scripted(tmp_path, metrics)
    again.run(first)
    assert again.asked == asked
    history = results.read_history(str(tmp_path / "evaluations.jsonl"), 99)
    assert [e.step for e in history] == list(range(1, len(metrics) + 1))
    assert again.best == Best(best[0], "eval_f1", best[1])


def test_best_weights_by_another_metric_are_ignored(tmp_path, caplog):
    metrics = [0.5, 0.4, 0.3, 0.2]
    Scripted(tmp_path, metrics).run(0, 2)
    again = Scripted(tmp_path, metrics, metric="eval_loss")
    again.run(2)
    assert again.best == Best(3, "eval_loss", -0.3)
    assert "was chosen by eval_f1 and is ignored, as the metric" in caplog.text


def test_patience_ends_this_run_and_later_ones(tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    metrics = [0.1, 0.5, 0.5, 0.4, 0.3, 0.9]
    script = Scripted(tmp_path, metrics, patience=2)
    assert script.run() == 4
    assert "eval_f1 has not improved in the last 2 evaluations" in caplog.text
    again = Scripted(tmp_path, metrics, patience=2)
    assert (again.run(4), again.asked) == (4, [])
    # A run that was interrupted before ends at the same step.
    other = tmp_path / "other"
    Scripted(other, metrics, patience=2).run(0, 3)
    assert Scripted(other, metrics, patience=2).run(2) == 4
    assert Scripted(tmp_path, metrics, patience=3).run(4) == 5


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("metric", ["f1", "global_step"])
def test_a_missing_metric_is_refused_by_all_processes(tmp_path, writes, metric):
    script = Scripted(tmp_path, [0.5], metric=metric, writes=writes)
    expected = f"one of eval_f1 or eval_loss; got '{metric}'"
    with pytest.raises(InputError, match=expected):
        script.run()


@pytest.mark.parametrize("options", [{"export": print}, {"patience": 1}])
def test_best_weights_and_patience_need_a_metric(tmp_path, options):
    with pytest.raises(InputError, match="name of a metric"):
        Evaluation(dict, str(tmp_path), every=1, last_step=2, **options)
