"""Classes of texts and of pairs, numbers for them, and right endings.

What `run_classifier.py` trains. Texts become features as those of
`data.features`, and answers are those of its `predictions.tsv`.
"""

from collections.abc import Callable, Iterable, Mapping

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.served import Served
from bert_tf.tasks.encoding import TextEncoding

# Multi-label problems answer with the labels that are more likely than not.
THRESHOLD = 0.5


class ServedClassifier(Served):
    """A text or a pair in; a class, any number of labels, or a number out.

    Args:
      model: A `BertClassifier`, built.
      encoding: How texts became features when it was trained.
      labels: Names of the classes, in the order of the logits; none for
        regression.
      problem: "single_label", "multi_label" or "regression".
      is_pair: Whether it was trained with pairs of texts.

    Raises:
      InputError: The problem is none of these, or the model has not as many
        logits as there are labels.
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
            raise InputError(
                f"expected a problem among {', '.join(_KINDS)}. Received: "
                f"{problem!r}"
            )
        num_labels = 1 if problem == "regression" else len(self.labels)
        if model.num_labels != num_labels:
            raise InputError(
                f"expected a model of {num_labels} logit(s) for {problem} and "
                f"{len(self.labels)} label(s). Received: one of "
                f"{model.num_labels}"
            )
        self.kind, self._answer = _KINDS[problem]
        self.is_pair = is_pair

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        names = ("text_a", "text_b") if self.is_pair else ("text",)
        return {name: tf.TensorSpec([None], tf.string, name) for name in names}

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

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the model says of each text or pair.

        Args:
          texts: `text`, or `text_a` and `text_b`: strings [B].

        Returns:
          For a single label, a dict of `label`, the likeliest, strings [B];
          its `probability`, float32 [B]; `labels`, all of them in the order of
          the model, strings [B, C]; and their `probabilities`, float32 [B, C].
          For several labels, a dict of `labels`, their `probabilities`, and
          `is_present`, bool [B, C]: those that are answered. For regression, a
          dict of `score`, float32 [B].
        """
        return self.answer_tokens(self.features(texts))

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """As `answer`, from `FEATURES`, int32 [B, S]."""
        return self._answer(self, self.model(features)["logits"])

    def _one_label(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(logits)
        return {
            "label": self.label_names(tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "labels": self._all_labels(probabilities),
            "probabilities": probabilities,
        }

    def _several_labels(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.sigmoid(logits)
        return {
            "labels": self._all_labels(probabilities),
            "probabilities": probabilities,
            "is_present": probabilities > THRESHOLD,
        }

    def _number(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": logits[:, 0]}

    def _all_labels(self, probabilities: tf.Tensor) -> tf.Tensor:
        """The names of the columns of floats [B, C], strings [B, C]."""
        numbers = tf.range(len(self.labels))
        return self.label_names(
            tf.broadcast_to(numbers, tf.shape(probabilities))
        )


# What the model card calls a problem, and how its logits are answered.
_KINDS: dict[str, tuple[str, Callable]] = {
    "single_label": ("classifier", ServedClassifier._one_label),
    "multi_label": ("multi-label classifier", ServedClassifier._several_labels),
    "regression": ("regression", ServedClassifier._number),
}


class ServedMultipleChoice(Served):
    """The beginning of a text and several endings in, the right one out.

    Args:
      model: A `BertMultipleChoice`, built.
      encoding: How texts became features when it was trained.
      num_choices: How many endings each text has, n.
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
        """`FEATURES`, int32 [B, n, S]."""
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
            # From the first again where there are more choices.
            "choices": [(row * count)[:count] for row in endings],
        }

    def features(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """`FEATURES`, int32 [B, n, S]: each row the context and a choice."""
        texts = self.checked(texts)
        context, choices = self.ids(
            [texts["context"], tf.reshape(texts["choices"], [-1])]
        )
        # Each context as often as it has choices.
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

    def answer(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The likeliest choice.

        Args:
          texts: `context`, strings [B], and `choices`, strings [B, n].

        Returns:
          Dict of `choice`, the number of the likeliest from 0, int32 [B];
          `choice_text`, strings [B]; its `probability`, float32 [B]; and the
          `probabilities` of all, float32 [B, n].
        """
        answer = self.answer_tokens(self.features(texts))
        chosen = tf.gather(texts["choices"], answer["choice"], batch_dims=1)
        return {"choice_text": chosen, **answer}

    def answer_tokens(
        self, features: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """As `answer`, without `choice_text`, from int32 [B, n, S]."""
        probabilities = tf.nn.softmax(self.model(features)["logits"])
        return {
            "choice": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }
