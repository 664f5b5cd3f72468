"""Imports modules of folders that are not packages, like a program there.

Not a test.
"""

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
    """Makes the modules importable, and removes them at the end of the block.

    Args:
      home: The folder of the modules.
      inner: Folders in it with more modules.
      absent: Packages that they import and that are not installed here.

    Yields:
      A function from a module's name to the module.
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
