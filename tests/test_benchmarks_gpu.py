"""The sides that run on a GPU, on CPUs.

They run where their packages are: `make test-jax`, `make test-torch`.
"""

import importlib.util
import math

import keras
import pytest
from benchmark_modules import PEERS, importable

needs_jax = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="Keras is not on JAX here"
)
needs_transformers = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="no transformers here"
)


@pytest.fixture(
    params=[
        pytest.param("bert_tf_jax", marks=needs_jax),
        pytest.param("huggingface_training", marks=needs_transformers),
    ]
)
def side(request):
    """The module of a side."""
    with importable(PEERS) as module_of:
        yield module_of(request.param)


def test_a_side_learns(benchmarks, side, monkeypatch):
    """First it guesses, then it knows the words of its batch better."""
    losses, make_step = [], side.training_step

    def watched(*arguments):
        step = make_step(*arguments)

        def run():
            losses.append(step())
            return losses[-1]

        return run

    monkeypatch.setattr(side, "training_step", watched)
    work = side.make(
        {
            **benchmarks("training_step").workload("tiny", 4, 16),
            **{"steps": 2, "matrix_size": 64, "products": 2},
            **{"precision": "bfloat16", "device": "cpu"},
        }
    )
    for _ in range(10):
        work.steps()
    assert len(losses) == 20
    first, last = float(losses[0]), float(losses[-1])
    assert first == pytest.approx(math.log(101) + math.log(2), abs=0.3)
    assert last < first - 0.01
    work.products()
    assert work.peak_bytes() is None
