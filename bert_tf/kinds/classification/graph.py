"""Predicts classes, numbers and choices in a graph."""

import keras
import tensorflow as tf

from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.serving.served import Served, ServedTask, Tensors
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.predictions import decode
from bert_tf.tokenization.graph_normalization import drop_invalid_utf8


class ServedClassifier(ServedTask):
    """Maps a text or a pair to a class, any number of labels, or a number.

    For single labels, `answer` returns the most likely `label`, strings [B];
    its `probability`, float32 [B]; all `labels` in the model's order, strings
    [B, C]; and their `probabilities`, float32 [B, C]. For multiple labels:
    `labels`, `probabilities`, and `is_present`, bool [B, C]. For regression:
    `score`, float32 [B].

    Args:
      model: A `BertClassifier`, built.
      task: The task.
      is_pair: Whether inputs are pairs of texts.
    """

    def __init__(
        self, model: keras.Model, task: ClassificationTask, is_pair: bool
    ):
        super().__init__(model, task, is_pair)
        self.kind = _KINDS[task.problem]

    @property
    def example(self) -> dict[str, list]:
        texts = [
            "The plot is thin, but the two leads are a joy to watch.",
            "Half an hour would have been enough.",
        ]
        shorter = [
            "Both of the main actors are good.",
            "The film is too short.",
        ]
        return dict(zip(self.text_names, (texts, shorter), strict=False))

    def _decoded(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answers with the names of the labels."""
        answer = super()._decoded(outputs)
        if "predicted_id" in answer:
            label = self.label_names(answer.pop("predicted_id"))
            answer = {"label": label, **answer}
        if self.labels:
            numbers = tf.broadcast_to(
                tf.range(len(self.labels)), tf.shape(answer["probabilities"])
            )
            answer["labels"] = self.label_names(numbers)
        return answer


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
            ["opens the umbrella.", "puts the rain into a pocket."],
            ["eats the door.", "gets out of the boat."],
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
