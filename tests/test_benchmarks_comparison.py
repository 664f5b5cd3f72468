"""What the benchmarks share: turns, statistics, pages, sides."""

import os
import sys
import time
from unittest import mock

import pytest
from benchmark_modules import PEERS, importable

from bert_tf.errors import InputError


@pytest.fixture(scope="module")
def comparison(benchmarks):
    return benchmarks("comparison")


@pytest.fixture(scope="module")
def sides(benchmarks):
    return benchmarks("sides")


@pytest.fixture(scope="module")
def side():
    """The module that all peers import."""
    with importable(PEERS) as module_of:
        yield module_of("side")


# Turns.


class Side:
    """Does the work three times in a second per letter of the request."""

    def __init__(self, name, asked):
        self.versions = {name: "1.0"}
        self._name, self._asked = name, asked

    def ask(self, request):
        self._asked.append((self._name, request))
        return {
            "times": 3,
            "seconds": float(len(request)),
            "cpu_seconds": 2.0 * len(request),
            "request_cpu_seconds": 1e9,
            "share": 0.5,
        }


@pytest.fixture
def results(comparison):
    titles = {"ours": "bert_tf", "theirs": "another", "third": "a third"}
    return comparison.Comparison(
        "Work", "MB/s", titles, command="python work.py", machine="A machine"
    )


@pytest.fixture
def asked(comparison, results, tmp_path):
    """Two rounds of two cases; the third side knows one of them."""
    asked = []
    sides = {name: Side(name, asked) for name in results.titles}
    cases = [
        comparison.Case("short", 6.0, {"ours": "a", "theirs": "bb"}),
        comparison.Case(
            "long", 60.0, {"ours": "a", "theirs": "bb", "third": "ccc"}
        ),
    ]
    output = str(tmp_path / "new" / "results.json")
    comparison.take_turns(results, cases, sides, 2, output)
    assert comparison.Comparison.read(output) == results
    return asked


def test_another_side_begins_each_round(asked):
    assert [name for name, _ in asked] == [
        *("ours", "theirs"),
        *("ours", "theirs", "third"),
        *("theirs", "ours"),
        *("theirs", "third", "ours"),
    ]


def test_the_amount_of_work_is_counted(asked, results):
    assert results.cases == ["short", "long"]
    assert results.sides("short") == ["ours", "theirs"]
    assert results.rates("short", "ours") == [18.0, 18.0]
    assert results.rates("long", "third") == [60.0, 60.0]
    assert results.more("long", "third", "share") == [0.5, 0.5]
    assert results.versions["third"] == {"third": "1.0"}
    assert {turn.cpu_seconds for turn in results.turns} == {2.0, 4.0, 6.0}
    assert {turn.other_cpu_seconds for turn in results.turns} == {0.0}


def test_cpu_time_of_other_programs(comparison, results, monkeypatch):
    busy = iter([100.0, 107.0])
    monkeypatch.setattr(comparison, "busy_seconds", lambda: next(busy))
    reply = {"times": 1, "seconds": 4.0, "cpu_seconds": 5.0}
    one = mock.Mock(versions={}, ask=lambda request: reply)
    case = comparison.Case("short", 1.0, {"ours": None})
    comparison.take_turns(results, [case], {"ours": one}, 1, None)
    assert results.turns[0].other_cpu_seconds == 2.0


def test_disturbed_rounds_count_only_without_others(comparison, results):
    def turn(seconds, others):
        return comparison.Turn("short", "ours", 1.0, seconds, 1.0, others)

    results.turns = [turn(2.0, 0.21), turn(4.0, 1.0)]
    assert results.rates("short", "ours") == [0.5, 0.25]
    results.turns.append(turn(1.0, 0.1))
    assert results.rates("short", "ours") == [1.0]


# Statistics.


def test_ratio_of_medians(comparison):
    assert comparison.ratio([6.0], [2.0, 3.0, 40.0]) == (2.0, 2.0, 2.0)
    ours, theirs = [10.0, 12.0, 11.0, 13.0], [5.0, 5.5, 4.5, 5.2]
    value, low, high = comparison.ratio(ours, theirs)
    assert value == pytest.approx(11.5 / 5.1)
    assert 10 / 5.5 <= low < value < high <= 13 / 4.5
    assert comparison.ratio(ours, theirs) == (value, low, high)


def test_cells(comparison):
    assert [*map(comparison.shown, (0.1234, 12.34, 1234.5))] == [
        *("0.12", "12.3", "1,234"),
    ]
    assert comparison.spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert comparison.spread([1.001, 1.0]) == "1.00"
    assert comparison.ratio_cell([6.0], [4.0]) == "1.50"
    assert comparison.ratio_cell([1.0, 9.0], [1.0, 2.0]).startswith("3.33 (")


