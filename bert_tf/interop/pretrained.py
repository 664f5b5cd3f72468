"""`Pretrained`: what a checkpoint holds, whichever format it came in."""

import dataclasses
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.training.weights import Weights

# What a model computes, and which weights it has beside the encoder's.
HEADS = (
    "encoder",
    "pretraining",
    "masked_lm",
    "next_sentence",
    "classifier",
    "choice",
    "token",
    "span",
)

# One number, one of the classes, or any of them; in the words of transformers,
# which chooses the loss by it.
PROBLEM_TYPES = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)

# What pre-training predicted of words.
OBJECTIVES = ("masked_lm", "causal_lm")

# How texts became features and answers in training; flags of the scripts.
TRAINED_WITH = (
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "version_2_with_negative",
)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model as it lies on disk, by the names and terms of this project.

    Every format has a `read` that gives one and a `write` that takes one. What
    a format does not tell is None.

    Attributes:
      path: Where it was read from, for messages.
      weights: The weights by their TF1 names, read when they are asked for.
      config: The configuration.
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is an uncased one.
      strip_accents: Whether accents are dropped. None does as `do_lower_case`,
        as where nothing is known of either.
      labels: The names of the classes, in the order of the logits.
      head: One of `HEADS`.
      problem_type: What a classifier's labels mean: one of `PROBLEM_TYPES`.
      classifier_dropout: The dropout before the classes, where it is another
        than that of the layers.
      objective: What its head for words predicts, one of `OBJECTIVES`: the
        token at a place, or the one behind it. None is the former.
      max_seq_length: The length that it was trained with.
      doc_stride: Questions: pieces from one window to the next in training.
      max_query_length: Questions: the pieces of a question that were kept.
      version_2_with_negative: Whether questions may have no answer.

    Raises:
      InputError: `head` is none of `HEADS`, `problem_type` none of
        `PROBLEM_TYPES`, or `objective` none of `OBJECTIVES`.
    """

    path: str
    weights: Weights
    config: BertConfig | None = None
    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    labels: tuple[str, ...] | None = None
    head: str | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = None
    objective: str | None = None
    max_seq_length: int | None = None
    doc_stride: int | None = None
    max_query_length: int | None = None
    version_2_with_negative: bool | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("head", HEADS),
            ("problem_type", PROBLEM_TYPES),
            ("objective", OBJECTIVES),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InputError(
                    f"expected one of {', '.join(known)} as {name}. "
                    f"Received: {value!r} (in {self.path})"
                )

    @property
    def trained_with(self) -> dict[str, Any]:
        """What is known of `TRAINED_WITH`."""
        values = {name: getattr(self, name) for name in TRAINED_WITH}
        return {name: v for name, v in values.items() if v is not None}

    @property
    def bilstm_head(self) -> bool:
        """Whether its head stands on a BiLSTM, see `heads.TaskModel`."""
        return any(name.startswith("bilstm/") for name in self.weights.shapes)
