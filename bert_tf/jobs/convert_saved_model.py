"""The job of convert_saved_model.py, which is in `bert_tf.contrib`."""

import importlib

from bert_tf import command

_job = importlib.import_module("bert_tf.contrib.convert_saved_model")
run = _job.run
ConvertSavedModelConfig = _job.ConvertSavedModelConfig

if __name__ == "__main__":
    command.run_job("convert_saved_model")