# Pages.


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


def test_a_section(comparison, asked, results):
    results.facts = ["A fact."]
    results.left_out = {"third": "there is no compiler"}
    text = comparison.section(results)
    assert text.startswith(
        "## Work\n\n```sh\npython work.py\n```\n\n- A machine"
    )
    assert "- A fact.\n" in text
    assert "- ours 1.0, theirs 1.0, third 1.0\n" in text
    assert "- Not measured: a third: there is no compiler\n" in text
    assert rows_of(text)[2:4] == [
        "| short | bert_tf | 2 (2) | 18.0 | 50% |  |",
        "| short | another | 2 (2) | 9.00 | 50% | 2.00 |",
    ]
    assert rows_of(text)[-1].endswith("| 60.0 | 50% | 3.00 |")


def test_a_section_of_seconds_with_memory(comparison, results, capsys):
    results.unit = "s"
    results.turns = [
        comparison.Turn(
            *("short", side, 1.0, seconds, 1.0, 0.0),
            {"peak_bytes": 3 * 2**20, "peak_flops": 7e9},
        )
        for side, seconds in (("ours", 2.0), ("ours", 4.0), ("theirs", 1.5))
    ]
    title, _, ours, theirs = rows_of(comparison.section(results))
    assert "| s | memory, MiB | matmul peak, GFLOP/s |" in title
    assert ours.endswith("| 3.00 (2.00 to 4.00) | 3 | 7 |  |")
    assert theirs.endswith("| 1.50 | 3 | 7 | 0.56 |")
    assert comparison._line(results, results.turns[0]).startswith(
        "short: bert_tf: 2.00 s in 2.00 s (1.00 s of CPU"
    )


PAGE = """# Title

<!-- speed: a program writes this section -->
<!-- end of speed -->

Between.

<!-- size: a program writes this section -->

12 MB \\1

<!-- end of size -->
Below.
"""


