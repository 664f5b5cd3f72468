"""The right ending among several: SWAG."""

from typing import Any

import keras

from bert_tf.heads import BertMultipleChoice
from bert_tf.tasks.classification import ClassificationTask


class MultipleChoiceTask(ClassificationTask):
    """Section 4.4 of the paper: a softmax over the scores of the choices.

    The arguments are those of `ClassificationTask`, its `labels` the names of
    the choices, "0" to "3" for SWAG. Features have an axis more, [B, C, S].
    """

    problems = ("multiple_choice",)
    head = "choice"

    def make_model(self, **options: Any) -> keras.Model:
        return BertMultipleChoice(self.config, **options)
