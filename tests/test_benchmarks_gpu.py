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
        pytest.param("keras_training", marks=needs_jax),
        pytest.param("huggingface_training", marks=needs_transformers),
    ]
)
def side(request):
    """The module of a side, which sets Keras's policy."""
    policy = keras.config.dtype_policy()
    with importable(PEERS) as module_of:
        yield module_of(request.param)
    keras.config.set_dtype_policy(policy)


def test_a_side_learns(benchmarks, side):
    """First it guesses, then it knows the words of its batch better."""
    steps, products = side.make(
        {
            **benchmarks("training_step").workload("tiny", 4, 16),
            **{"steps": 2, "matrix_size": 64, "products": 2},
            **{"precision": "bfloat16", "device": "cpu", "side": "ours"},
        }
    )
    losses = [float(steps()) for _ in range(10)]
    assert losses[0] == pytest.approx(math.log(101) + math.log(2), abs=0.3)
    assert losses[-1] < losses[0] - 0.01
    products()
