"""Fine-tunes BERT on sentence-level tasks: the job of run_classifier.py.

Its options and files are explained in options/classifier.py.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import command
from bert_tf.data import buckets, cache, processes
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, wrong_value
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.options.classifier import ClassifierConfig
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.teacher import find_teacher
from bert_tf.serving.served import (
    Served,
    ServedClassifier,
    ServedMultipleChoice,
    require_lines,
)
from bert_tf.tasks import custom
from bert_tf.tasks.classification import (
    ClassificationTask,
    MultipleChoiceTask,
    balanced_class_weights,
    require_activation,
)
from bert_tf.tasks.datasets import DataSet, SplitFile
from bert_tf.tasks.distillation import IS_LABELED
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example, read_examples
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of a data set, or one of its parts, such as MNLI's matched part.

    Attributes:
      examples: The examples as they were read.
      features: The inputs of the model, in the same order.
      suffix: What names of metrics and files end with, such as "_mismatched".
      submission: The file name in a submission to the GLUE leaderboard.
    """

    examples: list[Example]
    features: Features
    suffix: str = ""
    submission: str | None = None


@settings.precision_restored()
def run(config: ClassifierConfig) -> TrainingResult:
    """Fine-tunes, evaluates, predicts and exports a sentence classifier."""
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, "classifier", "choice")
    config = _with_pooling(config)
    data_set = _data_set(config, start)
    _check_options(config, data_set, start)
    # All input is checked before anything is written.
    parts = {split: data_set.split(split, config.data_dir) for split in splits}
    examples = {
        split: [part.read() for part in found] for split, found in parts.items()
    }
    encoding = _encoding(config, data_set, start)
    num_rows, rows_per_example = None, 1.0
    if config.do_train:
        num_rows, rows_per_example = _add_unlabeled(
            *examples["train"], config, data_set, encoding
        )
    task = _task(
        *(config, data_set, start, encoding),
        *(examples.get("train"), rows_per_example),
    )
    tuning = fine_tuning.prepare(
        config,
        start,
        task,
        _metric_names(task, data_set, parts),
        num_rows,
        find_teacher(
            *(config, start, task),
            functools.partial(_names_in, data_set, config),
        ),
    )
    with _claimed_output_dir(tuning, data_set, encoding, parts, examples):
        data = chief_first(
            tuning.strategy,
            functools.partial(_load, config, encoding, parts, examples),
            "make the records",
        )
        evaluate = functools.partial(_evaluate, data.get("dev", []), tuning)
        features = None
        if config.do_train:
            [train] = data["train"]
            features = train.features
            if config.unlabeled_file:
                features = _with_is_labeled(train)
        estimator = tuning.train_or_open(features, evaluate)
        metrics = {}
        if config.do_eval:
            metrics = evaluate(estimator)
            tuning.write_metrics(estimator, metrics)
        for split in data.get("test", []):
            _predict(tuning, estimator, split)
        serve = functools.partial(_served, data_set=data_set, encoding=encoding)
        return tuning.finish(estimator, metrics, data_set.model_of, serve)


