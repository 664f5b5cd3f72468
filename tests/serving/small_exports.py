"""Exports of several kinds, as small as can be; no test by itself.

They are written once for all tests of a process. No axis is as long as
another, but for those that have to be.
"""

import dataclasses
import functools
import pathlib
import tempfile

from bert_tf.feature_tagger import BertFeatureTagger
from bert_tf.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertSpanLabeler,
    BertTokenClassifier,
)
from bert_tf.modeling import BertModel
from bert_tf.serving.export import EXTRA, save
from bert_tf.serving.exported import Exported, open_export
from bert_tf.serving.readme import (
    MODEL_CARD,
    WARM_UP,
    model_card,
    to_json,
    write_warm_up,
)
from bert_tf.serving.served import (
    Served,
    ServedClassifier,
    ServedEncoder,
    ServedMultipleChoice,
)
from bert_tf.serving.spans import ServedSpanLabeler
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks.ner import TaggingEncoding
from bert_tf.tasks.questions import SpanEncoding
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
# Weights that take more room than the graph around them.
WIDE = dataclasses.replace(SMALL, hidden_size=132, intermediate_size=530)
TAGGING = TaggingEncoding(VOCAB, True, None, LENGTH, TAGS)
SPANS = SpanEncoding(VOCAB, True, None, LENGTH, 4, 6)

_folder = tempfile.TemporaryDirectory()


def _pairs():
    model = random_weights(BertClassifier(WIDE, len(LABELS)))
    for variable in model.weights:
        if len(variable.shape) > 1:
            # Sums over so many are not larger than those over a few.
            variable.assign(variable.numpy() / 4)
    return ServedClassifier(model, ENCODING, LABELS, "single_label", True)


KINDS = {
    "pairs": _pairs,
    "choices": lambda: ServedMultipleChoice(
        random_weights(BertMultipleChoice(SMALL)), ENCODING, NUM_CHOICES
    ),
    "tags": lambda: ServedTagger(
        random_weights(BertTokenClassifier(SMALL, len(TAGS))), TAGGING
    ),
    "answers": lambda: ServedSpanLabeler(
        random_weights(BertSpanLabeler(SMALL)), SPANS
    ),
    "vectors": lambda: ServedEncoder(
        random_weights(BertModel(SMALL)), ENCODING
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
    """The folder of the only version of its export.

    It has what is looked at when it is opened again; the rest takes time.
    """
    path = pathlib.Path(_folder.name, kind, "7")
    path.parent.mkdir()
    save(served(kind), str(path), str(path))
    extra = path / EXTRA
    extra.mkdir()
    card = model_card(served(kind), str(path), kind, source="a/b")
    (extra / MODEL_CARD).write_text(to_json(card), encoding="utf-8")
    write_warm_up(str(extra / WARM_UP), served(kind), kind)
    return path


@functools.cache
def opened(kind: str) -> Exported:
    """The same, opened."""
    return open_export(str(path_of(kind)))
