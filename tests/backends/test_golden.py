"""Every model and both optimizers: the same numbers on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.config import ACTIVATIONS
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import checkpoint_variables
from bert_tf.optimization import AdamWeightDecay, Lamb
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
    """The golden arrays whose names begin as is asked for."""
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
    start = small_bert.named_weights(
        small_bert.classifier_to_train(optimizer_class)
    )
    moved = {f"{name}/{k}": v for k, v in start.items()}
    assert gap(computed, moved) > 100 * TOLERANCE
    fidelity(
        f"backends: weights after {small_bert.STEPS} steps of fit with {name}, "
        "by TensorFlow",
        number,
        TOLERANCE,
    )


def test_a_model_saved_by_tensorflow_is_loaded_and_trained_on(golden, expected):
    """Weights, optimizer, schedule and loss, all out of one file."""
    with small_bert.initial_zeros():
        model = keras.models.load_model(golden / "tensorflow.keras")
    model.jit_compile = small_bert.BRIEFLY["jit_compile"]
    small_bert.train(model, small_bert.STEPS_BEFORE_SAVING, small_bert.STEPS)
    computed = small_bert.named_weights(model)
    computed = {f"AdamWeightDecay/{k}": v for k, v in computed.items()}
    assert gap(computed, expected("AdamWeightDecay/")) <= TOLERANCE


def test_the_originals_outputs(google_oracle, fidelity):
    config, arrays = google_oracle
    model = BertPretrainer(config)
    with small_bert.initial_zeros():
        model.build()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(arrays[f"weights/{name}"])
    names = (
        *("input_ids", "input_mask", "segment_ids"),
        "masked_lm_positions",
    )
    inputs = {name: arrays[f"expected/{name}"] for name in names}
    computed = small_bert.call(model.bert, inputs) | {
        f"{name.removesuffix('logits')}log_probs": ops.log_softmax(logits)
        for name, logits in small_bert.call(model, inputs).items()
    }
    computed = {
        name: value.reshape(arrays[f"expected/{name}"].shape)
        for name, value in small_bert.numbers(computed).items()
    }
    original = {name: arrays[f"expected/{name}"] for name in computed}
    fidelity(
        "backends: every output of the original's random model",
        gap(computed, original),
        2 * TOLERANCE,
    )
