"""Imports modules of folders that are not packages, like a program there."""

import contextlib
import importlib
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import pytest


@contextlib.contextmanager
def importable(
    home: pathlib.Path, *inner: pathlib.Path, absent: Iterable[str] = ()
) -> Iterator[Callable[[str], types.ModuleType]]:
    """Yields a function from names to modules, which the end removes.

    They are in `home` and folders in it. Packages that are `absent` are mocked.
    """
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for folder in (home, *inner):
            patch.syspath_prepend(folder)
        for name in absent:
            patch.setitem(sys.modules, name, mock.MagicMock())
        try:
            yield importlib.import_module
        finally:
            for name in set(sys.modules) - before:
                # Some modules import others when an attribute is read.
                file = vars(sys.modules[name]).get("__file__")
                if file and home in pathlib.Path(file).parents:
                    del sys.modules[name]
