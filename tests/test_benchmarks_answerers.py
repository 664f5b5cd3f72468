"""The sides of a benchmark that stay: asked, told, and ended."""

import sys

import pytest
from benchmark_modules import write_side


@pytest.fixture
def answerers(benchmarks):
    return benchmarks("answerers")


# It prints where its answers go, as libraries do.
PROGRAM = """
import request_lines

def reply(request):
    print("This is no answer.")
    if request == "fail":
        raise ValueError("on purpose")
    return {"size": len(request)}

request_lines.serve(reply, ["pytest"])
"""


@pytest.fixture
def program(tmp_path):
    return write_side(tmp_path, PROGRAM)


def test_a_side_is_asked_and_ends(answerers, program, tmp_path):
    command = [sys.executable, str(program)]
    with answerers.answerer(command, tmp_path / "said", {}) as side:
        assert side.versions == {"pytest": pytest.__version__}
        for text in ("é\u2028\n", "b"):
            reply = side.ask(text)
            assert reply.pop("request_cpu_seconds") >= 0
            assert reply == {"size": len(text)}
        process = side._process
        assert process.poll() is None
    assert process.returncode == 0
    assert (tmp_path / "said").read_text() == "This is no answer.\n" * 2


def test_a_side_that_fails_says_why(answerers, program, tmp_path):
    command = [sys.executable, str(program)]
    with (
        answerers.answerer(command, tmp_path / "said", {}) as side,
        pytest.raises(SystemExit) as left,
    ):
        side.ask("fail")
    assert "ValueError: on purpose" in left.value.code
    assert f"error: exit status 1 of {sys.executable}" in left.value.code


def test_a_side_that_does_not_begin(answerers, tmp_path):
    command = [sys.executable, "-c", "raise ImportError('no such thing')"]
    with (
        pytest.raises(SystemExit, match="no such thing"),
        answerers.answerer(command, tmp_path / "said", {}),
    ):
        pass


def test_sides_end_together(answerers, program):
    folders = []

    def start(name, folder):
        folders.append(folder)
        command = [sys.executable, str(program)]
        return answerers.answerer(command, folder / name, {})

    with answerers.together(start, ["one", "other"]) as sides:
        assert [side.ask("ab")["size"] for side in sides.values()] == [2, 2]
        assert {path.name for path in folders[0].iterdir()} == set(sides)
        processes = [side._process for side in sides.values()]
    assert [process.returncode for process in processes] == [0, 0]
    assert folders[0] == folders[1]
    assert not folders[0].exists()