def test_only_the_section_of_a_page_is_replaced(comparison, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    expected = PAGE.replace("12 MB", "| 13").replace("\\1\n", "\\1 |\n")
    comparison.publish("\n| 13 \\1 |\n\n", str(page), "size")
    assert page.read_text() == expected
    assert "| 13" in capsys.readouterr().out
    for _ in range(2):
        comparison.write_section(str(page), "speed", "fast")
    assert page.read_text() == expected.replace(
        "section -->\n<!-- end of speed",
        "section -->\n\nfast\n\n<!-- end of speed",
    )


@pytest.mark.parametrize("content", ["", PAGE + PAGE, "<!-- size: -->"])
def test_a_page_without_the_section_is_kept(comparison, tmp_path, content):
    page = tmp_path / "page.md"
    page.write_text(content)
    with pytest.raises(InputError, match=r"page\.md: expected one section"):
        comparison.write_section(str(page), "size", "13 MB")
    assert page.read_text() == content


def test_unknown_words_of_a_list(comparison):
    comparison.require_known("fruits", ("fig",), {"fig": 1, "plum": 2})
    with pytest.raises(InputError, match=r"--fruits .* fig or plum; got 'a'"):
        comparison.require_known("fruits", ("fig", "a"), {"fig": 1, "plum": 2})


# Commands and processes.


def test_usage_of_a_command(sides, tmp_path):
    """200 MiB, held by a process of the command, and a variable."""
    inner = "import time; held = b'1' * (200 << 20); time.sleep(0.3)"
    program = (
        "import os, subprocess, sys; print(os.environ['COLOUR']); "
        f"subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    usage = sides.run_command(
        [sys.executable, "-c", program], tmp_path, {"COLOUR": "green"}
    )
    assert (tmp_path / "stdout").read_text() == "green\n"
    assert 0.3 < usage["seconds"] < 60
    assert 0 < usage["cpu_seconds"] < 60
    assert 200 << 20 < usage["peak_bytes"] < 1 << 30


def test_a_stopped_benchmark_stops_its_command(sides, tmp_path, monkeypatch):
    seen = []

    def stop(session):
        seen.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(sides, "resident_bytes", stop)
    program = "import time; time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        sides.run_command([sys.executable, "-c", program], tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_failed_command_prints_the_end_of_its_log(sides, tmp_path, capsys):
    program = "import sys; print('x' * 9999 + 'why', file=sys.stderr); 1/0"
    with pytest.raises(InputError, match="failed with exit status 1"):
        sides.run_command([sys.executable, "-c", program], tmp_path)
    said = capsys.readouterr().err
    assert "xwhy" in said
    assert "ZeroDivisionError" in said
    assert len(said) < 3000


def test_a_side_that_is_a_command(sides):
    program = "import sys; open(sys.argv[1] + '/out', 'w').write('12345')"
    command = sides.Command(
        [sys.executable, "-c", program],
        {"a": "1"},
        lambda folder: os.path.getsize(f"{folder}/out"),
    )
    reply = command.ask(["{folder}"])
    assert reply["times"] == 5
    assert reply["seconds"] > 0


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import side

def reply(request):
    if request == "fail":
        sys.exit("what was wrong")
    print("a library prints")
    return {{"double": 2 * request}}

side.serve(reply, ["pytest"])
"""


def test_a_side_that_is_a_process(sides, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    program = PROGRAM.format(folder=str(PEERS))
    (tmp_path / "program.py").write_text(program)
    commands = {"one": [sys.executable, "program.py"]}
    with sides.started(commands, {}) as found:
        one = found["one"]
        assert one.versions == {"pytest": pytest.__version__}
        reply = one.ask(21)
        assert reply.pop("request_cpu_seconds") >= 0
        assert reply == {"double": 42}
        with pytest.raises(InputError, match="failed with exit status 1"):
            one.ask("fail")
    assert "what was wrong" in capfd.readouterr().err


def test_work_is_repeated_until_the_time_is_over(side):
    done = []

    def work():
        time.sleep(0.01)
        done.append(len(done))
        return done[-1]

    usage, last = side.repeat(work, 0.05)
    assert 1 <= usage["times"] == len(done) == last + 1 <= 5
    assert usage["seconds"] >= 0.05
    assert usage["cpu_seconds"] < 0.05
    usage, _ = side.repeat(lambda: None, 0.0, least_times=3)
    assert usage["times"] == 3


def test_a_side_uses_the_first_cores(side, monkeypatch):
    kept = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2, 3})
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cpus: kept.append(cpus)
    )
    side.limit_threads(2)
    assert kept == [[2, 3]]


def test_products_and_their_share_of_the_peak(side, monkeypatch):
    """A step takes twice as long as a product, and has as many FLOPs."""
    served = []
    monkeypatch.setattr(side, "limit_threads", lambda number: None)
    monkeypatch.setattr(side, "serve", lambda reply, _: served.append(reply))
    work = side.Work(
        lambda: time.sleep(0.02), lambda: time.sleep(0.01), lambda: 7
    )
    side.serve_training(lambda request: work, 1, ())
    request = {
        **{"matrix_size": 10, "products": 3, "flops": 6000.0},
        "least_seconds": 0.0,
    }
    reply = served[0](request)
    assert reply["times"] == 2
    assert reply["peak_flops"] == pytest.approx(6000 / 0.01, rel=0.5)
    assert reply["share"] == pytest.approx(0.5, rel=0.5)
    assert reply["peak_bytes"] == 7


# The machine and the environments.


def test_busy_seconds(sides, tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 300 9999 8888 1 2 77 60 0\ncpu0 1 2 3\n")
    assert sides.busy_seconds(stat) == 500 / os.sysconf("SC_CLK_TCK")
    before = sides.busy_seconds()
    sum(range(10**6))
    assert sides.busy_seconds() >= before > 0


def test_the_machine(sides, tmp_path):
    assert sides.processor() in sides.machine()
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"
        "flags\t\t: fpu avx2 avx512f avx512_bf16\n\n"
    )
    assert sides.processor(cpuinfo) == "Some CPU @ 2 GHz, AVX-512"
    cpuinfo.write_text("model name\t: Old\nflags\t: fpu sse2\n")
    assert sides.processor(cpuinfo) == "Old"
    assert sides.processor(tmp_path / "absent")


def test_more_cores_than_there_are(sides):
    with pytest.raises(InputError, match="--num_threads must be at most"):
        sides.limit_cpus(10_000)


def test_an_environment_is_created_once(sides, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "ROOT", tmp_path)
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    monkeypatch.setattr(sides.venv, "create", mock.Mock())
    folder = tmp_path / ".venv-peer-x"
    install = mock.Mock(
        side_effect=lambda *_, **__: folder.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(sides.subprocess, "run", install)
    packages = tmp_path / "x.txt"
    packages.write_text("a\n")
    python = str(folder / "bin" / "python")
    assert sides.peer_python("given", "x") == "given"
    assert not install.called
    for _ in range(2):
        assert sides.peer_python(None, "x") == python
    assert install.call_count == 1
    assert install.call_args.args[0][-2:] == ["-r", packages]
    later = packages.stat().st_mtime + 5
    os.utime(packages, (later, later))
    sides.peer_python(None, "x")
    assert install.call_count == 2


def test_sides_that_need_a_compiler(sides, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert sides.without_compiler(["compiled"]) == {
        "compiled": "there is no C++ compiler"
    }
    monkeypatch.setenv("CXX", sys.executable)
    assert not sides.without_compiler(["compiled"])
