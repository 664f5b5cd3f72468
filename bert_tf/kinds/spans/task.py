"""The task of finding the span of a text that answers a question."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.kinds.spans.answers import (
    Answered,
    AnswerRules,
    find_answers,
    official_scores,
)
from bert_tf.kinds.spans.squad_files import PLACES, Question, SpanEncoding
from bert_tf.modeling.heads import BertSpanLabeler
from bert_tf.tasks.task import FineTuningTask, Rows, divergence

# The logit of padding in the loss. An infinity times the 0 of a one-hot row
# would be NaN.
MASKED = -1e9


class SpanTask(FineTuningTask):
    """The task of `run_squad.py`; sections 4.2 and 4.3 of the paper.

    A row is a window: the question and a part of the context. The answer
    starts and ends at positions of the sequence, both 0 ([CLS]) if the window
    does not have it.

    Padding is excluded from the softmax and from the best positions, so the
    loss and the answers do not depend on the padded length. In the original
    padding takes part: the loss is a little higher and depends on
    `max_seq_length` until the model has learned to give padding low logits.

    Args:
      config: The configuration of the model.
      encoding: How questions become windows.
      rules: How answers are chosen.
      n_best_size: The number of best starts and of best ends to keep; by
        default all, which `answers.find_answer` needs for a question whose
        best starts and ends form no span.
      options: Options of `FineTuningTask`.
    """

    kind = head = "span"
    loss_names = ("span_loss",)
    unused_variables = r"bert/pooler/"

    def __init__(
        self,
        config: BertConfig,
        encoding: SpanEncoding,
        *,
        rules: AnswerRules | None = None,
        n_best_size: int | None = None,
        **options: Any,
    ):
        super().__init__(config, encoding, **options)
        self.rules = rules or AnswerRules()
        self.n_best_size = n_best_size or encoding.max_seq_length

    def make_model(self, **options: Any) -> keras.Model:
        return BertSpanLabeler(self.config, **options)

    def element_losses(self, features: Mapping, outputs: Mapping) -> Any:
        """Returns the mean of the losses of start and end, float32 [B].

        Source: `compute_loss` of `run_squad.py`.
        """
        losses = [
            keras.losses.sparse_categorical_crossentropy(
                features[f"{name}_positions"],
                masked(
                    outputs[f"{name}_logits"], features["input_mask"], MASKED
                ),
                from_logits=True,
            )
            for name in ("start", "end")
        ]
        return (losses[0] + losses[1]) / 2

    def soft_losses(
        self, features: Mapping, outputs: Mapping, temperature: float
    ) -> Any:
        """See `FineTuningTask`; the mean of start and end."""
        losses = []
        for name in ("start_logits", "end_logits"):
            theirs, ours = (
                masked(logits, features["input_mask"], MASKED)
                for logits in (features[f"teacher_{name}"], outputs[name])
            )
            losses.append(divergence(theirs, ours, temperature))
        return (losses[0] + losses[1]) / 2

    def row_outputs(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns `best_indexes`, and the features of `AnswerEncoding`."""
        kept = (*PLACES, "is_first_window")
        return {
            **best_indexes(outputs, features["input_mask"], self.n_best_size),
            **{name: features[name] for name in kept if name in features},
        }

    def join(self, outputs: Mapping, rows: Rows) -> dict:
        """Returns the outputs of all windows, which `answers` compares."""
        return dict(outputs)

    def answers(
        self, decoded: Mapping[str, np.ndarray], examples: Sequence[Question]
    ) -> list[dict[str, Any]]:
        """Returns the answer to each question; see `QuestionAnswerer`."""
        answers = []
        for found in find_answers(decoded, examples, self.rules):
            chances = {row["text"]: row["probability"] for row in found.nbest}
            end = found.start + len(found.text) if found.text else -1
            answer = {
                "answer": found.text,
                "score": chances.get(found.text, 0.0),
                "start": found.start,
                "end": end,
            }
            answers.append(answer)
        return answers

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns `row_outputs`, and the `loss` [b] of training windows."""
        results = self.row_outputs(features, outputs)
        if "start_positions" in features:
            results["loss"] = self.element_losses(features, outputs)
        return results

    def score(
        self,
        predictions: Mapping[str, np.ndarray],
        examples: Sequence[Question] = (),
    ) -> dict[str, float]:
        """Returns the official scores; without examples, the mean loss."""
        if examples:
            found = find_answers(predictions, examples, self.rules)
            answered = map(Answered, examples, found)
            return official_scores(answered, self.rules.with_negative)
        return {"eval_loss": float(np.mean(predictions["loss"], dtype=float))}


def best_indexes(outputs: Mapping, input_mask, count: int) -> dict:
    """Returns the positions with the highest logits of each window.

    Source: `_get_best_indexes` of `run_squad.py`.

    Args:
      outputs: `start_logits` and `end_logits` [b, S].
      input_mask: Integers [b, S].
      count: The number of starts and of ends to return.

    Returns:
      Dict of `start_indexes` and `end_indexes`, int32 [b, count], positions in
      descending order of logits, equal ones in order; `start_logits` and
      `end_logits`, float32 [b, count]; `null_start_logits` and
      `null_end_logits`, float32 [b], the logits at [CLS]. If a window has fewer
      tokens, the rest is -1 and -inf, so that the shape is static for any S.
    """
    best = {}
    for name in ("start", "end"):
        logits = outputs[f"{name}_logits"]
        allowed = masked(logits, input_mask, -np.inf)
        padding = [[0, 0], [0, count]]
        allowed = ops.pad(allowed, padding, constant_values=-np.inf)
        values, indexes = ops.top_k(allowed, count)
        # Also false for NaN.
        is_token = values > -np.inf
        best[f"{name}_indexes"] = ops.where(
            is_token, ops.cast(indexes, "int32"), -1
        )
        best[f"{name}_logits"] = values
        best[f"null_{name}_logits"] = logits[:, 0]
    return best


def masked(logits, mask, value: float):
    """Returns the logits, [b, S], with `value` where the mask is 0."""
    return ops.where(ops.cast(mask, "bool"), logits, value)
