"""Loading `.keras` files: Keras finds the classes of this package by itself.

Keras looks up classes in its own registry and imports no module for them. A
program that only loads a model may never name its class, and importing all
classes with `import bert_tf` would take seconds. So the registry gets an entry
for each class, which imports the class's module when Keras needs it. Entries
are added at `import bert_tf` if Keras is already imported, otherwise at
`import keras`.
"""

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

from bert_tf.faster_imports import import_with

# The registered classes by module. Importing a module replaces its entries.
REGISTERED = {
    "bert_tf.dense": ("Dense",),
    "bert_tf.feature_tagger": ("BertFeatureTagger", "FeatureHead"),
    "bert_tf.heads": (
        *("BertClassifier", "BertMultipleChoice", "BertPretrainer"),
        *("BertSpanLabeler", "BertTokenClassifier", "MaskedLanguageModel"),
        *("NextSentence", "PretrainingHeads", "Span", "SpanHead", "Transform"),
    ),
    "bert_tf.modeling": ("BertModel",),
    "bert_tf.optimization": ("AdamWeightDecay", "Lamb", "WarmupLinearDecay"),
    "bert_tf.text_models.classification": ("TextClassifier",),
    "bert_tf.text_models.embedding": ("TextEmbedder",),
    "bert_tf.text_models.label_metrics": (
        *("LabelMetric", "is_right_first", "reciprocal_ranks"),
    ),
    "bert_tf.text_models.masked_words": ("MaskedWordPredictor",),
    "bert_tf.text_models.question_answering": ("QuestionAnswerer",),
    "bert_tf.text_models.tagging": ("TokenTagger",),
    "bert_tf.tokenization.graph": ("BertTokenizer",),
    "bert_tf.transformer": (
        *("Attention", "Dropout", "Embeddings", "Encoder"),
        *("Intermediate", "Pooler", "ResidualOutput", "SelfAttention"),
        *("TransformerBlock",),
    ),
}


class _LazyClass:
    """An entry of Keras's registry for a class that is not imported yet."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module, self._name).from_config(config)


class _KerasLoader(importlib.machinery.SourceFileLoader):
    """Imports Keras, then adds the entries to its registry."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _register(module)


def register() -> None:
    """Adds the classes to Keras's registry, once Keras is imported."""
    if "keras" in sys.modules:
        _register(importlib.import_module("keras"))
    else:
        import_with(_KerasLoader, "keras")


def _register(keras: ModuleType) -> None:
    registry = keras.saving.get_custom_objects()
    for module, names in REGISTERED.items():
        for name in names:
            registry.setdefault(f"bert_tf>{name}", _LazyClass(module, name))
