"""The job of visualize_attention.py, which is in `bert_tf.contrib`."""

import importlib

from bert_tf import command

_job = importlib.import_module("bert_tf.contrib.attention")
run = _job.run
AttentionConfig = _job.AttentionConfig

if __name__ == "__main__":
    command.run_job("attention")
