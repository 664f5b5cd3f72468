"""The sides that run on a GPU, on CPUs.

They run where their packages are: `make test-jax`, `make test-torch`.
"""

import importlib.util
import math

import keras
import pytest
from benchmark_modules import PEERS, importable

RUNS = {
    "keras_training": keras.config.backend() == "jax",
    "huggingface_training": importlib.util.find_spec("transformers"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_side_learns(benchmarks, name):
    """First it guesses, then it knows the words of its batch better."""
    if not RUNS[name]:
        pytest.skip("its packages are not here")
    policy = keras.config.dtype_policy()
    work = {
        **benchmarks("training_step").workload("tiny", 4, 16),
        **{"steps": 2, "matrix_size": 64, "products": 2},
        **{"precision": "bfloat16", "device": "cpu", "side": "ours"},
    }
    with importable(PEERS) as module_of:
        steps, products = module_of(name).make(work)
        losses = [float(steps()) for _ in range(10)]
        products()
    keras.config.set_dtype_policy(policy)
    assert losses[0] == pytest.approx(math.log(101) + math.log(2), abs=0.3)
    assert losses[-1] < losses[0] - 0.01
