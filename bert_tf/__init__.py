"""BERT on TensorFlow 2 and Keras 3: from raw text to a served model.

    import bert_tf

    config = bert_tf.BertConfig.from_name("tiny", vocab_size=30522)
    encoder = bert_tf.BertModel(config)

The public names are loaded when they are first used: a program that only
reads text or records never waits for TensorFlow.
"""

import importlib
import os
import platform
from typing import TYPE_CHECKING, Any

from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.checkpoints.pretrained import (
        load_checkpoint,
        load_config,
        load_model,
    )
    from bert_tf.config import BertConfig
    from bert_tf.errors import InputError
    from bert_tf.kinds.classification.text_model import TextClassifier
    from bert_tf.kinds.masked_words.text_model import MaskedWordPredictor
    from bert_tf.kinds.spans.text_model import QuestionAnswerer
    from bert_tf.kinds.tags.text_model import TokenTagger
    from bert_tf.kinds.vectors.text_model import TextEmbedder
    from bert_tf.modeling.encoder import BertModel, resize_vocabulary
    from bert_tf.modeling.feature_tagger import BertFeatureTagger
    from bert_tf.modeling.heads import (
        BertClassifier,
        BertMultipleChoice,
        BertPretrainer,
        BertSpanLabeler,
        BertTokenClassifier,
    )
    from bert_tf.modeling.optimization import (
        AdamWeightDecay,
        Lamb,
        WarmupLinearDecay,
    )
    from bert_tf.tasks.encoding import Encoding
    from bert_tf.tasks.task import FineTuningTask
    from bert_tf.text_models.text_model import TextModel
    from bert_tf.tokenization.graph import BertTokenizer
    from bert_tf.tokenization.wordpiece import FullTokenizer

_HOMES = {
    "AdamWeightDecay": "bert_tf.modeling.optimization",
    "BertClassifier": "bert_tf.modeling.heads",
    "BertConfig": "bert_tf.config",
    "BertFeatureTagger": "bert_tf.modeling.feature_tagger",
    "BertModel": "bert_tf.modeling.encoder",
    "BertMultipleChoice": "bert_tf.modeling.heads",
    "BertPretrainer": "bert_tf.modeling.heads",
    "BertSpanLabeler": "bert_tf.modeling.heads",
    "BertTokenClassifier": "bert_tf.modeling.heads",
    "BertTokenizer": "bert_tf.tokenization.graph",
    "Encoding": "bert_tf.tasks.encoding",
    "FineTuningTask": "bert_tf.tasks.task",
    "FullTokenizer": "bert_tf.tokenization.wordpiece",
    "InputError": "bert_tf.errors",
    "Lamb": "bert_tf.modeling.optimization",
    "MaskedWordPredictor": "bert_tf.kinds.masked_words.text_model",
    "QuestionAnswerer": "bert_tf.kinds.spans.text_model",
    "TextClassifier": "bert_tf.kinds.classification.text_model",
    "TextEmbedder": "bert_tf.kinds.vectors.text_model",
    "TextModel": "bert_tf.text_models.text_model",
    "TokenTagger": "bert_tf.kinds.tags.text_model",
    "WarmupLinearDecay": "bert_tf.modeling.optimization",
    "load_checkpoint": "bert_tf.checkpoints.pretrained",
    "load_config": "bert_tf.checkpoints.pretrained",
    "load_model": "bert_tf.checkpoints.pretrained",
    "resize_vocabulary": "bert_tf.modeling.encoder",
}

__all__ = [
    "AdamWeightDecay",
    "BertClassifier",
    "BertConfig",
    "BertFeatureTagger",
    "BertModel",
    "BertMultipleChoice",
    "BertPretrainer",
    "BertSpanLabeler",
    "BertTokenClassifier",
    "BertTokenizer",
    "Encoding",
    "FineTuningTask",
    "FullTokenizer",
    "InputError",
    "Lamb",
    "MaskedWordPredictor",
    "QuestionAnswerer",
    "TextClassifier",
    "TextEmbedder",
    "TextModel",
    "TokenTagger",
    "WarmupLinearDecay",
    "__version__",
    "load_checkpoint",
    "load_config",
    "load_model",
    "resize_vocabulary",
]

if platform.machine() in ("x86_64", "AMD64"):
    # On CPUs with AVX2 alone, training takes a third longer without oneDNN.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    from bert_tf.base import packages

    # Keras uses TensorFlow unless the variable names another backend.
    advice = ", or set KERAS_BACKEND to jax or torch, if that is installed"
    if name == "BertTokenizer":
        advice = ""
    with packages.tensorflow_required(f"bert_tf.{name}", advice):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
