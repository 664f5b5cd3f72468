"""Libraries are kept quiet, and then are as they were."""

import logging

import absl.logging
import pytest

from bert_tf.serving import export


@pytest.mark.parametrize("before", [logging.NOTSET, logging.INFO])
def test_loggers_are_as_they_were(before):
    """One without a level, too: it takes that of the program's root."""
    talker, absl_logger = logging.getLogger("talker"), logging.getLogger("absl")
    verbosity, level = absl.logging.get_verbosity(), absl_logger.level
    talker.setLevel(before)
    absl_logger.setLevel(before)
    try:
        with export.at_least(absl.logging.ERROR, "talker"):
            assert absl.logging.get_verbosity() == absl.logging.ERROR
            for logger in (talker, absl_logger):
                assert not logger.isEnabledFor(logging.WARNING)
                assert logger.isEnabledFor(logging.ERROR)
        assert (talker.level, absl_logger.level) == (before, before)
        assert absl.logging.get_verbosity() == verbosity
    finally:
        absl_logger.setLevel(level)