def _names_in(
    data_set: DataSet, config: ClassifierConfig, labels: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the labels of a teacher as a data set spells them."""
    mapping = config.allow_label_mapping
    return data_set.with_labels(labels, allow_mapping=mapping).labels


def _with_pooling(config: ClassifierConfig) -> ClassifierConfig:
    """Returns the options with the default of --window_pooling."""
    config.require_windows()
    if config.doc_stride is None or config.window_pooling is not None:
        return config
    return dataclasses.replace(config, window_pooling="mean")


def _load(
    config: ClassifierConfig,
    encoding: Encoding,
    parts: Mapping[str, Sequence[SplitFile]],
    examples: Mapping[str, Sequence[list[Example]]],
) -> dict[str, list[Split]]:
    """Writes the records of all splits, unless they exist, and loads them."""
    num_workers = config.num_workers or processes.available_cpus()
    loaded: dict[str, list[Split]] = {}
    for split, found in parts.items():
        loaded[split] = []
        for part, read in zip(found, examples[split], strict=True):
            path = fine_tuning.record_file(config, split, part.suffix)
            encoding.write(
                path, read, sources=part.files, num_workers=num_workers
            )
            features = buckets.load(path, encoding.schema, len(encoding.vocab))
            loaded[split].append(
                Split(read, features, part.suffix, part.submission)
            )
    return loaded


def _evaluate(
    splits: Iterable[Split], tuning: FineTuning, estimator: Estimator
) -> dict[str, float]:
    """Returns the metrics of all parts, with their suffixes."""
    metrics: dict[str, float] = {}
    for split in splits:
        found = estimator.evaluate(tuning.evaluation_data(split.features))
        step = found.pop("global_step")
        metrics |= {f"{k}{split.suffix}": v for k, v in found.items()}
        metrics["global_step"] = step
    return metrics


def _predict(tuning: FineTuning, estimator: Estimator, split: Split) -> None:
    """Writes the predictions of a test set, or of a part of it."""
    config = tuning.config
    predictions = estimator.predict(
        tuning.evaluation_data(split.features), config.predict_batch_size
    )
    if is_chief(estimator.strategy):
        estimator.task.write_predictions(
            config.output_dir,
            split.examples,
            predictions,
            split.suffix,
            _submission(config, split) if config.glue_submission else None,
        )


def _data_set(config: ClassifierConfig, start: Start) -> DataSet:
    """Returns the data set of --task_name, or of custom files."""
    if config.task_name.lower() == custom.NAME:
        found = _custom_data_set(config, start)
    else:
        found = config.official_data_set()
    return found.with_labels(
        start.labels or (),
        is_trained=config.do_train,
        allow_mapping=config.allow_label_mapping,
    )


def _custom_data_set(config: ClassifierConfig, start: Start) -> DataSet:
    labels = config.labels
    if (
        labels is None
        and not config.do_train
        and config.problem != "regression"
    ):
        labels = start.labels
    return custom.data_set(
        config.data_dir or "",
        train_file=config.train_file,
        dev_file=config.dev_file,
        test_file=config.test_file,
        text_a_column=config.text_a_column,
        text_b_column=config.text_b_column,
        id_column=config.id_column,
        label_column=config.label_column,
        has_header=config.header,
        problem=config.problem,
        labels=labels,
        label_separator=config.label_separator,
        skip_malformed=config.skip_malformed_rows,
    )


def _add_unlabeled(
    train: list[Example],
    config: ClassifierConfig,
    data_set: DataSet,
    encoding: Encoding,
) -> tuple[int, float]:
    """Adds the examples of --unlabeled_file, if given, to a training set.

    Returns:
      The number of rows, and the mean number of rows of a labeled example.
    """
    num_rows = encoding.count_rows(train)
    rows_per_example = num_rows / len(train)
    if config.unlabeled_file:
        unlabeled = _read_unlabeled(config, data_set)
        num_rows += encoding.count_rows(unlabeled)
        train += unlabeled
    return num_rows, rows_per_example


def _read_unlabeled(
    config: ClassifierConfig, data_set: DataSet
) -> list[Example]:
    """Returns the texts of --unlabeled_file."""
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
        skip_malformed=config.skip_malformed_rows,
    )


def _with_is_labeled(train: Split) -> Features:
    """Returns the features of a training set that has texts without labels."""
    flags = np.array([e.label is not None for e in train.examples], np.int8)
    arrays = train.features.arrays
    if "window_numbers" in arrays:
        flags = flags[np.cumsum(arrays["window_numbers"] == 0) - 1]
    arrays = {**arrays, IS_LABELED: flags}
    return dataclasses.replace(train.features, arrays=arrays)


def _check_options(
    config: ClassifierConfig, data_set: DataSet, start: Start
) -> None:
    """Compares options with the task and the checkpoint."""
    if not config.do_train:
        require_activation(
            start.init_checkpoint or config.output_dir,
            start.activation_fn,
            data_set.problem,
            "Remove it from config.json to use the outputs before it.",
        )
    if config.do_export:
        require_lines(data_set.labels, "labels.txt")
    config.warn_ignored()


def _claimed_output_dir(
    tuning: FineTuning,
    data_set: DataSet,
    encoding: Encoding,
    parts: Mapping[str, Sequence[SplitFile]],
    examples: Mapping[str, Sequence[list[Example]]],
) -> contextlib.AbstractContextManager[None]:
    facts = tuning.facts(data_set.model_of, data_set.problem, data_set.labels)
    # A later run with custom files fails if it leaves out --text_b_column.
    facts["is_pair"] = data_set.is_pair
    config = tuning.config
    for train in examples.get("train", []):
        facts["training_set"] = cache.checksum(map(encoding.fingerprint, train))
    sources = [
        f for found in parts.values() for part in found for f in part.files
    ]
    sources += filter(None, [config.unlabeled_file])
    dev = itertools.chain.from_iterable(examples.get("dev", []))
    return output_folder.claimed(
        config,
        tuning.strategy,
        facts,
        sources,
        cache.checksum(map(encoding.fingerprint, dev)),
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


def _task(
    config: ClassifierConfig,
    data_set: DataSet,
    start: Start,
    encoding: Encoding,
    train: Sequence[list[Example]] | None,
    rows_per_example: float,
) -> ClassificationTask:
    is_choice = data_set.problem == "multiple_choice"
    kind = MultipleChoiceTask if is_choice else ClassificationTask
    return kind(
        start.config,
        encoding,
        data_set.metrics,
        positive_label=data_set.positive_label,
        class_weights=_class_weights(config, data_set, *train)
        if train
        else None,
        label_smoothing=config.label_smoothing,
        dropout=config.head_dropout,
        frozen_layers=settings.frozen_layers(config, start.config),
        gradient_checkpointing=config.gradient_checkpointing,
        bilstm_head=config.bilstm_head,
        eval_batch_size=config.eval_batch_size,
        rows_per_example=rows_per_example,
    )


def _served(model: Any, data_set: DataSet, encoding: Encoding) -> Served:
    """Returns the model to export, which takes strings."""
    if data_set.problem == "multiple_choice":
        return ServedMultipleChoice(model, encoding, encoding.num_choices)
    return ServedClassifier(
        model, encoding, data_set.labels, data_set.problem, data_set.is_pair
    )


def _class_weights(
    config: ClassifierConfig, data_set: DataSet, train: list[Example]
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


def _metric_names(
    task: ClassificationTask,
    data_set: DataSet,
    parts: Mapping[str, Sequence[SplitFile]],
) -> list[str]:
    """Returns the names of all metrics of an evaluation."""
    names = [*(f"eval_{name}" for name in task.metrics), "eval_loss", "loss"]
    suffixes = {part.suffix: None for part in parts.get("dev", data_set.dev)}
    return [name + suffix for suffix in suffixes or [""] for name in names]


def _submission(config: ClassifierConfig, split: Split) -> str | None:
    """Returns the path of a part's file for the GLUE leaderboard."""
    folder = config.glue_submission_dir
    folder = folder or os.path.join(config.output_dir, "glue_submission")
    return split.submission and os.path.join(folder, split.submission)


if __name__ == "__main__":
    command.run_job("classifier")
