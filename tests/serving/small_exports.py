"""Exports of several kinds, as small as can be; no test by itself.

They are written once for all tests of a process. No axis is as long as
another, but for those that have to be.
"""

import dataclasses
import functools
import pathlib
import tempfile

import tensorflow as tf

from bert_tf.data.tagged_sentences import TaggingEncoding
from bert_tf.data.windows import SpanEncoding
from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.serving.classifiers import ServedClassifier, ServedMultipleChoice
from bert_tf.serving.export import export, save
from bert_tf.serving.exported import Exported
from bert_tf.serving.served import Served
from bert_tf.serving.spans import ServedSpanLabeler
from bert_tf.serving.tags import ServedTagger
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    LENGTH,
    VOCAB,
    random_weights,
)

# Of the two GELUs the one that asks more of converters.
SMALL = dataclasses.replace(CONFIG, num_hidden_layers=1, hidden_act="gelu_erf")
LABELS = ("cat", "é", "none of them")
TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")
NUM_CHOICES = 4
# Weights that take more room than the graph around them, and the other GELU.
WIDE = dataclasses.replace(
    CONFIG, num_hidden_layers=1, hidden_size=132, intermediate_size=530
)
TAGGING = TaggingEncoding(VOCAB, True, None, LENGTH, TAGS)
SPANS = SpanEncoding(VOCAB, True, None, LENGTH, 4, 6)

_folder = tempfile.TemporaryDirectory()


def _classifier(is_pair, config=SMALL):
    model = random_weights(BertClassifier(config, len(LABELS)))
    return ServedClassifier(model, ENCODING, LABELS, "single_label", is_pair)


def _wide_classifier():
    served = _classifier(False, WIDE)
    for variable in served.model.weights:
        if len(variable.shape) > 1:
            # Sums over so many are not larger than those over a few.
            variable.assign(variable.numpy() / 4)
    return served


KINDS = {
    "pairs": lambda: _classifier(True),
    "wide": _wide_classifier,
    "choices": lambda: ServedMultipleChoice(
        random_weights(BertMultipleChoice(SMALL)), ENCODING, NUM_CHOICES
    ),
    "tags": lambda: ServedTagger(
        random_weights(BertTokenClassifier(SMALL, len(TAGS))), TAGGING
    ),
    "answers": lambda: ServedSpanLabeler(
        random_weights(BertSpanLabeler(SMALL)), SPANS
    ),
    "lstms": lambda: ServedTagger(
        random_weights(
            BertFeatureTagger(SMALL, len(TAGS), layers="last", lstm_size=5)
        ),
        TAGGING,
    ),
}


@functools.cache
def served(kind: str) -> Served:
    """A model of a kind, one of `KINDS`."""
    return KINDS[kind]()


@functools.cache
def path_of(kind: str) -> pathlib.Path:
    """The folder of the only version of its export."""
    folder = pathlib.Path(_folder.name, kind)
    return pathlib.Path(
        export(served(kind), str(folder), name=kind, source="a/b", version=7)
    )


@functools.cache
def opened(kind: str) -> Exported:
    """The same without all that lies around the SavedModel, which takes time.

    Of its card there is what conversions look at.
    """
    path = str(pathlib.Path(_folder.name, f"{kind} alone"))
    save(served(kind), path, path)
    card = {
        "kind": served(kind).kind,
        "dtype_policy": "float32",
        "parameters": served(kind).model.count_params(),
        "vocab_size": len(VOCAB),
        "encoding": {"max_seq_length": LENGTH},
    }
    return Exported(path, card, tf.saved_model.load(path))
