"""TensorFlow is there, and has said nothing."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from absl import logging
import bert_tf.quiet_tensorflow
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


def test_only_our_own_words_are_left():
    assert run() == "ours\n"


@pytest.mark.slow
def test_the_users_log_level_counts():
    assert "oneDNN" in run(TF_CPP_MIN_LOG_LEVEL="0")
