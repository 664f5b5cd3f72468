"""Schemas of records: the name, shape and type of each feature.

The writer (`records.encode_batch`) and the reader (`pipeline`) use the same
schema, so they cannot disagree. In all schemas, `input_ids`, `input_mask` and
`segment_ids` are padded with 0 to `max_seq_length`.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

# The features that have token ids.
VOCABULARY_FEATURES = ("input_ids", "masked_lm_ids")
# The features of a sequence that models take.
INPUTS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One fixed-length feature of a `tf.train.Example`."""

    name: str
    shape: tuple[int, ...]  # In one example; () for a single value.
    dtype: Literal["int64", "float32"] = "int64"  # In the file.
    length_option: str | None = None  # Sets the length of the last axis.

    @property
    def size(self) -> int:
        """The number of values in one example."""
        return math.prod(self.shape)

    @property
    def is_sequence(self) -> bool:
        """Whether the last axis is the padded sequence."""
        return self.length_option == "max_seq_length"


Schema = tuple[Feature, ...]


def pretraining_schema(
    max_seq_length: int, max_predictions_per_seq: int
) -> Schema:
    """Returns the features of a pre-training example, as in the original.

    The `masked_lm_*` features are padded to `max_predictions_per_seq`, with
    weight 0.0. `next_sentence_labels` is 0 for a real next segment and 1 for a
    random one.
    """
    option = "max_predictions_per_seq"
    predictions = (max_predictions_per_seq,)
    return (
        *_sequences(INPUTS, max_seq_length),
        Feature("masked_lm_positions", predictions, "int64", option),
        Feature("masked_lm_ids", predictions, "int64", option),
        Feature("masked_lm_weights", predictions, "float32", option),
        Feature("next_sentence_labels", (1,)),
    )


def classification_schema(
    max_seq_length: int,
    problem: str = "single_label",
    num_labels: int = 0,
    num_choices: int = 0,
    has_windows: bool = False,
) -> Schema:
    """Returns the features of a text, or a pair of texts, with its label.

    For multiple choice the sequences have a row for each choice, and for
    similarity one for each text of the pair. `label_ids` is the number of the
    class or of the correct choice; for regression and similarity the value,
    float32; for multi-label classification 1 for each class that applies and 0
    for the others. `is_real_example` is 0 for padding of the last batch. With a
    single label these are the features of the original's `run_classifier.py`.

    Args:
      problem: One of `examples.PROBLEMS`, or "similarity".
      num_labels: The number of classes, for multi-label classification.
      num_choices: The number of choices, for multiple choice.
      has_windows: Whether a row is a window of a text and also has its
        `window_numbers`, from 0 in each text, and `num_windows` of the text.
    """
    sides = {"multiple_choice": (num_choices,), "similarity": (2,)}
    label = Feature(
        "label_ids",
        (num_labels,) if problem == "multi_label" else (),
        "float32" if problem in ("regression", "similarity") else "int64",
    )
    names = ("window_numbers", "num_windows") if has_windows else ()
    return (
        *_sequences(INPUTS, *sides.get(problem, ()), max_seq_length),
        label,
        Feature("is_real_example", ()),
        *(Feature(name, ()) for name in names),
    )


def tagging_schema(max_seq_length: int) -> Schema:
    """Returns the features of a sentence whose words have labels.

    `label_mask` is 1 at the first token of each word and 0 elsewhere;
    `label_ids` has the number of the word's label there, and 0 elsewhere.
    """
    return _sequences((*INPUTS, "label_ids", "label_mask"), max_seq_length)


def span_schema(max_seq_length: int) -> Schema:
    """Returns the features of a question with a window of its context.

    `start_positions` and `end_positions` are the positions of the answer's
    first and last token, or 0, the position of [CLS], if the answer is unknown
    or not in the window. `is_impossible` is 1 if the context does not contain
    the answer. The original's `run_squad.py` has the same features (in
    `FeatureWriter`), but omits the last three for prediction.
    """
    return (
        Feature("unique_ids", ()),
        *_sequences(INPUTS, max_seq_length),
        Feature("start_positions", ()),
        Feature("end_positions", ()),
        Feature("is_impossible", ()),
    )


def _sequences(names: Iterable[str], *shape: int) -> Schema:
    """Returns integer features whose last axis is the padded sequence."""
    return tuple(
        Feature(name, shape, "int64", "max_seq_length") for name in names
    )
