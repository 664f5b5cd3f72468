"""Command lines of a fine-tuning script, parsed and not run."""

import fine_tuning_runs
import pytest
from absl import flags
from absl.testing import flagsaver


@pytest.fixture(scope="module")
def script():
    """Its flags are defined for as long as the tests of a module run."""
    with fine_tuning_runs.classifier():
        yield


@pytest.fixture
def given(script):
    """Parses a command line; the flags are what they were afterwards."""
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        yield lambda *words: flags.FLAGS(["run_classifier.py", *words])
