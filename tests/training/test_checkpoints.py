"""Checkpoints are written completely or not at all, in TF1's format."""

import os
import pathlib
import resource
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.training import checkpoints
from bert_tf.training.checkpoints import CheckpointManager, Reader
from bert_tf.training.weights import BOOKKEEPING, restore
from tests import programs

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = np.arange(15, dtype="float32").reshape(3, 5)
TENSORS = {"bert/kernel": KERNEL, "head/bias": np.ones(5, "float32")}
FILES = [".data-00000-of-00001", ".index"]


def read(prefix):
    reader = Reader(str(prefix))
    return {name: reader[name] for name in reader.shapes}


def variables():
    return {
        name: keras.Variable(np.full(value.shape, 7), dtype="float32")
        for name, value in TENSORS.items()
    }


def assert_untouched(ours):
    assert all((v.numpy() == 7).all() for v in ours.values())


# -------------------------------------------------------------- writing


def test_written_tensors_are_read(tmp_path, monkeypatch):
    prefix = str(tmp_path / "new" / "model.ckpt")
    names = [f"model.ckpt{ending}" for ending in FILES]
    checkpoints.write(prefix, {"other": KERNEL + 1})
    checkpoints.write(prefix, {**TENSORS, "global_step": np.int64(2**40)})
    assert sorted(os.listdir(tmp_path / "new")) == names
    found = read(prefix)
    assert found.keys() == {*TENSORS, "global_step"}
    assert found["global_step"] == 2**40
    assert found["global_step"].dtype == np.int64
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == np.float32
    assert "bert/kernel" in Reader(prefix)
    assert "kernel" not in Reader(prefix)
    monkeypatch.chdir(tmp_path / "new")
    checkpoints.write("here.ckpt", TENSORS)
    assert len(os.listdir()) == 4


def test_the_next_write_removes_files_of_killed_runs(tmp_path):
    (tmp_path / "model.ckpt.tmp-123.index").write_text("half")
    (tmp_path / "model.ckpt.tmp-9.data-00000-of-00001.tempstate4").touch()
    (tmp_path / "model.ckpt-7.index").touch()
    checkpoints.write(str(tmp_path / "model.ckpt"), TENSORS)
    assert sorted(os.listdir(tmp_path)) == [
        "model.ckpt-7.index",
        *[f"model.ckpt{ending}" for ending in FILES],
    ]


def test_a_failed_rename_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    def refuse(source, target, overwrite=False):
        raise tf.errors.ResourceExhaustedError(None, None, "disk full\nmore")

    manager = CheckpointManager(str(tmp_path))
    manager.save(1, TENSORS)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(tf.io.gfile, "rename", refuse)
    with pytest.raises(OSError, match=r"model.ckpt-2: disk full\. It needs "):
        manager.save(2, TENSORS)
    assert sorted(os.listdir(tmp_path)) == before
    assert manager.latest() == manager.prefix(1)


def test_an_index_is_never_beside_the_data_of_another(tmp_path, monkeypatch):
    def killed(source, target, overwrite=False):
        if target.endswith(".index"):
            raise KeyboardInterrupt
        rename(source, target, overwrite)

    prefix = str(tmp_path / "model.ckpt")
    checkpoints.write(prefix, TENSORS)
    rename = tf.io.gfile.rename
    monkeypatch.setattr(tf.io.gfile, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(prefix, {"other": KERNEL})
    assert os.listdir(tmp_path) == ["model.ckpt.data-00000-of-00001"]


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(folder, when):
    """Saves step 2 and is killed while it does."""
    gfile, manager = tf.io.gfile, CheckpointManager(folder, keep=1)
    rename = gfile.rename

    def rename_or_die(source, target, overwrite=False):
        if target.endswith(when):
            die()
        rename(source, target, overwrite)

    gfile.rename = rename_or_die
    if when == "state":
        manager._write_state = die
    if when == "remove":
        gfile.remove = die
    manager.save(2, {"other": KERNEL})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "latest"),
    [(FILES[0], 1), (FILES[1], 1), ("state", 2), ("remove", 2)],
)
def test_a_run_killed_at_any_moment_of_saving(tmp_path, when, latest):
    manager = CheckpointManager(str(tmp_path), keep=1)
    manager.save(1, TENSORS)
    process = programs.fork(save_and_die, str(tmp_path), when)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert manager.latest() == manager.prefix(latest)
    expected = TENSORS if latest == 1 else {"other": KERNEL}
    found = read(manager.prefix(latest))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    whole = set(manager.steps())
    manager.remove_leftovers()
    assert set(os.listdir(tmp_path)) == {"checkpoint"} | {
        f"model.ckpt-{step}{ending}" for step in whole for ending in FILES
    }


