"""The comparison of runs on several devices: what it starts and compares.

Real workers and hosts: test_several_workers.py.
"""

import json
import os
import sys

import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training import checkpoints


@pytest.fixture(scope="module")
def equality(benchmarks):
    return benchmarks("equality")


# What is started.

# Writes its flags and its TF_CONFIG.
REPORT = """
import json, os, pathlib, sys
folder = pathlib.Path(next(w for w in sys.argv if "--output_dir" in w)[13:])
folder.mkdir(exist_ok=True)
task = json.loads(os.environ.get("TF_CONFIG", "{}"))
index = task.get("task", {}).get("index", 0)
(folder / f"{index}.json").write_text(json.dumps([sys.argv[1:], task]))
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; returns its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


def test_workers_know_each_other(layouts, script, tmp_path):
    layout = layouts.LAYOUTS["two_workers"]
    folder = layouts.run(layout, script(REPORT), {"a": 1}, tmp_path / "run")
    assert folder == tmp_path / "run" / "output"
    lines, tasks = zip(
        *(json.loads((folder / f"{n}.json").read_text()) for n in (0, 1)),
        strict=True,
    )
    words = {
        "--a=1",
        "--distribution_strategy=multi_worker_mirrored",
        f"--output_dir={folder}",
    }
    assert [set(line) for line in lines] == [words, words]
    assert tasks[0]["cluster"] == tasks[1]["cluster"]
    assert len(set(tasks[0]["cluster"]["worker"])) == 2
    assert [task["task"] for task in tasks] == [
        {"type": "worker", "index": index} for index in (0, 1)
    ]


def test_one_device_is_alone(layouts, script, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    layout = layouts.LAYOUTS["one_device"]
    folder = layouts.run(layout, script(REPORT), {}, tmp_path / "run")
    [words, tf_config] = json.loads((folder / "0.json").read_text())
    assert "--distribution_strategy=one_device" in words
    assert tf_config == {}


def test_replicas_are_devices(benchmarks, script, tmp_path, monkeypatch):
    program = benchmarks("cpu_devices")
    made = []
    monkeypatch.setattr(
        program.tf.config,
        "set_logical_device_configuration",
        lambda device, parts: made.append((device.device_type, len(parts))),
    )
    path = script(
        "import pathlib, sys\n"
        "assert __name__ == '__main__'\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{sys.argv[0]} {sys.path[0]}')\n"
    )
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    program.main(4, path, str(tmp_path / "told"))
    assert made == [("CPU", 4)]
    assert (tmp_path / "told").read_text() == f"{path} {tmp_path}"


def test_a_failed_worker_ends_all(
    layouts, script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(layouts, "_SECONDS_TO_END", 0.1)
    fails = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit("error: what was wrong")
time.sleep(600)
"""
    layout = layouts.LAYOUTS["two_workers"]
    with pytest.raises(InputError, match="failed with exit status 1"):
        layouts.run(layout, script(fails), {}, tmp_path / "run")
    assert "what was wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("shutil", "which", lambda name: None), "no program `ip`"),
        (("os", "geteuid", lambda: 1), "need root"),
    ],
)
def test_why_there_are_no_hosts(layouts, monkeypatch, change, reason):
    monkeypatch.setattr(layouts.shutil, "which", lambda name: "/sbin/ip")
    monkeypatch.setattr(layouts.os, "geteuid", lambda: 0)
    module, name, answer = change
    monkeypatch.setattr(getattr(layouts, module), name, answer)
    with (
        pytest.raises(layouts.Unavailable, match=reason),
        layouts.two_hosts(),
    ):
        pass


def test_why_ip_failed(layouts, monkeypatch, tmp_path):
    ip = tmp_path / "ip"
    ip.write_text("#!/bin/sh\necho No such thing. >&2\nexit 2\n")
    ip.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(layouts.os, "geteuid", lambda: 0)
    with (
        pytest.raises(layouts.Unavailable, match=r"netns .* No such thing\."),
        layouts.two_hosts(),
    ):
        pass


MEET = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
places = [w.split(":") for w in config["cluster"]["worker"]]
index = config["task"]["index"]
host, port = places[index]
with socket.create_server((host, int(port))) as own:
    host, port = places[1 - index]
    for _ in range(100):
        try:
            other = socket.create_connection((host, int(port)), 5)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    print(own.accept()[1][0], other.getpeername()[0])
