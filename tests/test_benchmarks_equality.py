"""The comparison of runs on several devices: what it starts and compares.

Real workers and hosts: test_several_workers.py.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def equality(benchmarks):
    return benchmarks("equality")


def checkpoint(**changes):
    tensors = {
        "bert/kernel": np.array([1.0, -2.0], np.float32),
        "bert/kernel/adam_m": np.array([0.5, 0.1], np.float32),
        "bert/kernel/adam_v": np.array([0.25, 0.01], np.float32),
        "global_step": np.int64(30),
    }
    return {**tensors, **changes}


def test_differences_of_checkpoints(equality):
    assert equality.difference(checkpoint(), checkpoint()) == (0.0, 0.0)
    changed = {
        "bert/kernel": np.array([1.25, -2.5], np.float32),
        "bert/kernel/adam_v": np.array([0.25, 0.135], np.float32),
    }
    found = equality.difference(checkpoint(**changed), checkpoint())
    assert found == pytest.approx((0.5, 0.5))
    assert str(found) == "5.0e-01, 5.0e-01"
    broken = {"bert/kernel": np.array([np.nan, -2.0], np.float32)}
    found = equality.difference(checkpoint(**broken), checkpoint())
    assert not found.weights < 1
    for other in ({"global_step": np.int64(29)}, {"more": np.zeros(1)}):
        with pytest.raises(ValueError, match="tensors or steps"):
            equality.difference(checkpoint(**other), checkpoint())


def test_workers_read_each_example_once(benchmarks, equality, tmp_path):
    flags = benchmarks("small_tasks").write_pretraining(tmp_path)
    assert [*equality.share_rows(flags)][1:] == [
        ["2", "16 + 15", "3 + 2"],
        ["3", "11 + 10 + 10", "2 + 2 + 1"],
        ["4", "8 + 8 + 8 + 7", "2 + 1 + 1 + 1"],
    ]
    with pytest.raises(ValueError, match="3 examples are not read once"):
        equality.each_once([[b"a", b"b"], [b"c", b"a"]], [b"a", b"b", b"c"])
