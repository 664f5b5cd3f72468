"""Fine-tunes BERT on a sentence-level task: GLUE, XNLI, SWAG, your own file.

    python run_classifier.py \\
        --task_name=mrpc --data_dir=glue_data/MRPC \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/mrpc_output \\
        --do_train --do_eval --do_predict \\
        --max_seq_length=128 --train_batch_size=32 \\
        --learning_rate=2e-5 --num_train_epochs=3

The configuration, the vocabulary and the casing are the checkpoint's own, or
those that --bert_config_file, --vocab_file and --do_lower_case name. A file of
your own, TSV, CSV or JSON lines:

    python run_classifier.py --task_name=custom --data_dir=my_data \\
        --text_a_column=review --label_column=stars ...

The output directory then holds `eval_results.txt` and `.json`,
`test_results.tsv` (the original's: probabilities), `predictions.tsv` (with the
texts and labels), and `release/`: the fine-tuned model with its vocabulary and
labels, which --init_checkpoint takes; --do_export writes a SavedModel for
TensorFlow Serving into `export/`. The same command given again goes on where it
was stopped. Source: `run_classifier.py` of google-research/bert; sections 4.1,
4.4 and appendix A.3 of the paper.
"""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.data import cache, jobs
from bert_tf.data.examples import Example
from bert_tf.data.features import Encoding, content
from bert_tf.errors import InputError
from bert_tf.fine_tuning import command_line, output_folder, places, runs
from bert_tf.fine_tuning.inputs import Inputs, Split
from bert_tf.fine_tuning.start import Start
from bert_tf.serving.classifiers import (
    ServedClassifier,
    ServedMultipleChoice,
)
from bert_tf.serving.served import Served, require_lines
from bert_tf.tasks import custom, datasets
from bert_tf.tasks.classification import (
    ClassificationTask,
    balanced_class_weights,
)
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.parts import DataSet, Part
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.trial_results import Trial
from bert_tf.training.workers import chief_first

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "Folder of the task's files.")
flags.DEFINE_string(
    "task_name", None, f"One of {', '.join((*datasets.NAMES, custom.NAME))}."
)
flags.DEFINE_string(
    "xnli_language", "zh", "XNLI: language of the development and test sets."
)
flags.DEFINE_string(
    "xnli_train_language",
    None,
    "XNLI: language of the training set; the same if it is not given.",
)
flags.DEFINE_string(
    "train_file", None, "custom: the training file; train.tsv (.csv, .jsonl)."
)
flags.DEFINE_string(
    "dev_file", None, "custom: the development file; dev.tsv, valid.tsv ..."
)
flags.DEFINE_string("test_file", None, "custom: the test file; test.tsv ...")
flags.DEFINE_string(
    "text_a_column",
    "text",
    "custom: column of the text: its name, or its number from 0.",
)
flags.DEFINE_string(
    "text_b_column", None, "custom: column of the second text of a pair."
)
flags.DEFINE_string(
    "label_column",
    "label",
    "custom: column of the label; several, between commas, for a multi_label "
    "problem whose columns hold 0 or 1.",
)
flags.DEFINE_string(
    "id_column", None, "custom: column that names the rows in predictions."
)
flags.DEFINE_bool(
    "header", True, "custom: whether the first line names the columns."
)
flags.DEFINE_list(
    "labels", None, "custom: the labels; those of the training file."
)
flags.DEFINE_string(
    "label_separator", ",", "custom: what is between several labels."
)
flags.DEFINE_enum(
    "problem",
    "single_label",
    list(custom.PROBLEMS),
    "custom: one label of several, any number of them, or a number.",
)
flags.DEFINE_bool(
    "skip_malformed_rows",
    False,
    "Whether to leave out, and count, rows with a wrong number of columns and "
    "JSON lines that lack a key.",
)
flags.DEFINE_bool(
    "allow_label_mapping",
    False,
    "Whether to use a model whose labels have other names than the task's: "
    "its classes are taken for the task's labels, in their order.",
)
flags.DEFINE_list(
    "class_weights",
    None,
    "What an example of each class counts in training: 'balanced', or a "
    "number for each, in the order of the labels.",
)
flags.DEFINE_float(
    "label_smoothing",
    0.0,
    "Share of an example's weight that is spread over all labels in training.",
)
flags.DEFINE_float(
    "head_dropout",
    0.1,
    "Share of the values under the new head that training sets to 0.",
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.DEFINE_bool(
    "glue_submission",
    False,
    "Whether predictions are written to glue_submission/ in the "
    "leaderboard's format, too.",
)
flags.DEFINE_string(
    "glue_submission_dir",
    None,
    "Folder of these files, which may be one for all tasks; glue_submission "
    "in --output_dir if it is not given.",
)
flags.DEFINE_integer(
    "num_workers",
    None,
    "Processes that tokenize; as many as there are CPUs if not given.",
    lower_bound=1,
)
bert_flags.define_training_flags()
command_line.define_flags()
bert_flags.define_device_flags()


def main() -> None:
    """Reads the flags, fine-tunes, evaluates and predicts."""
    splits = command_line.splits()
    if splits and not FLAGS.data_dir:
        raise InputError("expected --data_dir. Received: none")
    start = places.find_start("classifier", "choice")
    data_set = _data_set(start)
    _check_flags(data_set)
    # What is at fault shows before anything is written.
    parts = {split: data_set.split(split, FLAGS.data_dir) for split in splits}
    examples = {
        split: [part.read() for part in found] for split, found in parts.items()
    }
    encoding = _encoding(data_set, start)
    task = _task(data_set, start.config, encoding, examples.get("train"))
    strategy = bert_flags.connect()
    config = command_line.training_config(start.config)
    schedule = command_line.schedule(_metric_names(task, data_set, parts))
    plan = {}
    if FLAGS.do_train:
        plan = schedule.plan(config, len(*examples["train"]), strategy)
    _claim_output_dir(strategy, data_set, start, parts, examples)
    inputs = Inputs(
        FLAGS.output_dir,
        encoding,
        command_line.padding(strategy),
        FLAGS.num_workers or jobs.available_cpus(),
    )
    data = chief_first(
        strategy,
        functools.partial(_load, inputs, parts, examples),
        "make the records",
    )
    if FLAGS.do_train:
        estimator = _train(task, strategy, start, plan, schedule, inputs, data)
    else:
        estimator = runs.open_model(
            task, strategy, start, FLAGS.output_dir, config
        )
    if FLAGS.do_eval:
        metrics = inputs.evaluate(data["dev"], estimator)
        runs.write_metrics(estimator, FLAGS.output_dir, metrics)
    for split in data.get("test", []):
        _predict(estimator, inputs, split)
    serve = functools.partial(_served, data_set=data_set, encoding=encoding)
    places.export(estimator, data_set.model_of, serve)


def _load(
    inputs: Inputs,
    parts: Mapping[str, Sequence[Part]],
    examples: Mapping[str, Sequence[list[Example]]],
) -> dict[str, list[Split]]:
    """The parts of every split, ready to be used."""
    return {
        split: [
            inputs.load(split, part, read)
            for part, read in zip(found, examples[split], strict=True)
        ]
        for split, found in parts.items()
    }


def _predict(estimator: Estimator, inputs: Inputs, split: Split) -> None:
    """Writes what the model says of a test set, or of a part of it."""
    kept = estimator.predict(
        inputs.evaluation_data(split), FLAGS.predict_batch_size
    )
    if is_chief(estimator.strategy):
        estimator.task.write_predictions(
            FLAGS.output_dir,
            split.examples,
            kept,
            split.suffix,
            _submission(split) if FLAGS.glue_submission else None,
        )


def _data_set(start: Start) -> DataSet:
    """The row of the table, or what the flags say of the user's own files."""
    if FLAGS.task_name.lower() == custom.NAME:
        found = _custom_data_set(start)
    else:
        found = datasets.find(
            FLAGS.task_name,
            language=FLAGS.xnli_language,
            train_language=FLAGS.xnli_train_language,
            skip_malformed=FLAGS.skip_malformed_rows,
        )
    return found.with_labels(
        start.labels or (),
        is_trained=FLAGS.do_train,
        allow_mapping=FLAGS.allow_label_mapping,
    )


def _custom_data_set(start: Start) -> DataSet:
    labels = FLAGS.labels
    if labels is None and not FLAGS.do_train:
        labels = start.labels
    return custom.data_set(
        FLAGS.data_dir or "",
        train_file=FLAGS.train_file,
        dev_file=FLAGS.dev_file,
        test_file=FLAGS.test_file,
        text_a_column=FLAGS.text_a_column,
        text_b_column=FLAGS.text_b_column,
        id_column=FLAGS.id_column,
        label_column=FLAGS.label_column,
        has_header=FLAGS.header,
        problem=FLAGS.problem,
        labels=labels,
        label_separator=FLAGS.label_separator,
        skip_malformed=FLAGS.skip_malformed_rows,
    )


def _check_flags(data_set: DataSet) -> None:
    """Compares flags with each other and with the task."""
    if FLAGS.do_export:
        require_lines(data_set.labels, "labels.txt")
    names = [plan.submission for plan in data_set.test]
    if FLAGS.glue_submission and not any(names):
        raise InputError(
            "expected --glue_submission with a task of GLUE. Received: "
            f"--task_name={data_set.name}"
        )
    if FLAGS.glue_submission and not FLAGS.do_predict:
        raise InputError(
            "expected --do_predict with --glue_submission. Received: "
            "--nodo_predict"
        )


def _claim_output_dir(
    strategy: Any,
    data_set: DataSet,
    start: Start,
    parts: Mapping[str, Sequence[Part]],
    examples: Mapping[str, Sequence[list[Example]]],
) -> None:
    facts = output_folder.facts(
        data_set.model_of, data_set.problem, data_set.labels, start
    )
    # Two texts of a file of one's own may be left out by mistake.
    facts["is_pair"] = data_set.is_pair
    for train in examples.get("train", []):
        facts["training_set"] = cache.checksum(map(content, train))
    sources = [
        f for found in parts.values() for part in found for f in part.files
    ]
    dev = itertools.chain.from_iterable(examples.get("dev", []))
    places.claim_output_dir(
        strategy, facts, sources, cache.checksum(map(content, dev))
    )


def _encoding(data_set: DataSet, start: Start) -> Encoding:
    is_choice = data_set.problem == "multiple_choice"
    return Encoding(
        vocab=start.vocab,
        do_lower_case=start.do_lower_case,
        strip_accents=start.strip_accents,
        max_seq_length=FLAGS.max_seq_length,
        problem=data_set.problem,
        labels=data_set.labels,
        num_choices=len(data_set.labels) if is_choice else 0,
    )


def _task(
    data_set: DataSet,
    config: BertConfig,
    encoding: Encoding,
    train: Sequence[list[Example]] | None,
) -> ClassificationTask:
    is_choice = data_set.problem == "multiple_choice"
    kind = MultipleChoiceTask if is_choice else ClassificationTask
    return kind(
        config,
        encoding.schema,
        data_set.problem,
        data_set.labels,
        data_set.metrics,
        positive_label=data_set.positive_label,
        class_weights=_class_weights(data_set, *train) if train else None,
        label_smoothing=FLAGS.label_smoothing,
        dropout=FLAGS.head_dropout,
        frozen_layers=command_line.frozen_layers(config),
        gradient_checkpointing=FLAGS.gradient_checkpointing,
        bilstm_head=FLAGS.bilstm_head,
        eval_batch_size=FLAGS.eval_batch_size,
    )


def _served(model: Any, data_set: DataSet, encoding: Encoding) -> Served:
    """How the model answers strings."""
    if data_set.problem == "multiple_choice":
        return ServedMultipleChoice(model, encoding, encoding.num_choices)
    return ServedClassifier(
        model, encoding, data_set.labels, data_set.problem, data_set.is_pair
    )


def _class_weights(
    data_set: DataSet, train: list[Example]
) -> Sequence[float] | None:
    """What --class_weights says, in numbers."""
    weights, labels = FLAGS.class_weights, data_set.labels
    if weights == ["balanced"] and data_set.problem == "single_label":
        label_ids = [labels.index(example.label) for example in train]
        return balanced_class_weights(label_ids, len(labels))
    try:
        return weights and [float(weight) for weight in weights]
    except ValueError:
        raise InputError(
            "expected --class_weights=balanced, for a problem of one label, "
            f"or a number for each label. Received: {','.join(weights)} for "
            f"{data_set.problem}"
        ) from None


def _metric_names(
    task: ClassificationTask,
    data_set: DataSet,
    parts: Mapping[str, Sequence[Part]],
) -> list[str]:
    """The names that evaluation gives, or would give, of all its parts."""
    names = [*(f"eval_{name}" for name in task.metrics), "eval_loss", "loss"]
    found = [part.suffix for part in parts.get("dev", data_set.dev)]
    return [name + suffix for suffix in found or [""] for name in names]


def _train(
    task: ClassificationTask,
    strategy: Any,
    start: Start,
    plan: Mapping[Trial, TrainingConfig],
    schedule: runs.Schedule,
    inputs: Inputs,
    data: Mapping[str, Sequence[Split]],
) -> Estimator:
    """Trains, and releases the model that is kept."""
    [train] = data["train"]
    estimator = runs.FineTuning(
        task,
        strategy,
        start,
        FLAGS.output_dir,
        plan,
        schedule,
        training_data=functools.partial(inputs.training_data, train),
        evaluate=functools.partial(inputs.evaluate, data.get("dev", [])),
        metric=f"eval_{task.metrics[0]}",
        tokens_per_example=float(train.features.lengths.mean()),
    ).train()
    runs.release(
        estimator,
        FLAGS.output_dir,
        start,
        labels=task.labels or None,
        head=task.head,
        problem_type=task.problem_type,
        **places.trained_with(),
    )
    return estimator


def _submission(split: Split) -> str | None:
    """The file in which the leaderboard wants this part."""
    folder = FLAGS.glue_submission_dir
    folder = folder or os.path.join(FLAGS.output_dir, "glue_submission")
    return split.submission and os.path.join(folder, split.submission)


if __name__ == "__main__":
    bert_flags.run(main, required=["task_name", "output_dir"])
