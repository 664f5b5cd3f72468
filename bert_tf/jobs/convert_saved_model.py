"""The job of convert_saved_model.py, which is in `bert_tf.contrib`."""

import importlib
import sys

from bert_tf import command

if __name__ == "__main__":
    command.run_job("convert_saved_model")
# Both names are one module.
sys.modules[__name__] = importlib.import_module(
    "bert_tf.contrib.convert_saved_model"
)
