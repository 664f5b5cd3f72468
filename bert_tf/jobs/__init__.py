"""What each script does: a job is the function `run(config)` of its module.

from bert_tf.jobs import classifier

classifier.run(classifier.ClassifierConfig(...))
"""

import importlib
from typing import Any

# The module of each job, and the module of its options, which imports neither
# TensorFlow nor Keras: mistakes in a command line are reported at once.
JOBS = {
    "vocabulary": ("jobs.vocabulary",) * 2,
    "pretraining_data": ("jobs.pretraining_data",) * 2,
    "pretraining": ("kinds.pretraining.job", "kinds.pretraining.options"),
    "classifier": ("kinds.classification.job", "kinds.classification.options"),
    "squad": ("kinds.spans.job", "kinds.spans.options"),
    "ner": ("kinds.tags.job", "kinds.tags.options"),
    "embeddings": ("kinds.vectors.job", "kinds.vectors.options"),
    "features": (
        "kinds.vectors.features_job",
        "kinds.vectors.features_options",
    ),
    "fill_mask": ("kinds.masked_words.job", "kinds.masked_words.options"),
    "convert_checkpoint": ("jobs.convert_checkpoint",) * 2,
    "convert_saved_model": ("jobs.convert_saved_model",) * 2,
}


def __getattr__(name: str) -> Any:
    if name not in JOBS:
        raise AttributeError(f"module 'bert_tf.jobs' has no attribute {name!r}")
    return importlib.import_module(f"bert_tf.{JOBS[name][0]}")
