"""Scores of exported models on labelled files.

The metrics are the same as in `run_classifier.py`, `run_ner.py` and
`run_squad.py`. The model is a function from features to outputs: the signature
`tokens` of an export.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf import metrics
from bert_tf.data.batching import Features
from bert_tf.data.schema import INPUTS
from bert_tf.errors import InputError, wrong_value
from bert_tf.tasks import answers
from bert_tf.tasks.answers import AnswerRules
from bert_tf.tasks.classification import decide
from bert_tf.tasks.conll import (
    Sentence,
    TaggingEncoding,
    word_tags,
)
from bert_tf.tasks.datasets import DataSet
from bert_tf.tasks.encoding import label_id
from bert_tf.tasks.examples import Example
from bert_tf.tasks.question_answering import best_indexes
from bert_tf.tasks.questions import Question, SpanEncoding

# Maps features, int32 [n, ..., S], to the outputs of a model for each row.
Ask = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
Score = Callable[[Ask], dict[str, float]]


def read_as(data_set: DataSet, path: str) -> list[Example]:
    """Reads a file as the development set of a data set.

    Raises:
      InputError: The data set has no development set, or the file does not
        have its columns.
    """
    if not data_set.dev:
        raise wrong_value(
            "`task_name`", "a task with a development set", data_set.name
        )
    source = dataclasses.replace(data_set.dev[0], files=(path,))
    [part] = dataclasses.replace(data_set, dev=(source,)).split("dev", "")
    return part.read()


def texts_of(
    examples: Sequence[Example], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Returns the texts of examples by the names of an export's inputs.

    They are arrays of strings, [n], and [n, C] for `choices`.

    Raises:
      InputError: Either the examples or the inputs are pairs, but not both.
    """
    is_pair = "text_b" in names
    if is_pair != (examples[0].text_b is not None):
        kinds = {True: "pairs of texts", False: "single texts"}
        raise InputError(
            f"The export takes {kinds[is_pair]}; the file has "
            f"{kinds[not is_pair]}."
        )
    columns = {
        "text": [e.text_a for e in examples],
        "text_a": [e.text_a for e in examples],
        "text_b": [e.text_b for e in examples],
        "context": [e.text_a for e in examples],
        "choices": [list(e.choices) for e in examples],
    }
    return {name: np.array(columns[name], object) for name in names}


def score_classes(
    data_set: DataSet,
    examples: Sequence[Example],
    features: Mapping[str, np.ndarray],
) -> Score:
    """Returns a function that scores a model's `probabilities` or `score`.

    It computes the metrics of the data set, for examples with labels and their
    features, one row each. Models of regression return `score`.
    """
    numbers = {name: number for number, name in enumerate(data_set.labels)}
    labels = [
        label_id(example.label, data_set.problem, numbers)
        for example in examples
    ]
    positive = data_set.positive_label
    positive_class = data_set.labels.index(positive) if positive else 0

    def score(ask: Ask) -> dict[str, float]:
        answer = ask(features)
        values = answer[
            "score" if data_set.problem == "regression" else "probabilities"
        ]
        return metrics.compute(
            data_set.metrics,
            np.array(labels),
            decide(data_set.problem, values),
            positive_class,
        )

    return score


def score_tags(
    sentences: Sequence[Sentence], encoding: TaggingEncoding
) -> Score:
    """Returns a function that scores the `tag_ids` of a model.

    It computes F1, precision, recall and accuracy.

    Raises:
      InputError: A tag is not among the labels.
    """
    batch = encoding.encode(sentences).batch
    gold = [sentence.tags for sentence in sentences]

    def score(ask: Ask) -> dict[str, float]:
        answer = ask({name: batch[name] for name in INPUTS})
        tags = word_tags(
            answer["tag_ids"],
            batch["label_mask"][:, : answer["tag_ids"].shape[1]],
            sentences,
            encoding.labels,
        )
        scores = metrics.entity_scores(gold, tags)
        return {
            name: scores[name]
            for name in ("f1", "precision", "recall", "accuracy")
        }

    return score


def score_answers(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_negative: bool,
) -> Score:
    """Returns a function that scores a model's `start_logits` and `end_logits`.

    It computes SQuAD's official F1 and exact match.
    """
    rules = AnswerRules(with_negative=with_negative)

    def score(ask: Ask) -> dict[str, float]:
        def predict(windows: Features) -> dict[str, np.ndarray]:
            features = {
                name: windows.arrays[name].astype(np.int32) for name in INPUTS
            }
            answer = ask(features)
            length = answer["start_logits"].shape[1]
            mask = features["input_mask"][:, :length]
            best = best_indexes(answer, mask, encoding.max_seq_length)
            return {name: np.asarray(value) for name, value in best.items()}

        predicted = answers.answer_questions(
            questions, encoding, predict, rules
        )
        scores = answers.official_scores(predicted, with_negative)
        return {
            name.removeprefix("eval_"): scores[name]
            for name in answers.metric_names(with_negative)
        }

    return score