SAVE_A_BIG_ONE = """
import sys
import numpy as np
from bert_tf.training.checkpoints import CheckpointManager
try:
    CheckpointManager(sys.argv[1]).save(2, {"big": np.ones(2**19, "float32")})
except OSError as error:
    print(error)
"""


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path):
    CheckpointManager(str(tmp_path)).save(1, TENSORS)
    before = sorted(os.listdir(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", SAVE_A_BIG_ONE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (2**20, 2**20)
        ),
    )
    assert done.stdout.startswith(f"Cannot write checkpoint {tmp_path}/model")
    assert done.stdout.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert read(tmp_path / "model.ckpt-1").keys() == TENSORS.keys()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"write checkpoint .*file/model"):
        checkpoints.write(str(tmp_path / "file" / "model.ckpt"), TENSORS)


# -------------------------------------------------------------- finding


def test_a_checkpoint_is_found_by_its_prefix_files_or_folder(tmp_path):
    prefix = str(tmp_path / "bert_model.ckpt")
    checkpoints.write(prefix, TENSORS)
    (tmp_path / "vocab.txt").touch()
    for path in (
        *(prefix + ending for ending in ("", ".meta", *FILES)),
        str(tmp_path),
        f"{tmp_path}/",
    ):
        assert checkpoints.find(path) == prefix


def test_a_training_folder_means_its_newest_checkpoint(tmp_path):
    manager = CheckpointManager(str(tmp_path))
    for step in (9, 10):
        manager.save(step, TENSORS)
    assert checkpoints.find(str(tmp_path)) == manager.prefix(10)
    # TF1 wrote absolute paths, which change when the folder is moved.
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/old/place/model.ckpt-9"\n'
    )
    assert checkpoints.find(str(tmp_path)) == manager.prefix(9)


def test_no_checkpoint_or_several(tmp_path):
    with pytest.raises(InputError, match=r"none\.ckpt\.index does not exist"):
        checkpoints.find(str(tmp_path / "none.ckpt"))
    with pytest.raises(InputError, match=f"No checkpoint found in {tmp_path}"):
        checkpoints.find(str(tmp_path))
    for name in ("a", "b"):
        checkpoints.write(str(tmp_path / name), TENSORS)
    (tmp_path / "c.tmp-1.index").touch()
    with pytest.raises(InputError, match=f"2 checkpoints in {tmp_path}: a and"):
        checkpoints.find(str(tmp_path))


# --------------------------------------------------------------- damage


def cut(path):
    path.write_bytes(path.read_bytes()[:31])


def flip(path):
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


def into_text(path):
    path.write_text("hello, world\n" * 99)


DAMAGE = [
    pytest.param(damage, ending, id=f"{damage.__name__}-{ending}")
    for damage in (cut, flip, empty, into_text, pathlib.Path.unlink)
    for ending in FILES
    # Without its index it is not a checkpoint.
    if not (damage is pathlib.Path.unlink and ending == ".index")
]


@pytest.mark.parametrize(("damage", "ending"), DAMAGE)
def test_a_damaged_newest_checkpoint_is_skipped(
    tmp_path, caplog, damage, ending
):
    manager = CheckpointManager(str(tmp_path), keep=1)
    for step in (3, 5):
        checkpoints.write(manager.prefix(step), TENSORS)
    damage(tmp_path / f"model.ckpt-5{ending}")
    with pytest.raises(InputError, match=r"^Cannot read checkpoint .*damaged"):
        read(manager.prefix(5))
    ours = variables()
    with pytest.raises(InputError, match=r"model\.ckpt-5"):
        restore(ours, Reader(manager.prefix(5)))
    assert_untouched(ours)
    assert manager.latest() == manager.prefix(3)
    assert "model.ckpt-5" in caplog.text
    # The next checkpoint replaces it, even one of an earlier step.
    manager.save(4, TENSORS)
    assert manager.steps() == [4]
    assert tf.train.latest_checkpoint(str(tmp_path)) == manager.prefix(4)
    assert not list(tmp_path.glob("model.ckpt-5*"))


def test_damage_of_the_last_variable_changes_none(tmp_path):
    prefix = tmp_path / "model.ckpt"
    checkpoints.write(str(prefix), TENSORS)
    path = tmp_path / "model.ckpt.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    ours = variables()
    with pytest.raises(InputError, match="damaged"):
        restore(ours, Reader(str(prefix)))
    assert_untouched(ours)


def test_all_checkpoints_are_damaged(tmp_path):
    manager = CheckpointManager(str(tmp_path))
    for step in (3, 5):
        manager.save(step, TENSORS)
        cut(tmp_path / f"model.ckpt-{step}.index")
    with pytest.raises(
        InputError, match=f"All checkpoints in {tmp_path} are d"
    ):
        manager.latest()


def test_a_path_that_tensorflow_takes_for_a_pattern(tmp_path):
    with pytest.raises(InputError, match=r"run\[1\]: .* not contain \[ \],"):
        CheckpointManager(str(tmp_path / "run[1]"))
    with pytest.raises(InputError, match=r"not contain \*,"):
        Reader(str(tmp_path / "*"))


# ------------------------------------------------------ training folders


