"""The sides of a benchmark that stay: asked, told, and ended."""

import sys

import pytest
from benchmark_modules import PEERS


@pytest.fixture
def answerers(benchmarks):
    return benchmarks("answerers")


# It prints where its answers go, as libraries do.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(PEERS)!r})
import request_lines

def reply(request):
    print("This is no answer.")
    if request == "fail":
        raise ValueError("on purpose")
    return {{"size": len(request)}}

request_lines.serve(reply, ["pytest"])
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


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
