"""TensorFlow is imported without start-up messages."""

import os
import subprocess
import sys

import pytest
from checkout import ROOT

CODE = """
import sys
from absl import logging
import bert_tf.base.quiet_tensorflow
import tensorflow as tf
logging.set_verbosity(logging.INFO)
tf.distribute.MirroredStrategy(["CPU:0"])
print("ours", file=sys.stderr)
"""


def run(**variables: str) -> str:
    outer = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=outer | variables,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stderr


def test_start_up_messages_are_hidden():
    assert run() == "ours\n"


@pytest.mark.slow
def test_the_users_log_level_is_kept():
    assert "oneDNN" in run(TF_CPP_MIN_LOG_LEVEL="0")


@pytest.mark.slow
def test_onednn_can_be_turned_off():
    said = run(TF_CPP_MIN_LOG_LEVEL="0", TF_ENABLE_ONEDNN_OPTS="0")
    assert "oneDNN" not in said


def test_a_missing_tensorflow_is_one_line(tmp_path):
    """The script and `bert-tf` say which command installs it."""
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError('No TensorFlow', name='tensorflow')"
    )
    script = str(ROOT / "fill_mask.py")
    done = subprocess.run(
        [sys.executable, script, f"--init_checkpoint={tmp_path}"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"{script}: error: This program needs the package tensorflow. Run, in "
        "the checkout of bert_tf: pip install '.[tensorflow]'\n"
    )
