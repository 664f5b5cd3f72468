"""Small exports of several kinds, written once per process. Not a test."""

import dataclasses
import functools
import pathlib
import tempfile

from bert_tf.kinds.classification.graph import ServedMultipleChoice
from bert_tf.kinds.spans.graph import ServedSpanLabeler
from bert_tf.kinds.spans.squad_files import SpanEncoding
from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.graph import ServedTagger
from bert_tf.kinds.vectors.features import choose_layers, vectors
from bert_tf.kinds.vectors.features_job import ServedEncoder
from bert_tf.kinds.vectors.task import EmbeddingTask
from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from bert_tf.serving.export import (
    EXTRA,
    MODEL_CARD,
    WARM_UP,
    model_card,
    save,
    to_json,
    write_warm_up,
)
from bert_tf.serving.served import Served, ServedTask
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    LENGTH,
    VOCAB,
    random_weights,
    served_classifier,
)

# This GELU is the harder one for converters.
SMALL = dataclasses.replace(CONFIG, num_hidden_layers=1, hidden_act="gelu_erf")
LABELS = ("cat", "é", "none of them")
TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")
NUM_CHOICES = 4
# The weights take more room than the graph.
WIDE = dataclasses.replace(SMALL, hidden_size=132, intermediate_size=530)
TAGGING = TaggingEncoding(VOCAB, True, None, LENGTH, TAGS)
SPANS = SpanEncoding(VOCAB, True, None, LENGTH, 4, 6)

_folder = tempfile.TemporaryDirectory()


def _pairs():
    model = random_weights(heads.BertClassifier(WIDE, len(LABELS)))
    for variable in model.weights:
        if len(variable.shape) > 1:
            # Longer sums would otherwise be larger.
            variable.assign(variable.numpy() / 4)
    return served_classifier(model, LABELS, "single_label", True)


def _vectors(pooling):
    """Vectors as run_embeddings.py exports them."""
    model = random_weights(BertModel(SMALL))
    task = EmbeddingTask(SMALL, ENCODING, pooling)
    return ServedTask(model, task)


def _token_vectors():
    """Vectors as extract_features.py exports them."""
    model = random_weights(BertModel(SMALL, output_hidden_states=True))
    choices = choose_layers("-1", SMALL)
    choose = functools.partial(vectors, choices=choices)
    return ServedEncoder(model, ENCODING, choose)


KINDS = {
    "pairs": _pairs,
    "scores": lambda: served_classifier(
        random_weights(heads.BertClassifier(SMALL, 1)),
        *((), "regression", True),
    ),
    "choices": lambda: ServedMultipleChoice(
        random_weights(heads.BertMultipleChoice(SMALL)), ENCODING, NUM_CHOICES
    ),
    "tags": lambda: ServedTagger(
        random_weights(heads.BertTokenClassifier(SMALL, len(TAGS))), TAGGING
    ),
    "answers": lambda: ServedSpanLabeler(
        random_weights(heads.BertSpanLabeler(SMALL)), SPANS
    ),
    "vectors": lambda: ServedEncoder(
        random_weights(BertModel(SMALL)), ENCODING
    ),
    "mean vectors": lambda: _vectors("mean"),
    "max vectors": lambda: _vectors("max"),
    "token vectors": _token_vectors,
    # Converters treat axes of size 1 in a special way.
    "one head": lambda: ServedEncoder(
        random_weights(
            BertModel(dataclasses.replace(SMALL, num_attention_heads=1))
        ),
        ENCODING,
    ),
}


@functools.cache
def served(kind: str) -> Served:
    """Returns a model of one of `KINDS`."""
    return KINDS[kind]()


@functools.cache
def path_of(kind: str) -> pathlib.Path:
    """Returns the folder of its export, with the files that readers need."""
    path = pathlib.Path(_folder.name, kind, "7")
    path.parent.mkdir()
    save(served(kind), str(path))
    extra = path / EXTRA
    extra.mkdir()
    card = model_card(served(kind), str(path), kind, source="a/b")
    (extra / MODEL_CARD).write_text(to_json(card), encoding="utf-8")
    write_warm_up(str(extra / WARM_UP), served(kind), kind)
    return path
