import sys

from bert_tf.data import processes


def show(monkeypatch, total, is_terminal=False):
    """Runs ten tasks of three units, ten seconds each."""
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    tasks = processes.track(range(10), lambda _: 3, "Writing", "lines", total)
    return list(tasks)


def test_results_are_passed_on_and_lines_are_logged(monkeypatch, caplog):
    assert show(monkeypatch, total=30) == list(range(10))
    assert [record.message for record in caplog.records] == [
        "Writing: 12 of 30 lines, 0 a second",
        "Writing: 24 of 30 lines, 0 a second",
    ]


def test_the_total_may_be_unknown(monkeypatch, caplog):
    show(monkeypatch, total=None)
    assert caplog.records[0].message == "Writing: 12 lines, 0 a second"


def test_a_terminal_gets_a_bar(monkeypatch, caplog, capsys):
    assert show(monkeypatch, 30, is_terminal=True) == list(range(10))
    assert "Writing: " in capsys.readouterr().err
    assert not caplog.records
