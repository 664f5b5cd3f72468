"""Fine-tunes BERT on sentence-level tasks: the job of run_classifier.py.

Its options and files are explained in options.py.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.checkpoints.pretrained import require_activation
from bert_tf.errors import InputError, wrong_value
from bert_tf.jobs import settings
from bert_tf.jobs.fine_tuning import Split, Steps, fine_tune
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.trainings import TrainingResult
from bert_tf.kinds.classification.graph import (
    ServedClassifier,
    ServedMultipleChoice,
)
from bert_tf.kinds.classification.options import ClassifierConfig
from bert_tf.kinds.classification.task import (
    ClassificationTask,
    MultipleChoiceTask,
)
from bert_tf.serving.served import Served, require_lines
from bert_tf.tasks import datasets
from bert_tf.tasks.datasets import DataSet, SplitFile
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example, read_examples
from bert_tf.tasks.predictions import (
    answers,
    probabilities,
    write_predictions,
    write_submission,
    write_test_results,
)
from bert_tf.tasks.task import IS_LABELED, Rows, balanced_class_weights


def run(
    config: ClassifierConfig,
    make_task: Callable[..., ClassificationTask] = ClassificationTask,
) -> TrainingResult:
    """Fine-tunes, evaluates, predicts and exports a sentence classifier.

    `make_task` takes the arguments of `ClassificationTask`.
    """
    config.check()
    names = settings.splits(config)
    config, start = resolve(config, "classifier", "choice")
    config.require_effect("doc_stride")
    if config.doc_stride is not None and config.window_pooling is None:
        config = dataclasses.replace(config, window_pooling="mean")
    data_set = _data_set(config, start)
    if config.do_export:
        require_lines(data_set.labels, "labels.txt")
    # All files are found before one is read.
    parts = {name: data_set.split(name, config.data_dir) for name in names}
    splits = [
        Split(name, part.read(), [part.path], part.source.suffix)
        for name in names
        for part in parts[name]
    ]
    is_choice = data_set.problem == "multiple_choice"
    encoding = _encoding(config, data_set, start)
    rows_per_example, class_weights = 1.0, None
    if config.do_train:
        splits[0], rows_per_example = _training_set(
            splits[0], config, data_set, encoding
        )
        class_weights = _class_weights(config, data_set, splits[0].examples)
    task = (MultipleChoiceTask if is_choice else make_task)(
        start.config,
        encoding,
        data_set.metrics,
        positive_label=data_set.positive_label,
        class_weights=class_weights,
        label_smoothing=config.label_smoothing,
        dropout=config.head_dropout,
        eval_batch_size=config.eval_batch_size,
        rows_per_example=rows_per_example,
        is_pair=None if is_choice else data_set.is_pair,
        **settings.model_options(config, start.config),
    )
    metrics = [*(f"eval_{name}" for name in task.metrics), "eval_loss", "loss"]
    dev = [p.source for p in parts["dev"]] if "dev" in parts else data_set.dev
    suffixes = dict.fromkeys(source.suffix for source in dev) or [""]
    return fine_tune(
        config,
        start,
        task,
        splits,
        name=data_set.model_of,
        steps=_Steps(task, config, data_set, parts.get("test", [])),
        serve=functools.partial(_served, task=task, is_pair=data_set.is_pair),
        metrics=[name + suffix for suffix in suffixes for name in metrics],
        # A later run fails if it leaves out the --text_b_column of this one.
        facts={"is_pair": data_set.is_pair},
        inputs=filter(None, [config.unlabeled_file]),
    )


class _Steps(Steps):
    """Marks the training rows that have labels, and writes predictions."""

    def __init__(
        self,
        task: ClassificationTask,
        config: ClassifierConfig,
        data_set: DataSet,
        test: Sequence[SplitFile],
    ):
        super().__init__(task)
        self._has_unlabeled = bool(config.unlabeled_file)
        self._data_set = data_set
        self._submissions = {
            part.source.suffix: part.source.submission for part in test
        }

    def rename(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        return self._data_set.with_labels(labels).labels

    def complete(self, split: Split) -> Split:
        if split.name != "train" or not self._has_unlabeled:
            return split
        assert split.features is not None
        flags = np.array([e.label is not None for e in split.examples], np.int8)
        arrays = split.features.arrays
        if "window_numbers" in arrays:
            flags = flags[Rows.of(arrays["window_numbers"]).examples]
        arrays = {**arrays, IS_LABELED: flags}
        features = dataclasses.replace(split.features, arrays=arrays)
        return dataclasses.replace(split, features=features)

    def write(
        self, split: Split, predictions: Mapping[str, np.ndarray], folder: str
    ) -> None:
        if not split.is_predicted:
            return
        problem, labels = self.task.problem, self.task.labels
        values = probabilities(problem, predictions["logits"])
        path = os.path.join(folder, f"test_results{split.suffix}.tsv")
        write_test_results(path, values)
        path = os.path.join(folder, f"predictions{split.suffix}.tsv")
        write_predictions(path, split.examples, problem, labels, values)
        submission = self._submissions[split.suffix]
        if submission:
            write_submission(
                os.path.join(folder, "glue_submission", submission),
                [example.id for example in split.examples],
                answers(problem, labels, values),
            )


def _data_set(config: ClassifierConfig, start: Start) -> DataSet:
    """Returns the data set of --task_name, or of custom files."""
    if config.task_name.lower() == datasets.CUSTOM:
        is_new = config.do_train or config.problem == "regression"
        data_set = config.custom_data_set(
            config.problem,
            labels=config.labels or (None if is_new else start.labels),
        )
    else:
        data_set = config.official_data_set()
        if not config.unlabeled_file:  # It has the columns of custom files.
            config.warn_ignored()
    if not config.do_train:
        require_activation(
            start.path,
            start.activation_fn,
            data_set.problem,
            "Remove it from config.json to use the outputs before it.",
        )
    return data_set.with_labels(start.labels or (), is_trained=config.do_train)


def _training_set(
    train: Split,
    config: ClassifierConfig,
    data_set: DataSet,
    encoding: Encoding,
) -> tuple[Split, float]:
    """Adds the examples of --unlabeled_file, if given, to a training set.

    Returns:
      The training set, and the mean number of rows of a labeled example.
    """
    num_rows = encoding.count_rows(train.examples)
    rows_per_example = num_rows / len(train.examples)
    unlabeled = _read_unlabeled(config, data_set)
    num_rows += encoding.count_rows(unlabeled)
    examples = [*train.examples, *unlabeled]
    train = dataclasses.replace(train, examples=examples, num_rows=num_rows)
    return train, rows_per_example


def _read_unlabeled(
    config: ClassifierConfig, data_set: DataSet
) -> list[Example]:
    """Returns the texts of --unlabeled_file, if given."""
    if not config.unlabeled_file:
        return []
    if data_set.problem == "multiple_choice":
        raise InputError(
            "`unlabeled_file` is for texts and pairs, not for the choices of "
            f"{data_set.name}. Leave it out."
        )
    columns: dict[str, str] = {"text_a": config.text_a_column}
    if data_set.is_pair:
        if config.text_b_column is None:
            raise InputError(
                "`unlabeled_file` needs `text_b_column`, since the examples of "
                f"{data_set.name} are pairs."
            )
        columns["text_b"] = config.text_b_column
    return read_examples(
        config.unlabeled_file,
        columns,
        data_set.target,
        has_header=config.header,
        is_labelled=False,
    )


def _encoding(
    config: ClassifierConfig, data_set: DataSet, start: Start
) -> Encoding:
    is_choice = data_set.problem == "multiple_choice"
    return start.encoding(
        Encoding,
        config.max_seq_length,
        problem=data_set.problem,
        labels=data_set.labels,
        num_choices=len(data_set.labels) if is_choice else 0,
        doc_stride=config.doc_stride,
        window_pooling=config.window_pooling or "mean",
    )


def _served(model: Any, task: ClassificationTask, is_pair: bool) -> Served:
    """Returns the model to export, which takes strings."""
    if task.problem == "multiple_choice":
        return ServedMultipleChoice(model, task.encoding, len(task.labels))
    return ServedClassifier(model, task, is_pair)


def _class_weights(
    config: ClassifierConfig, data_set: DataSet, train: Sequence[Example]
) -> Sequence[float] | None:
    """Returns the numbers of --class_weights, if given."""
    weights, labels = config.class_weights, data_set.labels
    if weights == ("balanced",) and data_set.problem == "single_label":
        names = [e.label for e in train if e.label is not None]
        label_ids = [labels.index(name) for name in names]
        return balanced_class_weights(label_ids, len(labels))
    try:
        return weights and [float(weight) for weight in weights]
    except ValueError:
        raise wrong_value(
            "`class_weights`",
            "a number for each label, or balanced for a single_label problem",
            ",".join(weights),
        ) from None
