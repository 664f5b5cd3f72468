"""`TokenTagger`: a tag for each word of a text, such as named entities."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.data.batching import Features
from bert_tf.errors import InputError, require_names, wrong_value
from bert_tf.heads import BertTokenClassifier
from bert_tf.tasks.conll import (
    Sentence,
    TaggingEncoding,
)
from bert_tf.tasks.tagging import TaggingTask
from bert_tf.text_models.inputs import label_name, plain, plain_row, text_of
from bert_tf.text_models.progress import Progress
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
                f"{model.num_labels}, the logits of the model",
                len(self.labels),
            )

    def _answers(
        self, x: Any, batch_size: int, progress: Progress
    ) -> list[dict[str, Any]]:
        texts = [x] if isinstance(x, (str, bytes)) else plain(x)
        sentences = [_sentence(n, text) for n, text in enumerate(texts)]
        ids, probabilities = self._decoded(sentences, batch_size, progress)
        tagged, end = [], 0
        for text, sentence in zip(texts, sentences, strict=True):
            start, end = end, end + len(sentence.words)
            answer = {
                "words": list(sentence.words),
                "tags": [self.labels[number] for number in ids[start:end]],
                "probabilities": probabilities[start:end].tolist(),
            }
            if isinstance(text, (str, bytes)):
                spans = [m.span() for m in _words(text_of(text, 0))]
                answer["starts"] = [first for first, _ in spans]
                answer["ends"] = [last for _, last in spans]
            tagged.append(answer)
        return tagged

    def _is_single(self, x):
        return isinstance(x, (str, bytes))

    def _has_one_row(self):
        return False

    def _decoded(
        self, sentences: Sequence[Sentence], batch_size: int, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the label id and the probability of each word, [W]."""
        filled = [sentence for sentence in sentences if sentence.words]
        if not filled:
            return np.zeros(0, int), np.zeros(0)
        task = self.make_task()
        features = task.encoding.features(filled)

        def decode(_: Mapping, outputs: Mapping) -> dict[str, Any]:
            return task.decode(outputs)

        rows = self._results(features, batch_size, decode, progress)
        length = rows["predicted_ids"].shape[1]
        is_first = features.arrays["label_mask"][:, :length] > 0
        return rows["predicted_ids"][is_first], rows["probabilities"][is_first]

    def _scores(
        self, x: Any, y: Any, batch_size: int, progress: Progress
    ) -> dict[str, float]:
        sentences = [row for row in self._sentences(x, y) if row.words]
        task = self.make_task()
        features = task.encoding.features(sentences)
        return self._task_scores(
            task, features, batch_size, progress, sentences
        )

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
        sentences = [
            _sentence(number, text, self._tags(number, row))
            for number, (text, row) in enumerate(zip(texts, tags, strict=True))
        ]
        if not any(sentence.words for sentence in sentences):
            raise InputError("There are no texts with words.")
        return sentences

    def _tags(self, number: int, row: Any) -> list[Any]:
        values = plain_row(row, f"text {number}")
        return [label_name(value, self.labels) for value in values]

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
        from bert_tf.serving.tagging import ServedTagger

        return ServedTagger(self.model, self._encoding())


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
