"""Scripts, run in the process of the tests: no wait for TensorFlow each time.

@pytest.fixture(scope="module")
def launch():
    with in_process.script("fill_mask") as launch:
        yield launch

def test_it(launch, capsys):
    assert launch(["--text=[MASK]"]) == 0
    assert capsys.readouterr().out == ...
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator

import keras
import pytest
from absl import app, flags
from absl.testing import flagsaver

from bert_tf import flags as bert_flags


@contextlib.contextmanager
def script(
    name: str, required: Iterable[str] = ()
) -> Iterator[Callable[[list[str]], int]]:
    """Loads a script; its flags go when the block ends.

    Args:
      name: Its module, without `.py`.
      required: Flags that have to be given.

    Yields:
      A function that runs it with a command line and gives the exit status.
    """
    app.define_help_flags()
    # Other tests may have defined the flags that scripts share.
    _remove_flags(
        flag.name
        for module, defined in flags.FLAGS.flags_by_module_dict().items()
        for flag in defined
        if module.startswith("bert_tf.")
    )
    before = set(flags.FLAGS)
    module = importlib.import_module(name)

    def launch(words: list[str]) -> int:
        with pytest.MonkeyPatch.context() as patch, flagsaver.flagsaver():
            patch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
            flags.FLAGS.unparse_flags()
            with pytest.raises(SystemExit) as left:
                bert_flags.run(module.main, list(required))
        keras.config.set_dtype_policy("float32")
        return left.value.code or 0

    try:
        yield launch
    finally:
        _remove_flags(set(flags.FLAGS) - before)
        del sys.modules[name]


def the_error(capsys: pytest.CaptureFixture, name: str) -> str:
    """The one line that a script said of a mistake, and nothing after it."""
    lines = capsys.readouterr().err.splitlines()
    [line] = [line for line in lines if "error: " in line]
    assert lines[-1] == line
    assert line.startswith(f"{name}.py: error: ")
    assert "Traceback" not in "".join(lines)
    return line


def _remove_flags(names: Iterable[str]) -> None:
    for name in list(names):
        delattr(flags.FLAGS, name)
