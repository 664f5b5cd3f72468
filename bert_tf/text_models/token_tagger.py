"""`TokenTagger`: a tag for each word of a text, such as named entities."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from bert_tf.data.batching import Features
from bert_tf.errors import InputError, listed, require_names, wrong_value
from bert_tf.heads import BertTokenClassifier
from bert_tf.metrics import entity_scores
from bert_tf.tasks.ner import (
    Sentence,
    TaggingEncoding,
    is_entity_tag,
    label_numbers,
    to_iob2,
)
from bert_tf.text_models.base import NAME_THE_CLASSES, TextModel
from bert_tf.text_models.batches import of_mean_1
from bert_tf.text_models.inputs import label_name, plain, plain_row, text_of
from bert_tf.text_models.progress import Progress
from bert_tf.text_models.training import INPUTS


@keras.saving.register_keras_serializable("bert_tf")
class TokenTagger(TextModel):
    """Tags the words of texts, for example with the names in them.

    Example:

        model = bert_tf.TokenTagger.from_pretrained(
            "hf://google-bert/bert-base-cased", labels=["O", "B-PER", "I-PER"]
        )
        model.fit([["Ada", "Lovelace", "wrote"]], [["B-PER", "I-PER", "O"]])
        model.predict("Ada Lovelace wrote .")
        # {'words': ['Ada', 'Lovelace', 'wrote', '.'],
        #  'tags': ['B-PER', 'I-PER', 'O', 'O'], 'starts': [0, 4, 13, 19],
        #  'ends': [3, 12, 18, 20], 'probabilities': [0.9, 0.9, 1.0, 1.0]}

    A text is a string, whose words are separated by white space, or a list of
    words. Its tags are names, or numbers counted from 0. A text that is longer
    than `max_seq_length` is split between words.

    Args:
      model: A `BertTokenClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      labels: The tags in the order of the logits. By default those of the
        model's checkpoint. If all are tags of entities, in IOB1, IOB2, IOBES or
        BILOU, `evaluate` returns the scores of entities too.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].
    """

    model_class = BertTokenClassifier

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
                f"{model.num_labels}, the logits of the model",
                len(self.labels),
            )

    def _answers(
        self, x: Any, batch_size: int, progress: Progress
    ) -> list[dict[str, Any]]:
        texts = [x] if isinstance(x, (str, bytes)) else plain(x)
        sentences = [_sentence(n, text) for n, text in enumerate(texts)]
        words = iter(self._probabilities(sentences, batch_size, progress))
        made = []
        for text, sentence in zip(texts, sentences, strict=True):
            rows = np.array([next(words) for _ in sentence.words])
            rows = rows.reshape(-1, len(self.labels))
            best = rows.argmax(axis=-1)
            found = {
                "words": list(sentence.words),
                "tags": [self.labels[number] for number in best],
                "probabilities": rows.max(axis=-1).tolist(),
            }
            if isinstance(text, (str, bytes)):
                spans = [m.span() for m in _words(text_of(text, 0))]
                found["starts"] = [start for start, _ in spans]
                found["ends"] = [end for _, end in spans]
            made.append(found)
        return made

    def _is_single(self, x):
        return isinstance(x, (str, bytes))

    def _has_one_row(self):
        return False

    def _probabilities(
        self, sentences: Sequence[Sentence], batch_size: int, progress: Progress
    ) -> list[np.ndarray]:
        """Returns the probabilities of the tags of all words, each [C]."""
        filled = [sentence for sentence in sentences if sentence.words]
        if not filled:
            return []
        features = self._encoding().features(filled)

        def call(batch: Mapping[str, np.ndarray]) -> Any:
            return keras.ops.softmax(self._call(batch))

        rows = self._outputs(features, batch_size, call, progress)
        is_first = features.arrays["label_mask"] > 0
        return [
            row[position]
            for row, first in zip(rows, is_first, strict=True)
            for position in np.flatnonzero(first)
        ]

    def _scores(
        self, x: Any, y: Any, batch_size: int, progress: Progress
    ) -> dict[str, float]:
        x = plain(x)
        sentences = [row for row in self._sentences(x, y) if row.words]
        # Checks the tags.
        label_numbers(sentences, self.labels)
        gold = [row.tags for row in sentences]
        found = self._answers(x, batch_size, progress)
        tags = [tuple(row["tags"]) for row in found if row["tags"]]
        pairs = [
            pair
            for row in zip(gold, tags, strict=True)
            for pair in zip(*row, strict=True)
        ]
        accuracy = sum(a == b for a, b in pairs) / len(pairs)
        others = [label for label in self.labels if not is_entity_tag(label)]
        if not others:
            scores = entity_scores([*map(to_iob2, gold)], [*map(to_iob2, tags)])
            return {**scores, "accuracy": accuracy}
        if any("-" in label for label in {*self.labels} - {*others}):
            logging.warning(
                "Entities are not scored, since %s is not a tag of an entity, "
                "such as O or B-TYPE",
                listed(others, last="or", quote=True),
            )
        return {"accuracy": accuracy}

    def _features(self, x: Any, y: Any) -> Features:
        return self._encoding().features(self._sentences(x, y))

    def _sentences(self, x: Any, y: Any) -> list[Sentence]:
        texts, tags = plain(x), plain(y)
        if len(texts) != len(tags):
            raise wrong_value(
                "The number of lists of tags",
                f"{len(texts)}, the number of texts",
                len(tags),
            )
        made = [
            _sentence(number, text, self._tags(number, row))
            for number, (text, row) in enumerate(zip(texts, tags, strict=True))
        ]
        if not any(sentence.words for sentence in made):
            raise InputError("There are no texts with words.")
        return made

    def _tags(self, number: int, row: Any) -> list[Any]:
        values = plain_row(row, f"text {number}")
        return [label_name(value, self.labels) for value in values]

    def _arguments(self, batch: Mapping[str, np.ndarray]) -> tuple:
        features = {name: batch[name] for name in INPUTS}
        return features, batch["label_ids"], of_mean_1(batch["label_mask"])

    def _class_names(self):
        return self.labels

    def _label_ids(self, features: Features) -> np.ndarray:
        arrays = features.arrays
        return arrays["label_ids"][arrays["label_mask"] > 0]

    def _default_loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def _encoding(self) -> TaggingEncoding:
        return TaggingEncoding(*self._encoding_arguments(), self.labels)

    def _facts(self):
        return {**super()._facts(), "labels": self.labels}

    def _served(self):
        from bert_tf.serving.tags import ServedTagger

        return ServedTagger(self.model, self._encoding())

    def get_config(self):
        return {**super().get_config(), "labels": list(self.labels)}


def _words(text: str) -> list[re.Match]:
    return list(re.finditer(r"\S+", text))


def _sentence(
    number: int, text: Any, tags: Sequence[str] | None = None
) -> Sentence:
    """Returns a text as a sentence.

    Raises:
      InputError: If there are more or fewer tags than words.
    """
    if isinstance(text, (str, bytes)):
        words = tuple(match.group() for match in _words(text_of(text, number)))
    else:
        words = tuple(text_of(word, number) for word in plain(text))
    if tags is not None and len(tags) != len(words):
        raise InputError(
            f"text {number} has {len(words)} words, but {len(tags)} tags."
        )
    lines = tuple(range(1, len(words) + 1))
    return Sentence(
        words, None if tags is None else tuple(tags), lines, f"text {number}"
    )
