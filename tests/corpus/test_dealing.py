import numpy as np
import pytest

from bert_tf.corpus.stages import Dealing, PartPlan
from bert_tf.errors import InputError


@pytest.mark.parametrize("total", [3, 4, 61, 100, 1021])
@pytest.mark.parametrize("part_size", [1, 7, 2048])
def test_every_rank_is_dealt_out_once_and_in_order(total, part_size):
    dealing = Dealing(("a", "b.gz", "c"), total, part_size)
    plans = list(dealing.plans())
    ranks = [rank for plan in plans for rank in range(plan.first, plan.stop)]
    assert ranks == list(range(total))
    shares = np.zeros(3, int)
    for plan in plans:
        assert 0 < plan.stop - plan.first <= part_size
        assert plan.total == total
        assert plan.is_compressed == (plan.shard == 1)
        shares[plan.shard] += plan.stop - plan.first
    assert shares.max() - shares.min() <= 1
    assert [plan.shard for plan in plans] == sorted(p.shard for p in plans)


@pytest.mark.parametrize("part_size", [1, 7, 2048])
def test_the_part_of_a_rank_is_found_without_the_others(part_size):
    dealing = Dealing(("a", "b.gz", "c"), 1021, part_size)
    starts = dealing.part_starts(np.arange(1021))
    for plan in dealing.plans():
        assert (starts[plan.first : plan.stop] == plan.first).all()
        assert dealing.plan(plan.first) == plan


def test_a_part_ends_with_its_file():
    dealing = Dealing(("a", "b"), 10, 4)
    assert list(dealing.plans()) == [
        PartPlan(0, 0, 4, 10, False),
        PartPlan(0, 4, 5, 10, False),
        PartPlan(1, 5, 9, 10, False),
        PartPlan(1, 9, 10, 10, False),
    ]


def test_more_files_than_instances_are_refused():
    with pytest.raises(InputError, match="4 instances for 5 files"):
        Dealing(tuple("abcde"), 4, 2048)
    assert len(list(Dealing(tuple("abcd"), 4, 2048).plans())) == 4
