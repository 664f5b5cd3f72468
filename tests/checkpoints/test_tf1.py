"""Checkpoints are written completely or not at all, in TF1's format."""

import os
import pathlib
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.checkpoints.tf1 import CheckpointManager, Reader
from bert_tf.checkpoints.weights import restore
from bert_tf.errors import InputError

KERNEL = np.arange(15, dtype="float32").reshape(3, 5)
TENSORS = {"bert/kernel": KERNEL, "head/bias": np.ones(5, "float32")}
FILES = [".data-00000-of-00001", ".index"]


def read(prefix):
    reader = Reader(str(prefix))
    return {name: reader[name] for name in reader.shapes}


def files_of(*steps):
    return {f"model.ckpt-{step}{ending}" for step in steps for ending in FILES}


@pytest.fixture
def manager(tmp_path):
    return CheckpointManager(str(tmp_path))


def test_written_tensors_are_read(tmp_path):
    prefix = str(tmp_path / "new" / "model.ckpt")
    checkpoints.write(prefix, {"other": KERNEL + 1})
    tensors = {**TENSORS, "global_step": np.int64(2**40)}
    checkpoints.write(prefix, tensors)
    names = [f"model.ckpt{ending}" for ending in FILES]
    assert sorted(os.listdir(tmp_path / "new")) == names
    found = read(prefix)
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype
    assert "kernel" not in Reader(prefix)


def test_a_file_that_becomes_too_large_keeps_the_old_checkpoint(
    manager, tmp_path
):
    manager.save(1, TENSORS)
    before = sorted(os.listdir(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"write checkpoint {tmp_path}/mod"):
            manager.save(2, {"big": np.ones(2**19, "float32")})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("ending", FILES)
def test_an_index_is_never_beside_the_data_of_another(
    tmp_path, monkeypatch, ending
):
    def killed(source, target, overwrite=False):
        if target.endswith(ending):
            raise KeyboardInterrupt
        rename(source, target, overwrite)

    prefix = str(tmp_path / "model.ckpt")
    checkpoints.write(prefix, TENSORS)
    rename = tf.io.gfile.rename
    monkeypatch.setattr(tf.io.gfile, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(prefix, {"other": KERNEL})
    assert os.listdir(tmp_path) == ["model.ckpt.data-00000-of-00001"]


def test_a_checkpoint_is_found_by_its_prefix_files_or_folder(tmp_path):
    with pytest.raises(InputError, match=f"No checkpoint found in {tmp_path}"):
        checkpoints.find(str(tmp_path))
    prefix = str(tmp_path / "bert_model.ckpt")
    with pytest.raises(InputError, match=r"model\.ckpt\.index does not exist"):
        checkpoints.find(prefix)
    checkpoints.write(prefix, TENSORS)
    (tmp_path / "vocab.txt").touch()
    (tmp_path / "c.tmp-1.index").touch()
    paths = [prefix + ending for ending in ("", ".meta", *FILES)]
    for path in (*paths, str(tmp_path), f"{tmp_path}/"):
        assert checkpoints.find(path) == prefix
    checkpoints.write(str(tmp_path / "a"), TENSORS)
    with pytest.raises(InputError, match=f"2 checkpoints in {tmp_path}: a and"):
        checkpoints.find(str(tmp_path))


def test_a_training_folder_means_its_newest_checkpoint(manager, tmp_path):
    for step in (9, 10):
        manager.save(step, TENSORS)
    assert checkpoints.find(str(tmp_path)) == manager.prefix(10)
    # TF1 wrote absolute paths, which change when the folder is moved.
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/old/place/model.ckpt-9"\n'
    )
    assert checkpoints.find(str(tmp_path)) == manager.prefix(9)


def test_a_path_that_tensorflow_takes_for_a_pattern(tmp_path):
    with pytest.raises(InputError, match=r"run\[1\]: .* not contain \[ \],"):
        CheckpointManager(str(tmp_path / "run[1]"))
    with pytest.raises(InputError, match=r"not contain \*,"):
        Reader(str(tmp_path / "*"))


def cut(path):
    path.write_bytes(path.read_bytes()[:31])


def flip(path):
    """Damages the last tensor only, if it is a file of data."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


DAMAGE = [
    pytest.param(damage, ending, id=f"{damage.__name__}-{ending}")
    for damage in (cut, flip, empty, pathlib.Path.unlink)
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
    ours = {
        name: keras.Variable(np.full(value.shape, 7), dtype="float32")
        for name, value in TENSORS.items()
    }
    with pytest.raises(InputError, match=r"^Cannot read .*ckpt-5: .*damaged"):
        restore(ours, Reader(manager.prefix(5)))
    assert all((v.numpy() == 7).all() for v in ours.values())
    assert manager.latest() == manager.prefix(3)
    assert "model.ckpt-5" in caplog.text
    # The next checkpoint replaces it, even one of an earlier step.
    manager.save(4, TENSORS)
    assert manager.steps() == [4]
    assert tf.train.latest_checkpoint(str(tmp_path)) == manager.prefix(4)
    assert not list(tmp_path.glob("model.ckpt-5*"))


def test_all_checkpoints_are_damaged(manager, tmp_path):
    for step in (3, 5):
        manager.save(step, TENSORS)
        cut(tmp_path / f"model.ckpt-{step}.index")
    with pytest.raises(InputError, match=f"All checkpoints in {tmp_path} are"):
        manager.latest()


@pytest.mark.parametrize(
    ("keep", "steps"), [(3, [9, 10, 11]), (0, [1, 2, 9, 10, 11])]
)
def test_the_newest_checkpoints_are_kept(tmp_path, keep, steps):
    (tmp_path / "model.ckpt-1.meta").touch()  # Of TF1.
    manager = CheckpointManager(str(tmp_path), keep=keep)
    for step in (1, 2, 9, 10, 11):
        manager.save(step, TENSORS)
    assert manager.steps() == steps
    if keep:
        assert set(os.listdir(tmp_path)) == {"checkpoint"} | files_of(*steps)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == manager.prefix(11)
    kept = list(state.all_model_checkpoint_paths)
    assert kept == list(map(manager.prefix, steps))


def test_only_complete_checkpoints_count(manager, tmp_path):
    absent = CheckpointManager(str(tmp_path / "not there"))
    assert manager.steps() == absent.steps() == []
    assert manager.latest() is absent.latest() is None
    manager.save(5, TENSORS)
    left_by_killed_runs = {
        "model.ckpt-7.tmp-123.index",
        "model.ckpt-7.tmp-4.data-00000-of-00001.tempstate99",
        "model.ckpt-5.tmp-8.index",
        "model.ckpt-6.data-00000-of-00001",
    }
    of_others = {"model.ckpt-best.index", "bert_model.ckpt.index", "notes.txt"}
    for name in left_by_killed_runs | of_others:
        (tmp_path / name).touch()
    assert manager.latest() == manager.prefix(5)
    manager.save(8, TENSORS)
    names = {"checkpoint"} | files_of(5, 8) | of_others
    assert set(os.listdir(tmp_path)) == names


def test_tf1s_saver_reads_our_checkpoints(manager, tmp_path):
    manager.save(4, {**TENSORS, "global_step": np.int64(4)})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("bert"):
            kernel = tf.compat.v1.get_variable("kernel", [3, 5])
        step = tf.compat.v1.train.get_or_create_global_step()
        saver = tf.compat.v1.train.Saver()
        saver.restore(session, tf.train.latest_checkpoint(str(tmp_path)))
        values = session.run([kernel, step])
    np.testing.assert_array_equal(values[0], KERNEL)
    assert values[1] == 4
