"""Modules of folders that are no packages, found as when a program runs there.

No test by itself.
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
    """Lets them be imported; what was, goes when the block ends.

    Args:
      home: Where they are found.
      inner: Folders below it, where more are found.
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
                # Some modules import much when they are asked for a name.
                file = vars(sys.modules[name]).get("__file__")
                if file and home in pathlib.Path(file).parents:
                    del sys.modules[name]
