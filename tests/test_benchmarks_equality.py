"""The program that compares trainings: what it starts, compares and tells.

What it starts on workers and hosts for real: test_several_workers.py.
"""

import json
import os
import sys

import numpy as np
import pytest

from bert_tf.training import checkpoints


@pytest.fixture(scope="module")
def results(benchmarks):
    return benchmarks("equality_results")


@pytest.fixture(scope="module")
def shares(benchmarks):
    return benchmarks("worker_shares")


@pytest.fixture(scope="module")
def two_hosts(benchmarks):
    return benchmarks("two_hosts")


# What is started.

# Writes what a worker sees of itself and of the others.
TELL = """
import json, os, pathlib, sys
place = pathlib.Path(next(w for w in sys.argv if "--output_dir" in w)[13:])
place.mkdir(exist_ok=True)
task = json.loads(os.environ.get("TF_CONFIG", "{}"))
index = task.get("task", {}).get("index", 0)
(place / f"{index}.json").write_text(json.dumps([sys.argv[1:], task]))
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script; gives its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


def test_workers_know_each_other(layouts, script, tmp_path):
    layout = layouts.LAYOUTS["two_workers"]
    folder = layouts.run(layout, script(TELL), {"a": 1}, tmp_path / "run")
    assert folder == tmp_path / "run" / "output"
    told = [
        json.loads((folder / f"{index}.json").read_text()) for index in (0, 1)
    ]
    words = {
        "--a=1",
        "--distribution_strategy=multi_worker_mirrored",
        f"--output_dir={folder}",
    }
    assert [set(line) for line, _ in told] == [words, words]
    clusters = [tf_config.pop("cluster") for _, tf_config in told]
    assert clusters[0] == clusters[1]
    assert len(set(clusters[0]["worker"])) == 2
    assert [tf_config for _, tf_config in told] == [
        {"task": {"type": "worker", "index": index}} for index in (0, 1)
    ]


def test_one_device_is_alone(layouts, script, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    layout = layouts.LAYOUTS["one_device"]
    folder = layouts.run(layout, script(TELL), {}, tmp_path / "run")
    [words, tf_config] = json.loads((folder / "0.json").read_text())
    assert "--distribution_strategy=one_device" in words
    assert tf_config == {}


def test_replicas_are_devices(benchmarks, script, tmp_path, monkeypatch):
    """The script is what it is without them: the main program."""
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


def test_a_worker_that_fails_ends_all(layouts, script, tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "_SECONDS_TO_END", 0.1)
    fails = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit("error: expected more. Received: less")
time.sleep(600)
"""
    layout = layouts.LAYOUTS["two_workers"]
    with pytest.raises(SystemExit, match=r"more. Received: less") as error:
        layouts.run(layout, script(fails), {}, tmp_path / "run")
    assert f"exit status 1 of {sys.executable}" in str(error.value)


# Hosts.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("shutil", "which", lambda name: None), "no program `ip`"),
        (("os", "geteuid", lambda: 1), "take root"),
    ],
)
def test_why_there_are_no_hosts(two_hosts, monkeypatch, change, reason):
    monkeypatch.setattr(two_hosts.shutil, "which", lambda name: "/sbin/ip")
    monkeypatch.setattr(two_hosts.os, "geteuid", lambda: 0)
    module, name, answer = change
    monkeypatch.setattr(getattr(two_hosts, module), name, answer)
    with (
        pytest.raises(two_hosts.Unavailable, match=reason),
        two_hosts.two_hosts(),
    ):
        pass


