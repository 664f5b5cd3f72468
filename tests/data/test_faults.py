import pickle

from absl import logging

from bert_tf.data.processes import Faults


def some(*faults):
    result = Faults()
    for kind, example in faults:
        result.add(kind, example)
    return result


def test_one_line_for_each_kind(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda m, *a: told.append(m % a))
    faults = some(*[("Lost", f"q{n}") for n in range(1234)], ("Odd", "x"))
    assert not told
    faults.tell()
    assert told == ["Lost: 1,234; the first: q0", "Odd: 1; the first: x"]


def test_pieces_of_data_are_joined_in_their_order():
    faults = some(("a", "1"))
    faults.update(some(("b", "2"), ("a", "3"), ("b", "4")))
    assert faults.counts == {"a": 2, "b": 2}
    assert faults.firsts == {"a": "1", "b": "2"}


def test_nothing_leads_back_into_the_counts():
    faults = some(("a", "1"))
    faults.counts["a"] = 7
    faults.firsts["a"] = "7"
    assert (faults.counts, faults.firsts) == ({"a": 1}, {"a": "1"})


def test_other_processes_can_send_them():
    faults = pickle.loads(pickle.dumps(some(("a", "1"))))
    assert (faults.counts, faults.firsts) == ({"a": 1}, {"a": "1"})
