"""Imports TensorFlow and Keras in less time: 1.8 seconds instead of 3.

Keras imports scikit-learn and matplotlib for modules that few programs use.
Here they are imported when such a module is first used. The rest creates half a
million objects, which garbage collection would visit again and again.
"""

import contextlib
import gc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

# Keras's modules that import scikit-learn and matplotlib.
_LAZY = ("keras.wrappers", "keras.visualization", "keras.src.visualization")


def enable() -> None:
    """Delays imports that Keras rarely needs, unless they happened already."""
    import_with(_LazyLoader, *_LAZY)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turns garbage collection off in the `with` block."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not gc.get_freeze_count():
            # Moves all objects to the oldest generation, which is visited
            # rarely. The next collection would visit them otherwise.
            gc.freeze()
            gc.unfreeze()


class _LazyModule(types.ModuleType):
    """A module whose code runs when one of its attributes is first used.

    `__file__` and the like are there before, since TensorFlow and `inspect`
    ask every module for them.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run(), name)

    def __dir__(self) -> list[str]:
        return dir(self._run())

    def _run(self) -> types.ModuleType:
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        file = str(self.__file__)
        loader = importlib.machinery.SourceFileLoader(self.__name__, file)
        loader.exec_module(self)
        return self


class _LazyLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__class__ = _LazyModule


class _Finder:
    def __init__(
        self, loader: type[importlib.machinery.SourceFileLoader], *names: str
    ):
        self._loader, self._names = loader, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = self._loader(name, spec.loader.path)
        return spec


def import_with(
    loader: type[importlib.machinery.SourceFileLoader], *names: str
) -> None:
    """Makes later imports of modules, and of nothing else, use a loader."""
    sys.meta_path.insert(0, _Finder(loader, *names))
