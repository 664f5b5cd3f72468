"""What a step has to do: its products, and batches of random words."""

import numpy as np
import pytest

from bert_tf.config import BertConfig

# A row of one example, one of three, and one with padding behind two.
ROWS = ((13,), (7, 4, 2), (5, 3))
LENGTH, MASKED, WORDS = 13, 2, 50


@pytest.fixture
def make(benchmarks):
    config = BertConfig(1000, num_hidden_layers=2)

    def make(*rows, **more):
        return benchmarks("workload").Workload(config, rows, 128, **more)

    return make


def test_flops_of_a_step_are_those_of_its_products(make):
    """Three times the forward pass; each weight is used for every token."""
    work = make((128,), (128,))
    assert (work.num_examples, work.max_predictions_per_seq) == (2, 19)
    block = 4 * 768**2 + 2 * 768 * 3072  # weights
    attention = 2 * 128 * 768  # for a token: scores and context
    head = 768**2 + 768 * 1000  # for a masked word
    forward = 2 * 256 * (block + attention) + 2 * 768**2
    assert work.flops() == 3 * 2 * (forward + 2 * 19 * head)
    alone = make((128,), (128,), is_training=False)
    assert alone.flops() == 2 * forward


def test_examples_of_a_row_have_nothing_to_do_with_each_other(make):
    shared = make((100, 28), is_training=False)
    apart = make((100,), (28,), is_training=False)
    whole = make((128,), is_training=False)
    assert shared.num_examples == 2
    assert shared.flops() == apart.flops()
    fewer_scores = 2 * 4 * 768 * (128**2 - 100**2 - 28**2)  # in two blocks
    one_more_pooled = 2 * 768**2
    assert whole.flops() - shared.flops() == fewer_scores - one_more_pooled


def test_a_request_is_of_what_all_sides_know(make):
    request = make((128,), is_training=False).request()
    config = BertConfig(**request.pop("config"))
    assert (config.vocab_size, config.num_hidden_layers) == (1000, 2)
    assert config.type_vocab_size == 16
    assert request == {
        "rows": ((128,),),
        "max_seq_length": 128,
        "max_predictions_per_seq": 19,
        "is_training": False,
    }


@pytest.fixture
def batch(benchmarks):
    make = benchmarks("random_examples").pretraining_batch
    return lambda rows, seed=0: make(rows, LENGTH, MASKED, WORDS, seed)


def test_words_of_a_batch_are_there(batch):
    made = batch(ROWS * 50)
    ids, mask = made["input_ids"], made["input_mask"]
    assert ids.shape == mask.shape == (150, LENGTH)
    assert set(ids.flat) == set(range(WORDS))
    assert mask.sum(axis=1).tolist() == [13, 13, 8] * 50
    assert (np.diff(mask) <= 0).all()
    places = made["masked_lm_positions"]
    assert places.shape == made["masked_lm_ids"].shape == (150, MASKED)
    assert np.take_along_axis(mask, places, axis=1).all()
    assert set(places.flat) == set(range(LENGTH))
    kinds = {name: str(value.dtype) for name, value in made.items()}
    floats = ("masked_lm_weights", "next_sentence_weights")
    assert kinds == {
        name: "float32" if name in floats else "int32" for name in kinds
    }


def test_examples_of_a_row_are_told_apart(batch):
    made = batch(ROWS)
    assert made["example_ids"].tolist() == [
        [1] * 13,
        [1] * 7 + [2] * 4 + [3] * 2,
        [1] * 5 + [2] * 3 + [0] * 5,
    ]
    assert made["position_ids"][1].tolist() == [*range(7), *range(4), 0, 1]
    assert made["position_ids"][2].tolist() == [*range(5), 0, 1, 2, *[0] * 5]
    assert made["cls_positions"].tolist() == [[0, 0, 0], [0, 7, 11], [0, 5, 0]]
    assert made["next_sentence_labels"].shape == (3, 3)
    weights = [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert made["next_sentence_weights"].tolist() == weights


def test_rows_of_one_example_need_not_be_told_apart(batch):
    made = batch(((13,), (6,)))
    assert made["next_sentence_labels"].shape == (2, 1)
    assert not made.keys() & {"example_ids", "position_ids", "cls_positions"}


def test_another_seed_gives_other_words(batch):
    one, again, other = (batch(ROWS, seed)["input_ids"] for seed in (3, 3, 4))
    assert (one == again).all()
    assert (one != other).any()
