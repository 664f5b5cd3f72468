"""Models and optimizers compute the same numbers on every backend."""

import keras
import numpy as np
import pytest

from bert_tf.config import ACTIVATIONS
from bert_tf.modeling.optimization import AdamWeightDecay, Lamb
from tests.backends import small_bert
from tests.golden import make_backends

TOLERANCE = 1e-5


def gap(computed, expected) -> float:
    assert computed.keys() == expected.keys()
    for name, value in computed.items():
        assert value.shape == expected[name].shape, name
    return max(np.abs(computed[k] - expected[k]).max() for k in expected)


@pytest.fixture(scope="module")
def expected(golden):
    """Returns a function from a prefix to the golden arrays with it."""
    arrays = np.load(golden / "backends.npz")

    def beginning(start: str) -> dict[str, np.ndarray]:
        return {k: arrays[k] for k in arrays.files if k.startswith(start)}

    return beginning


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_outputs(model_class, expected, fidelity):
    computed = make_backends.outputs(model_class)
    name = model_class.__name__
    number = gap(computed, expected(f"{name}/"))
    fidelity(f"backends: outputs of {name}, by TensorFlow", number, TOLERANCE)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, expected):
    computed = make_backends.activation(name)
    assert gap(computed, expected(name)) <= TOLERANCE


@pytest.mark.parametrize("optimizer_class", [AdamWeightDecay, Lamb])
def test_weights_after_fit(optimizer_class, expected, fidelity):
    computed = make_backends.trained(optimizer_class)
    name = optimizer_class.__name__
    number = gap(computed, expected(f"{name}/"))
    fidelity(
        f"backends: weights after {small_bert.STEPS} steps of fit with {name}, "
        "by TensorFlow",
        number,
        TOLERANCE,
    )


def test_training_resumes_from_a_file_of_tensorflow(golden, expected):
    """Weights, optimizer, schedule and loss come from one file."""
    with small_bert.initial_zeros():
        model = keras.models.load_model(golden / "tensorflow.keras")
    model.run_eagerly = small_bert.BRIEFLY["run_eagerly"]
    small_bert.train(model, small_bert.STEPS_BEFORE_SAVING, small_bert.STEPS)
    computed = small_bert.named_weights(model)
    computed = {f"AdamWeightDecay/{k}": v for k, v in computed.items()}
    assert gap(computed, expected("AdamWeightDecay/")) <= TOLERANCE
