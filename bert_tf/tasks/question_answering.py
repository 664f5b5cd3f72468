"""Answers that stand in a text: SQuAD, KorQuAD."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.errors import InputError
from bert_tf.heads import BertSpanLabeler
from bert_tf.tasks.task import FineTuningTask

# The logit of padding in the loss. Not an infinity, which a backend would
# multiply by the 0 of a one-hot row.
_NEVER = -1e9


class SpanTask(FineTuningTask):
    """What `run_squad.py` trains; sections 4.2 and 4.3 of the paper.

    An example is a window: the question and a part of the text. Its answer
    starts at one place of the sequence and ends at another, both 0, that of
    [CLS], where there is none in it.

    Padding takes no part, neither in the softmax nor among the best places:
    a window has the same loss and answers at whatever length it is padded to.
    The original lets it take part, so that its loss is a little higher, and
    depends on `max_seq_length`, until the model has learned to score padding
    low; and it may list places there, which its later steps throw away.

    Args:
      config: The model to train.
      schema: Of its records, see `span_schema`.
      n_best_size: How many places are kept for the start of an answer, and
        for its end.
      frozen_layers: See `BertModel`.
      gradient_checkpointing: See `BertModel`.
      bilstm_head: See `heads.TaskModel`.

    Raises:
      InputError: `n_best_size` is not above 0.
    """

    head = "span"
    unused_variables = r"bert/pooler/"

    def __init__(
        self,
        config: BertConfig,
        schema: Schema,
        *,
        n_best_size: int = 20,
        frozen_layers: Sequence[str] = (),
        gradient_checkpointing: bool = False,
        bilstm_head: bool = False,
    ):
        if n_best_size < 1:
            raise InputError(
                f"expected --n_best_size of 1 or more. Received: {n_best_size}"
            )
        super().__init__(
            config,
            schema,
            frozen_layers=frozen_layers,
            gradient_checkpointing=gradient_checkpointing,
            bilstm_head=bilstm_head,
        )
        self.n_best_size = n_best_size

    @property
    def loss_names(self) -> tuple[str, ...]:
        return ("span_loss",)

    def make_model(self, **options: Any) -> keras.Model:
        return BertSpanLabeler(self.config, **options)

    def loss_weights(self, features: Mapping) -> dict:
        return {"span_loss": ops.ones(ops.shape(features["start_positions"]))}

    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """See `Task`; source: `compute_loss` of `run_squad.py`."""
        return {"span_loss": _loss(features, outputs)}

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """The best places of every window.

        Args:
          features: `input_mask` [b, S], and, for the loss, `start_positions`
            and `end_positions` [b].
          outputs: `start_logits` and `end_logits` [b, S].

        Returns:
          What `best_places` does, and `loss`, float32 [b], if the positions
          are known.
        """
        kept = best_places(outputs, features["input_mask"], self.n_best_size)
        if "start_positions" in features:
            kept["loss"] = _loss(features, outputs)
        return kept

    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The mean loss; how good the answers are, texts alone can tell."""
        return {"eval_loss": float(np.mean(predictions["loss"], dtype=float))}


def best_places(outputs: Mapping, input_mask, count: int) -> dict:
    """The best places of every window.

    Source: `_get_best_indexes` of `run_squad.py`.

    Args:
      outputs: `start_logits` and `end_logits` [b, S].
      input_mask: [b, S].
      count: How many are kept for the start of an answer, and for its end.

    Returns:
      Dict of `start_places` and `end_places`, int32 [b, count]: places of the
      sequence, those with the highest logits first and equal ones in their
      order; `start_logits` and `end_logits`, float32, their logits. Where a
      window has fewer, -1 and -inf follow, so that the shape is the same for
      any S. `null_start_logits` and `null_end_logits`, float32 [b]: of no
      answer, those of place 0.
    """
    starts, ends = outputs["start_logits"], outputs["end_logits"]
    start_logits, start_places = _best(starts, input_mask, count)
    end_logits, end_places = _best(ends, input_mask, count)
    return {
        "start_places": start_places,
        "start_logits": start_logits,
        "end_places": end_places,
        "end_logits": end_logits,
        "null_start_logits": starts[:, 0],
        "null_end_logits": ends[:, 0],
    }


def _loss(features: Mapping, outputs: Mapping):
    """The mean of the cross-entropies of start and end, float32 [b]."""
    losses = [
        keras.losses.sparse_categorical_crossentropy(
            features[f"{name}_positions"],
            _masked(outputs[f"{name}_logits"], features["input_mask"], _NEVER),
            from_logits=True,
        )
        for name in ("start", "end")
    ]
    return (losses[0] + losses[1]) / 2


def _best(logits, mask, count: int):
    """The highest logits that are no padding's, and their places.

    Both are [b, count], of [b, S]. What is added at the end makes `count` a
    number that is known when the graph is made, however short the sequence.
    """
    logits = _masked(logits, mask, -np.inf)
    logits = ops.pad(logits, [[0, 0], [0, count]], constant_values=-np.inf)
    best, places = ops.top_k(logits, count)
    # NaN has no place either.
    is_place = best > -np.inf
    return best, ops.where(is_place, ops.cast(places, "int32"), -1)


def _masked(logits, mask, value: float):
    """`value` where the mask is 0: [b, S] -> float32 [b, S]."""
    return ops.where(ops.cast(mask, "bool"), logits, value)
