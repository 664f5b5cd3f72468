"""Faults in a long run lose nothing.

After each fault the same command ends with the weights and Adam's moments of an
undisturbed run, bit for bit.
"""

import contextlib
import random
import re
import shutil
import signal
import subprocess
import time

import in_process
import numpy as np
import pytest
from fine_tuning_runs import contents, read
from small_pretraining import arguments, examples, write, write_inputs

from bert_tf.checkpoints import tf1 as checkpoints
from tests import programs

pytestmark = pytest.mark.slow

SCRIPT_NAME = "run_pretraining"
# Enough steps to stop the run in the middle.
SLOWLY = {
    "num_train_steps": 40,
    "save_checkpoints_steps": 3,
    "log_steps": 1,
    "keep_checkpoint_max": 2,
}
LAST = "model.ckpt-40"
LOST = "A worker exited or does not answer ("


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def difference(folder, other, name=LAST):
    """Returns the largest difference between two checkpoints."""
    tensors, others = read(folder / name), read(other / name)
    assert tensors.keys() == others.keys()
    return max(
        np.abs(value.astype(float) - others[key]).max()
        for key, value in tensors.items()
    )


def files_of(*steps):
    return {
        f"model.ckpt-{step}{ending}"
        for step in steps
        for ending in (checkpoints.DATA, checkpoints.INDEX)
    }


def checkpoint_files(folder):
    return {path.name for path in folder.glob("model.ckpt*")}


def quoted(line, **names):
    """Returns a line of the log as docs/reports/faults.md shows it."""
    for name, path in names.items():
        line = line.replace(str(path), name)
    return f"`{line.partition('.py: error: ')[2] or line.partition('] ')[2]}`"


def stopped_at(program):
    """Returns the step at which SIGTERM stopped a program."""
    [step] = re.findall(r"Stopped by SIGTERM at step (\d+);", program.said[-1])
    return step


def start_workers(inputs, output_dir, logs, *workers, **changes):
    """Starts a process for each worker, which is a dict of its flags."""
    places = [None]
    if len(workers) > 1:
        places = programs.places_of_workers(len(workers))
    values = {**SLOWLY, **changes}
    dies = values.pop("chief_does", None)
    logs.mkdir()
    return [
        programs.start(
            arguments(inputs, output_dir, **{**values, **own}),
            logs / str(index),
            place,
            None if index else dies,
        )
        for index, (place, own) in enumerate(zip(places, workers, strict=True))
    ]


def ends(workers):
    return [worker.end() for worker in workers]


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """The output folders of undisturbed runs by their numbers of workers."""
    folders = {}
    for count in (1, 2):
        folder = tmp_path_factory.mktemp("undisturbed")
        folders[count] = folder / "out"
        workers = [{}] * count
        started = start_workers(
            inputs, folders[count], folder / "logs", *workers
        )
        assert set(ends(started)) == {0}
    return folders


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def start(inputs, out, tmp_path):
    """Starts one worker or several, with the same output folder."""

    def call(*workers, data=inputs, **changes):
        logs = tmp_path / str(time.monotonic_ns())
        return start_workers(data, out, logs, *workers, **changes)

    return call


def test_a_process_is_killed(start, undisturbed, out, fault):
    [program] = start({})
    step = random.Random(0).randrange(4, 36)
    program.wait_for(f"] step {step} of ")
    program.send(signal.SIGKILL)
    assert program.end() == -signal.SIGKILL
    assert not (out / f"{LAST}.index").exists()
    [again] = start({})
    assert again.end() == 0
    [resumed] = re.findall(r"Resuming at step (\d+)", "\n".join(again.said))
    assert checkpoint_files(out) == files_of(39, 40)
    fault(
        f"a process killed after step {step} of 40, with a checkpoint "
        "every 3 steps",
        f"resumes from step {resumed}",
        difference(out, undisturbed[1]),
    )


def test_a_process_is_terminated(start, undisturbed, out, fault):
    [program] = start({})
    program.wait_for("] step 8 of ")
    program.send(signal.SIGTERM)
    assert program.end() == 128 + signal.SIGTERM
    assert files_of(stopped_at(program)) <= checkpoint_files(out)
    assert ends(start({})) == [0]
    fault(
        "SIGTERM, as before a preemption",
        "ends with status 143 and a checkpoint: " + quoted(program.said[-1]),
        difference(out, undisturbed[1]),
    )


