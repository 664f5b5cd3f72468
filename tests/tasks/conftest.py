"""Fixtures of the tests of tasks."""

import pytest
from absl import logging


@pytest.fixture
def warnings(monkeypatch):
    """The warnings that a test logs, as text."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: lines.append(m % a))
    return lines
