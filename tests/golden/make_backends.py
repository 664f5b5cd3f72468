"""Makes `backends.npz` and `tensorflow.keras`, on the TensorFlow backend:

KERAS_BACKEND=tensorflow python -m tests.golden.make_backends
"""

import dataclasses
import pathlib

import keras
import numpy as np

from bert_tf.config import ACTIVATIONS
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.optimization import AdamWeightDecay, Lamb
from tests.backends import small_bert

FOLDER = pathlib.Path(__file__).parent


def outputs(model_class) -> dict[str, np.ndarray]:
    """`MODEL/OUTPUT`: what a model computes from its inputs."""
    model = small_bert.make(model_class)
    inputs = small_bert.features(model_class)
    computed = small_bert.named(small_bert.call(model, inputs))
    return {f"{model_class.__name__}/{k}": v for k, v in computed.items()}


def activation(name: str) -> dict[str, np.ndarray]:
    """`NAME`: the encoder's output with this activation in its blocks."""
    config = dataclasses.replace(small_bert.CONFIG, hidden_act=name)
    model = small_bert.make(BertModel, config)
    computed = small_bert.numbers(small_bert.call(model, small_bert.features()))
    return {name: computed["sequence_output"]}


def trained(optimizer_class) -> dict[str, np.ndarray]:
    """`OPTIMIZER/VARIABLE`: the weights of the classifier after `fit`."""
    model = small_bert.classifier_to_train(optimizer_class)
    small_bert.train(model, 0, small_bert.STEPS)
    return {
        f"{optimizer_class.__name__}/{name}": value
        for name, value in small_bert.named_weights(model).items()
    }


def main() -> None:
    assert keras.config.backend() == "tensorflow"
    parts = [
        *(outputs(model_class) for model_class in small_bert.MODELS),
        *(activation(name) for name in ACTIVATIONS),
        *(trained(optimizer) for optimizer in (AdamWeightDecay, Lamb)),
    ]
    arrays = {name: value for part in parts for name, value in part.items()}
    np.savez_compressed(FOLDER / "backends.npz", **arrays)
    # The classifier and its optimizer in the middle of the same training.
    model = small_bert.classifier_to_train(AdamWeightDecay)
    small_bert.train(model, 0, small_bert.STEPS_BEFORE_SAVING)
    model.save(FOLDER / "tensorflow.keras")


if __name__ == "__main__":
    main()
