"""Command lines of a fine-tuning job, parsed and not run."""

import pytest
from absl import flags

from bert_tf import cli
from bert_tf.jobs.classifier import ClassifierConfig


@pytest.fixture
def given():
    """Parses a command line; later words are added to earlier ones."""
    words = []

    def parse(*more):
        words.extend(more)
        values = flags.FlagValues()
        cli.define_flags(ClassifierConfig, values)
        values(["run_classifier.py", "--task_name=cola", *words])
        return cli.read_config(ClassifierConfig, values)

    return parse
