"""The task of labeling every word: named entities, parts of speech."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import listed, wrong_value
from bert_tf.kinds.tags.conll_files import (
    Sentence,
    TaggingEncoding,
    is_entity_tag,
    to_iob2,
)
from bert_tf.modeling.heads import BertTokenClassifier
from bert_tf.tasks.metrics import entity_scores
from bert_tf.tasks.task import (
    FineTuningTask,
    Rows,
    divergence,
    most_probable,
    weights_of,
)

_OF_WORDS = "predicted_ids", "probabilities"


class TaggingTask(FineTuningTask):
    """The task of `run_ner.py`; section 5.3 of the paper.

    The label of a word is predicted at its first token, where `label_mask` is
    1. Other positions (further tokens, [CLS], [SEP], padding) have no loss and
    no label. The weight of an example is its number of words, so the loss is
    the mean over all words of the global batch.

    Args:
      config: The configuration of the model.
      encoding: How sentences become features.
      class_weights: The weight of each label in training, float32 [C].
      options: Options of `FineTuningTask`.

    Raises:
      InputError: If there are fewer than two labels.
    """

    kind = head = "token"
    # The scores of entities of all types.
    metrics = ("f1", "precision", "recall", "accuracy", "loss")
    loss_names = ("label_loss",)
    unused_variables = r"bert/pooler/"

    def __init__(
        self,
        config: BertConfig,
        encoding: TaggingEncoding,
        *,
        class_weights: np.ndarray | None = None,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        if len(self.labels) < 2:
            raise wrong_value("`labels`", "at least 2 labels", self.labels)
        self.class_weights = class_weights

    def make_model(self, **options: Any) -> keras.Model:
        return BertTokenClassifier(self.config, len(self.labels), **options)

    def is_element(self, features: Mapping) -> Any:
        """Returns 1.0 at the first token of each word, float32 [B, S]."""
        return ops.cast(features["label_mask"], "float32")

    def element_weights(self, features: Mapping) -> Any:
        """Returns the class weights of words, float32 [B, S]."""
        is_word = self.is_element(features)
        if self.class_weights is None:
            return is_word
        return is_word * weights_of(features["label_ids"], self.class_weights)

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the losses of all positions, float32 [B, S]."""
        return keras.losses.sparse_categorical_crossentropy(
            features["label_ids"], outputs["logits"], from_logits=True
        )

    def soft_losses(
        self, features: Mapping, outputs: Mapping, temperature: float
    ) -> Any:
        """See `FineTuningTask`; has all positions, float32 [B, S]."""
        theirs = ops.swapaxes(features["teacher_logits"], 1, 2)
        return divergence(theirs, outputs["logits"], temperature)

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the most probable label of each token.

        Returns:
          `predicted_ids`, int32 [B, S], and their `probabilities`; both are
          meaningful only where the `label_mask`, also returned, is 1.
        """
        predicted_ids, values = most_probable(ops.softmax(outputs["logits"]))
        return {
            "predicted_ids": predicted_ids,
            "probabilities": values,
            "label_mask": features["label_mask"],
        }

    def join(self, outputs: Mapping, rows: Rows) -> dict:
        """Returns the labels and probabilities of all words in order, [W]."""
        is_word = outputs["label_mask"] > 0
        return {name: outputs[name][is_word] for name in _OF_WORDS}

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Sentence]
    ) -> list[dict[str, Any]]:
        """Returns the words, tags and probabilities of each sentence."""
        answers, end = [], 0
        for sentence in examples:
            start, end = end, end + len(sentence.words)
            ids, chances = (decoded[name][start:end] for name in _OF_WORDS)
            answer = {
                "words": list(sentence.words),
                "tags": [self.labels[number] for number in ids],
                "probabilities": chances.tolist(),
            }
            if sentence.spans is not None:
                answer["starts"] = [first for first, _ in sentence.spans]
                answer["ends"] = [last for _, last in sentence.spans]
            answers.append(answer)
        return answers

    def tags(
        self,
        predictions: Mapping[str, np.ndarray],
        sentences: Sequence[Sentence],
    ) -> list[list[str]]:
        """Returns the predicted tags of the words of each sentence."""
        is_word = predictions["label_mask"] > 0
        words = {name: predictions[name][is_word] for name in _OF_WORDS}
        return [answer["tags"] for answer in self.answers(words, sentences)]

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Sentence] = (),
    ) -> dict[str, float]:
        """Returns the accuracy and the mean loss of the words.

        If `examples` are passed and all labels are tags of entities, in IOB2 or
        another scheme, the metrics include `metrics.entity_scores`.
        """
        is_word = predictions["label_mask"] == 1
        is_right = predictions["predicted_ids"] == predictions["label_ids"]
        words = max(np.count_nonzero(is_word), 1)
        loss = np.sum(predictions["loss"], dtype=float)
        scores = {
            "eval_accuracy": float(
                np.count_nonzero(is_right & is_word) / words
            ),
            "eval_loss": float(loss / words),
        }
        if not examples or not self._are_entities():
            return scores
        tags = self.tags(predictions, examples)
        entities = entity_scores(
            [to_iob2(sentence.tags or ()) for sentence in examples],
            [*map(to_iob2, tags)],
        )
        # `scores` has the accuracy of the tags before the conversion.
        return {**{f"eval_{name}": x for name, x in entities.items()}, **scores}

    def _are_entities(self) -> bool:
        """Returns whether all labels are tags of entities, in any scheme."""
        others = [label for label in self.labels if not is_entity_tag(label)]
        if any("-" in label for label in {*self.labels} - {*others}) and others:
            logging.warning(
                "Entities are not scored: %s is neither O nor of the form "
                "B-TYPE",
                listed(others, last="or", quote=True),
            )
        return not others
