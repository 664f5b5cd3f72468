"""Flags that several benchmarks have."""

import sys

import pytest
from absl import flags


@pytest.fixture
def benchmark_flags(benchmarks):
    """The module; flags that a test defines go with it."""
    before = set(flags.FLAGS)
    yield benchmarks("benchmark_flags")
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


def parse(*words):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["program.py", *words], known_only=True)
    return flags.FLAGS


def test_a_list_has_words_that_are_known(benchmark_flags):
    benchmark_flags.define_some("fruits", {"fig": 1, "plum": 2})
    benchmark_flags.define_some("roots", ["beet", "leek"], ["leek"])
    assert parse().fruits == ["fig", "plum"]
    assert parse().roots == ["leek"]
    assert parse("--fruits=plum", "--roots=leek,beet").fruits == ["plum"]
    for words in ("", "plum,leek"):
        with pytest.raises(
            flags.IllegalFlagValueError, match="some of fig, plum"
        ):
            parse(f"--fruits={words}")


def test_flags_are_those_of_the_program_that_defines_them(benchmark_flags):
    benchmark_flags.define_interpreter("fruit_python", "fruit")
    flag = flags.FLAGS["fruit_python"]
    assert flag.help == "Interpreter with what peers/fruit.txt lists."
    keys = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    assert flag in keys


def test_an_environment_is_made_if_none_is_named(benchmark_flags, monkeypatch):
    made = []

    def python_of(peer, on_top):
        made.append((peer, on_top))
        return "made"

    monkeypatch.setattr(
        benchmark_flags.peer_environment, "python_of", python_of
    )
    benchmark_flags.define_interpreter("fruit_python", "fruit")
    parse("--fruit_python=named")
    assert benchmark_flags.interpreter("fruit_python", "fruit") == "named"
    assert not made
    parse("--fruit_python=")
    found = benchmark_flags.interpreter("fruit_python", "fruit", on_top=True)
    assert (found, made) == ("made", [("fruit", True)])
