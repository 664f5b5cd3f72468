"""What a record holds: each feature's name, shape and type, written once.

The writer (`records.encode_batch`) and the reader (`pipeline`) both derive
from a schema, so they cannot disagree.
"""

import dataclasses
import math

DTYPES = ("int64", "float32")

# The features whose values index the vocabulary's embedding table.
VOCABULARY_FEATURES = ("input_ids", "masked_lm_ids")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One fixed-length feature of a `tf.train.Example`.

    Attributes:
      name: Its key in the record.
      shape: Its shape in one example; `()` for a single value.
      dtype: "int64" or "float32", the type in the file.
      length_flag: The flag that sets the length of the last axis, no dashes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "int64"
    length_flag: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(
                f"Expected a dtype of {DTYPES} for feature {self.name!r}. "
                f"Received: {self.dtype!r}"
            )
        if min(self.shape, default=1) < 1:
            raise ValueError(
                f"Expected dimensions of at least 1 for feature {self.name!r}. "
                f"Received: shape={self.shape}"
            )

    @property
    def size(self) -> int:
        """The number of values in one example."""
        return math.prod(self.shape)

    @property
    def is_sequence(self) -> bool:
        """Whether its last axis is as long as the padded sequence."""
        return self.length_flag == "max_seq_length"


Schema = tuple[Feature, ...]


def pretraining_schema(
    max_seq_length: int, max_predictions_per_seq: int
) -> Schema:
    """The features of a pre-training example, as the original writes them.

    `input_ids`, `input_mask` and `segment_ids` are padded with 0 to
    `max_seq_length`; the `masked_lm_*` features to `max_predictions_per_seq`,
    with weight 0.0. `next_sentence_labels` is 0 for a real next segment and 1
    for a random one.
    """
    sequence = (max_seq_length,), "int64", "max_seq_length"
    flag = "max_predictions_per_seq"
    predictions = (max_predictions_per_seq,)
    return (
        Feature("input_ids", *sequence),
        Feature("input_mask", *sequence),
        Feature("segment_ids", *sequence),
        Feature("masked_lm_positions", predictions, "int64", flag),
        Feature("masked_lm_ids", predictions, "int64", flag),
        Feature("masked_lm_weights", predictions, "float32", flag),
        Feature("next_sentence_labels", (1,)),
    )


def classification_schema(
    max_seq_length: int,
    problem: str = "single_label",
    num_labels: int = 0,
    num_choices: int = 0,
) -> Schema:
    """The features of a text or a pair with its label.

    `input_ids`, `input_mask` and `segment_ids` are padded with 0 to
    `max_seq_length`; multiple choice has a row of each for every choice.
    `label_ids` is the number of the class or of the right choice; for
    regression the value itself, float32; for multi-label 1 at each class that
    applies and 0 elsewhere. `is_real_example` is 1, and 0 for what only fills
    up the last batch. With a single label these are the original's, from
    `file_based_convert_examples_to_features` of `run_classifier.py`.

    Args:
      max_seq_length: Places of a sequence.
      problem: One of `examples.PROBLEMS`.
      num_labels: How many classes there are; multi-label asks for it.
      num_choices: How many choices there are; multiple choice asks for it.
    """
    choices = (num_choices,) if problem == "multiple_choice" else ()
    sequence = (*choices, max_seq_length), "int64", "max_seq_length"
    return (
        Feature("input_ids", *sequence),
        Feature("input_mask", *sequence),
        Feature("segment_ids", *sequence),
        _label_feature(problem, num_labels),
        Feature("is_real_example", ()),
    )


def tagging_schema(max_seq_length: int) -> Schema:
    """The features of a sentence whose words have labels.

    `input_ids`, `input_mask` and `segment_ids` are padded with 0 to
    `max_seq_length`. `label_mask` is 1 at the first piece of each word and 0
    elsewhere; `label_ids` is the number of the word's label there, 0 elsewhere.
    """
    sequence = (max_seq_length,), "int64", "max_seq_length"
    return (
        Feature("input_ids", *sequence),
        Feature("input_mask", *sequence),
        Feature("segment_ids", *sequence),
        Feature("label_ids", *sequence),
        Feature("label_mask", *sequence),
    )


def span_schema(max_seq_length: int) -> Schema:
    """The features of a question with a window of its context.

    `input_ids`, `input_mask` and `segment_ids` are padded with 0 to
    `max_seq_length`. `start_positions` and `end_positions` are the places of
    the answer's first and last piece, both 0, the place of [CLS], where the
    window does not hold it or it is not known. `is_impossible` is 1 where the
    whole context does not hold it. They are the original's, from
    `FeatureWriter` of `run_squad.py`, which leaves the last three out of
    what is to be predicted.
    """
    sequence = (max_seq_length,), "int64", "max_seq_length"
    return (
        Feature("unique_ids", ()),
        Feature("input_ids", *sequence),
        Feature("input_mask", *sequence),
        Feature("segment_ids", *sequence),
        Feature("start_positions", ()),
        Feature("end_positions", ()),
        Feature("is_impossible", ()),
    )


def _label_feature(problem: str, num_labels: int) -> Feature:
    if problem == "regression":
        return Feature("label_ids", (), "float32")
    if problem == "multi_label":
        return Feature("label_ids", (num_labels,))
    return Feature("label_ids", ())