def test_what_the_kernel_says(two_hosts, monkeypatch, tmp_path):
    ip = tmp_path / "ip"
    ip.write_text("#!/bin/sh\necho No such thing. >&2\nexit 2\n")
    ip.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(two_hosts.os, "geteuid", lambda: 0)
    with (
        pytest.raises(two_hosts.Unavailable, match=r"netns .* No such thing\."),
        two_hosts.two_hosts(),
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


def test_two_hosts_reach_each_other(layouts, two_hosts, script, tmp_path):
    """And are not here: nobody of this host is at their addresses."""
    layout = layouts.LAYOUTS["two_hosts"]
    try:
        layouts.run(layout, script(MEET), {}, tmp_path / "run")
    except two_hosts.Unavailable as reason:
        pytest.skip(f"no hosts: {reason}")
    told = [
        (tmp_path / "run" / f"worker{index}.log").read_text().split()
        for index in (0, 1)
    ]
    assert told == [["10.77.0.2"] * 2, ["10.77.0.1"] * 2]


# What is compared.


def checkpoint(**changes):
    tensors = {
        "bert/kernel": np.array([1.0, -2.0], np.float32),
        "bert/kernel/adam_m": np.array([0.5, 0.1], np.float32),
        "bert/kernel/adam_v": np.array([0.25, 0.01], np.float32),
        "global_step": np.int64(30),
    }
    return {**tensors, **changes}


def test_equal_checkpoints_differ_by_nothing(results):
    found = results.difference(checkpoint(), checkpoint())
    assert found == results.Difference(0.0, 0.0)


def test_the_largest_difference_counts(results):
    found = results.difference(
        checkpoint(
            **{
                "bert/kernel": np.array([1.25, -2.5], np.float32),
                "bert/kernel/adam_v": np.array([0.25, 0.135], np.float32),
            }
        ),
        checkpoint(),
    )
    assert found.weights == 0.5
    assert found.moments == pytest.approx(0.5)


@pytest.mark.parametrize(
    "changes",
    [{"global_step": np.int64(29)}, {"more": np.zeros(1, np.float32)}],
)
def test_other_checkpoints_are_not_compared(results, changes):
    with pytest.raises(ValueError, match="same tensors and steps"):
        results.difference(checkpoint(**changes), checkpoint())


def test_a_checkpoint_is_read(results, tmp_path):
    checkpoints.write(str(tmp_path / "model.ckpt-30"), checkpoint())
    found = results.read(tmp_path, 30)
    assert results.difference(found, checkpoint()).weights == 0


@pytest.fixture
def answers(tmp_path):
    """Writes what an evaluation leaves; gives its folder."""

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


def test_answers_are_compared(results, answers):
    one = answers("one")
    same = results.Answers(0.0, 0.0, 0)
    assert results.compare_answers(answers("same"), one) == same
    other = answers("other", accuracy=0.75, probability=0.375, text="b a")
    found = results.compare_answers(other, one)
    assert found == results.Answers(0.25, 0.125, 1)


def test_means_of_batches_are_not_compared_across_sizes(results, answers):
    one, other = answers("one"), answers("other")
    for folder, loss in ((one, 0.5), (other, 0.75)):
        with (folder / "eval_results.txt").open("a") as file:
            file.write(f"eval_loss = 0.25\nloss = {loss}\n")
    assert results.compare_answers(one, other).metrics == 0.25
    assert results.compare_answers(one, other, alike=True).metrics == 0.0


def test_what_does_not_predict(results, answers):
    one, other = (answers(name, predicts=False) for name in ("one", "other"))
    assert results.compare_answers(other, one) == results.Answers(0.0)


def test_what_is_not_clipped_has_to_end_elsewhere(results):
    results.require_apart(results.Difference(2e-4, 0.0))
    with pytest.raises(ValueError, match=r"longer than --max_grad_norm"):
        results.require_apart(results.Difference(1e-6, 1.0))


# What workers read.


def test_workers_read_each_example_once(benchmarks, shares, tmp_path):
    tasks = benchmarks("small_tasks")
    tasks.write_pretraining(tmp_path)
    names = ("a.tfrecord", "b.tfrecord.gz", "c.tfrecord")
    found = shares.shares(
        [f"{tmp_path}/{name}" for name in names],
        [f"{tmp_path}/held_out.tfrecord"],
        tasks.pretraining_schema(tasks.LENGTH, tasks.PREDICTIONS),
        num_workers=2,
    )
    assert found == shares.Shares((16, 15), (3, 2))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([[b"a"], [b"b"]], "1 of them not, 0 again"),
        ([[b"a", b"b"], [b"c", b"a"]], "0 of them not, 1 again"),
    ],
)
def test_workers_that_do_not(shares, parts, told):
    with pytest.raises(ValueError, match=rf"3 examples once\. .*: {told}"):
        shares.each_once(parts, [b"a", b"b", b"c"])


# What is told.


def test_the_section(results, shares, layouts):
    found = results.Results()
    found.trained = {
        ("four_replicas", 3, "squad"): results.Difference(1.5e-7, 2e-6),
        ("two_replicas", 1, "ner"): results.Difference(0.0, 0.0),
        ("two_replicas", 1, "squad"): results.Difference(2.5e-7, 3e-6),
    }
    found.without_clipping = {"squad": results.Difference(0.25, 1.0)}
    found.answered = {
        False: {("two_replicas", "squad"): results.Answers(1e-8, 2e-8, 1)},
        True: {("two_replicas", "squad"): results.Answers(0.0, 0.0, 0)},
    }
    found.shares = [shares.Shares((2, 1), (1, 1)), shares.Shares((4,), (3,))]
    found.left_out = {"two_hosts": "it is a small world"}
    scripts = {"squad": "`run_squad.py`", "ner": "`run_ner.py`"}
    lines = results.section(found, layouts.LAYOUTS, scripts).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert tables == [
        "| devices | parts of a batch | `run_squad.py` | `run_ner.py` |",
        "| --- | --- | --- | --- |",
        "| two replicas | 1 | 2.5e-07, 3.0e-06 | 0, 0 |",
        "| four replicas | 3 | 1.5e-07, 2.0e-06 |  |",
        "| two hosts: not run, for it is a small world |  |  |  |",
        "| *one device, gradients not clipped* | 1 | 2.5e-01, 1.0e+00 |  |",
        "| devices | metrics of `run_squad.py` | probabilities "
        "| other rows or labels |",
        "| --- | --- | --- | --- |",
        "| two replicas | 0 | 0 | 0 |",
        "| two hosts: not run, for it is a small world |  |  |  |",
        "| devices | metrics of `run_squad.py` | probabilities "
        "| other rows or labels |",
        "| --- | --- | --- | --- |",
        "| two replicas | 1.0e-08 | 2.0e-08 | 1 |",
        "| two hosts: not run, for it is a small world |  |  |  |",
        "| workers | in an epoch of training | in an evaluation |",
        "| --- | --- | --- |",
        "| 2 | 2 + 1 | 1 + 1 |",
        "| 1 | 4 | 3 |",
    ]


# The ragged epochs.


@pytest.mark.parametrize(
    ("batch_size", "num_shards", "sizes"),
    [
        (6, 1, [[6, 6, 6, 6, 5, 0]]),
        (3, 2, [[3, 3, 3, 3, 3, 2], [3, 3, 3, 3, 0, 0]]),
    ],
)
def test_shares_of_a_ragged_epoch_are_all_of_it(
    benchmarks, batch_size, num_shards, sizes
):
    from absl import flags

    before = set(flags.FLAGS)
    program = benchmarks("ragged_epochs")
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
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