def test_a_worker_is_killed(inputs, start, undisturbed, out, tmp_path, fault):
    """The workers are real processes, which run to their end."""
    words = arguments(inputs, out, **SLOWLY)
    chief, other = (
        programs.start_as_users_do(words, tmp_path / str(index), place)
        for index, place in enumerate(programs.places_of_workers())
    )
    chief.wait_for("] step 8 of ")
    other.send(signal.SIGKILL)
    killed = time.monotonic()
    assert chief.end() == 1
    seconds = time.monotonic() - killed
    line = chief.said[-1]
    assert LOST in line
    assert not (out / f"{LAST}.index").exists()
    assert ends(start({}, {})) == [0, 0]
    fault(
        "one of two workers killed in mid-step",
        f"the other ends {seconds:.0f} s later with status 1: {quoted(line)}",
        difference(out, undisturbed[2]),
    )


def test_the_chief_is_killed_while_it_saves(start, undisturbed, out, fault):
    """After the data of a checkpoint is renamed, before its index is."""
    dies = programs.DiesInRename("model.ckpt-15.index")
    chief, other = start({}, {}, chief_does=dies)
    assert chief.end() == -signal.SIGKILL
    assert other.end() == 1
    assert LOST in other.said[-1]
    assert files_of(9, 12) < checkpoint_files(out)
    [aside] = out.glob("*.tmp-*")
    manager = checkpoints.CheckpointManager(str(out))
    assert manager.latest() == str(out / "model.ckpt-12")
    assert ends(start({}, {})) == [0, 0]
    assert checkpoint_files(out) == files_of(39, 40)
    fault(
        "the chief of two workers killed while it saves step 15",
        "step 12 remains the newest; the other worker ends with status 1 and "
        "the line above; the incomplete files "
        f"{aside.name.partition('.tmp')[0]}.* are deleted when the run resumes",
        difference(out, undisturbed[2]),
    )


def test_one_of_two_workers_is_terminated(start, undisturbed, out, fault):
    workers = start({}, {})
    workers[0].wait_for("] step 8 of ")
    workers[1].send(signal.SIGTERM)
    assert ends(workers) == [128 + signal.SIGTERM] * 2
    first, second = map(stopped_at, workers)
    assert first == second
    assert files_of(first) <= checkpoint_files(out)
    assert ends(start({}, {})) == [0, 0]
    fault(
        "SIGTERM to one of two workers",
        f"both save and end at step {first}, with status 143",
        difference(out, undisturbed[2]),
    )


def test_a_worker_is_terminated_before_the_first_step(start):
    chief, other = start({}, {})
    other.wait_for("Devices: CPU, multi_worker_mirrored, 2 ")
    other.send(signal.SIGTERM)
    assert other.end() == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in other.said[-1]
    assert chief.end() == 1
    assert LOST in chief.said[-1]


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("learning_rate", "--learning_rate is 0.01 on worker 0 and 0.02 on"),
        ("input_file", "file 1 of --input_file is a.tfrecord, "),
        ("init_checkpoint", "the SHA-256 of the initial weights is "),
        ("vocab_file", "vocabulary is "),
    ],
)
def test_workers_with_different_settings_or_data_stop(
    inputs, undisturbed, start, out, tmp_path, name, differs
):
    """The data differs in one label and has the same size."""
    data = shutil.copytree(inputs, tmp_path / "data")
    batch = examples(17)
    batch["next_sentence_labels"][5] ^= 1
    write(data / "a.tfrecord", batch)
    vocab = (data / "vocab.txt").read_text()
    (data / "vocab.txt").write_text(vocab.replace("w1\n", "other\n"))
    other = {
        "learning_rate": 0.02,
        "input_file": f"{data}/[ab].tfrecord*",
        "init_checkpoint": undisturbed[1] / LAST,
        "vocab_file": data / "vocab.txt",
    }
    own = {"vocab_file": inputs / "vocab.txt"}
    workers = start(own, own | {name: other[name]})
    assert ends(workers) == [1, 1]
    [line] = {one.said[-1] for one in workers}
    assert f"the same settings and data: {differs}" in line
    assert not checkpoint_files(out)


def test_one_replica_of_two_has_a_nan(
    inputs, start, undisturbed, out, tmp_path, fault
):
    """In a record that one replica reads; both must stop."""
    data = shutil.copytree(inputs, tmp_path / "data")
    batch = examples(17)
    batch["masked_lm_weights"][11, 0] = np.nan
    write(data / "a.tfrecord", batch)
    workers = start({}, {}, data=data, save_checkpoints_steps=1)
    assert ends(workers) == [1, 1]
    [line] = {one.said[-1] for one in workers}
    [step] = re.findall(r"error: step (\d+): loss nan, ", line)
    assert checkpoint_files(out) == files_of(
        *(n for n in (int(step) - 2, int(step) - 1) if n > 0)
    )
    shutil.copy(inputs / "a.tfrecord", data)
    assert ends(start({}, {}, data=data)) == [0, 0]
    fault(
        "NaN in a record that one of two replicas reads",
        f"both end with status 1; the previous checkpoint is kept: "
        f"{quoted(line)}",
        difference(out, undisturbed[2]),
    )


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """A shorter undisturbed run."""
    folder = tmp_path_factory.mktemp("done")
    assert launch(arguments(inputs, folder)) == 0
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 40 kB, and a function that enlarges it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no disk can be mounted: {done.stderr.strip()}")

    mount("size=40k")
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", str(folder)], check=True)
        yield folder, lambda: mount("remount,size=1m")


