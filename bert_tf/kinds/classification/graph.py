"""Classes, numbers and multiple choice in a graph."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.kinds.classification.task import decode
from bert_tf.serving.served import Served, ServedWindows
from bert_tf.serving.windows import Tensors, in_batches
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.task import Rows
from bert_tf.tokenization.graph_normalization import drop_invalid_utf8


class ServedClassifier(ServedWindows):
    """Maps a text or a pair to a class, any number of labels, or a number.

    With `doc_stride`, a text may have any length: it is split into windows as
    in `run_classifier.py`, and the answers are the same.

    Args:
      model: A `BertClassifier`, built.
      encoding: How texts became features in training.
      labels: The names of the classes, in the order of the logits; none for
        regression.
      problem: "single_label", "multi_label" or "regression".
      is_pair: Whether inputs are pairs of texts.

    Raises:
      InputError: If the problem is unknown, or the number of logits differs
        from the number of labels.
    """

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        labels: Iterable[str],
        problem: str,
        is_pair: bool,
    ):
        super().__init__(model, encoding, labels)
        if problem not in _KINDS:
            raise wrong_value("problem", f"one of {listed(_KINDS)}", problem)
        num_labels = 1 if problem == "regression" else len(self.labels)
        if model.num_labels != num_labels:
            raise InputError(
                f"The model has {model.num_labels} logits, but {problem} with "
                f"{len(self.labels)} labels needs {num_labels}."
            )
        self.kind = _KINDS[problem]
        self._problem = problem
        self.is_pair = is_pair
        if is_pair:
            self.text_names = ("text_a", "text_b")

    @property
    def example(self) -> dict[str, list]:
        texts = [
            "The plot is thin, but the two leads are a joy to watch.",
            "Half an hour would have been enough.",
        ]
        if not self.is_pair:
            return {"text": texts}
        return {
            "text_a": texts,
            "text_b": [
                "Both of the main actors are good.",
                "The film is too short.",
            ],
        }

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the predictions for texts or pairs.

        Args:
          texts: `text`, or `text_a` and `text_b`: strings [B].

        Returns:
          For single labels: `label`, the most likely one, strings [B]; its
          `probability`, float32 [B]; all `labels` in the model's order,
          strings [B, C]; and their `probabilities`, float32 [B, C]. For
          multiple labels: `labels`, `probabilities`, and `is_present`, bool
          [B, C]. For regression: `score`, float32 [B].
        """
        if not self._is_split:
            return self.answer_tokens(self.features(texts))
        text, features = self.rows(texts)
        logits = in_batches(self.model, features)["logits"]
        rows = Rows(text, tf.size(texts[self.text_names[0]]))
        return self._named(rows.pool(logits, self.encoding.window_pooling))

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the predictions for rows of `INPUTS`, int32 [B, S]."""
        return self._named(self.model(features)["logits"])

    def _named(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the answers with the names of the labels."""
        answer = decode(self._problem, logits)
        if "predicted_id" in answer:
            label = self.label_names(answer.pop("predicted_id"))
            answer = {"label": label, **answer}
        if self.labels:
            answer["labels"] = self._all_labels(answer["probabilities"])
        return answer

    def _all_labels(self, probabilities: tf.Tensor) -> tf.Tensor:
        """Repeats the names of all classes for each row, strings [B, C]."""
        numbers = tf.range(len(self.labels))
        return self.label_names(
            tf.broadcast_to(numbers, tf.shape(probabilities))
        )


# The kinds in the model card.
_KINDS = {
    "single_label": "classifier",
    "multi_label": "multi-label classifier",
    "regression": "regression",
}


class ServedMultipleChoice(Served):
    """Maps a context and several endings to the most likely ending.

    Args:
      model: A `BertMultipleChoice`, built.
      encoding: How texts became features in training.
      num_choices: The number of endings of each text, n.
    """

    kind = "multiple choice"

    def __init__(
        self, model: keras.Model, encoding: TextEncoding, num_choices: int
    ):
        super().__init__(model, encoding)
        self.num_choices = num_choices

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        choices = [None, self.num_choices]
        return {
            "context": tf.TensorSpec([None], tf.string, "context"),
            "choices": tf.TensorSpec(choices, tf.string, "choices"),
        }

    @property
    def token_inputs(self) -> dict[str, tf.TensorSpec]:
        """`INPUTS`, int32 [B, n, S]."""
        return {
            name: tf.TensorSpec(
                [None, self.num_choices, None], spec.dtype, name
            )
            for name, spec in super().token_inputs.items()
        }

    @property
    def example(self) -> dict[str, list]:
        endings = [
            [
                *("opens the umbrella.", "puts the rain into a pocket."),
                *("reads it aloud.", "paints the rain yellow."),
            ],
            [
                *("eats the door.", "gets out of the boat."),
                *("sows the sea.", "folds the boat and swallows it."),
            ],
        ]
        count = self.num_choices
        return {
            "context": ["It begins to rain. She", "They reach the shore. He"],
            # Endings repeat if the model has more choices.
            "choices": [(row * count)[:count] for row in endings],
        }

    def features(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns `INPUTS`, int32 [B, n, S]: rows of context and choice."""
        texts = self.checked(texts)
        context, choices = self.ids(
            [texts["context"], tf.reshape(texts["choices"], [-1])]
        )
        rows = tf.repeat(tf.range(context.nrows()), self.num_choices)
        flat = self.tokenizer.pack(
            [tf.gather(context, rows), choices], empty_second=False
        )
        return {
            name: tf.reshape(
                values, [-1, self.num_choices, tf.shape(values)[1]]
            )
            for name, values in flat.items()
        }

    def answer(self, texts: Tensors) -> dict[str, tf.Tensor]:
        """Returns the most likely choices.

        Args:
          texts: `context`, strings [B], and `choices`, strings [B, n].

        Returns:
          `choice`, the index of the most likely one, int32 [B];
          `choice_text`, strings [B], without invalid UTF-8; its `probability`,
          float32 [B]; and the `probabilities` of all choices, float32 [B, n].
        """
        answer = self.answer_tokens(self.features(texts))
        chosen = tf.gather(texts["choices"], answer["choice"], batch_dims=1)
        return {"choice_text": drop_invalid_utf8(chosen), **answer}

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns `choice` and probabilities for `INPUTS`, int32 [B, n, S]."""
        answer = decode("multiple_choice", self.model(features)["logits"])
        return {"choice": answer.pop("predicted_id"), **answer}
