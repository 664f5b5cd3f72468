"""Sides in turn: their order, what is kept, medians and ratios, the section."""

import sys

import pytest

MACHINE = dict.fromkeys(("processor", "cores", "memory", "system"), "?")


@pytest.fixture
def turns(benchmarks):
    return benchmarks("turns")


@pytest.fixture
def turns_section(benchmarks):
    return benchmarks("turns_section")


class Side:
    """Does the work three times in a second for each word asked."""

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
        }


@pytest.fixture
def comparison(turns):
    return turns.Comparison(
        "Work",
        "python work.py",
        "MB/s",
        {"ours": "bert_tf", "theirs": "another", "third": "a third"},
        MACHINE,
    )


@pytest.fixture
def asked(turns, comparison):
    """Two rounds of two cases; the third side knows one of them."""
    asked, kept = [], []
    sides = {name: Side(name, asked) for name in comparison.titles}
    cases = [
        turns.Case(
            "short", 6.0, {"ours": "a", "theirs": "bb"}, {"theirs": 1.5}
        ),
        turns.Case(
            "long", 60.0, {"ours": "a", "theirs": "bb", "third": "ccc"}, {}
        ),
    ]
    turns.take(comparison, cases, sides, 2, kept.append)
    assert kept == comparison.turns
    return asked


def test_another_side_begins_each_round(asked):
    assert [name for name, _ in asked] == [
        *("ours", "theirs"),
        *("ours", "theirs", "third"),
        *("theirs", "ours"),
        *("theirs", "third", "ours"),
    ]


def test_work_is_counted_as_often_as_it_was_done(asked, comparison):
    assert comparison.cases == ["short", "long"]
    assert comparison.sides("short") == ["ours", "theirs"]
    assert comparison.spread("short", "ours").median == 3 * 6.0
    assert comparison.spread("long", "third").median == 60.0
    assert comparison.times_as_fast("long", "third") == 3
    assert {turn.other_cpu_seconds for turn in comparison.turns} == {0.0}


def test_disturbed_rounds_count_where_there_is_nothing_else(turns, comparison):
    def turn(seconds, others):
        return turns.Turn("short", "ours", 1.0, seconds, 1.0, others)

    comparison.turns = [turn(2.0, 1.0), turn(4.0, 1.0)]
    assert comparison.spread("short", "ours").median == (0.5 + 0.25) / 2
    comparison.turns.append(turn(1.0, 0.0))
    assert comparison.spread("short", "ours").median == 1.0


def test_a_file_of_results(turns, asked, comparison, tmp_path):
    path = tmp_path / "new" / "results.json"
    comparison.write(path)
    assert turns.Comparison.read(path) == comparison


def test_a_comparison_begins_with_its_command(turns, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a b.py", "--c"])
    begun = turns.Comparison.begin("Work", "MB/s", {"ours": "x"}, facts=["y"])
    assert begun.command == "python 'a b.py' --c"
    assert begun.titles == {"ours": "x"}
    assert begun.facts == ["y"]
    assert int(begun.machine["cores"]) > 0
    assert not begun.turns


def test_each_turn_is_told_and_kept(
    turns, turns_section, comparison, tmp_path, capsys
):
    path = tmp_path / "results.json"
    turn = turns.Turn("short", "ours", 1.0, 2.0, 1.0, 0.0)
    comparison.turns.append(turn)
    turns_section.keeper(comparison, None)(turn)
    assert not list(tmp_path.iterdir())
    turns_section.keeper(comparison, str(path))(turn)
    assert turns.Comparison.read(path) == comparison
    told = turns_section.line(comparison, turn)
    assert capsys.readouterr().out.splitlines() == [told] * 2


def test_a_section(turns_section, asked, comparison):
    comparison.facts = ["So it was."]
    comparison.left_out = {"third": "there is no compiler"}
    text = turns_section.section(comparison)
    assert text.startswith("## Work\n\n```\npython work.py\n```\n")
    assert "- So it was.\n" in text
    assert "- ours 1.0, theirs 1.0, third 1.0\n" in text
    assert "- Not measured: a third: there is no compiler\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:4] == [
        "| short | bert_tf | 2 (2) | 18.0 (18.0 to 18.0) |  |  |",
        "| short | another | 2 (2) | 9.00 (9.00 to 9.00) | 2.00 | 1.5 |",
    ]
    assert rows[-1].endswith("| 60.0 (60.0 to 60.0) | 3.00 |  |")


def test_times_and_memory_where_they_are_wanted(
    turns, turns_section, comparison
):
    comparison.shows_seconds, comparison.unit = True, "s"
    comparison.turns = [
        turns.Turn("short", side, 1.0, seconds, 1.0, 0.0, 3 * 2**20, 0.5, 7e9)
        for side, seconds in (("ours", 2.0), ("ours", 4.0), ("theirs", 1.5))
    ]
    title, ours, theirs = turns_section.rows(comparison)
    assert title[3:7] == [
        *("s", "memory, MiB", "matmul peak, GFLOP/s", "share of it"),
    ]
    assert ours[3:] == ["2.67 (2.00 to 4.00)", "3", "7", "50%", "", ""]
    assert theirs[3:] == ["1.50 (1.50 to 1.50)", "3", "7", "50%", "0.56", ""]
    said = turns_section.line(comparison, comparison.turns[0])
    assert said.startswith("short: bert_tf: 2.00 s in 2.00 s (1.00 s of CPU")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.1234, "0.12"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers_are_as_exact_as_they_can_be(turns_section, number, shown):
    assert turns_section.show(number) == shown