"""


def test_two_hosts_reach_each_other(layouts, script, tmp_path):
    layout = layouts.LAYOUTS["two_hosts"]
    try:
        layouts.run(layout, script(MEET), {}, tmp_path / "run")
    except layouts.Unavailable as reason:
        pytest.skip(f"no hosts: {reason}")
    logs = [tmp_path / "run" / f"worker{index}.log" for index in (0, 1)]
    assert [log.read_text().split() for log in logs] == [
        ["10.77.0.2"] * 2,
        ["10.77.0.1"] * 2,
    ]


# What is compared.


def checkpoint(**changes):
    tensors = {
        "bert/kernel": np.array([1.0, -2.0], np.float32),
        "bert/kernel/adam_m": np.array([0.5, 0.1], np.float32),
        "bert/kernel/adam_v": np.array([0.25, 0.01], np.float32),
        "global_step": np.int64(30),
    }
    return {**tensors, **changes}


def test_differences_of_checkpoints(equality, tmp_path):
    assert equality.difference(checkpoint(), checkpoint()) == (0.0, 0.0)
    changed = {
        "bert/kernel": np.array([1.25, -2.5], np.float32),
        "bert/kernel/adam_v": np.array([0.25, 0.135], np.float32),
    }
    found = equality.difference(checkpoint(**changed), checkpoint())
    assert found == pytest.approx((0.5, 0.5))
    broken = {"bert/kernel": np.array([np.nan, -2.0], np.float32)}
    found = equality.difference(checkpoint(**broken), checkpoint())
    assert not found.weights < 1
    for other in ({"global_step": np.int64(29)}, {"more": np.zeros(1)}):
        with pytest.raises(ValueError, match="tensors or steps"):
            equality.difference(checkpoint(**other), checkpoint())
    checkpoints.write(str(tmp_path / "model.ckpt-30"), checkpoint())
    found = equality.read(tmp_path, 30)
    assert equality.difference(found, checkpoint()).weights == 0


def test_gradients_have_to_be_clipped(equality):
    equality.require_apart(equality.Difference(2e-4, 0.0))
    for weights in (1e-6, float("nan")):
        with pytest.raises(ValueError, match=r"longer than --max_grad_norm"):
            equality.require_apart(equality.Difference(weights, 1.0))


@pytest.fixture
def answers(tmp_path):
    """Writes the files of an evaluation; returns its folder."""

    def write(name, accuracy=0.5, probability=0.25, text="a b", predicts=True):
        folder = tmp_path / name
        folder.mkdir()
        results = f"eval_accuracy = {accuracy}\nglobal_step = 30\n"
        (folder / "eval_results.txt").write_text(results)
        if predicts:
            rows = f"{probability}\t{1 - probability}\n0.5\t0.5\n"
            (folder / "test_results.tsv").write_text(rows)
            table = f"id\ttext\tprediction\tp\n0\t{text}\tno\t{probability}\n"
            (folder / "predictions.tsv").write_text(table)
        return folder

    return write


def test_answers_are_compared(equality, answers):
    one = answers("one")
    assert equality.compare_answers(answers("same"), one) == (0.0, 0.0, 0)
    other = answers("other", accuracy=0.75, probability=0.375, text="b a")
    assert equality.compare_answers(other, one) == (0.25, 0.125, 1)
    one, other = (answers(name, predicts=False) for name in ("c", "d"))
    assert equality.compare_answers(other, one) == (0.0, None, 0)


def test_means_of_batches_are_ignored_across_sizes(equality, answers):
    one, other = answers("one"), answers("other")
    for folder, loss in ((one, 0.5), (other, 0.75)):
        with (folder / "eval_results.txt").open("a") as file:
            file.write(f"eval_loss = 0.25\nloss = {loss}\n")
    assert equality.compare_answers(one, other).metrics == 0.25
    assert equality.compare_answers(one, other, alike=True).metrics == 0.0


def test_workers_read_each_example_once(benchmarks, equality, tmp_path):
    tasks = benchmarks("small_tasks")
    results = equality.Results()
    equality.measure_shares(results, tasks.write_pretraining(tmp_path))
    assert results.shares == {
        2: ((16, 15), (3, 2)),
        3: ((11, 10, 10), (2, 2, 1)),
        4: ((8, 8, 8, 7), (2, 1, 1, 1)),
    }


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[b"a"], [b"b"]], "1 were not read, and 0 were read again"),
        ([[b"a", b"b"], [b"c", b"a"]], "0 were not read, and 1 were"),
    ],
)
def test_workers_that_do_not(equality, parts, message):
    with pytest.raises(ValueError, match=f"of 3 examples {message}"):
        equality.each_once(parts, [b"a", b"b", b"c"])


def test_runs_and_batches(equality, monkeypatch, tmp_path):
    """The flags of all runs of the classifier, which are not run."""
    started = []

    def run_script(layout, script, flags, folder):
        if layout.has_hosts:
            raise equality.Unavailable("it is a test")
        started.append((layout.title, dict(flags)))
        return folder

    def read(folder, step):
        is_free = "max_grad_norm" in folder.name
        return checkpoint(
            **{"bert/kernel": np.array([1.0 + is_free, -2.0], np.float32)}
        )

    monkeypatch.setattr(equality, "run_script", run_script)
    monkeypatch.setattr(equality, "read", read)
    monkeypatch.setattr(
        equality, "compare_answers", lambda *_: equality.Answers(0.0)
    )
    results = equality.Results()
    key, data = "classification", {"data_dir": "d"}
    model = equality.measure_training(results, key, data, tmp_path)
    assert results.unclipped[key].weights == 1.0
    assert results.left_out == {"two_hosts": "it is a test"}
    assert len(results.trained) == 2 + 3 * 3
    assert {found.weights for found in results.trained.values()} == {0.0}
    parts = [flags["gradient_accumulation_steps"] for _, flags in started]
    assert sorted(parts) == [1] * 5 + [2] * 4 + [3] * 4
    started.clear()
    equality.measure_answers(results, key, data, model, tmp_path)
    sizes = [
        (title, flags["eval_batch_size"], flags.get("padding"))
        for title, flags in started
    ]
    assert sizes == [
        ("one device", 3, "max_length"),
        ("two replicas", 6, "max_length"),
        ("four replicas", 12, "max_length"),
        ("two worker processes", 6, "max_length"),
        ("one device", 3, None),
        ("two replicas", 3, None),
        ("four replicas", 3, None),
        ("two worker processes", 3, None),
    ]


def test_the_section(equality):
    found = equality.Results()
    found.trained = {
        ("four_replicas", 3, "pretraining"): equality.Difference(1.5e-7, 2e-6),
        ("two_replicas", 1, "ragged"): equality.Difference(0.0, 0.0),
        ("two_replicas", 1, "pretraining"): equality.Difference(2.5e-7, 3e-6),
    }
    found.unclipped = {"pretraining": equality.Difference(0.25, 1.0)}
    found.answered = {
        (False, "two_replicas", key): equality.Answers(1e-8, more, rows)
        for key, more, rows in (
            ("pretraining", None, 0),
            ("classification", 2e-8, 1),
        )
    }
    found.shares = {2: ((2, 1), (1, 1)), 1: ((4,), (3,))}
    found.left_out = {"two_hosts": "it is a test"}
    text = equality.section(found)
    for line in (
        "| two replicas | 1 | 2.5e-07, 3.0e-06 |  | 0, 0 |",
        "| four replicas | 3 | 1.5e-07, 2.0e-06 |  |  |",
        "| two hosts: not run, since it is a test |  |  |  |  |",
        "| *one device, gradients not clipped* | 1 | 2.5e-01, 1.0e+00 |  |  |",
        "| two replicas | 1.0e-08 | 1.0e-08 | 2.0e-08 | 1 |",
        "| 2 | 2 + 1 | 1 + 1 |",
        "| 1 | 4 | 3 |",
    ):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize(
    ("batch_size", "num_shards", "sizes"),
    [
        (6, 1, [[6, 6, 6, 6, 5, 0]]),
        (3, 2, [[3, 3, 3, 3, 3, 2], [3, 3, 3, 3, 0, 0]]),
    ],
)
def test_shares_of_a_ragged_epoch(benchmarks, batch_size, num_shards, sizes):
    program = benchmarks("ragged_epochs")
    make = program.training_data({"number": np.arange(29)}, 12)
    found = []
    for shard in range(num_shards):
        batches = make(batch_size, num_shards, shard)
        epoch = list(batches.take(len(sizes[0])).as_numpy_iterator())
        assert [len(batch["number"]) for batch in epoch] == sizes[shard]
        found += [number for batch in epoch for number in batch["number"]]
        # The second epoch is like the first; training may begin with it.
        later = make(batch_size, num_shards, shard, start_example=3 * 12)
        for batch, again in zip(epoch, later, strict=False):
            np.testing.assert_array_equal(again["number"], batch["number"])
    assert sorted(found) == list(range(29))