def test_a_full_disk(launch, inputs, done, small_disk, capsys, fault):
    """There is room for one checkpoint."""
    disk, grow = small_disk
    folder = disk / "out"
    words = arguments(inputs, folder, log_steps=0)
    assert launch(words) == 1
    line = in_process.the_error(capsys, "run_pretraining")
    told = re.search(
        rf"Cannot write checkpoint {folder}/model\.ckpt-6: No space left on "
        r"device\. It needs about ([\d,]+) bytes, and ([\d,]+) are free\. ",
        line,
    )
    needed, free = (int(number.replace(",", "")) for number in told.groups())
    before = contents(folder)
    kept = {"checkpoint", "pretraining.json"} | files_of(3)
    assert {path.name for path in before} == kept
    sizes = [len(before[folder / name]) for name in files_of(3)]
    assert sum(sizes) == pytest.approx(needed, rel=0.1)
    assert needed > free > 0
    # Nothing changes until there is room.
    assert launch(words) == 1
    assert contents(folder) == before
    grow()
    assert launch(words) == 0
    fault(
        "a full disk (a tmpfs with room for one checkpoint)",
        f"ends with status 1: {quoted(line, OUTPUT_DIR=folder)}",
        difference(folder, done, "model.ckpt-6"),
    )


def cut(data):
    return data[: len(data) // 2]


def flip(data):
    data = bytearray(data)
    data[len(data) // 3] ^= 1
    return data


@pytest.mark.parametrize(
    ("damage", "what"), [(cut, "cut in half"), (flip, "with one bit flipped")]
)
def test_a_damaged_newest_checkpoint(
    launch, inputs, done, out, caplog, fault, damage, what
):
    shutil.copytree(done, out)
    path = out / f"model.ckpt-6{checkpoints.DATA}"
    path.write_bytes(damage(path.read_bytes()))
    assert launch(arguments(inputs, out)) == 0
    [line] = [m for m in caplog.messages if "Cannot read checkpoint" in m]
    assert line.endswith(" Trying the checkpoint before it.")
    assert f"Resuming at step 3 of {out}/model.ckpt-3" in caplog.text
    line = line.replace(str(out), "OUTPUT_DIR")
    fault(
        f"the newest checkpoint's data {what}",
        f"resumes from the previous checkpoint: `{line}`",
        difference(out, done, "model.ckpt-6"),
    )


def test_a_record_is_cut_off(launch, inputs, tmp_path, capsys, caplog, fault):
    shards = tmp_path / "shards"
    shards.mkdir()
    for index in range(8):
        write(shards / f"{index + 1}.tfrecord", examples(7, seed=index))
    path = shards / "3.tfrecord"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 9 // 14])

    def run(folder, status=0, **changes):
        words = arguments(
            inputs,
            tmp_path / folder,
            do_eval=True,
            max_eval_steps=0,
            input_file=f"{shards}/*.tfrecord",
            **changes,
        )
        assert launch(words) == status
        return tmp_path / folder

    run("refused", status=1)
    line = in_process.the_error(capsys, "run_pretraining")
    assert f"{path} is truncated in record 4 (from 0)" in line
    assert "pass --skip_corrupt_records" in line

    whole = run("whole", skip_corrupt_records=True)
    [told] = [m for m in caplog.messages if "the 4 records before" in m]
    assert told.startswith(f"{path} is truncated in record 4")
    results = (whole / "eval_results.txt").read_text()
    assert "damaged_files = 1\n" in results
    # Stopped in the middle and resumed.
    run("resumed", skip_corrupt_records=True, stop_at_step=4)
    resumed = run("resumed", skip_corrupt_records=True)
    assert (resumed / "eval_results.txt").read_text() == results
    fault(
        "the third of eight record files truncated",
        f"ends with status 1: {quoted(line, FOLDER=shards)}. With "
        "--skip_corrupt_records it continues, and the results contain "
        "`damaged_files = 1`; the difference is between an interrupted and "
        "an uninterrupted run, both with this flag",
        difference(resumed, whole, "model.ckpt-6"),
    )
