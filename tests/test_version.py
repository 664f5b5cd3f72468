"""Tests of the version."""

import re

from checkout import ROOT

from bert_tf.version import __version__


def test_the_version_has_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_changelog_speaks_of_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{__version__}]" in text
