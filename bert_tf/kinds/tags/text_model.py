"""`TokenTagger`: a tag for each word of a text, such as named entities."""

import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.data.batching import Features
from bert_tf.errors import InputError, require_names, wrong_value
from bert_tf.kinds.tags.conll_files import Sentence, TaggingEncoding
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.modeling.heads import BertTokenClassifier
from bert_tf.text_models.inputs import (
    label_name,
    labels_of,
    plain,
    plain_row,
    text_of,
)
from bert_tf.text_models.text_model import NAME_THE_CLASSES, TextModel


@keras.saving.register_keras_serializable("bert_tf")
class TokenTagger(TextModel):
    """Tags the words of texts, for example named entities.

    Example:

        model = bert_tf.TokenTagger.from_pretrained(
            "hf://google-bert/bert-base-cased", labels=["O", "B-PER", "I-PER"]
        )
        model.fit(sentences, tags)  # Lists of words; a tag for each word.
        model.predict("Ada Lovelace wrote .")
        # For example
        # {'words': ['Ada', 'Lovelace', 'wrote', '.'],
        #  'tags': ['B-PER', 'I-PER', 'O', 'O'], 'starts': [0, 4, 13, 19],
        #  'ends': [3, 12, 18, 20], 'probabilities': [0.9, 0.9, 1.0, 1.0]}

    A text is a string, whose words are separated by white space, or a list of
    words. Its tags are names, or their positions, see `TextClassifier`. A text
    that is longer than `max_seq_length` is split between words.

    Args:
      model: A `BertTokenClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      labels: The tags in the order of the logits. By default the checkpoint's
        tags. If all are tags of entities, in IOB1, IOB2, IOBES or BILOU,
        `evaluate` returns the scores of entities too.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
    """

    model_class = BertTokenClassifier
    task_class = TaggingTask

    def __init__(
        self,
        model: BertTokenClassifier,
        tokenizer: Any,
        labels: Sequence[str] | None = None,
        max_seq_length: int = 128,
        name: str = "token_tagger",
    ):
        super().__init__(model, tokenizer, max_seq_length, name=name)
        if labels is None:
            labels = model.labels or ()
        self.labels = require_names(labels, NAME_THE_CLASSES)
        if len(self.labels) != model.num_labels:
            raise wrong_value(
                "The number of labels",
                f"{model.num_labels}, the number of logits of the model",
                len(self.labels),
            )

    def _is_single(self, x):
        return isinstance(x, (str, bytes))

    def _has_one_row(self):
        return False

    def examples(self, x: Any, y: Any) -> list[Sentence]:
        texts = [x] if self._is_single(x) else plain(x)
        tags = labels_of(y, len(texts))
        if y is not None:
            rows = (plain_row(row, f"text {n}") for n, row in enumerate(tags))
            tags = [[label_name(x, self.labels) for x in row] for row in rows]
        sentences = [
            _sentence(number, text, row)
            for number, (text, row) in enumerate(zip(texts, tags, strict=True))
        ]
        if y is not None and not any(sentence.words for sentence in sentences):
            raise InputError("There are no texts with words.")
        return sentences

    def make_task(self, **options):
        return TaggingTask(self.model.config, self._encoding(), **options)

    def _class_names(self):
        return self.labels

    def _label_ids(self, features: Features) -> np.ndarray:
        arrays = features.arrays
        return arrays["label_ids"][arrays["label_mask"] > 0]

    def _encoding(self) -> TaggingEncoding:
        return self.make_encoding(TaggingEncoding, labels=self.labels)

    def _served(self):
        from bert_tf.kinds.tags.graph import ServedTagger

        return ServedTagger(self.model, self._encoding())


def _sentence(number: int, text: Any, tags: list[Any] | None) -> Sentence:
    """Returns a text as a sentence, with a tag for each word or none."""
    spans = None
    if isinstance(text, (str, bytes)):
        matches = [*re.finditer(r"\S+", text_of(text, number))]
        words = tuple(match.group() for match in matches)
        spans = tuple(match.span() for match in matches)
    else:
        words = tuple(text_of(word, number) for word in plain(text))
    if tags is not None and len(tags) != len(words):
        raise InputError(
            f"text {number} has {len(words)} words, but {len(tags)} tags."
        )
    return Sentence(
        words,
        None if tags is None else tuple(tags),
        tuple(range(1, len(words) + 1)),
        f"text {number}",
        spans=spans,
    )
