"""BERT on TensorFlow 2 and Keras 3: from raw text to a served model.

    import bert_tf

    config = bert_tf.BertConfig.from_name("tiny", vocab_size=30522)
    encoder = bert_tf.BertModel(config)

The public names are loaded when they are first used: a program that only
reads text or records never waits for TensorFlow.
"""

import importlib
from typing import Any

from bert_tf import start_tensorflow

_PUBLIC = {
    "config": ["BertConfig"],
    "errors": ["InputError"],
    "modeling.heads": [
        "BertClassifier",
        "BertMultipleChoice",
        "BertPretrainer",
        "BertSpanLabeler",
        "BertTokenClassifier",
    ],
    "modeling.encoder": ["BertModel", "resize_vocabulary"],
    "modeling.optimization": ["AdamWeightDecay", "Lamb", "WarmupLinearDecay"],
    "checkpoints.keras_files": ["load_model"],
    "checkpoints.pretrained": ["load_checkpoint", "load_config"],
    "tasks.encoding": ["Encoding"],
    "tasks.task": ["FineTuningTask"],
    "kinds.classification.cross_encoder": ["CrossEncoder"],
    "kinds.classification.text_model": ["TextClassifier"],
    "kinds.vectors.text_model": ["TextEmbedder"],
    "kinds.masked_words.text_model": ["MaskedWordPredictor"],
    "kinds.spans.text_model": ["QuestionAnswerer"],
    "kinds.tags.text_model": ["TokenTagger"],
    "text_models.text_model": ["TextModel"],
    "tokenization.graph": ["BertTokenizer"],
    "tokenization.wordpiece": ["FullTokenizer"],
    "version": ["__version__"],
}
_MODULES = {name: module for module in _PUBLIC for name in _PUBLIC[module]}

__all__ = list(_MODULES)

start_tensorflow.use_onednn()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    from bert_tf import errors

    # Keras uses TensorFlow unless KERAS_BACKEND names another backend.
    advice = ", or set KERAS_BACKEND to jax or torch, if that is installed"
    if name == "BertTokenizer":
        advice = ""
    with errors.tensorflow_required(f"bert_tf.{name}", advice):
        module = importlib.import_module(f"bert_tf.{_MODULES[name]}")
        return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