@pytest.mark.parametrize(
    ("keep", "steps"), [(3, [9, 10, 11]), (0, [1, 2, 9, 10, 11])]
)
def test_the_newest_checkpoints_are_kept(tmp_path, keep, steps):
    for name in ("index", "meta", "data-00000-of-00002"):  # Of TF1.
        (tmp_path / f"model.ckpt-1.{name}").touch()
    manager = CheckpointManager(str(tmp_path), keep=keep)
    for step in (1, 2, 9, 10, 11):
        manager.save(step, TENSORS)
    assert manager.steps() == steps
    if keep:
        assert set(os.listdir(tmp_path)) == {"checkpoint"} | {
            f"model.ckpt-{step}{ending}" for step in steps for ending in FILES
        }
    # TF1 finds them too.
    assert tf.train.latest_checkpoint(str(tmp_path)) == manager.prefix(11)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    kept = list(state.all_model_checkpoint_paths)
    assert kept == list(map(manager.prefix, steps))


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    for place in (tmp_path, tmp_path / "not there"):
        manager = CheckpointManager(str(place))
        assert manager.steps() == []
        assert manager.latest() is None


def test_only_complete_checkpoints_count(tmp_path):
    manager = CheckpointManager(str(tmp_path))
    manager.save(5, TENSORS)
    left_by_killed_runs = [
        "model.ckpt-7.tmp-123.index",
        "model.ckpt-7.tmp-123.data-00000-of-00001",
        "model.ckpt-7.tmp-4.data-00000-of-00001.tempstate99",
        "model.ckpt-5.tmp-8.index",
        "model.ckpt-6.data-00000-of-00001",
    ]
    of_others = ["model.ckpt-best.index", "bert_model.ckpt.index", "notes.txt"]
    for name in left_by_killed_runs + of_others:
        (tmp_path / name).touch()
    assert manager.steps() == [5]
    assert manager.latest() == manager.prefix(5)
    manager.save(8, TENSORS)
    names = os.listdir(tmp_path)
    assert not set(left_by_killed_runs) & set(names)
    assert set(of_others) < set(names)
    assert manager.steps() == [5, 8]


# ------------------------------------------------------------------- TF1


def test_tf1s_saver_reads_our_checkpoints(tmp_path):
    manager = CheckpointManager(str(tmp_path))
    manager.save(4, {**TENSORS, "global_step": np.int64(4)})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("bert"):
            kernel = tf.compat.v1.get_variable("kernel", [3, 5])
        bias = tf.compat.v1.get_variable("head/bias", [5])
        step = tf.compat.v1.train.get_or_create_global_step()
        saver = tf.compat.v1.train.Saver()
        saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
        values = session.run([kernel, bias, step])
    np.testing.assert_array_equal(values[0], KERNEL)
    np.testing.assert_array_equal(values[1], TENSORS["head/bias"])
    assert values[2] == 4


def test_checkpoints_of_tf1s_saver_are_read(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("bert/kernel", initializer=KERNEL)
        tf.compat.v1.get_variable("head/bias", initializer=np.ones(5, "f4"))
        step = tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step.assign(6))
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(tmp_path / "model.ckpt"), step)
    manager = CheckpointManager(str(tmp_path))
    assert manager.latest() == manager.prefix(6)
    ours = variables()
    report = restore(ours, Reader(manager.prefix(6)))
    np.testing.assert_array_equal(ours["bert/kernel"], KERNEL)
    assert report.left_over == ()


@pytest.fixture(scope="module")
def pretrainer(shared_data):
    """The variables for a checkpoint that another TF1 program trained."""
    folder = shared_data / "checkpoints" / "tf1_tiny_keras_bert"
    path = str(folder / "bert_config.json")
    model = BertPretrainer(BertConfig.from_json_file(path))
    model.build()
    return checkpoint_variables(model), checkpoints.find(str(folder))


def test_a_pretraining_checkpoint_of_tf1_fills_a_model(pretrainer):
    ours, prefix = pretrainer
    report = restore(ours, Reader(prefix))
    assert set(report.filled) == set(ours)
    assert report.missing == report.left_over == ()
    theirs = Reader(prefix)
    bookkeeping = set(theirs.shapes) - set(ours)
    assert bookkeeping == {"global_step"} | {
        f"{name}/{slot}" for name in ours for slot in ("adam_m", "adam_v")
    }
    for name, variable in ours.items():
        np.testing.assert_array_equal(variable, theirs[name])


def test_variables_have_the_names_and_shapes_of_the_original(shared_data):
    """Only the index files of the original's checkpoints are available."""
    folder = shared_data / "google_bert_outputs"
    path = str(folder / "bert_config.json")
    model = BertPretrainer(BertConfig.from_json_file(path))
    model.build()
    ours = {k: list(v.shape) for k, v in checkpoint_variables(model).items()}
    released = Reader(str(folder / "bert_model.ckpt")).shapes
    trained = Reader(str(folder / "pretraining" / "model.ckpt-20")).shapes
    assert released == ours
    weights = {
        name: shape
        for name, shape in trained.items()
        if not BOOKKEEPING.match(name)
    }
    assert weights == ours
